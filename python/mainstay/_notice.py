"""Being told of changes: a wait until a slice's state changes, and callbacks."""

import logging
import threading
import time
from collections.abc import Callable

from mainstay import _loaded
from mainstay._status import Slice, slices

_log = logging.getLogger("mainstay")

# A wait inside the library can't be interrupted: Ctrl-C is looked for this often, in seconds.
_GLANCE = 0.2
_NO_COUNT = 2**64 - 1

Callback = Callable[[tuple[Slice, ...]], object]


def change_count() -> int:
    """How often slices of this process have changed their state so far; 0 before JAX has made the client."""
    library = _loaded.library()
    return 0 if library is None else int(library.mainstay_wait_for_change(_NO_COUNT, 0))


def wait_for_change(seen: int | None = None, timeout: float | None = None) -> int:
    """Waits until slices have changed more than `seen` times (by default: until the next change).

    Returns how often they have changed; that is `seen` if `timeout`, in seconds, passed before. No change is
    missed by whoever passes the last result on:

        seen = mainstay.change_count()
        while not all(one.is_healthy for one in mainstay.slices()):
            seen = mainstay.wait_for_change(seen)
    """
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must not be negative, but is {timeout}")
    until = None if timeout is None else time.monotonic() + timeout
    seen = change_count() if seen is None else seen
    while True:
        left = _GLANCE if until is None else min(_GLANCE, max(0.0, until - time.monotonic()))
        library = _loaded.library()
        if library is None:
            time.sleep(left)
            count = 0
        else:
            count = int(library.mainstay_wait_for_change(seen, int(1000 * left)))
        if count != seen or (until is not None and time.monotonic() >= until):
            return count


def wait_until(condition: Callable[[tuple[Slice, ...]], bool], timeout: float | None = None) -> tuple[Slice, ...]:
    """Waits until the slices are as wanted and returns them.

    Raises TimeoutError, which says how they are, after `timeout` seconds.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        seen = change_count()
        now = slices()
        if condition(now):
            return now
        left = None if until is None else max(0.0, until - time.monotonic())
        if left == 0:
            states = ", ".join(f"slice {one.index} {one.state}" for one in now) or "there is no client"
            raise TimeoutError(f"slices are not as wanted after {timeout} s: {states}")
        wait_for_change(seen, left)


def on_change(callback: Callback) -> Callable[[], None]:
    """Calls `callback(slices)` from now on soon after each change of a slice's state; returns what ends that.

    Callbacks run one after the other on a thread of their own; quick changes may come as one. What a callback
    raises is logged.
    """
    return _watch.add(callback)


class _Watch:
    """The callbacks, and the thread that calls them while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callback] = []
        self._thread: threading.Thread | None = None

    def add(self, callback: Callback) -> Callable[[], None]:
        # Distinct even where the same callback is added twice.
        def call(now: tuple[Slice, ...]) -> None:
            callback(now)

        with self._lock:
            self._callbacks.append(call)
            if self._thread is None:
                arguments = (change_count(),)
                self._thread = threading.Thread(
                    target=self._run, args=arguments, name="mainstay-on-change", daemon=True
                )
                self._thread.start()

        def remove() -> None:
            with self._lock:
                if call in self._callbacks:
                    self._callbacks.remove(call)

        return remove

    def _run(self, seen: int) -> None:
        while True:
            count = wait_for_change(seen, 1.0)
            with self._lock:
                callbacks = list(self._callbacks)
                if not callbacks:
                    self._thread = None
                    return
            if count == seen:
                continue
            seen, now = count, slices()
            for callback in callbacks:
                try:
                    callback(now)
                except Exception:
                    _log.exception("a callback for changes of slices failed")


_watch = _Watch()
