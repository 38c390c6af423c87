"""Mainstay: a PJRT plugin that outlives the hardware under it.

JAX finds this package through its `jax_plugins` entry point and calls `initialize()`. What a training
script asks for itself is here as well: `slices()` says how each slice is, `wait_for_change()` and
`on_change()` say when that changes. `mainstay.elastic` is for training that goes on with the slices there are.
"""

from mainstay._notice import change_count, on_change, wait_for_change, wait_until
from mainstay._register import initialize
from mainstay._status import ClientStatus, Loss, Slice, Spare, slices, status

__all__ = [
    "ClientStatus",
    "Loss",
    "Slice",
    "Spare",
    "change_count",
    "initialize",
    "on_change",
    "slices",
    "status",
    "wait_for_change",
    "wait_until",
]
