"""Faults on request, to test how a script bears them: `mainstay.fault.kill(1)` kills the worker of slice 1.

Each function acts at once, or, with `at_step`, when the script says that it reached that step: the elastic
manager says so for its own steps, other scripts call `reached(step)`. `mainstay fault` does the same to a script
from outside.
"""

import ctypes
import json

from mainstay import _loaded


def kill(slice_index: int, at_step: int | None = None) -> None:
    """Kills the slice's worker with SIGKILL."""
    _inject("kill", slice_index, at_step)


def stop(slice_index: int, at_step: int | None = None) -> None:
    """Stops the slice's worker with SIGSTOP. It is lost after `MAINSTAY_HEARTBEAT_TIMEOUT`."""
    _inject("stop", slice_index, at_step)


def hang(slice_index: int, at_step: int | None = None) -> None:
    """Makes the slice's worker take no further work. It is lost after `MAINSTAY_PROGRESS_TIMEOUT`, if that is set."""
    _inject("hang", slice_index, at_step)


def slow(slice_index: int, seconds: float, at_step: int | None = None) -> None:
    """Makes the slice's worker wait so long before each launch; 0 ends it."""
    if seconds < 0:
        raise ValueError(f"seconds must not be negative, but is {seconds}")
    _inject({"slow": round(1000 * seconds)}, slice_index, at_step)


def fail_next_launch(slice_index: int, at_step: int | None = None) -> None:
    """Makes the slice's worker refuse its next launch, with an error that is no loss."""
    _inject("fail_next_launch", slice_index, at_step)


def exhaust_memory(slice_index: int, at_step: int | None = None) -> None:
    """Lets the slice's worker have no more memory. What it holds stays; the machine is not at risk."""
    _inject("exhaust_memory", slice_index, at_step)


def reached(step: int) -> None:
    """Says that the script reached a step: faults that wait for it, or for an earlier one, happen now."""
    library = _loaded.library()
    if library is not None and step >= 0:
        library.mainstay_reached_step(step)


def _inject(kind: str | dict[str, int], slice_index: int, at_step: int | None) -> None:
    library = _loaded.library()
    if library is None:
        raise RuntimeError("there is no client of Mainstay yet: call jax.devices() first")
    description = json.dumps({"kind": kind, "slice": slice_index, "at_step": at_step})
    complaint = library.mainstay_fault(description.encode())
    if complaint:
        try:
            raise ValueError(ctypes.string_at(complaint).decode())
        finally:
            library.mainstay_string_free(complaint)
