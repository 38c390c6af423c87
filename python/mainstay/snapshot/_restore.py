"""Making arrays from a snapshot."""

import struct
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from mainstay.snapshot._leaves import Kept, Leaf, start_of
from mainstay.snapshot._store import Snapshot


def restore(snapshot: Snapshot, *, like: Any = None, shardings: Any = None) -> Any:
    """The tree of a snapshot, its arrays on devices again; returns at once, and the arrays get ready later.

    The snapshot must be whole (`Snapshot.wait`). The slices that it was taken from may be gone. Each device gets what
    its shard needs and nothing else, directly from the snapshot's memory.

    Args:
        snapshot: what to restore.
        like: a tree of the same structure with an array or `jax.ShapeDtypeStruct` in the place of each array, whose
            sharding says where the array goes. Shapes and types must be those of the snapshot.
        shardings: one sharding for all arrays, or a tree of them (a prefix of the snapshot's) instead.

    Without either, every array goes where it was.

    Raises SnapshotError where the snapshot is not whole or host memory has no room; ValueError where `like` or
    `shardings` don't fit. A slice that is lost meanwhile is no error here: its arrays raise when they are used.
    """
    if like is not None and shardings is not None:
        raise ValueError("give `like` or `shardings`, not both")
    targets = _targets(snapshot, like, shardings)
    pairs = zip(snapshot._leaves, targets, strict=True)
    return jax.tree.unflatten(snapshot._structure, [_leaf(snapshot, leaf, target) for leaf, target in pairs])


def _targets(snapshot: Snapshot, like: Any, shardings: Any) -> list[Any]:
    """For each leaf the sharding that it is to have; None: the one that it had."""
    structure = snapshot._structure
    if like is not None:
        leaves, given = jax.tree.flatten(like)
        if given != structure:
            raise ValueError(f"`like` has another structure than the snapshot: {given} instead of {structure}")
        pairs = zip(snapshot._leaves, leaves, strict=True)
        return [_sharding_like(leaf, one) for leaf, one in pairs]
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


def _leaf(snapshot: Snapshot, leaf: Leaf | Kept, sharding: Any) -> Any:
    if isinstance(leaf, Kept):
        return leaf.value.copy() if isinstance(leaf.value, np.ndarray) else leaf.value
    committed = leaf.committed or sharding is not None
    if sharding is None:
        sharding = leaf.sharding
    elif leaf.keys is not None:
        sharding = leaf.keys.below(sharding)
    array = _array(snapshot, leaf, sharding, committed)
    return array if leaf.keys is None else leaf.keys.array_of(array)


def _array(snapshot: Snapshot, leaf: Leaf, sharding: Any, committed: bool) -> jax.Array:
    from jax._src.lib import xla_client  # type: ignore[attr-defined]

    aval = leaf.aval
    indices = sharding.addressable_devices_indices_map(aval.shape)
    numbers: list[int] = []
    for device, index in indices.items():
        numbers += (leaf.index, device.id, len(index), *start_of(index))
    # Never read: it says what kind of array is wanted, and has no memory of its own.
    shard = np.broadcast_to(np.zeros((), aval.dtype), sharding.shard_shape(aval.shape))
    with snapshot._engine.supplying(snapshot._handle, struct.pack(f"<{len(numbers)}q", *numbers)):
        return xla_client.batched_device_put(
            aval, sharding, [shard] * len(indices), list(indices), committed=committed, enable_x64=True
        )
