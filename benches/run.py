#!/usr/bin/env python3
"""Compares Mainstay with the real plugin: `make bench`. Prints the table of docs/benchmarks.md.

One process per plugin stays up; every measurement alternates between them, so that what else the machine does
falls on both. The figure is the median over the rounds.
"""

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import engine_table
import recovery
import snapshot_table
from measuring import CHECKOUT, LIBRARY, Measuring, default_plugin, duration, environment

OPERATIONS = CHECKOUT / "benches" / "operations.py"
# What `--only` can name beside operations.
PARTS = ("snapshots", "recovery", "engine")


def start_up(env: dict[str, str]) -> float:
    """Seconds that a fresh process takes to make its client, without the imports."""
    code = "import jax, time; b = time.perf_counter(); jax.devices(); print(time.perf_counter() - b)"
    return float(subprocess.check_output([sys.executable, "-c", code], env=env, text=True, timeout=120))


def show(name: str, raw: list[float], ours: list[float]) -> None:
    """Prints one row: medians and their ratio."""
    plugin, mainstay = statistics.median(raw), statistics.median(ours)
    unit = megabytes if name.startswith("memory") else duration
    print(f"| {name} | {unit(plugin)} | {unit(mainstay)} | {mainstay / plugin:.2f} |", flush=True)


def compare(raw_env: dict[str, str], ours_env: dict[str, str], only: str, rounds: int, *of: str) -> None:
    """Measures by turns, in a process for each plugin, what has `only` in its name, and prints a row of each."""
    raw, ours = Measuring(OPERATIONS, raw_env, *of), Measuring(OPERATIONS, ours_env, *of)
    for name in filter(lambda name: only in name, raw.ask("names")):
        pairs = [(raw.ask("measure", name), ours.ask("measure", name)) for _ in range(rounds)]
        show(name, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    raw.close()
    ours.close()


def megabytes(size: float) -> str:
    """A number of bytes in MiB."""
    return f"{size / (1 << 20):.0f} MiB"


def main() -> None:
    """Measures everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each operation on each plugin")
    parser.add_argument("--only", default="", help=f"{', '.join(PARTS)}, or the operations with this in their name")
    parser.add_argument("--largest", type=int, default=1024, help="largest array in the tables of snapshots, in MiB")
    parser.add_argument("--save-plot", action="store_true", help="write docs/snapshots.svg")
    arguments = parser.parse_args()
    plugin = default_plugin()
    largest = arguments.largest << 20
    wanted = PARTS if not arguments.only else (arguments.only,)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.only not in PARTS:
            operations(plugin, folder, arguments.rounds, arguments.only)
        if "snapshots" in wanted:
            both = functools.partial(both_environments, plugin, folder, largest)
            snapshot_table.run(both, min(arguments.rounds, 5), largest, arguments.save_plot)
    if "recovery" in wanted:
        recovery.show(arguments.rounds)
    if "engine" in wanted:
        engine_table.run(plugin, largest)
    print(f"\nall in {time.perf_counter() - begin:.0f} s on {os.cpu_count()} cores")


def operations(plugin: Path, folder: Path, rounds: int, only: str) -> None:
    """The tables of operations, on one slice and on several."""
    through = {"plugin": str(plugin), "slices": 1, "devices_per_slice": 1}
    raw_env = environment("raw", plugin, {"cpu_device_count": 1}, folder)
    ours_env = environment("mainstay", LIBRARY, through, folder)
    print("| operation | real plugin | Mainstay | ratio |\n|---|---|---|---|")
    compare(raw_env, ours_env, only, rounds)
    if only in "start":
        two = environment("mainstay", LIBRARY, through | {"slices": 2}, folder)
        times = [(start_up(raw_env), start_up(two)) for _ in range(3)]
        show("start of a client (with 2 slices)", [pair[0] for pair in times], [pair[1] for pair in times])
    eight = environment("raw", plugin, {"cpu_device_count": 8}, folder)
    for slices in (2, 4):
        print(f"\n| on {slices} slices of {8 // slices} devices | real plugin | Mainstay | ratio |\n|---|---|---|---|")
        spanning: dict[str, object] = {"plugin": str(plugin), "slices": slices, "devices_per_slice": 8 // slices}
        ours = environment(f"mainstay{slices}", LIBRARY, spanning, folder)
        compare(eight, ours, only, rounds, "spanning")


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
