"""Snapshots of training state, kept where a worker's death frees nothing: in host memory that the client owns."""

import copy
from collections import deque
from typing import Any

import jax
import numpy as np

from mainstay.elastic._errors import ElasticRuntimeError, is_error_due_to_slice_down

PyTree = Any


class Snapshot:
    """A copy of a tree of arrays, as they were when it was taken, on its way to host memory or there.

    Leaves that are no JAX arrays are copied as Python objects.
    """

    def __init__(self, step: int, tree: PyTree) -> None:
        """Starts the copy and returns at once; the arrays may be donated right after."""
        self.step = step
        leaves, self._tree = jax.tree.flatten(tree)
        # Typed random keys travel as the numbers that they are made of.
        self._keys = [jax.random.key_impl(leaf) if _is_key(leaf) else None for leaf in leaves]
        leaves = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        self._specs = [_spec(leaf) for leaf in leaves]
        hosts = [leaf.sharding.with_memory_kind("pinned_host") for leaf in arrays]
        copies = iter(jax.device_put(arrays, hosts, may_alias=False))
        self._leaves = [next(copies) if isinstance(leaf, jax.Array) else copy.deepcopy(leaf) for leaf in leaves]

    def is_complete(self) -> bool:
        """Whether the copy has ended, well or not."""
        try:
            return all(leaf.is_ready() for leaf in self._arrays())
        except jax.errors.JaxRuntimeError:
            return True

    def wait(self) -> None:
        """Waits for the end of the copy; raises what went wrong with it."""
        jax.block_until_ready(self._arrays())

    def to_host(self) -> PyTree:
        """The tree with NumPy arrays for arrays, belonging to no device (random keys: on the default device)."""
        return self._build([np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in self._leaves])

    def on_mesh(self, mesh: jax.sharding.Mesh) -> PyTree:
        """The tree on another mesh, each array partitioned over the same axis names as before."""
        return self._place([jax.sharding.NamedSharding(mesh, spec) for spec in self._specs])

    def with_shardings(self, shardings: PyTree) -> PyTree:
        """The tree on devices, with one sharding for all, or a tree of them like the snapshot's."""
        if isinstance(shardings, jax.sharding.Sharding):
            return self._place([shardings] * len(self._leaves))
        return self._place(self._tree.flatten_up_to(shardings))

    def _arrays(self) -> list[jax.Array]:
        return [leaf for leaf in self._leaves if isinstance(leaf, jax.Array)]

    def _place(self, shardings: list[jax.sharding.Sharding]) -> PyTree:
        placed = [
            _put(leaf, to) if isinstance(leaf, jax.Array) else leaf
            for leaf, to in zip(self._leaves, shardings, strict=True)
        ]
        return self._build(placed)

    def _build(self, leaves: list[Any]) -> PyTree:
        wrapped = [
            leaf if impl is None else jax.random.wrap_key_data(leaf, impl=impl)
            for leaf, impl in zip(leaves, self._keys, strict=True)
        ]
        # Objects of the script's own stay those of the snapshot: a later restore must find them unchanged.
        own = [leaf if isinstance(leaf, jax.Array | np.ndarray) else copy.deepcopy(leaf) for leaf in wrapped]
        return jax.tree.unflatten(self._tree, own)


class Snapshots:
    """The latest snapshots: at most so many complete ones, and one that is on its way."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Oldest first.
        self._kept: deque[Snapshot] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, step: int, tree: PyTree) -> Snapshot:
        """Takes a snapshot. Waits for the end of the one before, so that copies don't pile up."""
        for kept in self._kept:
            _went_well(kept)
        self.tidy()
        snapshot = Snapshot(step, tree)
        self._kept.append(snapshot)
        return snapshot

    def has_latest(self, step: int) -> bool:
        """Whether the newest snapshot is of this step."""
        return bool(self._kept) and self._kept[-1].step == step

    def latest(self) -> Snapshot:
        """The newest one whose copy ended well; waits for it. Those that a loss cut off are dropped."""
        while self._kept and not _went_well(self._kept[-1]):
            self._kept.pop()
        if not self._kept:
            raise ElasticRuntimeError("there is no snapshot to go on from: none was complete before the loss")
        return self._kept[-1]

    def tidy(self) -> None:
        """Drops what is too old, and what a loss has cut off. Only complete snapshots replace older ones."""
        complete = [kept for kept in self._kept if kept.is_complete()]
        good = [kept for kept in complete if _went_well(kept)]
        dropped = [kept for kept in complete if kept not in good] + good[: -self._most]
        self._kept = deque(kept for kept in self._kept if kept not in dropped)


def _went_well(snapshot: Snapshot) -> bool:
    try:
        snapshot.wait()
    except jax.errors.JaxRuntimeError as error:
        if not is_error_due_to_slice_down(error):
            raise
        return False
    return True


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _spec(leaf: Any) -> jax.sharding.PartitionSpec:
    """How a leaf is partitioned; replicated where that is not known by axis names."""
    spec = getattr(getattr(leaf, "sharding", None), "spec", None)
    return spec if isinstance(spec, jax.sharding.PartitionSpec) else jax.sharding.PartitionSpec()


def _put(leaf: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    # Through the client's own view of the copy: the devices that it was taken from may be gone.
    values = np.asarray(leaf)
    return jax.make_array_from_callback(leaf.shape, sharding, lambda index: values[index])
