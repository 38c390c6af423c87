"""Mainstay: a PJRT plugin that outlives the hardware under it.

JAX finds this package through its `jax_plugins` entry point and calls `initialize()`. What a training
script asks for itself is here as well: `slices()` says how each slice is.
"""

from mainstay._register import initialize
from mainstay._status import ClientStatus, Loss, Slice, slices, status

__all__ = ["ClientStatus", "Loss", "Slice", "initialize", "slices", "status"]
