"""Elastic training of the digits model: a loop of the guide's shape, and the same training with changes by plan.

The demo, the tests, the soak and the bench run it. A watcher sees what happens, and may do something about it.
"""

from typing import Any

import jax
from jax.sharding import Mesh

from digits_model import (
    State,
    TrainStep,
    batch_of,
    digits,
    initial_state,
    mesh_of,
    put_batch,
    shardings,
    train_step_on,
)
from mainstay.elastic import manager

# From this step on, on these slices.
Change = tuple[int, tuple[int, ...]]


class Watcher:
    """What happens in a training. Steps count those that are done: step 0 is the beginning."""

    final_step = 0
    """Training ends at this step."""

    def before_step(self, step: int) -> None:
        """A step is about to be dispatched."""

    def after_step(self, step: int, loss: float, slices: tuple[int, ...]) -> None:
        """A step is done on these slices, and its loss is known."""

    def caught(self, step: int, error: Exception) -> None:
        """The loop has caught an error."""

    def resharded(self, step: int, slices: tuple[int, ...]) -> None:
        """Training goes on from a step, on these slices."""


def start(mesh: Mesh) -> tuple[State, TrainStep]:
    """The first state on a mesh, and the step function."""
    return jax.device_put(initial_state(), shardings(mesh)), train_step_on(mesh)


def elastic_handler(elastic_utils: manager.Manager) -> tuple[State, int, Mesh, TrainStep]:
    """Everything for the devices there are, from the newest snapshot."""
    mesh = mesh_of(elastic_utils.good_devices)
    step, state = elastic_utils.get_next_snapshot(mesh=mesh)
    return state, step, mesh, train_step_on(mesh)


def train(elastic_manager: manager.Manager, watcher: Watcher) -> tuple[State, list[Change]]:
    """Trains, whatever becomes of slices; returns the final state, on the host, and the changes of slices."""
    data, _ = digits()
    changes: list[Change] = []

    def slices() -> tuple[int, ...]:
        return tuple(sorted(elastic_manager.good_slice_indices))

    def noted(new: Any) -> Any:
        changes.append((new[1], slices()))
        watcher.resharded(*changes[-1])
        return new

    mesh, step = mesh_of(elastic_manager.good_devices), 0
    state, train_step = start(mesh)
    # So that there is something to go back to from the beginning.
    elastic_manager.maybe_snapshot(step=step, snapshot=state, force=True, block=True)
    while step < watcher.final_step:
        try:
            watcher.before_step(step)
            state, loss = train_step(state, *put_batch(batch_of(data, step), mesh))
            step += 1
            watcher.after_step(step, float(loss), slices())
            elastic_manager.maybe_snapshot(step=step, snapshot=state)
            resharded = elastic_manager.maybe_reshard_up(step=step, snapshot=state, elastic_handler=elastic_handler)
            if resharded:
                state, step, mesh, train_step = noted(resharded)
            if step == watcher.final_step:
                # A loss in the last step is told here, not after the loop.
                state = jax.device_get(state)
        except jax.errors.JaxRuntimeError as error:
            watcher.caught(step, error)
            resharded = elastic_manager.maybe_reshard_down(error=error, elastic_handler=elastic_handler)
            state, step, mesh, train_step = noted(resharded)
    return state, changes


def train_by_plan(final_step: int, changes: list[Change], watcher: Watcher) -> State:
    """Trains without a loss, and changes the slices where another training did; returns the final state."""
    # A change that the other one went back beyond does not count: its steps were done again.
    plan: dict[int, tuple[int, ...]] = {}
    for at, slices in changes:
        plan = {step: those for step, those in plan.items() if step < at} | {at: slices}
    data, _ = digits()
    used = tuple(sorted({device.slice_index for device in jax.devices()}))
    mesh = mesh_of(jax.devices())
    state, train_step = start(mesh)
    for step in range(final_step):
        if step in plan:
            used = plan[step]
            mesh = mesh_of([device for device in jax.devices() if device.slice_index in used])
            state, train_step = jax.device_put(jax.device_get(state), shardings(mesh)), train_step_on(mesh)
        state, loss = train_step(state, *put_batch(batch_of(data, step), mesh))
        watcher.after_step(step + 1, float(loss), used)
    return state
