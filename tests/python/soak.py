"""Elastic training under random faults, for as long as one likes: `make soak ARGS="--faults 1000"`.

Three slices and a spare train the digits model. Again and again, at a random moment, workers are killed (SIGKILL) or
stopped (SIGSTOP): of a slice, of two slices, of a slice and the spare, or of a slice and soon after its replacement.
After each fault training has to be back on all slices within a bound. At the end memory, threads, descriptors and
mappings are as they were after the first faults, and the parameters are those of a training that made the same changes
of slices and lost nothing. The seed fixes what is done to which slice, and when.
"""

import argparse
import contextlib
import gc
import itertools
import os
import random
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from harness import RESTLESS

# What is not set already.
os.environ.update(
    {
        "JAX_PLATFORMS": "mainstay",
        "MAINSTAY_SLICES": "3",
        "MAINSTAY_DEVICES_PER_SLICE": "1",
        "MAINSTAY_SPARES": "1",
        "MAINSTAY_HEARTBEAT_TIMEOUT": "2s",
        **RESTLESS,
        **os.environ,
    }
)

import jax
import numpy as np

import mainstay
from digits_model import batch_of, digits, mesh_of, put_batch
from elastic_training import Watcher, start, train, train_by_plan
from mainstay import elastic
from probe import usage

# Kinds of faults, and how often each is chosen.
KINDS = {"kill": 5, "stop": 2, "kill two": 1, "stop two": 1, "kill slice and spare": 1, "kill its replacement too": 2}
# A fault is recovered from within this time, in seconds, or the soak has failed.
BOUND = 60.0
# So many faults at first may make caches grow.
WARM_UP = 20
MEMORY_KIB, SHARED_KIB, COUNT = 64 * 1024, 16 * 1024, 6


@dataclass
class Fault:
    """One fault, and what came after it, in seconds: the error, the next step done, the next step on all slices."""

    kind: str
    detected: float | None = None
    went_on: float | None = None
    recovered: float | None = None


class Soak(Watcher):
    """Does the faults, one after the other, and times them. Other threads only send signals and set `at`."""

    def __init__(self, faults: int, minutes: float, seed: int) -> None:
        """So many faults, or fewer if the time is over, of this seed."""
        self.final_step = 2**40
        self.count, self.until = faults, time.monotonic() + 60 * minutes
        self.rng = random.Random(seed)  # noqa: S311
        self.done: list[Fault] = []
        self.now: Fault | None = None
        self.at = 0.0
        self.is_acting = False
        self.victims: set[int] = set()
        self.wait_steps = 3
        self.before: dict[str, int] = {}
        self.begun = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def after_step(self, step: int, loss: float, slices: tuple[int, ...]) -> None:
        """Takes the times, and begins the next fault some steps after the last."""
        whole = len(slices) == len(mainstay.slices())
        if self.now is None:
            self.wait_steps -= 1
            if self.wait_steps <= 0 and whole and self._is_enough():
                self.final_step = step
            elif self.wait_steps <= 0 and whole:
                self._begin()
            return
        fault, since = self.now, time.perf_counter() - self.at
        if fault.detected is None or self.is_acting:
            return
        fault.went_on = fault.went_on or since
        if whole and all(one.is_healthy and one.pid not in self.victims for one in mainstay.slices()):
            fault.recovered = since
            self._end(fault, step)

    def caught(self, step: int, error: Exception) -> None:
        """Takes the time of the first error. One without a fault is a finding."""
        if self.now is None or not self.at:
            print(f"step {step}: a loss that nobody asked for: {error}", flush=True)
            self.now, self.at = self.now or Fault("unasked"), time.perf_counter()
        if self.now.detected is None:
            self.now.detected = time.perf_counter() - self.at

    def _is_enough(self) -> bool:
        return len(self.done) >= self.count or time.monotonic() > self.until

    def _begin(self) -> None:
        kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
        slices = self.rng.sample(range(len(mainstay.slices())), 2)
        # In the middle of some step to come, or between two.
        delay, later = self.rng.uniform(0, 0.05), self.rng.uniform(0, 0.4)
        self.now, self.at, self.is_acting = Fault(kind), 0.0, True
        self.victims.clear()
        threading.Thread(target=self._act, args=(kind, slices, delay, later), daemon=True).start()

    def _act(self, kind: str, slices: list[int], delay: float, later: float) -> None:
        time.sleep(delay)
        what = signal.SIGSTOP if "stop" in kind else signal.SIGKILL
        victims = slices if "two" in kind else slices[:1]
        pids = [pid for pid in (mainstay.slices()[index].pid for index in victims) if pid]
        if "spare" in kind:
            pids += [spare.pid for spare in mainstay.status()[0].spares]
        self.at = time.perf_counter()
        self._send(pids, what)
        if "replacement" in kind:
            time.sleep(later)
            again = mainstay.slices()[slices[0]].pid
            if again and again not in pids:
                self._send([again], what)
        self.is_acting = False

    def _send(self, pids: list[int], what: signal.Signals) -> None:
        self.victims.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def _end(self, fault: Fault, step: int) -> None:
        self.done.append(fault)
        self.now, self.wait_steps = None, self.rng.randrange(1, 8)
        if len(self.done) == WARM_UP:
            gc.collect()
            self.before = usage()
        if len(self.done) % 50 == 0:
            taken = time.monotonic() - self.begun
            print(f"{len(self.done)} faults, step {step}, {taken:.0f} s, {usage()}", flush=True)

    def _watch(self) -> None:
        """Ends the process, in words, where training is stuck: it can't be asked to end itself."""
        while True:
            time.sleep(1)
            if self.now is not None and self.at and time.perf_counter() - self.at > BOUND:
                print(f"not recovered within {BOUND:.0f} s: {self.now}\n{mainstay.status()}", flush=True)
                os.abort()


def compile_for_all() -> None:
    """Compiles the step for every set of slices, so that recovery takes the time of recovery."""
    data, _ = digits()
    devices = jax.devices()
    for count in range(len(mainstay.slices()), 0, -1):
        for slices in itertools.combinations(range(len(mainstay.slices())), count):
            mesh = mesh_of([device for device in devices if device.slice_index in slices])
            state, train_step = start(mesh)
            jax.block_until_ready(train_step(state, *put_batch(batch_of(data, 0), mesh)))


def show(faults: list[Fault]) -> None:
    """Prints the table."""
    print("| fault | count | error: median, 99 %, worst | next step done | training on all slices |")
    print("|---|---|---|---|---|")
    for kind in (*sorted({fault.kind for fault in faults}), "all"):
        chosen = [fault for fault in faults if kind in (fault.kind, "all")]
        cells = [_spread([getattr(fault, name) for fault in chosen]) for name in ("detected", "went_on", "recovered")]
        print(f"| {kind} | {len(chosen)} | {' | '.join(cells)} |")


def _spread(times: list[float]) -> str:
    ordered = sorted(times)
    last = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return ", ".join(f"{value:.3f} s" for value in (statistics.median(ordered), last, ordered[-1]))


def equal(state: Any, expected: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    return bool(jax.tree.all(jax.tree.map(np.array_equal, jax.device_get(state), jax.device_get(expected))))


def main() -> None:
    """Runs the soak; the exit code says whether all went well."""
    parser = argparse.ArgumentParser(description="elastic training under random faults")
    parser.add_argument("--faults", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--minutes", type=float, default=600, help="the longest time (default: 600)")
    parser.add_argument("--seed", type=int, default=1, help="of what is done when (default: 1)")
    arguments = parser.parse_args()
    elastic.initialize()
    compile_for_all()
    manager = elastic.Manager(snapshot_period=5, reshard_check_period=2)
    soak = Soak(arguments.faults, arguments.minutes, arguments.seed)
    state, changes = train(manager, soak)
    gc.collect()
    growth = {name: value - soak.before[name] for name, value in usage().items()} if soak.before else {}
    show(soak.done)
    print(
        f"{len(soak.done)} faults recovered in {time.monotonic() - soak.begun:.0f} s; growth since {WARM_UP}: {growth}"
    )
    if growth:
        assert growth["memory"] < MEMORY_KIB, growth
        assert growth["shared"] < SHARED_KIB, growth
        assert max(growth[name] for name in ("threads", "descriptors", "mappings")) <= COUNT, growth
    expected = train_by_plan(soak.final_step, changes, Watcher())
    if not equal(state, expected):
        sys.exit("the parameters differ from those of a training without faults")
    print("parameters equal those of a training without faults, bit for bit")


if __name__ == "__main__":
    main()
