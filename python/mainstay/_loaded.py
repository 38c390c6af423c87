"""The copy of libmainstay.so that JAX loaded into this process."""

import ctypes
import os
from pathlib import Path

_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL | None:
    """That copy, or None before JAX has loaded it: a second copy would know no clients."""
    global _library
    if _library is None and (path := _path()) is not None:
        _library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return _library


def _path() -> Path | None:
    # The library may have come by any way (PJRT_NAMES_AND_LIBRARY_PATHS, TPU_LIBRARY_PATH, this package), so
    # the process's own memory map is asked, not the settings.
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if path.endswith("/libmainstay.so"):
            return Path("/" + path)
    return None
