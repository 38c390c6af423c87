"""The elastic run: a transformer with Adam over three slices whose workers are killed, and the same without kills."""

from harness import RESTLESS, jax_process

STEPS = 70


@jax_process(slices=3, devices=2, timeout=280, env=RESTLESS)
def test_kills_cost_nothing_but_time() -> None:
    """Kills at chosen and at random steps: on with fewer slices, then with all; losses and parameters to the bit."""
    import random

    import jax
    import numpy as np

    import mainstay
    from elastic_training import Watcher, train, train_by_plan
    from mainstay import elastic
    from probe import PATIENCE, kill, wait_for

    class Curve(Watcher):
        final_step = STEPS

        def __init__(self) -> None:
            self.losses: dict[int, float] = {}

        def after_step(self, step: int, loss: float, slices: tuple[int, ...]) -> None:
            self.losses[step] = loss

    class Killer(Curve):
        def __init__(self, manager: elastic.Manager) -> None:
            super().__init__()
            rng = random.Random(5)  # noqa: S311
            # Slice by step; one slice is spared, so that fewer meshes have to be compiled.
            self.plan = {12: 1, rng.randrange(28, 34): rng.choice((1, 2)), rng.randrange(48, 54): 2}
            self.manager = manager
            self.used_after: list[tuple[int, ...]] = []

        def before_step(self, step: int) -> None:
            if step in self.plan:
                kill(self.plan.pop(step))
            elif step in (24, 44, 64) and self.manager.good_slice_count < 3:
                # Training took some steps with fewer slices; now it is to take the replacement in.
                wait_for(lambda: bool(self.manager.available_inactive_slices), "the replacement")

        def resharded(self, step: int, slices: tuple[int, ...]) -> None:
            self.used_after.append(slices)

    manager = elastic.Manager(snapshot_period=4, reshard_check_period=4)
    killer, curve = Killer(manager), Curve()
    lost = list(killer.plan.values())
    state, changes = train(manager, killer)
    assert not killer.plan
    assert manager.elastic_down_event_count == len(lost)
    expected = []
    for index in lost:
        expected += [tuple(sorted({0, 1, 2} - {index})), (0, 1, 2)]
    assert killer.used_after == expected
    mainstay.wait_until(lambda now: all(one.is_healthy for one in now), PATIENCE)

    undisturbed = train_by_plan(STEPS, changes, curve)
    assert killer.losses == curve.losses
    assert curve.losses[STEPS] < curve.losses[1] / 3, "training does not learn"
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(undisturbed), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
