"""Stores and snapshots."""

import operator
import threading
from collections.abc import Sequence
from typing import Any

import jax

from mainstay.snapshot._capture import Finder
from mainstay.snapshot._engine import COPYING, DROPPED, FAILED, WHOLE, Progress, engine
from mainstay.snapshot._leaves import Kept, Kinds, Leaf, Parts, joined, split

# So long a wait in the library is at most, so that Ctrl-C is heeded.
_SLICE_OF_WAITING = 100_000_000
# So many snapshots that are over may still be in a store's list.
_FORGOTTEN = 8
# More than any memory has room for.
_LARGEST_STORE = 2**31
# Kinds of arrays to remember; a program has few.
_MOST_KINDS = 65536


class Snapshot:
    """Copies of the arrays of a tree as they were at one moment. Made by `Store.take`; safe from any thread."""

    def __init__(self, handle: int, structure: Any, leaves: Sequence[Leaf | Kept], step: int, label: str) -> None:
        """For `Store` only."""
        self._handle = handle
        self._engine = engine()
        self._structure = structure
        self._leaves = leaves
        # Where it came from a file: the names of the leaves.
        self._names: list[str] | None = None
        # A store of its own, where it is in no other.
        self._keeper: Store | None = None
        self.step: int = step
        """The caller's number for the moment."""
        self.label: str = label
        """The caller's name for it."""

    def __del__(self) -> None:
        """Gives the handle back."""
        self._engine.give_back("Mainstay_Snapshot_Destroy", snapshot=self._handle)

    def __repr__(self) -> str:
        """Step, label and how far it is."""
        phase = ("copying", "whole", "failed", "dropped")[self._phase()]
        return f"<Snapshot step={self.step} label={self.label!r} {phase}, {self.progress.total} bytes>"

    def _info(self) -> Any:
        return self._engine.call("Mainstay_Snapshot_Info", snapshot=self._handle)

    def _phase(self) -> int:
        return self._info().phase

    @property
    def taken_at(self) -> float:
        """When it was asked for, in seconds since the Unix epoch."""
        return self._info().taken_at / 1e9

    @property
    def progress(self) -> Progress:
        """How much of it is done."""
        info = self._info()
        return Progress(info.done, info.total)

    def is_complete(self) -> bool:
        """Whether it is whole: can be restored from."""
        return self._phase() == WHOLE

    def is_copying(self) -> bool:
        """Whether values are still on their way."""
        return self._phase() == COPYING

    def is_failed(self) -> bool:
        """Whether it can never become whole; `wait` raises why."""
        return self._phase() == FAILED

    def is_dropped(self) -> bool:
        """Whether it was dropped, or newer ones took its place."""
        return self._phase() == DROPPED

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until its copies are over; False where that takes longer than `timeout` seconds.

        It is whole then, unless it was dropped meanwhile, by its owner or as newer ones took its place (`is_dropped`).
        Raises SnapshotError where it can't become whole: `DATA_LOSS: …` for the loss of a slice.
        """
        left = None if timeout is None else int(timeout * 1e9)
        while True:
            part = _SLICE_OF_WAITING if left is None else min(left, _SLICE_OF_WAITING)
            phase = self._engine.call("Mainstay_Snapshot_Wait", snapshot=self._handle, timeout=part).phase
            if phase != COPYING:
                return True
            if left is not None:
                left -= part
                if left <= 0:
                    return False

    def verify(self) -> None:
        """Computes all checksums again; raises SnapshotError where one differs, or where there are none."""
        self._engine.call("Mainstay_Snapshot_Verify", snapshot=self._handle)

    def drop(self) -> None:
        """Takes it out of its store and frees its memory. Arrays restored from it stay."""
        self._engine.call("Mainstay_Snapshot_Drop", snapshot=self._handle)

    @property
    def structure(self) -> Any:
        """The tree, with a `jax.ShapeDtypeStruct` in the place of each array and other leaves as they were."""
        return jax.tree.unflatten(self._structure, [_described(leaf) for leaf in self._leaves])


def _described(leaf: Leaf | Kept) -> Any:
    if isinstance(leaf, Kept):
        return leaf.value
    if leaf.keys is not None:
        return jax.ShapeDtypeStruct(leaf.keys.shape, leaf.keys.dtype, sharding=leaf.keys.sharding)
    return jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype, sharding=leaf.sharding)


class _Plan:
    """What is kept of arrays besides their values, and what finds the parts that they are made of."""

    __slots__ = ("finder", "kinds", "layout", "leaves")

    def __init__(self, kinds: Kinds, parts: list[Parts]) -> None:
        """For arrays of these kinds, each with its parts."""
        self.kinds = kinds
        self.leaves = [Leaf(number, *kind) for number, kind in enumerate(zip(*kinds, strict=True))]
        self.layout = b"".join([one.layout for one in parts])
        self.finder = Finder(parts)


class Store:
    """Keeps the newest whole snapshots. Safe from any thread."""

    def __init__(self, size: int = 2, *, checksum: bool = True) -> None:
        """Makes an empty store.

        Args:
            size: how many whole snapshots to keep; one that is being taken needs its memory beside them.
            checksum: whether to compute checksums, which `Snapshot.verify` needs; they cost no time in `take`.
        """
        if not 1 <= size <= _LARGEST_STORE:
            raise ValueError(
                f"a store can't keep {size} snapshots; size must be at least 1 and at most {_LARGEST_STORE}"
            )
        self._engine = engine()
        self._handle: int = self._engine.call("Mainstay_SnapshotStore_Create", size=size, checksums=checksum).store
        self._size = size
        self._lock = threading.Lock()
        self._taken: list[Snapshot] = []
        self._parts: dict[Any, Parts] = {}
        self._plan: _Plan | None = None

    def __del__(self) -> None:
        """Drops its snapshots."""
        if hasattr(self, "_handle"):
            self._engine.give_back("Mainstay_SnapshotStore_Destroy", store=self._handle)

    def take(self, tree: Any, *, step: int = 0, label: str = "") -> Snapshot:
        """Begins a snapshot of a tree and returns at once.

        The values are those at the call, though the arrays are donated or deleted right after. A slice that is lost
        before the copy is made is no error here: the snapshot fails, which `Snapshot.wait` raises, and the last whole
        one stays.

        Raises SnapshotError (`RESOURCE_EXHAUSTED: …`) where host memory has no room (what the machine lacks may also
        make the snapshot fail later), RuntimeError for deleted arrays, ValueError for arrays that are not on
        Mainstay's devices.
        """
        step = operator.index(step)
        leaves, structure = jax.tree.flatten(tree)
        arrays, kinds, others = split(leaves)
        plan = self._plan_of(arrays, kinds)
        name = label.encode()
        taken = plan.finder.take(
            self._engine,
            arrays,
            store=self._handle,
            step=step,
            label=name,
            label_size=len(name),
            layout=plan.layout,
            layout_size=len(plan.layout) // 8,
        )
        snapshot = Snapshot(taken.snapshot, structure, joined(plan.leaves, others), step, label)
        return self._adopt(snapshot, keeps_leaves=others is not None)

    def _adopt(self, snapshot: Snapshot, keeps_leaves: bool = False) -> Snapshot:
        with self._lock:
            self._taken.append(snapshot)
            # Not each time: training waits. But leaves that are no arrays may be large.
            if keeps_leaves or len(self._taken) > _FORGOTTEN + 2 * self._size:
                self._taken = [one for one in self._taken if one._phase() in (COPYING, WHOLE)]
        return snapshot

    def _plan_of(self, arrays: "list[Any]", kinds: Kinds) -> _Plan:
        """What the arrays are and what parts they are made of: the last take's, as a rule.

        A tree has thousands of arrays, and training waits: nothing here runs Python's own code for each of them, unless
        something is new.
        """
        plan = self._plan
        if plan is None or plan.kinds != kinds:
            plan = self._plan = _Plan(kinds, [self._parts_of(array) for array in arrays])
        return plan

    def _parts_of(self, array: jax.Array) -> Parts:
        key = (array.sharding, array.shape)
        parts = self._parts.get(key)
        if parts is None:
            if len(self._parts) >= _MOST_KINDS:
                self._parts.clear()
            parts = self._parts[key] = Parts(array)
        return parts

    def list(self) -> tuple[Snapshot, ...]:
        """The whole snapshots, oldest first."""
        with self._lock:
            return tuple(one for one in self._taken if one.is_complete())

    def latest(self) -> Snapshot | None:
        """The newest whole snapshot, or None."""
        with self._lock:
            return next((one for one in reversed(self._taken) if one.is_complete()), None)

    def clear(self) -> None:
        """Drops all of its snapshots, also those that are being taken."""
        with self._lock:
            taken, self._taken = self._taken, []
        for one in taken:
            one.drop()
