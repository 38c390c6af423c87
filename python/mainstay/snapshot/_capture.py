"""Finding the buffers that arrays consist of, which JAX does not show.

An array on one device can be asked for its address. Many arrays on the same devices are given to a program, all at
once: JAX makes one call to Mainstay, which has the buffers and launches nothing. Until there is such a program each of
the shards of those on several devices is made an array, for which JAX takes some 10 µs. See `docs/snapshots.md`.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mainstay.snapshot._engine import Engine, SnapshotError
from mainstay.snapshot._leaves import ArrayImpl, Parts, reader

_read_shards = reader("_arrays")
# So many arrays on one device are found sooner by a program.
_MANY = 64


class Finder:
    """Finds the buffers of arrays that have the same shapes and shardings each time."""

    def __init__(self, parts: list[Parts]) -> None:
        """For as many arrays, each with its parts."""
        groups: dict[tuple[jax.Device, ...], list[int]] = {}
        for number, one in enumerate(parts):
            groups.setdefault(one.devices, []).append(number)
        self._groups = [(devices, _picker(numbers, len(parts))) for devices, numbers in groups.items()]
        self._is_first = True
        # Where the shards of each array begin among all that are found.
        starts, self._total = [0] * len(parts), 0
        for number in chain.from_iterable(groups.values()):
            starts[number] = self._total
            self._total += len(parts[number].devices)
        distinct = [start + place for start, one in zip(starts, parts, strict=True) for place in one.places]
        # The places of what is wanted; None: all, as they come.
        self._wanted = None if distinct == list(range(self._total)) else np.array(distinct, np.intp)

    def take(self, engine: Engine, arrays: list[Any], **request: Any) -> Any:
        """Takes a snapshot of the arrays' distinct parts, as Mainstay_Snapshot_Take does with the rest of the request.

        Raises RuntimeError for deleted arrays, ValueError for arrays that are not on Mainstay's devices.
        """
        if self._wanted is None:
            taken = self._take_noted(engine, arrays, request)
        else:
            wanted = self._find(engine, arrays)[self._wanted]
            taken = engine.call(
                "Mainstay_Snapshot_Take", buffers=wanted.ctypes.data, num_buffers=len(wanted), **request
            )
        # All of them are on Mainstay's devices.
        self._is_first = False
        return taken

    def _take_noted(self, engine: Engine, arrays: list[Any], request: dict[str, Any]) -> Any:
        """The same where all shards are wanted, which then need not come to Python."""
        self._capture(engine, arrays)
        try:
            return engine.call("Mainstay_Snapshot_Take", captured=True, num_buffers=self._total, **request)
        except SnapshotError:
            # For want of buffers, perhaps.
            self._find(engine, arrays)
            raise
        except BaseException:
            # Interrupted, perhaps before the call, which ends what was begun.
            with contextlib.suppress(SnapshotError):
                engine.call("Mainstay_Capture_End")
            raise

    def _find(self, engine: Engine, arrays: list[Any]) -> Any:
        """The buffers of all shards of the arrays."""
        self._capture(engine, arrays)
        # Of one's own: a signal's handler may find other arrays' buffers before these are used.
        found = np.empty(self._total, np.uintp)
        ended = engine.call("Mainstay_Capture_End", buffers=found.ctypes.data, capacity=self._total)
        if ended.num_buffers != self._total:
            raise ValueError(
                "the tree has arrays that are not on Mainstay's devices; put them there, or leave them out"
            )
        return found

    def _capture(self, engine: Engine, arrays: list[Any]) -> None:
        """Has the library note the buffers of all shards of the arrays."""
        # Before the library is told to note what it is asked: this makes calls of its own.
        groups = [self._prepared(devices, pick(arrays)) for devices, pick in self._groups]
        engine.call("Mainstay_Capture_Begin")
        try:
            for program, members in groups:
                if program is None:
                    # The fastest loop that Python has.
                    deque(map(ArrayImpl.unsafe_buffer_pointer, members), maxlen=0)
                else:
                    _give(program, members)
        except BaseException:
            engine.call("Mainstay_Capture_End")
            raise

    def _prepared(self, devices: tuple[jax.Device, ...], members: list[Any]) -> tuple[Any, list[Any]]:
        """A program and what to give to it, or None and arrays of one device each."""
        is_on_one = len(devices) == 1
        if is_on_one and len(members) < _MANY:
            return None, members
        # Who takes one snapshot only has no use for a program.
        program = None if self._is_first else _Program.on(devices)
        return (program, members) if program or is_on_one else (None, _shards_of(members))


def _picker(numbers: list[int], count: int) -> Callable[[list[Any]], list[Any]]:
    """Picks these of `count` things."""
    if len(numbers) == count:
        return lambda things: things
    if len(numbers) == 1:
        return lambda things: [things[numbers[0]]]
    pick = itemgetter(*numbers)
    return lambda things: list(pick(things))


def _give(program: Any, arrays: list[Any]) -> None:
    """Has JAX launch a program with these arrays."""
    try:
        program.execute_sharded(arrays)
    except RuntimeError:
        _refuse_deleted(arrays)
        raise


def _shards_of(arrays: list[Any]) -> list[Any]:
    """The shards of all arrays, one after the other, each an array of its own."""
    try:
        return list(chain.from_iterable(map(_read_shards, arrays)))
    except TypeError:
        # A deleted array has none.
        _refuse_deleted(arrays)
        raise


def _refuse_deleted(arrays: list[Any]) -> None:
    for array in arrays:
        array._check_if_deleted()


class _Program:
    """What arrays on certain devices are given to. Compiled on a thread of its own: nobody waits for it."""

    _all: ClassVar[dict[tuple[jax.Device, ...], "_Program"]] = {}
    _lock: ClassVar = threading.Lock()
    # A slice may be lost in the midst of it.
    _MOST_TRIES = 3

    def __init__(self) -> None:
        self.tries = 0
        self.is_being_made = False
        self.executable: Any = None

    @classmethod
    def on(cls, devices: tuple[jax.Device, ...]) -> Any:
        """The executable for these devices, if there is one already."""
        with cls._lock:
            program = cls._all.setdefault(devices, cls())
            if program.executable is None and not program.is_being_made and program.tries < cls._MOST_TRIES:
                program.is_being_made = True
                program.tries += 1
                threading.Thread(target=program._make, args=[devices], name="mainstay-capture").start()
            return program.executable

    def _make(self, devices: tuple[jax.Device, ...]) -> None:
        # The library knows it by its name; see include/mainstay_snapshot.h.
        def mainstay_capture(_: jax.Array) -> tuple[()]:
            return ()

        try:
            everywhere = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec())
            like = jax.ShapeDtypeStruct((), np.float32, sharding=everywhere)
            compiled = jax.jit(mainstay_capture, keep_unused=True).lower(like).compile()
            self.executable = compiled.runtime_executable()
        except Exception:
            # Then snapshots take a little longer.
            logging.getLogger(__name__).debug("no program that finds the buffers of arrays", exc_info=True)
        finally:
            self.is_being_made = False
