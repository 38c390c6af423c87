"""The newer style of elastic training: a function that is run again, from its own checkpoint, when slices change."""

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from mainstay.elastic._errors import ElasticRuntimeError, is_error_due_to_slice_down
from mainstay.elastic._slices import by_slice, wait_for_slices

if TYPE_CHECKING:
    from mainstay.elastic.manager import Manager

_log = logging.getLogger("mainstay")

RetryPolicy = Callable[[int, Exception], bool]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class ScaleUpSignalError(Exception):
    """To be raised by a training function that wants to start again with the slices that came back."""


class ElasticRetryLimit:
    """A retry policy: so many attempts, and no more."""

    def __init__(self, max_attempts: int) -> None:
        """Raises ValueError unless `max_attempts` is positive."""
        if max_attempts <= 0:
            raise ValueError(f"max_attempts must be positive, but is {max_attempts}")
        self.max_attempts = max_attempts

    def __call__(self, attempt: int, error: Exception) -> bool:
        """Whether there may be another attempt after this one, counted from 1."""
        return attempt < self.max_attempts


def elastic_retry(
    *,
    minimum_slice_count: int | None = None,
    timeout: float | None = None,
    retry_policy: RetryPolicy | None = None,
    pre_callback: Callable[[], Any] | None = None,
    on_elastic_event_callback: Callable[[], Any] | None = None,
    manager: "Manager | None" = None,
) -> Callable[[_Function], _Function]:
    """A decorator that runs a training function again whenever a slice is lost, or it raises ScaleUpSignalError.

    Each attempt waits for `minimum_slice_count` working slices (by default all), `timeout` seconds at most, then
    calls `pre_callback` and the function, with a device of a working slice as JAX's default. After a loss
    `on_elastic_event_callback` is called, and `retry_policy(attempt, error)` says whether to go on; attempts are
    counted from 1, and by default they have no limit. What the function raises else is passed on.

    With a `manager`, the function finds the slices of its attempt there.

    Raises TimeoutError where slices are waited for too long, ElasticRuntimeError where the policy says no.
    """
    if minimum_slice_count is not None and minimum_slice_count <= 0:
        raise ValueError(f"minimum_slice_count must be positive or None, but is {minimum_slice_count}")
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must not be negative, but is {timeout}")

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            attempt = 1
            while True:
                try:
                    device = _begin(manager, minimum_slice_count, timeout)
                    if pre_callback is not None:
                        pre_callback()
                    with jax.default_device(device):
                        return function(*args, **kwargs)
                except (ScaleUpSignalError, jax.errors.JaxRuntimeError) as error:
                    if not isinstance(error, ScaleUpSignalError) and not is_error_due_to_slice_down(error):
                        raise
                    _log.info("elastic event in attempt %d: %s", attempt, error)
                    _stop_trace()
                    if on_elastic_event_callback is not None:
                        on_elastic_event_callback()
                    if retry_policy is not None and not retry_policy(attempt, error):
                        raise ElasticRuntimeError(
                            f"attempt {attempt} was the last one that the retry policy allows"
                        ) from error
                attempt += 1

        return run  # type: ignore[return-value]

    return decorate


def _begin(manager: "Manager | None", slice_count: int | None, timeout: float | None) -> jax.Device:
    devices = by_slice(jax.devices()) if manager is None else manager.slice_to_devices
    slices = wait_for_slices(slice_count, timeout=timeout, slice_to_devices=devices)
    if manager is not None:
        manager._begin_attempt(slices)
    return devices[min(slices)][0]


def _stop_trace() -> None:
    # A profile that the failed attempt began would keep the next one from beginning its own.
    with contextlib.suppress(RuntimeError, ValueError):
        jax.profiler.stop_trace()
