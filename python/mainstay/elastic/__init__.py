"""Elastic training: a script goes on with the slices there are, and takes those in that come back.

`Manager` is for loops that keep their state in snapshots; `elastic_retry` for functions that start again from a
checkpoint of their own. `docs/elastic.md` has both.
"""

import jax

import mainstay
from mainstay.elastic._errors import ElasticRuntimeError, is_error_due_to_slice_down
from mainstay.elastic._retry import ElasticRetryLimit, ScaleUpSignalError, elastic_retry
from mainstay.elastic._slices import healthy_slices, wait_for_slices
from mainstay.elastic.manager import Manager

__all__ = [
    "ElasticRetryLimit",
    "ElasticRuntimeError",
    "Manager",
    "ScaleUpSignalError",
    "elastic_retry",
    "healthy_slices",
    "initialize",
    "is_error_due_to_slice_down",
    "wait_for_slices",
]


def initialize() -> None:
    """Makes sure that JAX runs on Mainstay, and starts its workers if need be. May be called again.

    Raises RuntimeError if JAX runs on something else.
    """
    backend = jax.default_backend()
    if not mainstay.slices():
        raise RuntimeError(f"JAX runs on {backend}, not on Mainstay: set JAX_PLATFORMS=mainstay before JAX starts")
