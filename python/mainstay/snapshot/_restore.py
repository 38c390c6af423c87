"""Making arrays from a snapshot."""

import functools
import struct
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client  # type: ignore[attr-defined]
from jax.sharding import Sharding

from mainstay.snapshot._engine import SnapshotError
from mainstay.snapshot._files import leaf_names
from mainstay.snapshot._leaves import Kept, Keys, Leaf, start_of
from mainstay.snapshot._store import Snapshot


def restore(snapshot: Snapshot, *, like: Any = None, shardings: Any = None) -> Any:
    """The tree of a snapshot, its arrays on devices again; returns at once, and the arrays get ready later.

    A snapshot that is still copying is waited for. The slices that it was taken from may be gone. Each device gets what
    its shard needs and nothing else, directly from the snapshot's memory.

    Args:
        snapshot: what to restore.
        like: a tree of the same structure with an array or `jax.ShapeDtypeStruct` in the place of each array, whose
            sharding says where the array goes. Shapes and types must be those of the snapshot.
        shardings: one sharding for all arrays, or a tree of them (a prefix of the snapshot's) instead.

    Without either, every array goes where it was.

    Raises SnapshotError for a snapshot that failed or was dropped, JaxRuntimeError where host memory has no room,
    ValueError where `like` or `shardings` don't fit. A slice that is lost meanwhile is no error here: its arrays raise
    when they are used.
    """
    if like is not None and shardings is not None:
        raise ValueError("give `like` or `shardings`, not both")
    snapshot.wait()
    if snapshot.is_dropped():
        name = f"the snapshot of step {snapshot.step}" + (f" ({snapshot.label})" if snapshot.label else "")
        raise SnapshotError(f"FAILED_PRECONDITION: {name} is gone: it was dropped, or newer ones took its place")
    structure, leaves = snapshot._structure, snapshot._leaves
    if like is None:
        targets = _targets(structure, shardings)
    else:
        models, structure = jax.tree.flatten(like)
        leaves = _leaves_for(snapshot, structure)
        targets = [_sharding_like(leaf, one) for leaf, one in zip(leaves, models, strict=True)]
    return jax.tree.unflatten(structure, _made(snapshot, leaves, targets))


def _leaves_for(snapshot: Snapshot, structure: Any) -> Sequence[Leaf | Kept]:
    """The snapshot's leaves for a tree to be made: of its own structure or, from a file, of the same names."""
    if structure == snapshot._structure:
        return snapshot._leaves
    if snapshot._names is None:
        raise ValueError(f"`like` has another structure than the snapshot: {structure} and {snapshot._structure}")
    known = dict(zip(snapshot._names, snapshot._leaves, strict=True))
    names = leaf_names(structure)
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"`like` has {missing[0]} and {len(missing) - 1} others that the file does not have")
    return [known[name] for name in names]


def _targets(structure: Any, shardings: Any) -> list[Any]:
    """For each leaf the sharding that it is to have; None: the one that it had."""
    if shardings is None or isinstance(shardings, Sharding):
        return [shardings] * structure.num_leaves
    whole = jax.tree.unflatten(structure, range(structure.num_leaves))
    targets: list[Any] = [None] * structure.num_leaves

    def assign(sharding: Any, subtree: Any) -> None:
        for number in jax.tree.leaves(subtree):
            targets[number] = sharding

    jax.tree.map(assign, shardings, whole, is_leaf=lambda one: one is None or isinstance(one, Sharding))
    return targets


def _sharding_like(leaf: Leaf | Kept, one: Any) -> Any:
    if isinstance(leaf, Kept):
        return None
    what = leaf.keys or leaf.aval
    shape, dtype = what.shape, what.dtype
    if getattr(one, "shape", None) != shape or getattr(one, "dtype", None) != dtype:
        raise ValueError(f"`like` has {one} where the snapshot has an array of type {dtype} and shape {shape}")
    return getattr(one, "sharding", None)


def _made(snapshot: Snapshot, leaves: Sequence[Leaf | Kept], targets: list[Any]) -> list[Any]:
    """The leaves, made anew; all arrays in one go."""
    made: list[Any] = []
    wanted: list[tuple[int, Leaf, Sharding, bool, _Placement]] = []
    keys: list[tuple[int, Keys]] = []
    for place, (leaf, target) in enumerate(zip(leaves, targets, strict=True)):
        if isinstance(leaf, Kept):
            made.append(leaf.value.copy() if isinstance(leaf.value, np.ndarray) else leaf.value)
            continue
        sharding = leaf.sharding
        if target is not None:
            sharding = target if leaf.keys is None else leaf.keys.below(target)
        placement = _placement(leaf.aval.shape, leaf.aval.dtype, sharding)
        wanted.append((place, leaf, sharding, leaf.committed or target is not None, placement))
        made.append(None)
    orders = b"".join([placement.orders(leaf.number) for _, leaf, _, _, placement in wanted])
    # Nothing of the host's is transferred that the user's guard is to guard against.
    with jax.transfer_guard_host_to_device("allow"), snapshot._engine.supplying(snapshot._handle, orders):
        for place, leaf, sharding, committed, placement in wanted:
            array = xla_client.batched_device_put(
                leaf.aval, sharding, placement.shards, placement.devices, committed=committed, enable_x64=True
            )
            made[place] = array
            if leaf.keys is not None:
                keys.append((place, leaf.keys))
    # Not before: this may run programs, which must get buffers of their own.
    for place, kind in keys:
        made[place] = kind.array_of(made[place])
    return made


class _Placement:
    """The shards of arrays of one shape, type and sharding: which devices, and what of the array."""

    __slots__ = ("_wanted", "devices", "shards")

    def __init__(self, shape: tuple[int, ...], dtype: Any, sharding: Sharding) -> None:
        # JAX has None for what has no dimensions in its declaration only.
        indices: dict[Any, Any] = dict(sharding.addressable_devices_indices_map(shape))
        self.devices = list(indices)
        # Never read: it says what kind of array is wanted, and has no memory of its own.
        shard = np.broadcast_to(np.zeros((), dtype), sharding.shard_shape(shape))
        self.shards = [shard] * len(indices)
        # Where, and from where on.
        numbers = ((device.id, len(index), *start_of(index)) for device, index in indices.items())
        self._wanted = [struct.pack(f"<{len(some)}q", *some) for some in numbers]

    def orders(self, number: int) -> bytes:
        """What the extension is asked for, for an array with this number in its snapshot."""
        array = struct.pack("<q", number)
        return b"".join([array + wanted for wanted in self._wanted])


@functools.lru_cache(maxsize=65536)
def _placement(shape: tuple[int, ...], dtype: Any, sharding: Sharding) -> _Placement:
    return _Placement(shape, dtype, sharding)
