"""The real `pathwaysutils`, unmodified, on Mainstay. Run by test_elastic_pathways.py in an environment that has it.

A loop of the guide's shape, with this package's own names for things: one worker is killed, training goes on with the
other slice, takes the replacement in, and loses nothing but the steps since the snapshot.
"""

import os
import signal
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import mainstay

FINAL = 24


def kill(index: int) -> None:
    pid = mainstay.slices()[index].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    mainstay.wait_until(lambda now: now[index].pid != pid, 60)


def setup(devices: list[jax.Device]) -> tuple[Mesh, Any]:
    mesh = Mesh(np.array(devices), ("data",))
    split, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    def step(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
        x = jax.lax.with_sharding_constraint(np.arange(8, dtype=np.float32), split)
        return {"sum": state["sum"] + x.sum(), "count": state["count"] + 1}

    return mesh, jax.jit(step, donate_argnums=0, out_shardings=replicated)


def with_manager() -> None:
    """The Manager of versions up to 0.1.4."""
    from pathwaysutils.elastic import manager

    elastic = manager.Manager(jax.devices(), reshard_check_period=1, snapshot_period=4, max_elastic_down_event_count=5)
    sizes: list[int] = []

    def handler() -> tuple[Any, Any, int]:
        mesh, train_step = setup(list(elastic.good_devices))
        step, state, _ = elastic.get_resharded_snapshot(mesh)
        jax.block_until_ready(state)
        sizes.append(elastic.good_slice_count)
        return state, train_step, step

    mesh, train_step = setup(jax.devices())
    state = jax.device_put({"sum": np.float32(0), "count": np.int32(0)}, NamedSharding(mesh, PartitionSpec()))
    elastic.maybe_snapshot(0, state, force=True, block=True)
    step, killed = 0, False
    while step < FINAL:
        try:
            if step == 10 and not killed:
                kill(1)
                killed = True
            state = train_step(state)
            step += 1
            jax.block_until_ready(state)
            elastic.maybe_snapshot(step, state)
            returned = elastic.maybe_reshard_up(step, handler, state)
            if returned is not None:
                state, train_step, step = returned
        except jax.errors.JaxRuntimeError as error:
            state, train_step, step = elastic.maybe_reshard_down(error, handler)
        if killed and elastic.good_slice_count < 2:
            mainstay.wait_until(lambda now: all(one.is_healthy for one in now), 60)
    assert killed
    assert sizes[-1] == 2, sizes
    assert (float(state["sum"]), int(state["count"])) == (28.0 * FINAL, FINAL), state
    print("resharded to slices:", sizes)


def with_retry() -> None:
    """`elastic_retry` and `wait_for_slices` of the newest version."""
    from pathwaysutils.elastic import elastic, manager

    attempts, events = [], []
    the_manager = manager.Manager(jax.devices())

    @the_manager.elastic_retry(  # type: ignore[untyped-decorator]
        minimum_slice_count=1,
        poll_interval=0.1,
        timeout=60,
        retry_policy=manager.ElasticRetryLimit(5),
        on_elastic_event_callback=lambda: events.append(len(attempts)),
    )
    def train() -> float:
        slices = sorted(the_manager.active_slice_indices)
        attempts.append(slices)
        mesh, train_step = setup([device for index in slices for device in the_manager.slice_to_devices[index]])
        state = jax.device_put({"sum": np.float32(0), "count": np.int32(0)}, NamedSharding(mesh, PartitionSpec()))
        for step in range(FINAL):
            if step == 10 and len(attempts) == 1:
                kill(1)
            state = train_step(state)
            jax.block_until_ready(state)
            if len(slices) < 2 and step > 4:
                # Down: until the monitor has seen the replacement.
                while not the_manager.available_inactive_slices:
                    mainstay.wait_for_change(timeout=0.1)
                raise manager.ScaleUpSignalError
        return float(state["sum"])

    assert train() == 28.0 * FINAL
    assert attempts[0] == attempts[-1] == [0, 1], attempts
    assert events, "no elastic event"
    kill(0)
    assert elastic.wait_for_slices(2, poll_interval=0.1, timeout=60) == {0, 1}
    print("attempts on slices:", attempts)


def with_snapshotter() -> None:
    """Orbax's `Snapshotter`, which stands on the newest version: a snapshot outlives a slice that it was taken from."""
    from orbax.checkpoint.experimental.v1._src.training.pathways.snapshotter import Snapshotter

    def placed(slices: list[int], *axes: str | None) -> NamedSharding:
        devices = [[one for one in jax.devices() if one.slice_index == index] for index in slices]
        return NamedSharding(Mesh(np.array(devices), ("replica", "model")), PartitionSpec(*axes))

    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    state = {
        "replicated": jax.device_put(values, placed([0, 1], None, "model")),
        "split": jax.device_put(values + 1, placed([0, 1], "replica", "model")),
    }
    snapshotter = Snapshotter()
    snapshotter.save(3, state)
    snapshotter.join()
    assert snapshotter.latest.step == 3
    kill(1)

    def loaded(slices: list[int]) -> dict[str, np.ndarray]:
        like = {
            "replicated": jax.ShapeDtypeStruct((8, 8), np.float32, sharding=placed(slices, None, "model")),
            "split": jax.ShapeDtypeStruct((8, 8), np.float32, sharding=placed(slices, "replica", "model")),
        }
        return jax.tree.map(np.asarray, snapshotter.load(like))

    for slices in [0], [0, 1]:
        back = loaded(slices)
        np.testing.assert_array_equal(back["replicated"], values)
        np.testing.assert_array_equal(back["split"], values + 1)
        mainstay.wait_until(lambda now: all(one.is_healthy for one in now), 60)
        print("loaded onto slices:", slices)


if __name__ == "__main__":
    print("jax", jax.__version__)
    {"manager": with_manager, "retry": with_retry, "snapshotter": with_snapshotter}[sys.argv[1]]()
