"""Snapshots and restores beside everything else that does the like: the tables and the plot of docs/benchmarks.md.

One process for each plugin (and set of packages) holds the same arrays; every method is measured in turn, round by
round, so that what else the machine does falls on all. Arrays of a GiB and more, which would not fit beside each other
with all that the methods keep, are held by one process after the other, and methods follow one another.

Tables are measured with new processes several times: which memory the kernel gives a process makes its copies faster or
slower, by a third here, for as long as it lives.
"""

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import CHECKOUT, Measuring, duration

SERVER = CHECKOUT / "benches" / "snapshots.py"
PLOT = CHECKOUT / "docs" / "snapshots.svg"
REQUIREMENTS = CHECKOUT / "python" / "requirements" / "pathways.txt"

MIB, GIB = 1 << 20, 1 << 30
SIZES = [MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB, 4 * GIB]
# How often a large array is there while it is measured: on the device, in two snapshots, and restored.
COPIES = 4
# So many sets of processes share the rounds.
GENERATIONS = 3

# Column, process, method.
TO_HOST = [
    ("memcpy", "raw", "memcpy"),
    ("**Mainstay snapshot**", "ours", "snapshot"),
    ("Mainstay `device_put` to `pinned_host`", "ours", "to_pinned"),
    ("plugin `device_put` to `pinned_host`", "raw", "to_pinned"),
    ("plugin `device_get`", "raw", "device_get"),
    ("pathwaysutils 0.1.4", "raw", "pathways"),
    ("Orbax `Snapshotter`", "newer", "orbax_snapshot"),
    ("Orbax save, in memory", "raw", "orbax_save"),
]
TO_DEVICE = [
    ("memcpy", "raw", "memcpy"),
    ("**Mainstay restore**", "ours", "restore"),
    ("Mainstay `device_put` from `pinned_host`", "ours", "from_pinned"),
    ("plugin `device_put` from `pinned_host`", "raw", "from_pinned"),
    ("Orbax `Snapshotter`", "newer", "orbax_load"),
    ("Orbax restore, from memory", "raw", "orbax_restore"),
]
COLORS = ["#888888", "#c0392b", "#e59866", "#2471a3", "#28a745", "#7d3c98", "#17a2b8", "#b7950b"]

Columns = Sequence[tuple[str, str, str]]


def others(pathwaysutils: str) -> Path:
    """Orbax and a version of pathwaysutils, installed once, under build/; only benches and one test use them."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    command: list[str | Path] = [
        sys.executable,
        CHECKOUT / "scripts" / "packages.py",
        f"bench-{pathwaysutils}-{tag}",
        "-r",
        REQUIREMENTS,
        f"pathwaysutils=={pathwaysutils}",
    ]
    return Path(subprocess.check_output(command, text=True).strip())


def available() -> int:
    """Bytes of memory that the machine has left."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) << 10


Seconds = dict[tuple[str, str], float]


class Measured:
    """The bytes of a subject, and how long processes' methods took."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.size = 0
        self.taken: dict[tuple[str, str], list[float]] = {}

    def measure(self, servers: dict[str, Measuring], methods: dict[str, list[str]], subject: str, rounds: int) -> None:
        """Measures each of the servers' methods, in turn; a first round is not counted."""
        for server in servers.values():
            self.size = server.ask("hold", subject)
        for number in range(rounds + 1):
            for name, server in servers.items():
                for method in methods[name]:
                    self._measure(name, method, server, counts=number > 0)
        for server in servers.values():
            server.ask("drop")

    def measure_alone(
        self, environments: dict[str, dict[str, str]], methods: dict[str, list[str]], subject: str, rounds: int
    ) -> None:
        """The same for what is too large to be there several times: one process after the other, method by method."""
        for name, env in environments.items():
            server = Measuring(SERVER, env)
            self.size = server.ask("hold", subject)
            for method in methods[name]:
                for number in range(rounds + 1):
                    self._measure(name, method, server, counts=number > 0)
                server.ask("forget")
            server.close()

    def _measure(self, name: str, method: str, server: Measuring, *, counts: bool) -> None:
        seconds = server.ask("measure", method)
        # A method that can't have a subject has no figure.
        if counts and seconds is not None:
            self.taken.setdefault((name, method), []).append(seconds)

    def medians(self) -> Seconds:
        """Of what was measured."""
        return {key: statistics.median(seconds) for key, seconds in self.taken.items()}


def size_name(size: int) -> str:
    """A size for people."""
    return f"{size // GIB} GiB" if size >= GIB else f"{size // MIB} MiB"


def print_table(title: str, columns: Columns, rows: list[tuple[str, Any]]) -> None:
    """One row for each subject: how long, and Mainstay's part of the speed of memcpy."""
    print(f"\n{title}:\n")
    print("| |", " | ".join(name for name, _, _ in columns), "| of memcpy |")
    print("|---|" + "---|" * (len(columns) + 1))
    ours = columns[1][1:]
    for name, seconds in rows:
        cells = [duration(seconds[key]) if (key := column[1:]) in seconds else "" for column in columns]
        print(f"| {name} |", " | ".join(cells), f"| {seconds['raw', 'memcpy'] / seconds[ours]:.0%} |", flush=True)


def plot(title: str, columns: Columns, rows: list[tuple[int, Any]], left: int) -> str:
    """One panel: gigabytes a second over size, both logarithmic."""
    width, height = 300, 220
    sizes = [size for size, _ in rows]
    low, high = 0.05, 20.0
    reach = max(math.log(sizes[-1] / sizes[0]), 1e-9)

    def at(size: int, rate: float) -> tuple[float, float]:
        x = left + width * math.log(size / sizes[0]) / reach
        return x, 30 + height * (1 - math.log(min(max(rate, low), high) / low) / math.log(high / low))

    parts = [f'<text x="{left}" y="18" font-weight="bold">{title}, GB/s</text>']
    for rate in (0.1, 1, 10):
        y = at(sizes[0], rate)[1]
        parts.append(
            f'<path d="M{left} {y:.0f}h{width}" stroke="#ddd"/><text x="{left - 26}" y="{y + 4:.0f}">{rate}</text>'
        )
    for size in sizes:
        parts.append(f'<text x="{at(size, 1)[0] - 18:.0f}" y="{height + 48}">{size_name(size)}</text>')
    for color, (name, *key) in zip(COLORS, columns, strict=False):
        points = [at(size, size / seconds[tuple(key)] / 1e9) for size, seconds in rows if tuple(key) in seconds]
        if points:
            line = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
            stroke = 3 if "**" in name else 1.5
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{stroke}"/>')
    for number, (color, (name, *_)) in enumerate(zip(COLORS, columns, strict=False)):
        label = name.replace("*", "").replace("`", "")
        parts.append(f'<text x="{left}" y="{height + 70 + 16 * number}" fill="{color}">{label}</text>')
    return "\n".join(parts)


def save_plot(rows: list[tuple[int, Any]]) -> None:
    """Writes docs/snapshots.svg."""
    panels = plot("To the host", TO_HOST, rows, 40), plot("To the device", TO_DEVICE, rows, 420)
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="780" height="400" font-family="sans-serif" font-size="11">'
    PLOT.write_text("\n".join([head, '<rect width="780" height="400" fill="white"/>', *panels, "</svg>"]) + "\n")


def run(environments: Any, rounds: int, largest: int, with_plot: bool) -> None:
    """Measures and prints. `environments(slices)` gives those of Mainstay and the real plugin, by their names here."""
    # The last version that has snapshots of its own, and one that Orbax's stand on.
    older, newer = others("0.1.4"), others("0.1.13")

    def with_others(env: dict[str, str], path: Path) -> dict[str, str]:
        return env | {"PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(path)])}

    for slices, sizes in ((1, SIZES), (2, [64 * MIB, GIB])):
        ours, raw = (environments(slices)[name] for name in ("ours", "raw"))
        of_all = {"ours": ours, "raw": with_others(raw, older), "newer": with_others(raw, newer)}
        where = "one slice" if slices == 1 else "arrays over two slices"
        sized = run_one(of_all, (TO_HOST, TO_DEVICE), where, sizes, rounds, largest)
        if slices == 1 and with_plot:
            save_plot(sized)


def run_one(
    environments: dict[str, dict[str, str]],
    tables: tuple[Columns, Columns],
    where: str,
    sizes: Sequence[int],
    rounds: int,
    largest: int,
) -> list[tuple[int, Any]]:
    """Measures and prints the two tables of one setup; the rows of one large array, by its bytes."""
    methods = {
        name: sorted({method for table in tables for _, of, method in table if of == name}) for name in environments
    }
    # Often: one call is short, and what was done before it tells.
    with_calls = methods | {"ours": [one for method in methods["ours"] for one in (method, "call")]}
    fitting = [size for size in sizes if size <= largest]
    small, state = Measured(), Measured()
    measured = {size: Measured() for size in fitting}
    stalls = []
    for generation in range(GENERATIONS):
        servers = {name: Measuring(SERVER, env) for name, env in environments.items()}
        for size in (size for size in fitting if size < GIB):
            measured[size].measure(servers, methods, str(size), math.ceil(rounds / GENERATIONS))
        for subject, one in (("small", small), ("state", state)):
            one.measure(servers, with_calls, subject, math.ceil(rounds / GENERATIONS))
        if generation == 0:
            stalls = [stall_of(servers["ours"], 4 * rounds, with_free_core) for with_free_core in (False, True)]
        for server in servers.values():
            server.close()
        for size in (size for size in fitting if size >= GIB):
            if COPIES * size > available():
                print(f"bench: no room to measure {size_name(size)}", file=sys.stderr)
                continue
            measured[size].measure_alone(environments, methods, str(size), math.ceil(rounds / GENERATIONS / 2))
    sized = [(size, one.medians()) for size, one in measured.items() if one.taken]
    named = [
        ("1,000 arrays of 1 KiB", small.medians()),
        (f"training state, {size_name(state.size)}", state.medians()),
    ]
    rows = [(size_name(size), seconds) for size, seconds in sized] + named
    print_table(f"To the host, {where}", tables[0], rows)
    print_table(f"To the device, {where}", tables[1], rows)
    print()
    for name, seconds in named:
        print(f"- The call that begins a snapshot, {name}: {duration(seconds['ours', 'call'])}.")
    for stall in stalls:
        print(f"- {stall}", flush=True)
    return sized


def stall_of(server: Measuring, pairs: int, with_free_core: bool) -> str:
    """What snapshots every 10 steps cost a training loop: the median over pairs of tens of steps, the middle half."""
    if with_free_core and len(os.sched_getaffinity(0)) < 2:
        return "There is no core to be left free."
    seconds = server.ask("stall", pairs, with_free_core)
    low, middle, high = statistics.quantiles([with_one / without - 1 for without, with_one in seconds])
    step = duration(statistics.median(without for without, _ in seconds))
    where = "with a core free of training" if with_free_core else "training on all cores"
    return f"A training step of {step}, {where}: {middle:+.1%} with a snapshot every 10 ({low:+.1%} to {high:+.1%})."
