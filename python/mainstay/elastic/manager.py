"""The manager of elastic training: snapshots, going on with fewer slices after a loss, and with more on a return."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from mainstay import fault
from mainstay import snapshot as engine
from mainstay.elastic import _retry
from mainstay.elastic._errors import ElasticRuntimeError, is_error_due_to_slice_down
from mainstay.elastic._slices import by_slice, healthy_slices, wait_for_slices
from mainstay.elastic._store import PyTree, Snapshots, in_host_memory, on_mesh

Handler = Callable[..., Any]

_one = threading.Lock()
_the_manager: "Manager | None" = None


class Manager:
    """Carries a training loop over losses and returns of slices. One per process.

    A loop calls `maybe_snapshot` and `maybe_reshard_up` after each step, and `maybe_reshard_down` with every
    `jax.errors.JaxRuntimeError`. Where the set of slices changes, they call the script's handler, as
    `elastic_handler(manager, *handler_args, **handler_kwargs)`: it builds mesh, functions and state anew for
    `good_devices`, from `get_next_snapshot()`, and what it returns is what they return.

    Not for use by several threads at once.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device] | None = None,
        snapshot_period: int = 1,
        snapshot_buffer_size: int = 1,
        reshard_check_period: int = 1,
        max_elastic_down_event_count: int | None = None,
        max_reshard_retry_count: int | None = None,
    ) -> None:
        """A manager for these devices (by default all). Periods are in steps.

        `max_elastic_down_event_count`: so many losses are survived, and one more is raised. `max_reshard_retry_count`:
        so many times in a row a handler that was hit by a loss itself is called again. None: no limit.

        Raises ValueError for what makes no sense, and ElasticRuntimeError if there is a manager already.
        """
        _check("snapshot_period", snapshot_period)
        _check("snapshot_buffer_size", snapshot_buffer_size)
        _check("reshard_check_period", reshard_check_period)
        _check("max_elastic_down_event_count", max_elastic_down_event_count, optional=True)
        _check("max_reshard_retry_count", max_reshard_retry_count, optional=True)
        self.snapshot_period = snapshot_period
        self.snapshot_buffer_size = snapshot_buffer_size
        self.reshard_check_period = reshard_check_period
        self.max_elastic_down_event_count = max_elastic_down_event_count
        self.max_reshard_retry_count = max_reshard_retry_count
        self.elastic_down_event_count = 0
        """Losses that were handled so far, those during a handler included."""
        self.slice_to_devices = by_slice(jax.devices() if devices is None else devices)
        """The devices of each slice, whether it works or not."""
        self._snapshots = Snapshots(snapshot_buffer_size)
        self._good = frozenset(healthy_slices(self.slice_to_devices))
        _claim(self)

    def close(self) -> None:
        """Ends this manager's use, lets go of its snapshots, and makes room for another one."""
        global _the_manager
        with _one:
            if _the_manager is self:
                _the_manager = None
        self._snapshots.clear()

    # The slices.

    @property
    def devices(self) -> list[jax.Device]:
        """All devices, those of lost slices included."""
        return [device for devices in self.slice_to_devices.values() for device in devices]

    @property
    def total_slice_count(self) -> int:
        """How many slices there are, working or not."""
        return len(self.slice_to_devices)

    @property
    def good_slice_indices(self) -> frozenset[int]:
        """The slices that training uses: those that worked at the start, or when the handler was last called."""
        return self._good

    @property
    def good_slice_count(self) -> int:
        """How many slices training uses."""
        return len(self._good)

    @property
    def good_slice_to_devices(self) -> dict[int, list[jax.Device]]:
        """The devices of each slice that training uses."""
        return {index: self.slice_to_devices[index] for index in sorted(self._good)}

    @property
    def good_devices(self) -> list[jax.Device]:
        """The devices that training uses: what a handler makes its mesh of."""
        return [device for devices in self.good_slice_to_devices.values() for device in devices]

    @property
    def available_inactive_slices(self) -> frozenset[int]:
        """Slices that work now, and that training does not use yet."""
        return frozenset(healthy_slices(self.slice_to_devices)) - self.good_slice_indices

    @property
    def default_device(self) -> jax.Device:
        """A device of a slice that training uses, for `jax.default_device`."""
        return self.good_devices[0]

    def slice_device_count(self, slice_index: int) -> int:
        """How many devices a slice has."""
        if slice_index not in self.slice_to_devices:
            raise ValueError(f"slice_index must be one of {sorted(self.slice_to_devices)}, but is {slice_index}")
        return len(self.slice_to_devices[slice_index])

    def scale_by_good_slices(self, x: int | float) -> int | float:
        """`x`, a batch size for example, scaled to the share of the slices that training uses.

        A whole number stays one: ValueError where it can't.
        """
        if isinstance(x, float):
            return x * self.good_slice_count / self.total_slice_count
        scaled, rest = divmod(x * self.good_slice_count, self.total_slice_count)
        if rest:
            raise ValueError(
                f"x is {x}, which {self.good_slice_count} of {self.total_slice_count} slices can't have their share of"
                " as a whole number"
            )
        return scaled

    def is_error_due_to_slice_down(self, error: BaseException) -> bool:
        """Whether an error says that a slice was lost."""
        return is_error_due_to_slice_down(error)

    def wait_for_slices(
        self, slice_count: int | None = None, poll_interval: float = 10.0, timeout: float | None = None
    ) -> frozenset[int]:
        """Waits until so many of the manager's slices work; see `mainstay.elastic.wait_for_slices`."""
        return wait_for_slices(slice_count, poll_interval, timeout, self.slice_to_devices)

    # Snapshots.

    def maybe_snapshot(self, step: int, snapshot: PyTree, force: bool = False, block: bool = False) -> None:
        """Takes a snapshot of a tree of arrays if `step` is a multiple of `snapshot_period`, or by `force`.

        Returns once it has begun, unless told to `block`; the arrays may be donated right after. An older snapshot
        is given up when a newer one is whole, so a loss during the copy leaves the one before.
        """
        fault.reached(step)
        if force or step % self.snapshot_period == 0:
            self._snapshots.take(step, snapshot)
            if block:
                self._snapshots.wait()

    def get_next_snapshot(
        self, mesh: jax.sharding.Mesh | None = None, shardings: PyTree | None = None
    ) -> tuple[int, PyTree]:
        """The step and the tree of the newest whole snapshot. It stays: a handler may be called again.

        On `mesh`, arrays are partitioned over the axes of the same names as when they were taken. `shardings` is one
        sharding for all, or a tree of them. Without either the arrays are NumPy's, to be placed as you like.

        Raises ElasticRuntimeError if there is none.
        """
        if mesh is not None and shardings is not None:
            raise ValueError("mesh and shardings say the same: give one of them")
        latest = self._snapshots.latest()
        if mesh is not None:
            return latest.step, on_mesh(latest, mesh)
        if shardings is not None:
            return latest.step, engine.restore(latest, shardings=shardings)
        return latest.step, in_host_memory(latest, self.default_device)

    # Changes of the set of slices.

    def maybe_reshard_down(
        self,
        error: Exception,
        elastic_handler: Handler,
        handler_args: Sequence[Any] = (),
        handler_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Goes on after an error: with the slices that work, if it says that one was lost.

        Calls the handler until it gets through, as a loss may hit it as well, and returns what it returns. Waits
        where no slice works at all.

        Raises `error` if it is no loss, what a handler raises that is no loss, and ElasticRuntimeError at the
        manager's limits.
        """
        return self._reshard(error, 0, elastic_handler, handler_args, handler_kwargs)

    def maybe_reshard_up(
        self,
        step: int,
        snapshot: PyTree,
        elastic_handler: Handler,
        handler_args: Sequence[Any] = (),
        handler_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Takes slices in that came back. Looks for them if `step` is a multiple of `reshard_check_period`.

        If there are any, takes a snapshot (unless this step has one), calls the handler as `maybe_reshard_down`
        does, and returns what it returns. Otherwise returns None.
        """
        fault.reached(step)
        if step % self.reshard_check_period or self.good_slice_count == self.total_slice_count:
            return None
        healthy = frozenset(healthy_slices(self.slice_to_devices))
        # A slice in use that is down is for maybe_reshard_down. One that was replaced may have been so before the
        # handler used it: if anything was lost with it, the snapshot tells.
        if not self._good < healthy:
            return None
        if not self._snapshots.has(step):
            self._snapshots.take(step, snapshot)
        # A loss in its way is raised, for maybe_reshard_down.
        self._snapshots.wait()
        self._good = healthy
        try:
            return elastic_handler(self, *handler_args, **(handler_kwargs or {}))
        except jax.errors.JaxRuntimeError as error:
            return self._reshard(error, 1, elastic_handler, handler_args, handler_kwargs)

    def _reshard(
        self,
        error: Exception,
        retries: int,
        handler: Handler,
        handler_args: Sequence[Any],
        handler_kwargs: Mapping[str, Any] | None,
    ) -> Any:
        while True:
            if not is_error_due_to_slice_down(error):
                raise error
            self._count_loss(error, retries)
            while not (healthy := frozenset(healthy_slices(self.slice_to_devices))):
                self.wait_for_slices(1)
            self._good = healthy
            try:
                return handler(self, *handler_args, **(handler_kwargs or {}))
            except jax.errors.JaxRuntimeError as next_error:
                error, retries = next_error, retries + 1

    def _count_loss(self, error: Exception, retries: int) -> None:
        self.elastic_down_event_count += 1
        most = self.max_elastic_down_event_count
        if most is not None and self.elastic_down_event_count > most:
            raise ElasticRuntimeError(
                f"a slice was lost {self.elastic_down_event_count} times; max_elastic_down_event_count is {most}"
            ) from error
        most = self.max_reshard_retry_count
        if most is not None and retries > most:
            raise ElasticRuntimeError(
                f"the elastic handler was hit by a loss {retries} times in a row; max_reshard_retry_count is {most}"
            ) from error

    # The newer style.

    def elastic_retry(self, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that runs a training function again after losses; see `mainstay.elastic.elastic_retry`.

        Each attempt begins with the manager's `good_slice_indices` set to the slices that work.
        """
        return _retry.elastic_retry(manager=self, **options)

    def _begin_attempt(self, slices: frozenset[int]) -> None:
        self._good = frozenset(healthy_slices(slices))


def _claim(manager: Manager) -> None:
    global _the_manager
    with _one:
        if _the_manager is not None:
            raise ElasticRuntimeError("this process has an elastic manager already; use it, or close() it first")
        _the_manager = manager


def _check(name: str, value: int | None, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        kind = "a positive whole number or None" if optional else "a positive whole number"
        raise ValueError(f"{name} must be {kind}, but is {value!r}")
