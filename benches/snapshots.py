"""What is measured of snapshots and host memory.

Through Mainstay, "snapshot" and "restore" are those of `mainstay.snapshot`, with checksums. The real plugin has no
snapshots: there the same rows are what one would do instead, `device_put` to `pinned_host` and back.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

MIB = 1 << 20
SIZES = {"1 MiB": MIB, "64 MiB": 64 * MIB, "512 MiB": 512 * MIB}
OURS = os.environ.get("JAX_PLATFORMS") == "mainstay"


def _rounds(size: int) -> int:
    return max(2, min(50, 256 * MIB // size))


def _array(size: int) -> jax.Array:
    return jax.block_until_ready(jnp.arange(size // 4, dtype=jnp.int32))


def _host() -> SingleDeviceSharding:
    return SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")


def _mean(operation: Callable[[], Any], count: int) -> float:
    operation()
    begin = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - begin) / count


def memcpy(size: int) -> float:
    """A copy between two arrays in memory that is touched: the limit."""
    source, target = np.arange(size // 4, dtype=np.int32), np.zeros(size // 4, np.int32)
    return _mean(lambda: np.copyto(target, source), _rounds(size))


def to_pinned_host(size: int) -> float:
    """`device_put` from device memory to `pinned_host`, until it is there."""
    array, host = _array(size), _host()
    return _mean(lambda: jax.block_until_ready(jax.device_put(array, host)), _rounds(size))


def from_pinned_host(size: int) -> float:
    """`device_put` from `pinned_host` to device memory, until it is there."""
    array = jax.block_until_ready(jax.device_put(_array(size), _host()))
    there = SingleDeviceSharding(jax.devices()[0])
    return _mean(lambda: jax.block_until_ready(jax.device_put(array, there)), _rounds(size))


def device_get(size: int) -> float:
    """`jax.device_get` of arrays that were not read before."""
    make = jax.jit(lambda start: jnp.full(size // 4, start, jnp.int32))
    total, rounds = 0.0, _rounds(size)
    for number in range(rounds):
        array = jax.block_until_ready(make(number))
        begin = time.perf_counter()
        jax.device_get(array)
        total += time.perf_counter() - begin
    return total / rounds


def snapshot_of(tree: Any, count: int) -> float:
    """A snapshot of a tree, until it is whole."""
    if not OURS:
        host = _host()
        return _mean(lambda: jax.block_until_ready(jax.device_put(tree, host)), count)
    from mainstay.snapshot import Store

    store = Store(1)
    return _mean(lambda: store.take(tree).wait(), count)


def restore_of(tree: Any, count: int) -> float:
    """A tree from a snapshot, until it is on the device."""
    if not OURS:
        kept, there = jax.block_until_ready(jax.device_put(tree, _host())), SingleDeviceSharding(jax.devices()[0])
        return _mean(lambda: jax.block_until_ready(jax.device_put(kept, there)), count)
    from mainstay.snapshot import Store, restore

    store = Store(1)
    taken = store.take(tree)
    taken.wait()
    return _mean(lambda: jax.block_until_ready(restore(taken)), count)


def call_of(tree: Any, count: int) -> float:
    """The time in the call that begins a snapshot, without what it waits for."""
    if not OURS:
        host = _host()
        begun: Callable[[], Any] = lambda: jax.device_put(tree, host)  # noqa: E731
        finish = jax.block_until_ready
    else:
        from mainstay.snapshot import Store

        store = Store(1)
        begun, finish = (lambda: store.take(tree)), (lambda taken: taken.wait())
    total = 0.0
    for _ in range(count + 1):
        begin = time.perf_counter()
        result = begun()
        total += time.perf_counter() - begin
        finish(result)
    return total / (count + 1)


def small() -> list[jax.Array]:
    """1,000 small arrays."""
    return jax.block_until_ready([jnp.full(256, number, jnp.float32) for number in range(1000)])


MEASUREMENTS: dict[str, Callable[[], float]] = {}
for _name, _size in SIZES.items():
    MEASUREMENTS |= {
        f"memcpy, {_name}": lambda size=_size: memcpy(size),  # type: ignore[misc]
        f"device_put to pinned_host, {_name}": lambda size=_size: to_pinned_host(size),  # type: ignore[misc]
        f"device_put from pinned_host, {_name}": lambda size=_size: from_pinned_host(size),  # type: ignore[misc]
        f"device_get, {_name}": lambda size=_size: device_get(size),  # type: ignore[misc]
        f"snapshot, {_name}": lambda size=_size: snapshot_of(_array(size), _rounds(size)),  # type: ignore[misc]
        f"restore, {_name}": lambda size=_size: restore_of(_array(size), _rounds(size)),  # type: ignore[misc]
    }
MEASUREMENTS |= {
    "snapshot, 1,000 arrays of 1 KiB": lambda: snapshot_of(small(), 20),
    "restore, 1,000 arrays of 1 KiB": lambda: restore_of(small(), 10),
    "the call that begins a snapshot, 1,000 arrays": lambda: call_of(small(), 20),
}
