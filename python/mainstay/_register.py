"""Registration with JAX: what the `jax_plugins` entry point calls."""

import logging
import os
from typing import TYPE_CHECKING

from mainstay import _locate

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("mainstay")

_NAME = "mainstay"
# Below the accelerator plugins' own (400 and more): where several are asked for, the first named counts.
_PRIORITY = 300


def initialize() -> None:
    """Registers libmainstay.so with JAX as the platform `mainstay`, if this process asks for it.

    JAX calls this for every installed plugin, and creates a client of every registered one where
    `JAX_PLATFORMS` is not set. Worker processes are not to be started for whoever only has the package
    installed, so asking means: `mainstay` is in `JAX_PLATFORMS` (or in JAX's own setting of that name), or
    `MAINSTAY_PLUGIN` says what to wrap. A registration through `PJRT_NAMES_AND_LIBRARY_PATHS` has
    precedence.
    """
    import jax
    from jax._src import xla_bridge

    platforms = (getattr(jax.config, "jax_platforms", None) or "").split(",")
    if _NAME not in platforms and "MAINSTAY_PLUGIN" not in os.environ:
        return
    if _registered_by_environment():
        return
    library = _locate.library()
    if library is None:
        _log.warning(
            "libmainstay.so is not where the mainstay package looks for it; "
            "build it (cargo build --release) and set MAINSTAY_LIBRARY to its path"
        )
        return
    xla_bridge.register_plugin(_NAME, library_path=str(library), options=_options(), priority=_PRIORITY)


def _registered_by_environment() -> bool:
    entries = os.environ.get("PJRT_NAMES_AND_LIBRARY_PATHS", "").split(",")
    return any(entry.partition(":")[0].strip() == _NAME for entry in entries)


def _options() -> "Mapping[str, str]":
    """Create options for what the environment leaves open: the plugin to wrap."""
    if "MAINSTAY_PLUGIN" in os.environ:
        return {}
    plugin = _locate.cpu_plugin()
    return {"plugin": str(plugin)} if plugin else {}
