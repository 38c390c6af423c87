"""Measurements of programs on all of 8 devices: one client's on the real plugin, of several slices through Mainstay."""

import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import transformer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MIB = 1 << 20


def mean_of(operation: Callable[[], Any], least: float = 0.5) -> float:
    """The mean seconds of an operation, repeated for at least so many seconds."""
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < least:
        operation()
        count += 1
    return passed / count


def all_reduce(bytes_each: int) -> float:
    """A sum over all devices of so many bytes on each, awaited."""
    mesh = Mesh(np.array(jax.devices()), "x")
    summed = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    count = mesh.size
    ones = np.ones((count, bytes_each // 4), np.float32)
    placed = jax.device_put(ones, NamedSharding(mesh, P("x")))
    program = jax.jit(summed)
    program(placed).block_until_ready()
    return mean_of(lambda: program(placed).block_until_ready())


def memory_copy(size: int) -> float:
    """A copy between touched memory of this process: what the machine can do, whatever the plugin."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return mean_of(lambda: np.copyto(target, source))


def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))


@cache
def _training() -> dict[str, Any]:
    step, state, tokens = transformer.build()
    state, tokens = transformer.shard(_mesh(), state, tokens)
    state, loss = step(state, tokens)
    loss.block_until_ready()
    return {"step": step, "state": state, "tokens": tokens}


def training_step() -> float:
    """A step of the small transformer: batch over two halves of the devices, weights over the four of each."""
    training = _training()

    def one() -> None:
        training["state"], loss = training["step"](training["state"], training["tokens"])
        loss.block_until_ready()

    return mean_of(one, 1.0)


def perceptron_step() -> float:
    """A step of gradient descent of a tiny perceptron, its two matrices over all devices."""
    mesh = Mesh(np.array(jax.devices()), "model")
    rng = np.random.default_rng(0)

    def place(array: np.ndarray, *spec: str | None) -> jax.Array:
        return jax.device_put(array.astype(np.float32), NamedSharding(mesh, P(*spec)))

    up, down = place(rng.normal(size=(64, 256)), None, "model"), place(rng.normal(size=(256, 64)), "model", None)
    x, y = place(rng.normal(size=(32, 64))), place(rng.normal(size=(32, 64)))

    def loss(weights: Any) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2)

    @jax.jit
    def step(weights: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, jax.grad(loss)(weights))

    weights = step((up, down))

    def one() -> None:
        nonlocal weights
        weights = step(weights)
        jax.block_until_ready(weights)

    return mean_of(one)


def compile_time() -> float:
    """Compiling the transformer's step, anew each time."""
    step, state, tokens = transformer.build(1e-3 + time.monotonic() % 1e-3)
    lowered = step.lower(*transformer.shard(_mesh(), state, tokens))
    begin = time.perf_counter()
    lowered.compile()
    return time.perf_counter() - begin


def memory_of_training() -> float:
    """Bytes of all processes after steps of the transformer, what they share counted once."""
    training_step()
    return float(sum(_proportional_bytes(process) for process in _descendants(os.getpid())))


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The fields after the name, which may hold anything.
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(status.parent.name))
    found = [root]
    for process in found:
        found.extend(children.get(process, []))
    return found


def _proportional_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


MEASUREMENTS: dict[str, Callable[[], float]] = {
    "all-reduce, 4 B on each of 8 devices": lambda: all_reduce(4),
    "all-reduce, 64 KiB each": lambda: all_reduce(65536),
    "all-reduce, 16 MiB each": lambda: all_reduce(16 * MIB),
    "copy of 128 MiB in one process": lambda: memory_copy(128 * MIB),
    "transformer step on 8 devices": training_step,
    "tensor-parallel perceptron step": perceptron_step,
    "compiling the transformer's step": compile_time,
    "memory after transformer steps": memory_of_training,
}
