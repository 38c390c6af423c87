"""Elastic training in parts: the manager, the retrying decorator, notices, spares, hangs, faults. Kills are real."""

import subprocess
import sys

from harness import EXECUTABLE, RESTLESS, Setup, check, jax_process, run

# Bounds that are short, and long enough for a busy machine.
IMPATIENT = {"MAINSTAY_HEARTBEAT_TIMEOUT": "1s", "MAINSTAY_PROGRESS_TIMEOUT": "3s", **RESTLESS}


@jax_process(slices=2)
def test_arguments_are_checked() -> None:
    """A bad argument is a ValueError with its name and value; a second manager is an error that says so."""
    import jax
    import pytest

    from mainstay.elastic import ElasticRuntimeError, Manager

    for name in ("snapshot_period", "snapshot_buffer_size", "reshard_check_period"):
        for value in (0, -1, 1.5, None):
            with pytest.raises(ValueError, match=f"{name}.*{value!r}"):
                Manager(**{name: value})  # type: ignore[arg-type]
    for name in ("max_elastic_down_event_count", "max_reshard_retry_count"):
        with pytest.raises(ValueError, match=f"{name}.*0"):
            Manager(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="devices"):
        Manager(devices=[])
    manager = Manager(jax.devices())
    with pytest.raises(ElasticRuntimeError, match="already"):
        Manager(jax.devices())
    assert (manager.total_slice_count, manager.good_slice_count) == (2, 2)
    assert manager.good_devices == jax.devices()
    assert manager.default_device == jax.devices()[0]
    assert (manager.scale_by_good_slices(8), manager.scale_by_good_slices(1.5)) == (8, 1.5)
    assert manager.slice_device_count(1) == 2
    with pytest.raises(ValueError, match=r"slice_index.*7"):
        manager.slice_device_count(7)
    with pytest.raises(ValueError, match="give one"):
        manager.get_next_snapshot(mesh=jax.sharding.Mesh(jax.devices(), "x"), shardings=object())
    manager.close()
    Manager(jax.devices()).close()


@jax_process(slices=2, env=RESTLESS)
def test_limits_and_errors_that_are_no_loss() -> None:
    """What is no loss comes through; so does a loss beyond the limits; a handler that is hit is called again."""
    import jax
    import pytest

    from mainstay.elastic import ElasticRuntimeError, Manager

    loss = jax.errors.JaxRuntimeError("DATA_LOSS: slice 1 lost incarnation 1")
    other = jax.errors.JaxRuntimeError("ABORTED: something else")
    manager = Manager(max_elastic_down_event_count=3, max_reshard_retry_count=1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        manager.maybe_reshard_down(other, lambda utils: 1)
    assert manager.maybe_reshard_down(loss, lambda utils, a, b: (utils, a, b), (1,), {"b": 2}) == (manager, 1, 2)
    calls = []

    def hit(utils: Manager) -> str:
        calls.append(utils)
        if len(calls) == 1:
            raise loss
        return "through"

    assert manager.maybe_reshard_down(loss, hit) == "through"
    with pytest.raises(ElasticRuntimeError, match="max_elastic_down_event_count is 3"):
        manager.maybe_reshard_down(loss, hit)
    manager.close()

    def always_hit(utils: Manager) -> None:
        raise loss

    manager = Manager(max_reshard_retry_count=2)
    with pytest.raises(ElasticRuntimeError, match="max_reshard_retry_count is 2"):
        manager.maybe_reshard_down(loss, always_hit)
    assert manager.elastic_down_event_count == 4
    with pytest.raises(ElasticRuntimeError, match="no snapshot"):
        manager.get_next_snapshot()
    assert manager.maybe_reshard_up(1, {}, always_hit) is None


@jax_process(slices=2, env=RESTLESS)
def test_snapshots_come_back_in_every_form() -> None:
    """By period, as NumPy arrays, on a mesh, with shardings; donated right after; from a slice that is gone."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    from mainstay.elastic import Manager
    from probe import devices_of, incarnation_of, kill, wait_replaced

    manager = Manager(snapshot_period=2)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split = NamedSharding(mesh, PartitionSpec("x"))
    state = {"a": jax.device_put(np.arange(8.0), split), "key": jax.random.key(3), "name": "n", "n": np.arange(3)}
    manager.maybe_snapshot(step=1, snapshot=state)
    assert len(manager._snapshots._store.list()) == 0
    manager.maybe_snapshot(step=2, snapshot=state)
    bump = jax.jit(lambda x: x + 1, donate_argnums=0)
    state["a"] = bump(state["a"])
    manager._snapshots.wait()
    old = incarnation_of(1)
    kill(1)
    step, tree = manager.get_next_snapshot()
    assert (step, tree["name"]) == (2, "n")
    assert type(tree["a"]) is np.ndarray
    np.testing.assert_array_equal(tree["a"], np.arange(8.0))
    np.testing.assert_array_equal(jax.random.key_data(tree["key"]), jax.random.key_data(jax.random.key(3)))
    small = Mesh(np.array(devices_of(0)), ("x",))
    _, tree = manager.get_next_snapshot(mesh=small)
    assert tree["a"].sharding == NamedSharding(small, PartitionSpec("x"))
    np.testing.assert_array_equal(np.asarray(jnp.sin(tree["a"])), np.sin(np.arange(8.0)).astype(tree["a"].dtype))
    _, tree = manager.get_next_snapshot(shardings=SingleDeviceSharding(devices_of(0)[1]))
    assert tree["a"].devices() == {devices_of(0)[1]}
    wait_replaced(1, old)


@jax_process(slices=2, env=RESTLESS)
def test_a_slice_replaced_before_the_handler_used_it() -> None:
    """Its return under another incarnation than was seen does not keep training from taking others in."""
    import jax
    import numpy as np

    from mainstay.elastic import Manager
    from probe import incarnation_of, kill, wait_replaced

    manager = Manager()
    manager.maybe_snapshot(step=1, snapshot={"a": jax.device_put(np.arange(4.0), jax.devices()[0])}, block=True)
    # As seen by the manager: slice 1 is down, and slice 0 dies just after that was seen.
    manager._good = frozenset({0})
    old = incarnation_of(0)
    kill(0)
    wait_replaced(0, old)
    state = {"a": jax.device_put(np.arange(4.0), jax.devices()[0])}
    assert manager.maybe_reshard_up(2, state, lambda utils: utils.good_slice_count) == 2


@jax_process(slices=2, env=RESTLESS)
def test_the_decorator_runs_a_function_again() -> None:
    """After a loss and after a request for more slices, with callbacks, until the policy says no."""
    import jax
    import numpy as np
    import pytest

    from mainstay.elastic import ElasticRetryLimit, ElasticRuntimeError, Manager, ScaleUpSignalError, elastic_retry
    from probe import kill

    manager = Manager()
    events: list[str] = []

    @manager.elastic_retry(
        minimum_slice_count=2,
        timeout=60,
        retry_policy=ElasticRetryLimit(5),
        pre_callback=lambda: events.append("begin"),
        on_elastic_event_callback=lambda: events.append("event"),
    )
    def work(scale: float) -> float:
        attempt = events.count("begin")
        array = jax.jit(lambda x: x * scale)(jax.device_put(np.arange(4.0), manager.good_devices[-1]))
        if attempt == 1:
            array.block_until_ready()
            kill(1)
        if attempt == 2:
            raise ScaleUpSignalError
        return float(array.sum())

    assert work(2.0) == 12.0
    assert events == ["begin", "event", "begin", "event", "begin"]

    @elastic_retry(retry_policy=ElasticRetryLimit(2))
    def hopeless() -> None:
        raise ScaleUpSignalError

    with pytest.raises(ElasticRuntimeError, match="attempt 2"):
        hopeless()
    with pytest.raises(ValueError, match=r"minimum_slice_count.*0"):
        elastic_retry(minimum_slice_count=0)


@jax_process(slices=2, env={**RESTLESS, "MAINSTAY_REPLACE_LIMIT": "0"})
def test_waiting_for_slices_ends() -> None:
    """At once where there are enough, with an error where there never will be, and with the time."""
    import pytest

    import mainstay
    from mainstay import fault
    from mainstay.elastic import ElasticRuntimeError, wait_for_slices

    assert wait_for_slices() == {0, 1}
    with pytest.raises(ValueError, match=r"slice_count.*3"):
        wait_for_slices(3)
    fault.kill(1)
    mainstay.wait_until(lambda now: not now[1].is_healthy, timeout=60)
    with pytest.raises(ElasticRuntimeError, match="stay down"):
        wait_for_slices(2)
    assert wait_for_slices(1) == {0}
    with pytest.raises(TimeoutError, match="slice 1 failed"):
        mainstay.wait_until(lambda now: now[1].is_healthy, timeout=0.05)


@jax_process(slices=2, env=RESTLESS)
def test_changes_are_told() -> None:
    """A loss and a return wake a waiter and call a callback, soon; without a change a wait lasts as long as it may."""
    import time

    import mainstay
    from mainstay import elastic
    from probe import kill, wait_for

    elastic.initialize()
    seen = mainstay.change_count()
    assert mainstay.wait_for_change(seen, timeout=0.05) == seen
    calls: list[tuple[str, int]] = []
    stop = mainstay.on_change(lambda now: calls.append((now[1].state, now[1].incarnation)))
    mainstay.on_change(lambda now: 1 // 0)
    killed = kill(1)
    assert mainstay.wait_for_change(seen) > seen
    assert time.perf_counter() - killed < 1
    mainstay.wait_until(lambda now: now[1].is_healthy and now[1].incarnation == 2, timeout=60)
    wait_for(lambda: ("healthy", 2) in calls, "the callback")
    assert any(state != "healthy" for state, _ in calls), calls
    stop()


@jax_process(slices=2, devices=2, env={"MAINSTAY_PROGRESS_TIMEOUT": "1500ms"})
def test_a_slice_that_waits_for_a_stuck_one_is_not_lost() -> None:
    """In a program over two slices, one stuck: that one is lost, and the one that waits for it is not."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import mainstay
    from mainstay import fault
    from probe import devices_of, equal, incarnation_of, loss_from, wait_replaced

    mesh = Mesh(np.array(jax.devices()), "x")
    summed = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
    ones = jax.device_put(np.ones(4, np.float32), NamedSharding(mesh, P("x")))
    equal(summed(ones), [4])
    kept, old = jax.device_put(np.arange(3), devices_of(0)[0]), incarnation_of(1)
    fault.hang(1)
    assert "progress_timeout" in loss_from(lambda: np.asarray(summed(ones)), 1)
    wait_replaced(1, old)
    equal(kept, [0, 1, 2])
    assert not mainstay.slices()[0].losses
    assert len(mainstay.slices()[1].losses) == 1
    ones = jax.device_put(np.ones(4, np.float32), NamedSharding(mesh, P("x")))
    equal(summed(ones), [4])


@jax_process(slices=2, env=IMPATIENT)
def test_a_stopped_or_stuck_worker_is_lost_and_replaced() -> None:
    """SIGSTOP, and a worker that takes no more work: both are killed, told as losses with the bound, replaced."""
    import time

    import jax
    import numpy as np

    import mainstay
    from mainstay import fault
    from probe import devices_of, equal, incarnation_of, long, loss_from, wait_replaced, worker_of

    double = jax.jit(lambda x: x * 2)
    x = jax.device_put(np.arange(4), devices_of(1)[0])
    equal(double(x), np.arange(4) * 2)
    for act, words in ((fault.stop, "no sign of life"), (fault.hang, "finished none of its work")):
        array = jax.device_put(np.arange(4), devices_of(1)[0]).block_until_ready()
        old, pid = incarnation_of(1), worker_of(1)
        act(1)
        text = loss_from(lambda array=array: np.asarray(double(array)), 1)  # type: ignore[misc]
        assert words in text, text
        assert f"pid {pid}" in text, text
        wait_replaced(1, old)
        equal(double(jax.device_put(np.arange(4), devices_of(1)[0])), np.arange(4) * 2)
    # A long program is no silence.
    busy = long(jax.device_put(np.full((64, 64), 1e-6, np.float32), devices_of(0)[0]), 30_000)
    begun = time.monotonic()
    busy.block_until_ready()
    print(f"a program of {time.monotonic() - begun:.1f} s")
    assert not mainstay.slices()[0].losses


@jax_process(slices=2, env={**RESTLESS, "MAINSTAY_SPARES": "1"})
def test_a_spare_takes_over() -> None:
    """The next one is the spare's process, with the programs; a new spare comes; else it is as after any loss."""
    import jax
    import numpy as np

    import mainstay
    from probe import devices_of, equal, incarnation_of, kill, loss_from, wait_for, wait_replaced

    def spare() -> int:
        (one,) = mainstay.status()[0].spares or (None,)
        return one.pid if one is not None and one.ready else 0

    double = jax.jit(lambda x: x * 2)
    for _ in range(3):
        array = jax.device_put(np.arange(4), devices_of(1)[0])
        equal(double(array), np.arange(4) * 2)
        wait_for(lambda: spare() != 0, "a spare")
        ready, old = spare(), incarnation_of(1)
        kill(1)
        loss_from(lambda array=array: np.asarray(double(array)), 1)  # type: ignore[misc]
        wait_replaced(1, old)
        assert mainstay.slices()[1].pid == ready
        equal(double(jax.device_put(np.arange(4), devices_of(1)[0])), np.arange(4) * 2)
    # The thread that started the spares outlives them, and they it: nothing was lost meanwhile.
    assert len(mainstay.slices()[1].losses) == 3


@jax_process(slices=2, env=RESTLESS)
def test_faults_on_request() -> None:
    """Each does what it says; one that waits for its step waits."""
    import time

    import jax
    import numpy as np
    import pytest

    import mainstay
    from mainstay import fault
    from probe import devices_of, equal, incarnation_of, wait_replaced

    double = jax.jit(lambda x: x * 2)
    x = jax.device_put(np.arange(4), devices_of(1)[0])
    equal(double(x), np.arange(4) * 2)
    fault.fail_next_launch(1)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"ABORTED.*mainstay fault"):
        np.asarray(double(x))
    equal(double(x), np.arange(4) * 2)
    fault.slow(1, seconds=0.3)
    begun = time.monotonic()
    double(x).block_until_ready()
    assert time.monotonic() - begun >= 0.3
    fault.slow(1, seconds=0)
    old = incarnation_of(1)
    fault.kill(1, at_step=5)
    fault.reached(4)
    equal(double(x), np.arange(4) * 2)
    fault.reached(5)
    wait_replaced(1, old)
    # Let the new worker settle: what it frees after its start it may have again.
    x = jax.device_put(np.arange(4), devices_of(1)[0])
    equal(double(x), np.arange(4) * 2)
    fault.exhaust_memory(1)
    big = jax.device_put(np.ones(64 << 20, np.float32), devices_of(1)[0])
    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.jit(lambda x: x[::-1] * 2)(big).block_until_ready()
    with pytest.raises(ValueError, match="no slice 9"):
        fault.kill(9)
    assert not mainstay.slices()[0].losses


def test_the_command_line_does_faults() -> None:
    """`mainstay fault` reaches the script's worker, and says what is wrong where it can't."""
    code = f"""
import os, subprocess, jax, mainstay
jax.devices()
def fault(*arguments):
    command = ["{EXECUTABLE}", "fault", *arguments, "--pid", str(os.getpid())]
    return subprocess.run(command, capture_output=True, text=True)
done = fault("kill", "--slice", "1")
assert done.returncode == 0, done
mainstay.wait_until(lambda now: now[1].incarnation == 2 and now[1].is_healthy, 60)
later = fault("stop", "--slice", "0", "--at-step", "100")
assert later.returncode == 0 and "step 100" in later.stdout, later
wrong = fault("kill", "--slice", "7")
assert wrong.returncode == 1 and "no slice 7" in wrong.stderr, wrong
"""
    check(run([sys.executable, "-c", code], Setup(slices=2)))
    nobody = subprocess.run([EXECUTABLE, "fault", "kill", "--slice", "0", "--pid", "1"], capture_output=True, text=True)
    assert nobody.returncode == 1
    assert "process 1" in nobody.stderr
