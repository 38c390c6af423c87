"""What is measured, inside a process that has one of the two plugins as JAX's platform.

Answers requests, a line of JSON each: `["names"]` of the measurements, and `["measure", name]` with the seconds that
one operation took (bytes, where the name begins with "memory"). `run.py` holds one such process for each plugin and
asks them in turn. With `spanning` as argument the measurements are those of `spanning.py`.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import spanning
import transformer
from measuring import serve

MIB = 1 << 20
SIZES = {"4 KiB": 4096, "64 KiB": 65536, "1 MiB": MIB, "16 MiB": 16 * MIB, "256 MiB": 256 * MIB}


def repeated(operation: Callable[[], Any], count: int) -> float:
    """The mean seconds of one operation, over `count` of them."""
    begin = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - begin) / count


def launch_and_await() -> float:
    """A tiny program, awaited each time."""
    add_one, x = jax.jit(lambda x: x + 1), jnp.zeros(16, jnp.float32)
    add_one(x).block_until_ready()
    return repeated(lambda: add_one(x).block_until_ready(), 2000)


def pipelined_launches() -> float:
    """Tiny programs, each on the result of the last, awaited at the end."""
    add_one, count = jax.jit(lambda x: x + 1), 2000
    x = add_one(jnp.zeros(16, jnp.float32)).block_until_ready()
    begin = time.perf_counter()
    for _ in range(count):
        x = add_one(x)
    x.block_until_ready()
    return (time.perf_counter() - begin) / count


def rounds_for(size: int) -> int:
    """Enough copies of a size for the clock, and no more."""
    return max(3, min(500, 256 * MIB // (size * 4)))


def host_to_device(size: int) -> float:
    """`device_put` of host data, until it is there."""
    values = np.ones(size // 4, np.float32)
    jax.device_put(values).block_until_ready()
    return repeated(lambda: jax.device_put(values).block_until_ready(), rounds_for(size))


def device_to_host(size: int, own_memory: bool) -> float:
    """A device array's values on the host: in memory of one's own, or seen where the plugin shows them.

    Fresh arrays: JAX keeps what it has read.
    """
    make = jax.jit(lambda start: jnp.full(size // 4, start, jnp.float32))
    target = np.zeros(size // 4, np.float32)
    total, rounds = 0.0, rounds_for(size)
    for count in range(rounds):
        array = make(np.float32(count)).block_until_ready()
        begin = time.perf_counter()
        values = np.asarray(array)
        if own_memory:
            np.copyto(target, values)
        total += time.perf_counter() - begin
    return total / rounds


def training_step() -> float:
    """One step of a small transformer with Adam, its loss read every fourth step."""
    step, state, batch = transformer.build()
    state, _ = step(state, batch)
    jax.block_until_ready(state)
    count = 12
    begin = time.perf_counter()
    for index in range(count):
        state, loss = step(state, batch)
        if index % 4 == 3:
            float(loss)
    jax.block_until_ready(state)
    return (time.perf_counter() - begin) / count


MEASUREMENTS: dict[str, Callable[[], float]] = {
    "launch and await": launch_and_await,
    "pipelined launch": pipelined_launches,
    **{f"host to device, {name}": lambda size=size: host_to_device(size) for name, size in SIZES.items()},  # type: ignore[misc]
    **{f"device to host, {name}": lambda size=size: device_to_host(size, True) for name, size in SIZES.items()},  # type: ignore[misc]
    **{f"seen from the host, {name}": lambda size=size: device_to_host(size, False) for name, size in SIZES.items()},  # type: ignore[misc]
    "training step": training_step,
}


def main() -> None:
    """Answers until standard input ends."""
    jax.devices()
    measurements = spanning.MEASUREMENTS if sys.argv[1:] == ["spanning"] else MEASUREMENTS

    def answer(what: str, *names: str) -> Any:
        return list(measurements) if what == "names" else measurements[names[0]]()

    serve(answer)


if __name__ == "__main__":
    main()
