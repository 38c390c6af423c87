"""What `pip install .` does besides packing Python files: builds the library and the executable, and puts them in.

A build hook of hatchling; pyproject.toml names it. An editable installation builds nothing: there the package finds
what cargo left in `target/release`.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_BUILT = ("libmainstay.so", "mainstay")
_LIBCLANG = "requirements/libclang.txt"


class WheelHook(BuildHookInterface[Any]):
    """Adds the built files to a wheel, which is then one for this kind of machine, and for any Python."""

    def dependencies(self) -> list[str]:
        """What the build needs from the registry: libclang, where the system has none."""
        if not _needs_libclang(Path(self.root)):
            return []
        lines = (Path(self.root) / "python" / _LIBCLANG).read_text().splitlines()
        return [line for line in lines if line and not line.startswith("#")]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds, and says where the files go."""
        if version == "editable":
            return
        for path in _build(Path(self.root)):
            build_data["force_include"][str(path)] = f"mainstay/{path.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _build(root: Path) -> list[Path]:
    """Builds with cargo; the paths of the library and of the executable, wherever cargo's settings put them."""
    if shutil.which("cargo") is None:
        raise RuntimeError("cargo is not there; install a Rust toolchain (1.88 or newer), then try again")
    cargo = "cargo build --release --locked --message-format=json-render-diagnostics"
    command = ["bash", "-c", f". scripts/env.sh && {cargo}"]
    done = subprocess.run(command, cwd=root, env=_environment(root), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError("cargo could not build Mainstay; its messages are above (pip shows them with -v)")
    made = {Path(name).name: Path(name) for line in done.stdout.splitlines() for name in _files(json.loads(line))}
    return [made[name] for name in _BUILT]


def _files(message: dict[str, Any]) -> list[str]:
    """The files that a message of cargo tells of."""
    return message.get("filenames") or []


def _environment(root: Path) -> dict[str, str]:
    """The environment of the build: with the registry's libclang, where that one is needed."""
    environment = dict(os.environ)
    spec = importlib.util.find_spec("clang") if _needs_libclang(root) else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (native := Path(folder) / "native").is_dir():
            environment["LIBCLANG_PATH"] = str(native)
    return environment


def _needs_libclang(root: Path) -> bool:
    """Whether there is no libclang that bindgen finds, or that scripts/env.sh can name to it."""
    asked = ["bash", "-c", ". scripts/env.sh && needs_libclang"]
    return subprocess.run(asked, cwd=root, stdin=subprocess.DEVNULL).returncode == 0
