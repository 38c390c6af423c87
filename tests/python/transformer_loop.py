"""A small transformer trained on the first eight devices, data-parallel along "data" and model-parallel along "model".

Usage: transformer_loop.py STEPS. Prints each step's loss as hexadecimal digits, so that bits can be compared.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, HEADS, DEPTH, BATCH, LENGTH, WORDS = 32, 4, 2, 8, 16, 64
RATE = 0.05

# How each layer's weights are cut for the model-parallel devices.
LAYER = {
    "query": PartitionSpec(None, None, "model"),
    "key": PartitionSpec(None, None, "model"),
    "value": PartitionSpec(None, None, "model"),
    "out": PartitionSpec(None, "model", None),
    "up": PartitionSpec(None, None, "model"),
    "down": PartitionSpec(None, "model", None),
}
SPECS: dict[str, Any] = {"embedding": PartitionSpec(None, "model"), "layers": LAYER}


def attention(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    """Causal self-attention."""
    query, key, value = (
        (x @ w[name]).reshape(*x.shape[:2], HEADS, WIDTH // HEADS) for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(x.shape) @ w["out"]


def normalized(x: jax.Array) -> jax.Array:
    """Zero mean and unit variance along the last dimension."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def loss_of(weights: dict[str, Any], words: jax.Array) -> jax.Array:
    """The mean surprise at each next word."""

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        x = x + attention(normalized(x), w)
        return x + jax.nn.gelu(normalized(x) @ w["up"]) @ w["down"], None

    x = weights["embedding"][words[:, :-1]]
    x, _ = jax.lax.scan(layer, x, weights["layers"])
    logits = normalized(x) @ weights["embedding"].T
    surprise = -jax.nn.log_softmax(logits)
    return jnp.take_along_axis(surprise, words[:, 1:, None], -1).mean()


def main(steps: int, one_at_a_time: bool) -> None:
    """Trains, and prints."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))
    random = np.random.default_rng(0)
    shapes = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = {name: random.normal(size=(DEPTH, *shapes.get(name, (WIDTH, WIDTH)))) / WIDTH**0.5 for name in LAYER}
    weights = {"embedding": random.normal(size=(WORDS, WIDTH)) * 0.1, "layers": layers}
    weights = jax.tree.map(lambda w: w.astype(np.float32), weights)
    is_spec = lambda x: isinstance(x, PartitionSpec)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), SPECS, is_leaf=is_spec)
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def step(weights: dict[str, Any], words: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        loss, gradient = jax.value_and_grad(loss_of)(weights, words)
        return jax.tree.map(lambda w, g: w - RATE * g, weights, gradient), loss

    run = jax.jit(step, in_shardings=(shardings, split), out_shardings=(shardings, replicated), donate_argnums=0)
    weights = jax.device_put(weights, shardings)
    # Every word follows from the one before: there is something to learn.
    follows = random.permutation(WORDS)
    losses = []
    for _ in range(steps):
        words = [random.integers(WORDS, size=BATCH)]
        for _ in range(LENGTH):
            words.append(follows[words[-1]])
        weights, loss = run(weights, jax.device_put(np.stack(words, 1).astype(np.int32), split))
        losses.append(loss)
        if one_at_a_time:
            # XLA's own client can come to a standstill where launches overlap and threads are short, and aborts then.
            loss.block_until_ready()
    for loss in losses:
        print(np.asarray(loss).tobytes().hex(), float(loss))


if __name__ == "__main__":
    main(int(sys.argv[1]), "one-at-a-time" in sys.argv)
