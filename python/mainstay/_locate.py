"""Where the files are that are no Python: Mainstay's library and executable, and the real plugin that it wraps."""

import os
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

_LIBRARY = "libmainstay.so"
_CPU_PLUGIN = ("lammps-jax-pjrt-cpu", "pjrt_c_api_cpu_plugin.so")


def library() -> Path | None:
    """The path of libmainstay.so, or None where there is none.

    Looked for where `MAINSTAY_LIBRARY` says, in this package, where a wheel brings it, and, in a checkout of the
    project, in `target/release`. A `MAINSTAY_LIBRARY` that names no file is an error: FileNotFoundError.
    """
    if named := os.environ.get("MAINSTAY_LIBRARY"):
        path = Path(named)
        if not path.is_file():
            raise FileNotFoundError(f"MAINSTAY_LIBRARY={named} names no file; point it at {_LIBRARY}")
        return path.resolve()
    package = Path(__file__).resolve().parent
    checkout = package.parent.parent
    for directory in (package, checkout / "target" / "release"):
        if (path := directory / _LIBRARY).is_file():
            return path
    return None


def run_executable() -> None:
    """The command `mainstay` that `pip install` puts on the path: becomes the executable beside the library."""
    found = library()
    executable = found and found.with_name("mainstay")
    if not executable or not executable.is_file():
        sys.exit(f"mainstay: the executable is not beside {_LIBRARY} ({found}); build it (cargo build --release)")
    os.execv(executable, sys.argv)


def cpu_plugin() -> Path | None:
    """The path of XLA's CPU plugin as the `mainstay[cpu]` extra installs it, or None."""
    distribution, name = _CPU_PLUGIN
    try:
        installed = files(distribution) or []
    except PackageNotFoundError:
        return None
    for file in installed:
        if file.name == name:
            return Path(str(file.locate()))
    return None
