"""A training loop of the guide's shape, with a small model: what the tests of elastic training run.

State, mesh and step function are made anew by the handler; the loop itself knows nothing of slices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mainstay.elastic import manager

FEATURES, WIDTH, BATCH = 8, 16, 24
State = dict[str, Any]


def initialize_mesh(devices: list[jax.Device]) -> Mesh:
    """All devices that train, along the batch."""
    return Mesh(np.array(devices), ("data",))


def initialize_training_loop(mesh: Mesh) -> tuple[State, int, Callable[[State], State]]:
    """The first state on a mesh, its step, and the step function."""
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    random = np.random.default_rng(0)
    state = {
        "w1": random.normal(size=(FEATURES, WIDTH)).astype(np.float32) / 4,
        "w2": random.normal(size=(WIDTH, 1)).astype(np.float32) / 4,
        "momentum": [np.zeros((FEATURES, WIDTH), np.float32), np.zeros((WIDTH, 1), np.float32)],
        "step": np.int32(0),
    }

    def loss_of(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2)

    def train_step(state: State) -> State:
        # The batch of a step depends on its number alone, so that a repeated step sees the same one.
        x = jax.random.normal(jax.random.fold_in(jax.random.key(7), state["step"]), (BATCH, FEATURES))
        x = jax.lax.with_sharding_constraint(x, split)
        y = jnp.sin(x.sum(axis=1, keepdims=True))
        weights = [state["w1"], state["w2"]]
        gradients = jax.grad(loss_of)(weights, x, y)
        momentum = [0.9 * old + new for old, new in zip(state["momentum"], gradients, strict=True)]
        w1, w2 = (weight - 0.02 * change for weight, change in zip(weights, momentum, strict=True))
        return {"w1": w1, "w2": w2, "momentum": momentum, "step": state["step"] + 1}

    jitted = jax.jit(train_step, donate_argnums=0, out_shardings=replicated)
    return jax.device_put(state, replicated), 0, jitted


# Step that was gone on from, and slices from then on.
Change = tuple[int, tuple[int, ...]]


def elastic_handler(elastic_utils: manager.Manager, changes: list[Any]) -> tuple[Any, ...]:
    """Starts again on the devices there are, from the newest snapshot."""
    mesh = initialize_mesh(elastic_utils.good_devices)
    _, _, train_step = initialize_training_loop(mesh)
    step, state = elastic_utils.get_next_snapshot(mesh=mesh)
    changes.append((step, tuple(sorted(elastic_utils.good_slice_indices))))
    return state, step, mesh, train_step


def train(
    final_step: int, elastic_manager: manager.Manager, at_step: Callable[[int], None] = lambda step: None
) -> tuple[State, list[Change]]:
    """Trains; returns the final state, and the changes of the mesh."""
    changes: list[Change] = []
    handler: dict[str, Any] = {"elastic_handler": elastic_handler, "handler_args": (changes,)}
    mesh = initialize_mesh(elastic_manager.good_devices)
    state, step, train_step = initialize_training_loop(mesh)
    # So that there is something to go back to from the beginning.
    elastic_manager.maybe_snapshot(step=step, snapshot=state, force=True, block=True)
    while step < final_step:
        try:
            at_step(step)
            state = train_step(state)
            step += 1
            elastic_manager.maybe_snapshot(step=step, snapshot=state)
            resharded = elastic_manager.maybe_reshard_up(step=step, snapshot=state, **handler)
            if resharded:
                state, step, mesh, train_step = resharded
            if step == final_step:
                jax.block_until_ready(state)
        except jax.errors.JaxRuntimeError as error:
            state, step, mesh, train_step = elastic_manager.maybe_reshard_down(error=error, **handler)
    return state, changes


def changing_by_plan(final_step: int, changes: list[Change]) -> State:
    """What training gives that changes its mesh at these steps, and loses nothing."""
    # A change that training went back beyond does not count: its steps were repeated.
    last: dict[int, tuple[int, ...]] = {}
    for at, slices in changes:
        last = {earlier: those for earlier, those in last.items() if earlier < at} | {at: slices}
    mesh = initialize_mesh(jax.devices())
    state, step, train_step = initialize_training_loop(mesh)
    while step < final_step:
        if step in last:
            mesh = initialize_mesh([device for device in jax.devices() if device.slice_index in last[step]])
            _, _, train_step = initialize_training_loop(mesh)
            state = jax.device_put(jax.tree.map(np.asarray, state), NamedSharding(mesh, PartitionSpec()))
        state = train_step(state)
        step += 1
    return state
