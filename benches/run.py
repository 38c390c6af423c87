#!/usr/bin/env python3
"""Compares Mainstay with the real plugin: `make bench`. Prints the table of docs/benchmarks.md.

One process per plugin stays up; every measurement alternates between them, so that what else the machine does
falls on both. The figure is the median over the rounds.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import recovery
import snapshot_table

CHECKOUT = Path(__file__).resolve().parent.parent
OPERATIONS = CHECKOUT / "benches" / "operations.py"
LIBRARY = CHECKOUT / "target" / "release" / "libmainstay.so"


def environment(platform: str, library: Path, create_options: dict[str, object], folder: Path) -> dict[str, str]:
    """The environment in which JAX has one plugin, with these options, as its platform."""
    config = folder / f"{platform}.json"
    config.write_text(json.dumps({"library_path": str(library), "create_options": create_options}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSTAY_", "JAX_"))}
    return kept | {
        "PJRT_NAMES_AND_LIBRARY_PATHS": f"{platform}:{config}",
        "JAX_PLATFORMS": platform,
        "PYTHONPATH": str(CHECKOUT / "python"),
    }


class Bench:
    """A process that measures on one plugin."""

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        """Starts the process and waits until its client is there."""
        self.process = subprocess.Popen(
            [sys.executable, OPERATIONS, *arguments], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.names: list[str] = json.loads(self.answer())

    def ask(self, name: str) -> float:
        """Seconds of one operation."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return float(self.answer())

    def answer(self) -> str:
        """The next line that the process prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"bench: {self.process.args!r} ended with exit code {self.process.wait()}")
        return line.strip()

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def start_up(env: dict[str, str]) -> float:
    """Seconds that a fresh process takes to make its client, without the imports."""
    code = "import jax, time; b = time.perf_counter(); jax.devices(); print(time.perf_counter() - b)"
    return float(subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=120))


def show(name: str, raw: list[float], ours: list[float]) -> None:
    """Prints one row: medians and their ratio."""
    plugin, mainstay = statistics.median(raw), statistics.median(ours)
    unit = megabytes if name.startswith("memory") else duration
    print(f"| {name} | {unit(plugin)} | {unit(mainstay)} | {mainstay / plugin:.2f} |", flush=True)


def compare(raw: Bench, ours: Bench, only: str, rounds: int) -> None:
    """Measures by turns what has `only` in its name, prints a row of each, and ends both processes."""
    for name in filter(lambda name: only in name, raw.names):
        pairs = [(raw.ask(name), ours.ask(name)) for _ in range(rounds)]
        show(name, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    raw.close()
    ours.close()


def duration(seconds: float) -> str:
    """A time with a unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.2f} {unit}"
    return f"{seconds * 1e6:.1f} µs"


def megabytes(size: float) -> str:
    """A number of bytes in MiB."""
    return f"{size / (1 << 20):.0f} MiB"


def main() -> None:
    """Measures everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each operation on each plugin")
    parser.add_argument("--only", default="", help="measure only what has this in its name; `snapshots`: their tables")
    parser.add_argument("--largest", type=int, default=1024, help="largest array in the snapshots' tables, in MiB")
    parser.add_argument("--save-plot", action="store_true", help="write docs/snapshots.svg")
    arguments = parser.parse_args()
    plugin = Path(subprocess.check_output([sys.executable, CHECKOUT / "scripts" / "plugins.py"], text=True).strip())
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.only != "snapshots":
            operations(plugin, folder, arguments.rounds, arguments.only)
        if arguments.only in ("", "snapshots"):
            largest = arguments.largest << 20
            both = functools.partial(both_environments, plugin, folder, largest)
            snapshot_table.run(both, min(arguments.rounds, 5), largest, arguments.save_plot)
    if arguments.only in "recovery":
        recovery.show(arguments.rounds)
    print(f"\nall in {time.perf_counter() - begin:.0f} s on {os.cpu_count()} cores")


def operations(plugin: Path, folder: Path, rounds: int, only: str) -> None:
    """The tables of operations, on one slice and on several."""
    through = {"plugin": str(plugin), "slices": 1, "devices_per_slice": 1}
    raw_env = environment("raw", plugin, {"cpu_device_count": 1}, folder)
    ours_env = environment("mainstay", LIBRARY, through, folder)
    print("| operation | real plugin | Mainstay | ratio |\n|---|---|---|---|")
    compare(Bench(raw_env), Bench(ours_env), only, rounds)
    if only in "start":
        two = environment("mainstay", LIBRARY, through | {"slices": 2}, folder)
        times = [(start_up(raw_env), start_up(two)) for _ in range(3)]
        show("start of a client (with 2 slices)", [pair[0] for pair in times], [pair[1] for pair in times])
    eight = environment("raw", plugin, {"cpu_device_count": 8}, folder)
    for slices in (2, 4):
        print(f"\n| on {slices} slices of {8 // slices} devices | real plugin | Mainstay | ratio |\n|---|---|---|---|")
        spanning: dict[str, object] = {"plugin": str(plugin), "slices": slices, "devices_per_slice": 8 // slices}
        ours = environment(f"mainstay{slices}", LIBRARY, spanning, folder)
        compare(Bench(eight, "spanning"), Bench(ours, "spanning"), only, rounds)


def both_environments(plugin: Path, folder: Path, largest: int, slices: int) -> dict[str, dict[str, str]]:
    """Those of the real plugin and of Mainstay, one device for each slice, and memory for what is measured."""
    memory = str(3 * largest + (1 << 30))
    through = {"plugin": str(plugin), "slices": slices, "devices_per_slice": 1, "host_memory": memory}
    return {
        "raw": environment("raw", plugin, {"cpu_device_count": slices}, folder),
        "ours": environment("mainstay", LIBRARY, through, folder),
    }


if __name__ == "__main__":
    main()
