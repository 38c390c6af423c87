"""A small transformer and its training step with Adam: what a realistic program is to the benches."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, HEADS, LAYERS, LENGTH, ROWS, WORDS = 256, 4, 4, 64, 8, 512

# How the weights lie on a mesh with an axis "model", and the tokens on one with an axis "data".
WEIGHTS = {
    "embed": P("model", None),
    "qkv": P(None, "model"),
    "out": P("model", None),
    "up": P(None, "model"),
    "down": P("model", None),
}
TOKENS = P("data", None)


def build(rate: float = 1e-3) -> tuple[Any, Any, Any]:
    """The jitted step, its state (weights and Adam's two moments) and a batch of tokens, on the default device.

    `step(state, tokens)` uses its state up and returns the next one and the loss.
    """
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.02, shape).astype(np.float32)

    layer = {
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    weights = {
        "embed": matrix(WORDS, WIDTH),
        "layers": [{name: matrix(*shape) for name, shape in layer.items()} for _ in range(LAYERS)],
    }

    def normed(x: jax.Array) -> jax.Array:
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    def attention(one: Any, x: jax.Array) -> jax.Array:
        split = (normed(x) @ one["qkv"]).reshape(ROWS, LENGTH, HEADS, 3, WIDTH // HEADS)
        mixed = jax.nn.dot_product_attention(split[..., 0, :], split[..., 1, :], split[..., 2, :], is_causal=True)
        return mixed.reshape(ROWS, LENGTH, WIDTH) @ one["out"]

    def loss_of(weights: Any, tokens: jax.Array) -> jax.Array:
        x = weights["embed"][tokens[:, :-1]]
        for one in weights["layers"]:
            x = x + attention(one, x)
            x = x + jax.nn.gelu(normed(x) @ one["up"]) @ one["down"]
        scores = jax.nn.log_softmax(normed(x) @ weights["embed"].T)
        return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1))

    def step(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        weights, first, second = state
        loss, gradient = jax.value_and_grad(loss_of)(weights, tokens)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)
        weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
        return (weights, first, second), loss

    zeros = jax.tree.map(np.zeros_like, weights)
    tokens = jnp.asarray(rng.integers(0, WORDS, (ROWS, LENGTH + 1)))
    return jax.jit(step, donate_argnums=0), jax.device_put((weights, zeros, zeros)), tokens


def shard(mesh: Mesh, state: Any, tokens: Any) -> tuple[Any, Any]:
    """State and tokens on a mesh: the batch along "data", the weights along "model"."""

    def place(path: Any, leaf: Any) -> Any:
        spec = next(WEIGHTS[key.key] for key in path if getattr(key, "key", None) in WEIGHTS)
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree_util.tree_map_with_path(place, state), jax.device_put(tokens, NamedSharding(mesh, TOKENS))
