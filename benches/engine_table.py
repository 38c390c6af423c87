"""The snapshot engine without Python: runs `benches/engine` (Rust, criterion), and prints its results as tables."""

import json
import subprocess
import sys
import time
from pathlib import Path

from measuring import CHECKOUT, clean_environment, duration
from snapshot_table import Columns, Seconds, print_table

TARGET = CHECKOUT / "target"
RESULTS = TARGET / "criterion"

# Column, plugin, method: as the bench names it.
TABLES: dict[str, tuple[str, Columns]] = {
    "snapshot": (
        "To the host, without Python",
        [
            ("memcpy", "raw", "memcpy"),
            ("**Mainstay snapshot**", "ours", "mainstay"),
            ("plugin, to `pinned_host`", "raw", "pinned_host"),
            ("plugin, to memory of one's own", "raw", "to_host"),
        ],
    ),
    "restore": (
        "To the device, without Python",
        [
            ("memcpy", "raw", "memcpy"),
            ("**Mainstay restore**", "ours", "mainstay"),
            ("plugin, from `pinned_host`", "raw", "pinned_host"),
        ],
    ),
}

# Seconds by what was measured, of which arrays, and over how many slices: "" for what has none.
Results = dict[tuple[str, str, str], Seconds]


def run(plugin: Path, largest: int) -> None:
    """Measures and prints. What criterion says meanwhile goes to standard error."""
    given = {
        "CRITERION_HOME": str(RESULTS),
        "MAINSTAY_TEST_PLUGIN": str(plugin),
        "MAINSTAY_BENCH_LARGEST": str(largest >> 20),
    }
    begin = time.time()
    # In a folder of its own: criterion's needs change how dependencies are built, and with them the library, so that
    # this build and that of `make build` would undo each other.
    command = ["cargo", "bench", "--locked", "--bench", "engine", "--target-dir", str(TARGET / "bench")]
    if subprocess.run(command, cwd=CHECKOUT, env=clean_environment() | given, stdout=sys.stderr).returncode:
        sys.exit("bench: the bench of the engine failed; above is why")
    measured = results(begin)
    for what, (title, columns) in TABLES.items():
        print_table(title, columns, rows(measured, what))
    print()
    for (what, subject, setup), seconds in measured.items():
        if what == "take":
            print(f"- The call that begins a snapshot, {subject}, {setup}: {duration(seconds['ours', 'mainstay'])}.")


def results(since: float) -> Results:
    """The medians of what was measured since then, in the order in which it was."""
    files = [(path.stat().st_mtime, path) for path in RESULTS.glob("**/new/estimates.json")]
    measured: Results = {}
    for _, path in sorted(file for file in files if file[0] >= since):
        benchmark = json.loads(path.with_name("benchmark.json").read_text())
        nanoseconds = json.loads(path.read_text())["median"]["point_estimate"]
        what, subject = benchmark["group_id"].split("/")
        # What does not depend on slices has no method beside its parameter.
        method, setup = benchmark["function_id"], benchmark["value_str"]
        key = ("ours" if method == "mainstay" else "raw", method) if method else ("raw", setup)
        measured.setdefault((what, subject, setup if method else ""), {})[key] = nanoseconds / 1e9
    return measured


def rows(measured: Results, what: str) -> list[tuple[str, Seconds]]:
    """One row for each subject and number of slices, with the `memcpy` of its group."""
    return [
        (subject if setup == "1 slice" else f"{subject}, {setup}", measured[what, subject, ""] | seconds)
        for (of, subject, setup), seconds in measured.items()
        if of == what and setup
    ]
