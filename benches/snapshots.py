"""What is measured of snapshots and host memory, inside a process that has one of the two plugins as JAX's platform.

Reads requests, one JSON list a line, and answers each with a line of JSON: `["hold", subject]`, `["drop"]`,
`["measure", method]` (seconds of one go with the subject that is held, or null where the method can't have it),
`["forget"]` (what methods keep), `["stall", pairs, whether with a core free]`. `snapshot_table.py` asks the
processes in turn.

A method holds what it needs between its goes and is warmed up by a first one that is not counted: memory is touched,
programs are compiled. What replaces something needs memory beside it, so the next go, too, is not to be counted.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import transformer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from measuring import serve

# Orbax takes seconds for each GiB, and its files lie in memory too.
_LARGEST_FOR_ORBAX = 300 << 20


def _sharding() -> Any:
    """Arrays are cut into as many parts as there are devices."""
    return NamedSharding(Mesh(np.array(jax.devices()), ("all",)), PartitionSpec("all"))


def _one_array(size: int) -> Any:
    """One array that a program has made."""
    make = jax.jit(lambda: jnp.arange(size // 4, dtype=jnp.int32), out_shardings=_sharding())
    return [make()]


def _small() -> Any:
    """1,000 arrays of 1 KiB."""
    make = jax.jit(lambda: [jnp.full(256, number, jnp.float32) for number in range(1000)], out_shardings=_sharding())
    return make()


def _training() -> tuple[Any, Any, Any]:
    """The step, the state and a batch of a small transformer, its weights cut over all devices."""
    step, state, batch = transformer.build()
    mesh = Mesh(np.array(jax.devices()).reshape(1, -1), ("data", "model"))
    return step, *transformer.shard(mesh, state, batch)


def _training_state() -> Any:
    """Weights and Adam's moments after two steps."""
    step, state, batch = _training()
    for _ in range(2):
        state, _ = step(state, batch)
    return state


def subject(name: str) -> Any:
    """The tree of this name: a number of bytes, `small` or `state`."""
    tree = {"small": _small, "state": _training_state}.get(name)
    return jax.block_until_ready(tree() if tree else _one_array(int(name)))


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def _timed(operation: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    operation()
    return time.perf_counter() - begin


def _on_host(tree: Any, kind: str = "pinned_host") -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind(kind), tree)


def _put(tree: Any, shardings: Any) -> Any:
    return jax.block_until_ready(jax.device_put(tree, shardings))


class Methods:
    """The ways to bring a tree to the host and back, each with what it keeps between its goes."""

    def __init__(self, tree: Any) -> None:
        """For a tree on devices."""
        self.tree = tree
        self.kept: dict[str, Any] = {}
        self.warm: set[str] = set()

    def measure(self, name: str) -> float | None:
        """Seconds of one go."""
        method: Callable[[], float | None] = getattr(self, name)
        if name not in self.warm:
            method()
            self.warm.add(name)
        return method()

    def _keep(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    # ---- On both -----------------------------------------------------------------------------

    def memcpy(self) -> float:
        """NumPy's copy of as many bytes into memory that is touched: the limit."""

        def make() -> tuple[np.ndarray, np.ndarray]:
            size = _bytes(self.tree)
            return np.ones(size, np.uint8), np.zeros(size, np.uint8)

        source, target = self._keep("memcpy", make)
        return _timed(lambda: np.copyto(target, source))

    def to_pinned(self) -> float:
        """`device_put` to `pinned_host`; the last copy is dropped when the new one is there."""
        shardings = self._keep("shardings", lambda: _on_host(self.tree))

        def go() -> None:
            self.kept["pinned"] = _put(self.tree, shardings)

        return _timed(go)

    def to_unpinned(self) -> float:
        """`device_put` to `unpinned_host`."""
        shardings = self._keep("unpinned shardings", lambda: _on_host(self.tree, "unpinned_host"))

        def go() -> None:
            self.kept["unpinned"] = _put(self.tree, shardings)

        return _timed(go)

    def from_pinned(self) -> float:
        """`device_put` from `pinned_host` back."""
        pinned = self._keep("pinned", lambda: _put(self.tree, _on_host(self.tree)))
        shardings = self._keep("device", lambda: _on_host(self.tree, "device"))

        def go() -> None:
            self.kept["back"] = None
            self.kept["back"] = _put(pinned, shardings)

        return _timed(go)

    # ---- Mainstay ----------------------------------------------------------------------------

    def _store(self) -> Any:
        from mainstay.snapshot import Store

        return self._keep("store", lambda: Store(1))

    def snapshot(self) -> float:
        """A snapshot with checksums, until it is whole."""
        store = self._store()
        return _timed(lambda: store.take(self.tree).wait())

    def call(self) -> float:
        """The call that begins a snapshot."""
        store, taken = self._store(), []
        seconds = _timed(lambda: taken.append(store.take(self.tree)))
        taken[0].wait()
        return seconds

    def restore(self) -> float:
        """A restore, until the arrays are ready."""
        from mainstay.snapshot import restore

        store = self._store()
        if not store.latest():
            store.take(self.tree).wait()

        def go() -> None:
            self.kept["back"] = None
            self.kept["back"] = jax.block_until_ready(restore(store.latest()))

        return _timed(go)

    # ---- What else there is, on the real plugin ------------------------------------------------

    def device_get(self) -> float:
        """`jax.device_get` of fresh arrays, copied to memory of one's own where the plugin shows where it has them."""
        fresh = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 0, tree))
        tree = jax.block_until_ready(self._keep("fresh", lambda: fresh)(self.tree))
        targets = self._keep("targets", lambda: [np.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)])

        def go() -> None:
            for target, value in zip(targets, jax.tree.leaves(jax.device_get(tree)), strict=True):
                np.copyto(target, value)

        return _timed(go)

    def pathways(self) -> float:
        """The snapshot of pathwaysutils' elastic manager (0.1.4)."""
        from pathwaysutils.elastic.manager import Manager

        def make() -> Any:
            # Without slices to look after, which the real plugin has none of.
            manager = object.__new__(Manager)
            manager.snapshot_period, manager._snapshot = 1, None
            return manager

        manager = self._keep("manager", make)
        return _timed(lambda: manager.maybe_snapshot(0, self.tree, block=True))

    def _orbax(self) -> Any:
        import orbax.checkpoint as ocp

        def make() -> tuple[Any, Path]:
            folder = tempfile.TemporaryDirectory(dir="/dev/shm")
            self.kept["folder"] = folder
            return ocp.StandardCheckpointer(), Path(folder.name) / "saved"

        return self._keep("orbax", make)

    def orbax_save(self) -> float | None:
        """Orbax's save to a memory file system."""
        if _bytes(self.tree) > _LARGEST_FOR_ORBAX:
            return None
        checkpointer, path = self._orbax()
        shutil.rmtree(path, ignore_errors=True)

        def go() -> None:
            checkpointer.save(path, self.tree)
            checkpointer.wait_until_finished()

        return _timed(go)

    def orbax_restore(self) -> float | None:
        """Orbax's restore from there."""
        if _bytes(self.tree) > _LARGEST_FOR_ORBAX:
            return None
        checkpointer, path = self._orbax()
        if not path.exists():
            self.orbax_save()
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), self.tree
        )
        return _timed(lambda: jax.block_until_ready(checkpointer.restore(path, like)))

    def _snapshotter(self) -> Any:
        from orbax.checkpoint.experimental.v1._src.training.pathways.snapshotter import Snapshotter

        return self._keep("snapshotter", Snapshotter)

    def orbax_snapshot(self) -> float:
        """The snapshot of Orbax's `Snapshotter`, which its elastic training takes."""
        snapshotter = self._snapshotter()

        def go() -> None:
            snapshotter.save(0, self.tree)
            snapshotter.join()

        seconds = _timed(go)
        assert snapshotter.latest, "Orbax has logged why it has no snapshot"
        return seconds

    def orbax_load(self) -> float:
        """What that brings back to the devices, without making the next snapshot of it."""
        # It uses the snapshot up.
        self.orbax_snapshot()
        return _timed(lambda: self._snapshotter().load(self.tree, reset_snapshot_state=False))


@contextlib.contextmanager
def _a_core_free(is_free: bool) -> Iterator[None]:
    """Where a core is to be free of training, which is the workers' work, they are kept off one."""
    import mainstay

    cores = os.sched_getaffinity(0)
    if is_free and len(cores) < 2:
        raise ValueError("this process has one core only")
    tasks = [task for one in mainstay.slices() if one.pid for task in Path(f"/proc/{one.pid}/task").iterdir()]

    def bind(to: set[int]) -> None:
        for task in tasks:
            # A thread may have ended.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), to)

    bind(cores - {max(cores)} if is_free else cores)
    try:
        yield
    finally:
        bind(cores)


def stall(pairs: int, with_free_core: bool) -> list[tuple[float, float]]:
    """Seconds of a training step in ten without a snapshot, and in the next ten, which begin with one: pairs."""
    from mainstay.snapshot import Store

    step, state, batch = _training()
    store = Store(2)

    def ten(number: int) -> float:
        nonlocal state
        begin = time.perf_counter()
        if number % 2:
            store.take(state, step=number)
        for _ in range(10):
            state, _ = step(state, batch)
        jax.block_until_ready(state)
        return (time.perf_counter() - begin) / 10

    with _a_core_free(with_free_core):
        seconds = [ten(number) for number in range(2 * pairs + 4)]
    # The first ones compile, and touch memory.
    return list(zip(seconds[4::2], seconds[5::2], strict=True))


def main() -> None:
    """Answers until standard input ends."""
    logging.disable(logging.WARNING)
    jax.devices()
    held: Methods | None = None

    def answer(what: str, *arguments: Any) -> Any:
        nonlocal held
        if what == "hold":
            held = None
            held = Methods(subject(arguments[0]))
            return _bytes(held.tree)
        if what == "stall":
            return stall(*arguments)
        if what == "drop":
            held = None
            return None
        assert held is not None
        if what == "forget":
            held = Methods(held.tree)
            return None
        assert what == "measure", what
        # A package that is not there has no figures.
        with contextlib.suppress(ImportError):
            return held.measure(arguments[0])
        return None

    serve(answer)


if __name__ == "__main__":
    main()
