"""Snapshots of JAX arrays in host memory that outlives the slices they were taken from.

    store = snapshot.Store(size=2)
    for step in range(steps):
        if step % 10 == 0:
            store.take(state, step=step)         # returns at once
        state = train_step(state)                # may donate `state`
    ...
    state = snapshot.restore(store.latest(), shardings=elsewhere)

A snapshot has the values that the arrays had at the call, though they are donated or deleted right after. It is whole
or absent: one that the loss of a slice cut short is never restored from. What is not an array (numbers, strings,
NumPy arrays, None) is kept as well, and the structure comes back as it was.

The functions of this module that take no store use one that is made at first need: `default_store()`.
"""

from typing import Any

from mainstay.snapshot._engine import Progress, SnapshotError
from mainstay.snapshot._files import load, save
from mainstay.snapshot._restore import restore
from mainstay.snapshot._store import Snapshot, Store

__all__ = [
    "Progress",
    "Snapshot",
    "SnapshotError",
    "Store",
    "default_store",
    "drop",
    "latest",
    "load",
    "restore",
    "save",
    "snapshots",
    "take",
    "verify",
]

_default: Store | None = None


def default_store() -> Store:
    """The store that the functions of this module use: two snapshots, with checksums."""
    global _default
    if _default is None:
        _default = Store()
    return _default


def take(tree: Any, *, step: int = 0, label: str = "") -> Snapshot:
    """`Store.take` of the default store."""
    return default_store().take(tree, step=step, label=label)


def latest() -> Snapshot | None:
    """`Store.latest` of the default store."""
    return default_store().latest()


def snapshots() -> tuple[Snapshot, ...]:
    """`Store.list` of the default store."""
    return default_store().list()


def verify(snapshot: Snapshot) -> None:
    """`Snapshot.verify`."""
    snapshot.verify()


def drop(snapshot: Snapshot) -> None:
    """`Snapshot.drop`."""
    snapshot.drop()
