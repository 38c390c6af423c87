#!/usr/bin/env python3
"""Elastic training in front of your eyes: `make demo`.

A small transformer learns to read handwritten digits over two slices of two devices, with one spare worker. Three runs
of the same training: one is left alone; in the second, the worker of a slice gets a SIGKILL twice, first while a spare
is ready, then together with the spare; the third changes its slices at the same steps as the second, and loses nothing.
The second ends with the parameters of the third, bit for bit. A picture shows loss and slices over time.

Kill workers yourself meanwhile, if you like: training goes on after that as well.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a user sets in the shell. The workers start when JAX makes its client.
os.environ.setdefault("JAX_PLATFORMS", "mainstay")
os.environ.setdefault("MAINSTAY_SLICES", "2")
os.environ.setdefault("MAINSTAY_DEVICES_PER_SLICE", "2")
os.environ.setdefault("MAINSTAY_SPARES", "1")

import jax
import numpy as np

import mainstay
import mainstay.elastic
from digits_model import accuracy, batch_of, digits, mesh_of, put_batch
from elastic_training import Watcher, start, train, train_by_plan

STEPS, SNAPSHOT_EVERY, LOOK_EVERY = 400, 10, 10
VICTIM, KILL_AT, KILL_WITH_SPARE_AT, BACK_BY = 1, 83, 163, 340
PATIENCE = 60.0


# ---- What a person sees. ----

STARTED = time.perf_counter()


def say(text: str) -> None:
    """Prints an event with the time since the start, in the place of the progress line."""
    clear = "\r\033[K" if sys.stdout.isatty() else ""
    print(f"{clear}[{time.perf_counter() - STARTED:7.3f} s] {text}", flush=True)


def show_progress(step: int, slices: tuple[int, ...], loss: float) -> None:
    """Draws the progress line; where nobody watches, prints it now and then."""
    where = f"on {'slices' if len(slices) > 1 else 'slice'} {', '.join(map(str, slices))}, loss {loss:.4f}"
    if sys.stdout.isatty():
        bar = ("█" * (30 * step // STEPS)).ljust(30, "·")
        print(f"\r\033[K  {bar} step {step:3}/{STEPS} {where} ", end="", flush=True)
    elif step % (STEPS // 4) == 0:
        say(f"step {step}/{STEPS} {where}")


def show_slices() -> None:
    """Prints how the slices and the spares are."""
    (client,) = mainstay.status()
    for one in client.slices:
        worker = f"worker {one.pid}" if one.pid else "no worker"
        devices = ", ".join(map(str, one.devices))
        say(f"  slice {one.index}: {one.state}, incarnation {one.incarnation}, {worker}, devices {devices}")
    for spare in client.spares:
        say(f"  spare: worker {spare.pid}, {'ready' if spare.ready else 'starting'}")


# ---- The watchers: one notes what happens, one kills besides. ----


@dataclass
class Recorder(Watcher):
    """Notes loss and slices over time."""

    final_step = STEPS
    begun: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    slice_counts: list[int] = field(default_factory=list)

    def after_step(self, step: int, loss: float, slices: tuple[int, ...]) -> None:
        """Notes a step."""
        self.times.append(time.perf_counter() - self.begun)
        self.losses.append(loss)
        self.slice_counts.append(len(slices))
        show_progress(step, slices, loss)

    def caught(self, step: int, error: Exception) -> None:
        """Shows an error that the demo has not brought about."""
        say(f"step {step}: caught {type(error).__name__}; somebody else has done that:")
        print(f"             {error}")

    def resharded(self, step: int, slices: tuple[int, ...]) -> None:
        """Tells of it."""
        say(f"going on from step {step} with slices {', '.join(map(str, slices))}")


@dataclass
class Killing:
    """One kill, and when what followed it came, in seconds after it."""

    what: str
    at: float
    since_begin: float
    caught: float | None = None
    went_on: float | None = None
    slices_then: int = 0
    complete: float | None = None


@dataclass
class Killer(Recorder):
    """Kills, and times what follows."""

    kills: list[Killing] = field(default_factory=list)

    def before_step(self, step: int) -> None:
        """Kills when it is time. Each once: a step that is done again is not hit again."""
        if step >= KILL_AT and not self.kills:
            self._kill(step, f"slice {VICTIM}", ())
        elif step >= KILL_WITH_SPARE_AT and len(self.kills) == 1 and self.kills[0].complete is not None:
            spares = tuple(spare.pid for spare in mainstay.status()[0].spares)
            self._kill(step, f"slice {VICTIM} and the spare", spares)
        elif step == BACK_BY:
            all_slices_work()

    def after_step(self, step: int, loss: float, slices: tuple[int, ...]) -> None:
        """Notes the first step after a kill, and the first with all slices."""
        super().after_step(step, loss, slices)
        if not self.kills or self.kills[-1].caught is None:
            return
        last = self.kills[-1]
        if last.went_on is None:
            last.went_on, last.slices_then = self._since(last), len(slices)
            say(f"step {step}: done, {1000 * last.went_on:.0f} ms after the kill, with {len(slices)} of 2 slices")
        if last.complete is None and len(slices) == len(mainstay.slices()):
            last.complete = self._since(last)
            say(f"training uses all slices, {1000 * last.complete:.0f} ms after the kill")
            show_slices()

    def caught(self, step: int, error: Exception) -> None:
        """Shows the error."""
        if not self.kills or self.kills[-1].caught is not None:
            super().caught(step, error)
            return
        last = self.kills[-1]
        last.caught = self._since(last)
        say(f"step {step}: caught {type(error).__name__} {1000 * last.caught:.1f} ms after the kill:")
        print(f"             {error}")

    def _kill(self, step: int, what: str, others: tuple[int, ...]) -> None:
        pid = mainstay.slices()[VICTIM].pid
        if pid is None:
            # Somebody else was quicker. Once it is back.
            return
        say(f"step {step}: kill -9 {' '.join(map(str, (pid, *others)))}: {what}")
        now = time.perf_counter()
        for one in (*others, pid):
            os.kill(one, signal.SIGKILL)
        self.kills.append(Killing(what, now, now - self.begun))

    def _since(self, kill: Killing) -> float:
        return time.perf_counter() - kill.at


# ---- The picture. ----


def draw(path: Path, alone: Recorder, killer: Killer) -> None:
    """Loss over time of both runs, one above the other with the slices that trained."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 6), height_ratios=(3, 1))
    above.plot(alone.times, alone.losses, color="tab:gray", label="left alone")
    above.plot(killer.times, killer.losses, color="tab:blue", label="with kills")
    for run, color in ((alone, "tab:gray"), (killer, "tab:blue")):
        below.step(run.times, run.slice_counts, where="post", color=color)
    for axes in (above, below):
        for number, kill in enumerate(killer.kills):
            axes.axvline(kill.since_begin, color="tab:red", linestyle=":", label=None if number else "kill -9")
    above.set(yscale="log", ylabel="loss of the step", title="Elastic training over two slices and a spare")
    above.legend()
    below.set(ylabel="slices that train", xlabel="seconds since the run began", yticks=(0, 1, 2), ylim=(0, 2.3))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")


# ---- The three runs. ----


def all_slices_work() -> None:
    """Waits for that."""
    mainstay.wait_until(lambda now: all(one.is_healthy for one in now), PATIENCE)


def undisturbed(what: Callable[[], Any]) -> Any:
    """Does what has to be done without the loss of a slice: again where there was one."""
    while True:
        try:
            return what()
        except jax.errors.JaxRuntimeError as error:
            if not mainstay.elastic.is_error_due_to_slice_down(error):
                raise
            say(f"somebody has killed a worker, so this is done again: {error}")
            all_slices_work()


def warm_up() -> None:
    """Compiles the training step for the meshes that will be used, and waits for the spare."""
    data, _ = digits()
    for slices in ((0, 1), (1 - VICTIM,)):
        mesh = mesh_of([device for device in jax.devices() if device.slice_index in slices])
        state, train_step = start(mesh)
        jax.block_until_ready(train_step(state, *put_batch(batch_of(data, 0), mesh)))
        say(f"the training step is compiled for slices {slices}")
    until = time.monotonic() + PATIENCE
    while not any(spare.ready for spare in mainstay.status()[0].spares):
        if time.monotonic() > until:
            sys.exit(f"the demo failed: no spare came up in {PATIENCE:.0f} s")
        time.sleep(0.01)


def elastic_run(name: str, watcher: Recorder) -> tuple[Any, list[Any]]:
    """Trains once with a manager of its own."""
    say(f"{name}: {STEPS} steps")
    all_slices_work()
    manager = mainstay.elastic.Manager(snapshot_period=SNAPSHOT_EVERY, reshard_check_period=LOOK_EVERY)
    watcher.begun = time.perf_counter()
    state, changes = train(manager, watcher)
    manager.close()
    say(f"{name}: done in {watcher.times[-1]:.2f} s")
    return state, changes


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    return bool(jax.tree.all(jax.tree.map(np.array_equal, one, other)))


def main() -> None:
    """Runs, compares, draws."""
    parser = argparse.ArgumentParser(description="elastic training over two slices and a spare, with kills")
    parser.add_argument("--picture", type=Path, default=Path("build/demo.png"), help="where to save the picture")
    picture = parser.parse_args().picture
    mainstay.elastic.initialize()
    training, held_out = digits()
    say(f"{len(training.labels)} handwritten digits; {len(jax.devices())} devices of {jax.devices()[0].platform}")
    undisturbed(warm_up)
    show_slices()

    alone, killer = Recorder(), Killer()
    state_alone, _ = elastic_run("left alone", alone)
    state_killed, changes = elastic_run("with kills", killer)
    say("the same changes of slices without a kill:")
    state_planned = undisturbed(lambda: jax.device_get(train_by_plan(STEPS, changes, Recorder())))

    draw(picture, alone, killer)
    equal = same(state_killed, state_planned)
    say("                                         left alone   with kills")
    say(f"time                                      {alone.times[-1]:7.2f} s    {killer.times[-1]:7.2f} s")
    say(f"loss of the last step                     {alone.losses[-1]:9.5f}    {killer.losses[-1]:9.5f}")
    shares = undisturbed(lambda: [accuracy(state, held_out) for state in (state_alone, state_killed)])
    say(f"accuracy on digits held out               {shares[0]:9.2%}    {shares[1]:9.2%}")
    for kill in killer.kills:
        say(f"kill of {kill.what}:")
        for what, seconds in (("error", kill.caught), ("next step done", kill.went_on), ("all slices", kill.complete)):
            say(f"  {what:16} {'never' if seconds is None else f'{1000 * seconds:7.1f} ms'}")
    say(f"parameters equal those of the same changes without a kill, bit for bit: {'yes' if equal else 'NO'}")
    say(f"the picture: {picture}")
    recovered = len(killer.kills) == 2 and all(kill.complete is not None for kill in killer.kills)
    if not (equal and recovered and killer.kills[1].slices_then == 1):
        sys.exit("the demo failed: see above")


if __name__ == "__main__":
    main()
