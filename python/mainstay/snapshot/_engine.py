"""The snapshot extension of libmainstay.so (`include/mainstay_snapshot.h`), as Python calls it."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from mainstay import _loaded

COPYING, WHOLE, FAILED, DROPPED = range(4)

_VERSION = 3
_EXTENSION_TYPE = 0x4D535301
_DATA_LOSS = 15


class SnapshotError(jax.errors.JaxRuntimeError):  # type: ignore[misc]
    """A snapshot can't be taken, waited for or restored. The text begins with the code's name, as JAX's errors do."""


@dataclass(frozen=True)
class Progress:
    """How much of a snapshot is done, in bytes."""

    done: int
    """Copied, and checked where the store computes checksums."""
    total: int
    """All of it."""

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.done / self.total if self.total else 1.0


_SIZE, _POINTER, _I64, _U64 = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64


def _struct(name: str, **fields: Any) -> type[ctypes.Structure]:
    """An argument struct: its size and extensions come first in each."""
    head = [("struct_size", _SIZE), ("extension_start", _POINTER)]
    return type(name, (ctypes.Structure,), {"_fields_": head + list(fields.items())})


class _Base(ctypes.Structure):
    _fields_: ClassVar = [("struct_size", _SIZE), ("type", ctypes.c_uint32), ("next", _POINTER)]


_ARGS = {
    "Mainstay_SnapshotStore_Create": _struct("StoreCreate", size=_SIZE, checksums=ctypes.c_bool, store=_POINTER),
    "Mainstay_SnapshotStore_Destroy": _struct("StoreDestroy", store=_POINTER),
    "Mainstay_SnapshotStore_List": _struct(
        "StoreList", store=_POINTER, snapshots=_POINTER, capacity=_SIZE, num_snapshots=_SIZE
    ),
    "Mainstay_Snapshot_Take": _struct(
        "Take",
        store=_POINTER,
        step=_I64,
        label=ctypes.c_char_p,
        label_size=_SIZE,
        metadata=ctypes.c_char_p,
        metadata_size=_SIZE,
        buffers=_POINTER,
        num_buffers=_SIZE,
        layout=ctypes.c_char_p,
        layout_size=_SIZE,
        captured=ctypes.c_bool,
        snapshot=_POINTER,
    ),
    "Mainstay_Snapshot_Destroy": _struct("Destroy", snapshot=_POINTER),
    "Mainstay_Snapshot_Info": _struct(
        "Info",
        snapshot=_POINTER,
        id=_U64,
        step=_I64,
        taken_at=_I64,
        done=_U64,
        total=_U64,
        num_arrays=_SIZE,
        label=_POINTER,
        label_size=_SIZE,
        metadata=_POINTER,
        metadata_size=_SIZE,
        phase=ctypes.c_uint32,
    ),
    "Mainstay_Snapshot_Array": _struct(
        "Array",
        snapshot=_POINTER,
        array=_SIZE,
        dims=_POINTER,
        num_dims=_SIZE,
        num_parts=_SIZE,
        type=ctypes.c_uint32,
    ),
    "Mainstay_Snapshot_Wait": _struct("Wait", snapshot=_POINTER, timeout=_U64, phase=ctypes.c_uint32),
    "Mainstay_Snapshot_Verify": _struct("Verify", snapshot=_POINTER),
    "Mainstay_Snapshot_Drop": _struct("Drop", snapshot=_POINTER),
    "Mainstay_Snapshot_Restore": None,
    "Mainstay_Capture_Begin": _struct("CaptureBegin"),
    "Mainstay_Capture_End": _struct("CaptureEnd", buffers=_POINTER, capacity=_SIZE, num_buffers=_SIZE),
    "Mainstay_Supply_Begin": _struct("SupplyBegin", snapshot=_POINTER, orders=ctypes.c_char_p, orders_size=_SIZE),
    "Mainstay_Supply_End": _struct("SupplyEnd", num_left=_SIZE),
    "Mainstay_Snapshot_Export": _struct(
        "Export",
        snapshot=_POINTER,
        path=ctypes.c_char_p,
        path_size=_SIZE,
        names=ctypes.c_char_p,
        names_size=_SIZE,
        metadata=ctypes.c_char_p,
        metadata_size=_SIZE,
        watch=_POINTER,
        user=_POINTER,
    ),
    "Mainstay_Snapshot_Import": _struct(
        "Import",
        store=_POINTER,
        client=_POINTER,
        path=ctypes.c_char_p,
        path_size=_SIZE,
        watch=_POINTER,
        user=_POINTER,
        snapshot=_POINTER,
        names=_POINTER,
        names_size=_SIZE,
    ),
}


class _Extension(ctypes.Structure):
    _fields_: ClassVar = [
        ("base", _Base),
        ("name", ctypes.c_char_p),
        ("version", _SIZE),
        *((name, _POINTER) for name in _ARGS),
    ]


class _Api(ctypes.Structure):
    """The head of PJRT_Api, whose first functions are those of errors."""

    _fields_: ClassVar = [("head", _SIZE * 5), ("destroy", _POINTER), ("message", _POINTER), ("code", _POINTER)]


_ErrorDestroy = _struct("ErrorDestroy", error=_POINTER)
_ErrorMessage = _struct("ErrorMessage", error=_POINTER, message=_POINTER, message_size=_SIZE)
_ErrorCode = _struct("ErrorCode", error=_POINTER, code=ctypes.c_uint32)

# By their numbers.
_CODES = """
OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED
FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED
"""


class Engine:
    """The extension's functions. Handles are integers."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Looks the extension up in the library that JAX loaded."""
        library.MainstaySnapshotExtension.restype = ctypes.POINTER(_Extension)
        library.GetPjrtApi.restype = ctypes.POINTER(_Api)
        extension = library.MainstaySnapshotExtension().contents
        if extension.base.type != _EXTENSION_TYPE or extension.version < _VERSION:
            raise RuntimeError(f"libmainstay.so has version {extension.version} of snapshots; {_VERSION} is needed")
        function = ctypes.CFUNCTYPE(_POINTER, _POINTER)
        self._functions = {
            name: (function(getattr(extension, name)), args, ctypes.sizeof(args))
            for name, args in _ARGS.items()
            if args is not None
        }
        api = library.GetPjrtApi().contents
        self._destroy, self._message, self._code = (function(at) for at in (api.destroy, api.message, api.code))

    def call(self, name: str, **given: Any) -> Any:
        """Calls a function with these arguments and returns its struct; raises SnapshotError."""
        function, struct, size = self._functions[name]
        args = struct(size, **given)
        if error := function(ctypes.byref(args)):
            self._raise(error)
        return args

    def give_back(self, name: str, **given: Any) -> None:
        """The same for the end of an object, which may come with the interpreter's: then nothing is to be done."""
        if sys is not None and not sys.is_finalizing():
            self.call(name, **given)

    def _raise(self, error: int) -> None:
        message = _ErrorMessage(struct_size=ctypes.sizeof(_ErrorMessage), error=error)
        code = _ErrorCode(struct_size=ctypes.sizeof(_ErrorCode), error=error)
        self._message(ctypes.byref(message))
        self._code(ctypes.byref(code))
        text = ctypes.string_at(message.message, message.message_size).decode(errors="replace")
        self._destroy(ctypes.byref(_ErrorDestroy(struct_size=ctypes.sizeof(_ErrorDestroy), error=error)))
        names = _CODES.split()
        name = names[code.code] if code.code < len(names) else "UNKNOWN"
        raise SnapshotError(f"{name}: {text}")

    @contextmanager
    def supplying(self, snapshot: int, orders: bytes) -> Iterator[None]:
        """While this lasts, what JAX puts on devices on this thread is taken from the snapshot instead."""
        self.call("Mainstay_Supply_Begin", snapshot=snapshot, orders=orders, orders_size=len(orders) // 8)
        try:
            yield
        finally:
            left = self.call("Mainstay_Supply_End").num_left
        if left:
            raise RuntimeError(f"JAX did not ask for {left} of the buffers of the snapshot: this JAX is not supported")


_engine: Engine | None = None


def engine() -> Engine:
    """The extension of the library that JAX loaded, which it is made to do here if it has not."""
    global _engine
    if _engine is None:
        jax.devices()
        library = _loaded.library()
        if library is None:
            raise RuntimeError("snapshots need JAX to run on Mainstay: libmainstay.so is not loaded")
        _engine = Engine(library)
    return _engine
