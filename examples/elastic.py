"""Elastic training: a slice is lost in the middle, training goes on with the other one, and takes it back.

Run it with two slices and, for a quick return, a spare:

    MAINSTAY_SLICES=2 MAINSTAY_DEVICES_PER_SLICE=2 MAINSTAY_SPARES=1 JAX_PLATFORMS=mainstay python examples/elastic.py
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mainstay
import mainstay.elastic
from mainstay import fault
from mainstay.elastic import manager

FINAL_STEP, KILL_AT, BATCH, FEATURES, WIDTH = 60, 20, 48, 8, 32
State = dict[str, jax.Array]


def make_train_step(mesh: Mesh) -> Callable[[State], tuple[State, jax.Array]]:
    """One step of gradient descent, its batch split over all devices of the mesh."""
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def loss_of(weights: State, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ weights["hidden"]) @ weights["out"] - y) ** 2)

    def train_step(state: State) -> tuple[State, jax.Array]:
        # Of the step alone: a step that is done again has the same batch.
        x = jax.random.normal(jax.random.fold_in(jax.random.key(1), state["step"]), (BATCH, FEATURES))
        x = jax.lax.with_sharding_constraint(x, split)
        weights = {"hidden": state["hidden"], "out": state["out"]}
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, jnp.sin(x.sum(axis=1, keepdims=True)))
        new = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
        return {**new, "step": state["step"] + 1}, loss

    return jax.jit(train_step, donate_argnums=0, out_shardings=everywhere)


def first_state(mesh: Mesh) -> State:
    """Weights before training."""
    random = np.random.default_rng(0)
    state = {
        "hidden": random.normal(size=(FEATURES, WIDTH)).astype(np.float32) / 3,
        "out": random.normal(size=(WIDTH, 1)).astype(np.float32) / 6,
        "step": np.int32(0),
    }
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def mesh_of(elastic_utils: manager.Manager) -> Mesh:
    """The devices that training uses."""
    return Mesh(np.array(elastic_utils.good_devices), ("data",))


def elastic_handler(elastic_utils: manager.Manager) -> tuple[State, int, Any]:
    """Everything anew for the devices there are, from the newest snapshot."""
    mesh = mesh_of(elastic_utils)
    step, state = elastic_utils.get_next_snapshot(mesh=mesh)
    print(f"step {step:3}: going on with slices {sorted(elastic_utils.good_slice_indices)}")
    return state, step, make_train_step(mesh)


def main() -> None:
    """Trains; slice 1 is killed at a step."""
    mainstay.elastic.initialize()
    elastic_manager = manager.Manager(
        devices=jax.devices(),
        snapshot_period=5,
        snapshot_buffer_size=1,
        reshard_check_period=5,
        max_elastic_down_event_count=10,
        max_reshard_retry_count=3,
    )
    fault.kill(elastic_manager.total_slice_count - 1, at_step=KILL_AT)
    mesh = mesh_of(elastic_manager)
    state, step, train_step = first_state(mesh), 0, make_train_step(mesh)
    elastic_manager.maybe_snapshot(step=step, snapshot=state)
    while step < FINAL_STEP:
        try:
            state, loss = train_step(state)
            step += 1
            if step % 10 == 0:
                print(f"step {step:3}: loss {float(loss):.4f}")
            elastic_manager.maybe_snapshot(step=step, snapshot=state)
            resharded = elastic_manager.maybe_reshard_up(step=step, snapshot=state, elastic_handler=elastic_handler)
            if resharded:
                state, step, train_step = resharded
            if step == FINAL_STEP:
                # A loss in the last steps is told here, not after the loop.
                jax.block_until_ready(state)
        except jax.errors.JaxRuntimeError as error:
            print(f"step {step:3}: {str(error).partition('. ')[0]}")
            state, step, train_step = elastic_manager.maybe_reshard_down(error=error, elastic_handler=elastic_handler)


if __name__ == "__main__":
    main()
