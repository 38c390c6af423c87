"""A small transformer that reads handwritten digits, trained with Adam. Nothing here knows about slices.

Weights and Adam's moments are split over the devices of the mesh (each device holds a part of most of them), and so is
each batch. A mesh of 2, 4, 6 or 12 devices divides them evenly.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

BATCH, WIDTH, HEADS, LAYERS, CLASSES = 96, 48, 4, 1, 10
# An image is read row by row: as many tokens as rows, of as many numbers as columns.
ROWS = COLUMNS = 8
# What divides a dimension that is split.
EVEN = 12

State = dict[str, Any]
TrainStep = Callable[[State, Any, Any], tuple[State, jax.Array]]


class Digits(NamedTuple):
    """Images of 8 by 8 numbers between 0 and 1, and what they show."""

    images: np.ndarray
    labels: np.ndarray


@cache
def digits() -> tuple[Digits, Digits]:
    """Real handwritten digits, from scikit-learn: those to train with, and those held out."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, ROWS, COLUMNS)
    labels = labels.astype(np.int32)
    return Digits(images[:1500], labels[:1500]), Digits(images[1500:], labels[1500:])


def batch_of(data: Digits, step: int) -> Digits:
    """The examples of one step: a function of the step alone, so that any step can be done again."""
    chosen = np.random.default_rng(step).choice(len(data.labels), BATCH, replace=False)
    return Digits(data.images[chosen], data.labels[chosen])


def initial_state() -> State:
    """Weights, Adam's two moments of each, and the count of steps, in host memory."""
    rng = np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)

    def layer() -> dict[str, np.ndarray]:
        return {
            "attend": random(WIDTH, 3 * WIDTH),
            "merge": random(WIDTH, WIDTH),
            "widen": random(WIDTH, 2 * WIDTH),
            "narrow": random(2 * WIDTH, WIDTH),
        }

    weights = {
        "embed": random(COLUMNS, WIDTH),
        "places": random(ROWS, WIDTH),
        "layers": [layer() for _ in range(LAYERS)],
        "classify": random(WIDTH, CLASSES),
    }
    zeros = jax.tree.map(np.zeros_like, weights)
    return {"weights": weights, "mean": zeros, "square": jax.tree.map(np.zeros_like, weights), "step": np.int32(0)}


def scores(weights: Any, images: Any) -> jax.Array:
    """For each image, how much it looks like each digit."""
    x = images @ weights["embed"] + weights["places"]
    for layer in weights["layers"]:
        x = x + _attention(_normal(x) @ layer["attend"]) @ layer["merge"]
        x = x + jax.nn.relu(_normal(x) @ layer["widen"]) @ layer["narrow"]
    return _normal(x).mean(axis=1) @ weights["classify"]


def _normal(x: jax.Array) -> jax.Array:
    return (x - x.mean(axis=-1, keepdims=True)) * jax.lax.rsqrt(x.var(axis=-1, keepdims=True) + 1e-6)


def _attention(x: jax.Array) -> jax.Array:
    query, key, value = jnp.split(x.reshape(*x.shape[:2], HEADS, -1), 3, axis=-1)
    weight = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5)
    return jnp.einsum("bhqk,bkhd->bqhd", weight, value).reshape(*x.shape[:2], -1)


def loss_of(weights: Any, images: Any, labels: Any) -> jax.Array:
    """Cross entropy, averaged over the batch."""
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores(weights, images)), labels[:, None], axis=1))


def accuracy(state: State, data: Digits) -> float:
    """The share of images that the state reads right."""
    weights = jax.device_put(jax.device_get(state["weights"]), jax.devices()[0])
    return float(np.mean(np.argmax(jax.jit(scores)(weights, data.images), axis=1) == data.labels))


def _adam_step(state: State, images: Any, labels: Any) -> tuple[State, jax.Array]:
    loss, gradient = jax.value_and_grad(loss_of)(state["weights"], images, labels)
    step = state["step"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, state["square"], gradient)
    rate = 0.002 * jnp.sqrt(1 - 0.99**step) / (1 - 0.9**step)
    weights = jax.tree.map(lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), state["weights"], mean, square)
    return {"weights": weights, "mean": mean, "square": square, "step": step}, loss


# ---- Where it runs. ----


def mesh_of(devices: list[jax.Device]) -> Mesh:
    """The devices in a row: each has its part of the batch, and of the state."""
    return Mesh(np.array(devices), ("data",))


def shardings(mesh: Mesh) -> Any:
    """How the state is laid out on a mesh: split along its first dimension where that is even."""

    def of(leaf: Any) -> NamedSharding:
        split = leaf.ndim > 0 and leaf.shape[0] % EVEN == 0
        return NamedSharding(mesh, PartitionSpec("data") if split else PartitionSpec())

    return jax.tree.map(of, initial_state())


@cache
def train_step_on(mesh: Mesh) -> TrainStep:
    """One step on a mesh. Compiled once for each mesh, at its first use; the old state's memory is used again."""
    spread, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    layout = shardings(mesh)
    return jax.jit(
        _adam_step,
        donate_argnums=0,
        in_shardings=(layout, spread, spread),
        out_shardings=(layout, everywhere),
    )


def put_batch(batch: Digits, mesh: Mesh) -> Digits:
    """A batch on the devices that train."""
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
