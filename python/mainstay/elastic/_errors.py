"""What goes wrong in elastic training, and which errors mean that a slice was lost."""

import jax


class ElasticRuntimeError(RuntimeError):
    """Elastic training cannot go on: limits are reached, or there is nothing to go on with."""


def is_error_due_to_slice_down(error: BaseException) -> bool:
    """Whether an error says that a slice was lost: Mainstay gives exactly those the code DATA_LOSS."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "DATA_LOSS" in str(error)
