"""The copy of libmainstay.so that JAX loaded into this process."""

import ctypes
import os
from pathlib import Path

# Functions of the library besides those of its extensions: the result and the arguments.
_FUNCTIONS = {
    "mainstay_status_json": (ctypes.c_void_p, ()),
    "mainstay_string_free": (None, (ctypes.c_void_p,)),
    "mainstay_wait_for_change": (ctypes.c_uint64, (ctypes.c_uint64, ctypes.c_uint64)),
    "mainstay_fault": (ctypes.c_void_p, (ctypes.c_char_p,)),
    "mainstay_reached_step": (None, (ctypes.c_uint64,)),
}

_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL | None:
    """That copy, or None before JAX has loaded it: a second copy would know no clients."""
    global _library
    if _library is None and (path := _path()) is not None:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        _library = library
    return _library


def _path() -> Path | None:
    # The library may have come by any way (PJRT_NAMES_AND_LIBRARY_PATHS, TPU_LIBRARY_PATH, this package), so
    # the process's own memory map is asked, not the settings.
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if path.endswith("/libmainstay.so"):
            return Path("/" + path)
    return None
