#!/usr/bin/env python3
"""Trains a classifier of handwritten digits with JAX while a slice is killed under it: `make demo`.

Two runs of the same training on two slices of two devices. The first is left alone. In the second, the worker
process of the slice that trains gets a SIGKILL in mid-run; the script catches the error, goes on on the other
slice from its last copy of the state, and moves back once the slice has been replaced. Both runs end with the
same parameters, bit for bit.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

# What a user sets in the shell. The workers start when JAX makes its client.
os.environ.setdefault("JAX_PLATFORMS", "mainstay")
os.environ.setdefault("MAINSTAY_SLICES", "2")
os.environ.setdefault("MAINSTAY_DEVICES_PER_SLICE", "2")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import mainstay

STEPS, BATCH, COPY_EVERY, KILL_AT = 1200, 256, 20, 453

State = dict[str, Any]
Batch = tuple[Any, Any]


class Digits(NamedTuple):
    """Images of 8 by 8 pixels as rows of 64 numbers, and what they show."""

    images: np.ndarray
    labels: np.ndarray


# ---- The training itself. Nothing here knows about slices. ----


def initial_state() -> State:
    """Weights of a network with one hidden layer, and the momentum of each."""
    rng = np.random.default_rng(0)
    weights = {
        "hidden": rng.normal(0, 0.1, (64, 256)).astype(np.float32),
        "output": rng.normal(0, 0.1, (256, 10)).astype(np.float32),
    }
    return {"weights": weights, "momentum": jax.tree.map(np.zeros_like, weights)}


def loss(weights: State, images: Any, labels: Any) -> jax.Array:
    """Cross entropy, averaged over the batch."""
    scores = jax.nn.relu(images @ weights["hidden"]) @ weights["output"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1))


@jax.jit
def train_step(state: State, images: Any, labels: Any) -> tuple[State, jax.Array]:
    """One step of gradient descent with momentum, on whatever devices the arguments are on."""
    value, gradient = jax.value_and_grad(loss)(state["weights"], images, labels)
    momentum = jax.tree.map(lambda m, g: 0.9 * m - 0.03 * g, state["momentum"], gradient)
    weights = jax.tree.map(jnp.add, state["weights"], momentum)
    return {"weights": weights, "momentum": momentum}, value


def batch_of(data: Digits, step: int) -> Batch:
    """The examples of one step: a function of the step alone, so that any step can be done again."""
    chosen = np.random.default_rng(step).choice(len(data.labels), BATCH, replace=False)
    return data.images[chosen], data.labels[chosen]


def accuracy(state: State, data: Digits) -> float:
    """The share of examples that the state gets right, computed on the host."""
    weights = state["weights"]
    scores = np.maximum(data.images @ weights["hidden"], 0) @ weights["output"]
    return float(np.mean(np.argmax(scores, axis=1) == data.labels))


# ---- Where it runs: the two devices of one slice, each with its half of every batch. ----


def mesh_of(slice_index: int) -> Mesh:
    """The devices of one slice. They stay the same objects when the slice is replaced."""
    return Mesh([device for device in jax.devices() if device.slice_index == slice_index], ("batch",))


def put_state(state: State, slice_index: int) -> State:
    """A copy of the state on every device of a slice."""
    return jax.device_put(state, NamedSharding(mesh_of(slice_index), PartitionSpec()))


def run_step(state: State, slice_index: int, batch: Batch) -> tuple[State, jax.Array]:
    """Starts one step on a slice; returns at once."""
    spread = NamedSharding(mesh_of(slice_index), PartitionSpec("batch"))
    return train_step(state, *jax.device_put(batch, spread))


# ---- The loop, with what recovery takes. ----


def train(data: Digits, killer: "Killer | None") -> State:
    """Trains for STEPS steps and returns the state on the host."""
    home = here = 0
    saved, saved_step = initial_state(), 0
    state, step = put_state(saved, here), 0
    while step < STEPS:
        try:
            state, value = run_step(state, here, batch_of(data, step))
            step += 1
            if killer:
                killer.after_step(step, here, value)
            if step % COPY_EVERY == 0:
                saved, saved_step = jax.device_get(state), step
                show_progress(step, here, float(value))
                if killer and here != home and mainstay.slices()[home].is_healthy:
                    here = home
                    state = put_state(state, here)
                    killer.moved_back(step, here)
        except jax.errors.JaxRuntimeError as error:
            # What was on the slice is lost; what is on the host and on the other slice is not.
            here = next(one.index for one in mainstay.slices() if one.is_healthy)
            if killer:
                killer.caught(error, step, here, saved_step)
            state, step = put_state(saved, here), saved_step
    return jax.device_get(state)


@dataclass
class Killer:
    """Kills the training slice's worker once, and times what follows."""

    killed_at: float | None = None
    killed: int | None = None
    recovered: bool = False
    returned: bool = False

    def after_step(self, step: int, here: int, value: jax.Array) -> None:
        """Called when a step has been started."""
        if self.killed_at is None and step == KILL_AT:
            pid = mainstay.slices()[here].pid
            assert pid is not None
            say(f"step {step}: kill -9 {pid}, the worker of slice {here}")
            self.killed, self.killed_at = here, time.perf_counter()
            os.kill(pid, signal.SIGKILL)
        elif self.killed not in (None, here) and not self.recovered:
            jax.block_until_ready(value)
            self.recovered = True
            say(f"step {step}: done on slice {here}, {self._since()} after the kill")

    def caught(self, error: Exception, step: int, here: int, saved_step: int) -> None:
        """Called when the script has caught the loss."""
        say(f"step {step}: caught {type(error).__name__} {self._since()} after the kill:")
        print(f"             {error}")
        say(f"going on on slice {here} from the copy of step {saved_step}")
        show_slices()

    def moved_back(self, step: int, here: int) -> None:
        """Called when training has moved to the replaced slice."""
        self.returned = True
        say(f"step {step}: slice {here} is back {self._since()} after the kill; moving there")
        show_slices()

    def _since(self) -> str:
        assert self.killed_at is not None
        return f"{1000 * (time.perf_counter() - self.killed_at):.1f} ms"


# ---- What a person sees. ----

STARTED = time.perf_counter()


def clear_line() -> None:
    """Takes the progress line away, where it is one."""
    if sys.stdout.isatty():
        print("\r\033[K", end="")


def say(text: str) -> None:
    """Prints an event with the time since the start."""
    clear_line()
    print(f"[{time.perf_counter() - STARTED:7.3f} s] {text}", flush=True)


def show_progress(step: int, here: int, value: float) -> None:
    """Draws the progress line; where nobody watches, prints it now and then."""
    if sys.stdout.isatty():
        bar = ("█" * (30 * step // STEPS)).ljust(30, "·")
        print(f"\r  {bar} step {step:4}/{STEPS} on slice {here}, loss {value:.4f} ", end="", flush=True)
    elif step % (STEPS // 6) == 0:
        say(f"step {step}/{STEPS} on slice {here}, loss {value:.4f}")


def describe(index: int) -> str:
    """How a slice is, in words."""
    one = mainstay.slices()[index]
    return f"incarnation {one.incarnation} (worker {one.pid or 'none'}, {one.state})"


def show_slices() -> None:
    """Prints how the slices are."""
    for one in mainstay.slices():
        say(f"  slice {one.index}: {describe(one.index)}, devices {', '.join(map(str, one.devices))}")


def timed_run(name: str, data: Digits, killer: Killer | None) -> State:
    """Trains once and says how long it took."""
    say(f"{name}: {STEPS} steps")
    begin = time.perf_counter()
    state = train(data, killer)
    say(f"{name}: done in {time.perf_counter() - begin:.2f} s")
    return state


def main() -> None:
    """Runs the training twice and compares."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    training = Digits(images[:1500], labels[:1500].astype(np.int32))
    held_out = Digits(images[1500:], labels[1500:])
    say(f"{len(images)} handwritten digits; {len(jax.devices())} devices of {jax.devices()[0].platform}")
    show_slices()
    for one in mainstay.slices():
        jax.block_until_ready(run_step(put_state(initial_state(), one.index), one.index, batch_of(training, 0)))
    say("the training step is compiled for each slice")

    undisturbed = timed_run("undisturbed run", training, None)
    killer = Killer()
    disturbed = timed_run("run with a kill", training, killer)
    show_slices()

    same = jax.tree.all(jax.tree.map(np.array_equal, undisturbed, disturbed))
    say(f"accuracy on held-out digits: {accuracy(undisturbed, held_out):.2%} undisturbed,")
    say(f"                             {accuracy(disturbed, held_out):.2%} with the kill")
    say(f"parameters equal, bit for bit: {'yes' if same else 'NO'}")
    if not (same and killer.recovered and killer.returned):
        sys.exit("the demo failed: see above")


if __name__ == "__main__":
    main()
