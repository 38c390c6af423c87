"""The snapshots of an elastic manager: taken as training goes, found again after a loss."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from mainstay import snapshot
from mainstay.elastic._errors import ElasticRuntimeError, is_error_due_to_slice_down

PyTree = Any


class Snapshots:
    """The latest snapshots: at most so many whole ones, and one that is on its way."""

    def __init__(self, most: int) -> None:
        self._store = snapshot.Store(most)
        self._newest: snapshot.Snapshot | None = None

    def take(self, step: int, tree: PyTree) -> None:
        """Begins a snapshot and returns; the arrays may be donated. Copies don't pile up: the last one's is awaited."""
        self._settle()
        self._newest = self._store.take(tree, step=step)

    def wait(self) -> None:
        """Waits until the newest one is whole; raises what became of it otherwise."""
        if self._newest is not None:
            self._newest.wait()

    def has(self, step: int) -> bool:
        """Whether the newest snapshot is of this step, and can become whole."""
        return self._newest is not None and self._newest.step == step and not self._newest.is_failed()

    def latest(self) -> snapshot.Snapshot:
        """The newest whole one; one that is on its way is waited for."""
        self._settle()
        latest = self._store.latest()
        if latest is None:
            raise ElasticRuntimeError("there is no snapshot to go on from: none was whole before the loss")
        return latest

    def clear(self) -> None:
        """Drops all."""
        self._newest = None
        self._store.clear()

    def _settle(self) -> None:
        try:
            self.wait()
        except jax.errors.JaxRuntimeError as error:
            # Cut short by the loss of a slice: there is the one before.
            if not is_error_due_to_slice_down(error):
                raise


def on_mesh(taken: snapshot.Snapshot, mesh: Mesh) -> PyTree:
    """The tree of a snapshot on another mesh, each array partitioned over the axes of the same names as before."""

    def to(leaf: Any) -> NamedSharding | None:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return None
        spec = getattr(leaf.sharding, "spec", None)
        return NamedSharding(mesh, spec if isinstance(spec, PartitionSpec) else PartitionSpec())

    return snapshot.restore(taken, shardings=jax.tree.map(to, taken.structure))


def in_host_memory(taken: snapshot.Snapshot, device: jax.Device) -> PyTree:
    """The tree of a snapshot with NumPy arrays; typed random keys, which NumPy has none of, are on the device."""

    def read(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.device_put(leaf, SingleDeviceSharding(device))
        return np.asarray(leaf)

    host = SingleDeviceSharding(device, memory_kind="pinned_host")
    return jax.tree.map(read, snapshot.restore(taken, shardings=host))
