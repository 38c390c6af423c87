"""A slice's worker is killed with SIGKILL at the worst moments; the client lives and says what was lost.

The letters are those of the failure list in docs/failure-semantics.md.
"""

import signal
import sys

from harness import RESTLESS, Setup, jax_process, run

# Death to error at the waiting caller, on a busy machine. Typically it is some milliseconds, which
# test_detection_is_quick holds; a single measurement may catch a scheduling hiccup.
LATE = 2.0


@jax_process(slices=2)
def test_a_idle() -> None:
    """Arrays of the lost slice are lost for good; those of the other one and new work are fine."""
    import jax
    import numpy as np

    from probe import devices_of, equal, incarnation_of, kill, loss_from, wait_replaced

    values = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    lost = jax.device_put(values, devices_of(0)[0])
    kept = jax.device_put(values + 1, devices_of(1)[1])
    add_one = jax.jit(lambda x: x + 1)
    jax.block_until_ready((lost, add_one(lost), kept))
    devices, old = jax.devices(), incarnation_of(0)

    kill(0)
    # Dispatch does not raise, whether or not the death has been noticed yet.
    result = add_one(lost)
    copied = jax.device_put(lost, devices_of(1)[0])
    text = loss_from(lambda: np.asarray(lost), 0)
    assert "SIGKILL" in text or "signal 9" in text, text
    loss_from(result.block_until_ready, 0)
    loss_from(copied.block_until_ready, 0)
    equal(kept, values + 1)
    equal(add_one(kept), values + 2)

    wait_replaced(0, old)
    assert jax.devices() == devices
    loss_from(lambda: np.asarray(add_one(lost)), 0)
    equal(add_one(jax.device_put(values, devices_of(0)[0])), values + 1)
    lost.delete()
    result.delete()
    jax.clear_caches()


@jax_process(slices=2)
def test_a_work_given_to_a_dead_slice_is_poisoned_not_refused() -> None:
    """Dispatch, upload and compilation for a slice without a worker do not raise; their results do."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from probe import devices_of, incarnation_of, kill, loss_from, wait_replaced

    device, old = devices_of(0)[0], incarnation_of(0)
    before = jax.device_put(np.float32(1), device).block_until_ready()
    kill(0)
    loss_from(lambda: np.asarray(jax.jit(lambda x: jnp.sin(x) * 3)(before)), 0)
    # Uploads and launches from now to the replacement: either lost with the slice or done by the new worker,
    # never refused.
    for step in range(50):
        array = jax.jit(lambda x: x * 2)(jax.device_put(np.float32(step), device))
        try:
            assert float(array) == 2 * step
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error), error
    wait_replaced(0, old)
    assert float(jax.jit(lambda x: x * 2)(jax.device_put(np.float32(4), device))) == 8


@jax_process(slices=2)
def test_b_in_the_middle_of_a_long_program() -> None:
    """The error comes to whoever waits for the program, soon after the death; the other slice's goes on."""
    import time

    import jax
    import numpy as np

    from probe import devices_of, incarnation_of, kill, long, loss_from, wait_replaced

    tiny = np.full((64, 64), 1e-6, np.float32)
    on_0, on_1 = (jax.device_put(tiny, devices_of(index)[0]) for index in (0, 1))
    jax.block_until_ready((long(on_0, 1), long(on_1, 1)))
    old = incarnation_of(0)

    doomed, safe = long(on_0, 10_000_000), long(on_1, 2_000)
    time.sleep(0.2)
    assert not doomed.is_ready()
    killed = kill(0)
    loss_from(doomed.block_until_ready, 0)
    waited = time.perf_counter() - killed
    print(f"death to error: {1000 * waited:.1f} ms")
    assert waited < LATE
    assert np.isfinite(np.asarray(safe)).all()
    wait_replaced(0, old)
    # Loaded onto the new worker without being compiled again.
    fresh = jax.device_put(tiny, devices_of(0)[0])
    np.testing.assert_array_equal(np.asarray(long(fresh, 2_000)), np.asarray(safe))


@jax_process(slices=2)
def test_b_what_follows_a_lost_program_is_lost_with_the_first_cause() -> None:
    """Poison spreads along a chain of launches and copies, across slices, and keeps the cause's words."""
    import jax
    import numpy as np

    from probe import devices_of, equal, kill, loss_from

    double = jax.jit(lambda x: x * 2)
    on_0 = jax.device_put(np.ones(8, np.float32), devices_of(0)[0])
    on_1 = jax.device_put(np.ones(8, np.float32), devices_of(1)[0])
    jax.block_until_ready((double(on_0), double(on_1)))
    kill(0)
    first = double(on_0)
    moved = jax.device_put(first, devices_of(1)[0])
    mixed = double(moved) + on_1
    back = jax.device_put(mixed, devices_of(1)[1])
    cause = loss_from(first.block_until_ready, 0)
    for array in (moved, mixed, back):
        assert loss_from(array.block_until_ready, 0) == cause
    equal(double(on_1), np.full(8, 2, np.float32))


@jax_process(slices=2, timeout=240, env=RESTLESS)
def test_c_during_a_host_to_device_copy() -> None:
    """An upload that the death interrupts does not raise; its array is lost."""
    import threading
    import time

    import jax
    import numpy as np

    from probe import devices_of, equal, incarnation_of, kill, wait_replaced

    big = np.arange(32 << 20, dtype=np.float32)
    small = jax.device_put(np.arange(3), devices_of(1)[0])
    lost = 0
    for delay in (0.0, 0.002, 0.01, 0.02, 0.05):
        old = incarnation_of(0)
        killer = threading.Timer(delay, kill, [0])
        killer.start()
        array = jax.device_put(big, devices_of(0)[0])
        begin = time.perf_counter()
        try:
            array.block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error), error
            assert time.perf_counter() - begin < 5
            lost += 1
        killer.join()
        equal(small, np.arange(3))
        wait_replaced(0, old)
        array.delete()
    assert lost > 0, "no kill came before the end of its copy"
    np.testing.assert_array_equal(np.asarray(jax.device_put(big, devices_of(0)[0])), big)


@jax_process(slices=2, timeout=240, env=RESTLESS)
def test_d_during_a_device_to_host_copy() -> None:
    """A read that the death interrupts raises the loss, or gives the right values; never wrong ones.

    What a program computed is seen in place, what was uploaded is copied: both are read.
    """
    import threading

    import jax
    import numpy as np

    from probe import devices_of, equal, incarnation_of, kill, wait_replaced

    make = jax.jit(lambda start: jax.numpy.arange(32 << 20, dtype=np.float32) + start)
    small = jax.device_put(np.arange(3), devices_of(1)[0])
    start = np.float32(1)
    expected = np.arange(32 << 20, dtype=np.float32) + start
    lost = 0
    for delay in (0.0, 0.002, 0.01, 0.02, 0.05):
        old = incarnation_of(0)
        array = make(jax.device_put(start, devices_of(0)[0])).block_until_ready()
        uploaded = jax.device_put(expected, devices_of(0)[0]).block_until_ready()
        killer = threading.Timer(delay, kill, [0])
        killer.start()
        try:
            equal(uploaded, expected)
            equal(array, expected)
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error), error
            lost += 1
        killer.join()
        equal(small, np.arange(3))
        wait_replaced(0, old)
    assert lost > 0, "no kill came before the end of its copy"


@jax_process(slices=2)
def test_e_a_worker_dies_during_a_compile() -> None:
    """Compilation needs no slice: it goes on, and the program runs on the replacement."""
    import threading

    import jax
    import numpy as np

    from probe import devices_of, incarnation_of, kill, wait_replaced

    def unrolled(x: jax.Array) -> jax.Array:
        for i in range(1000):
            x = jax.numpy.sin(x) * (1 + i * 1e-6)
        return x

    lowered = jax.jit(unrolled).lower(jax.device_put(np.float32(1), devices_of(0)[0]))
    old = incarnation_of(0)
    killer = threading.Timer(0.3, kill, [0])
    killer.start()
    compiled = lowered.compile()
    killer.join()
    wait_replaced(0, old)
    value = float(compiled(jax.device_put(np.float32(1), devices_of(0)[0])))
    assert 0 < value < 1


@jax_process(slices=2)
def test_e_the_compiler_dies_during_a_compile() -> None:
    """The compiler's death is an error of that one compile; no slice is lost, and the next compile works."""
    import os
    import signal
    import threading

    import jax
    import numpy as np

    import mainstay
    from probe import compilers, cpu_seconds, devices_of, equal, wait_for

    def unrolled(x: jax.Array) -> jax.Array:
        for i in range(1000):
            x = jax.numpy.sin(x) * (1 + i * 1e-6)
        return x

    x = jax.device_put(np.float32(1), devices_of(0)[0])
    equal(jax.jit(lambda y: y + 1)(x), 2)
    lowered = jax.jit(unrolled).lower(x)
    wait_for(lambda: len(compilers()) == 1, "the compiler process")
    (compiler,) = compilers()
    idle = cpu_seconds(compiler)

    def kill_when_it_compiles() -> None:
        wait_for(lambda: cpu_seconds(compiler) > idle + 0.1, "the compiler to compile")
        os.kill(compiler, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_it_compiles)
    killer.start()
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
    else:
        raise AssertionError("the compile was over before the kill")
    killer.join()
    assert "compil" in text, text
    assert not any(word in text for word in ("DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED")), text
    assert all(one.is_healthy and not one.losses for one in mainstay.slices())
    equal(jax.jit(lambda y: y + 3)(x), 4)


@jax_process(env={"MAINSTAY_HEARTBEAT_TIMEOUT": "1s"})
def test_e_a_stopped_compiler_is_given_up() -> None:
    """A compiler that gives no sign of life is an error of the compile that waits for it; the next one works."""
    import os
    import signal

    import jax
    import numpy as np
    import pytest

    from probe import compilers, equal, wait_for

    equal(jax.jit(lambda y: y + 1)(np.float32(1)), 2)
    wait_for(lambda: len(compilers()) == 1, "the compiler process")
    (compiler,) = compilers()
    os.kill(compiler, signal.SIGSTOP)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"compiler process .* no sign of life"):
        jax.jit(lambda y: y + 2)(np.float32(1))
    equal(jax.jit(lambda y: y + 3)(np.float32(1)), 4)


@jax_process(env={"MAINSTAY_HEARTBEAT_TIMEOUT": "off"})
def test_e_a_stopped_compiler_does_not_keep_its_client() -> None:
    """A program ends, and leaves no process, though its compiler can't be told to."""
    import os
    import signal

    import jax
    import numpy as np

    from probe import compilers, equal, wait_for

    equal(jax.jit(lambda y: y + 1)(np.float32(1)), 2)
    wait_for(lambda: len(compilers()) == 1, "the compiler process")
    os.kill(*compilers(), signal.SIGSTOP)


@jax_process(slices=2)
def test_f_while_other_threads_wait() -> None:
    """Every thread that waits gets the error at once; one that waits for the other slice gets its value."""
    import threading
    import time

    import jax
    import numpy as np

    from probe import devices_of, kill, long, loss_from

    tiny = np.full((64, 64), 1e-6, np.float32)
    on_0, on_1 = (jax.device_put(tiny, devices_of(index)[0]) for index in (0, 1))
    jax.block_until_ready((long(on_0, 1), long(on_1, 1)))
    doomed, safe = long(on_0, 10_000_000), long(on_1, 20_000)
    ended: list[float] = []

    def wait() -> None:
        loss_from(doomed.block_until_ready, 0)
        ended.append(time.perf_counter())

    def read() -> None:
        loss_from(lambda: np.asarray(doomed), 0)
        ended.append(time.perf_counter())

    threads = [threading.Thread(target=target) for target in (wait, wait, read)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    killed = kill(0)
    for thread in threads:
        thread.join(30)
    assert len(ended) == len(threads)
    assert max(ended) - killed < LATE
    assert np.isfinite(np.asarray(safe)).all()


@jax_process(slices=2)
def test_g_both_slices_at_once() -> None:
    """Everything on devices is lost, the client lives, and both slices come back."""
    import jax
    import numpy as np

    from probe import devices_of, equal, incarnation_of, kill, loss_from, wait_replaced

    add_one = jax.jit(lambda x: x + 1)
    arrays = [jax.device_put(np.arange(4), devices_of(index)[0]) for index in (0, 1)]
    jax.block_until_ready([add_one(array) for array in arrays])
    old = [incarnation_of(index) for index in (0, 1)]
    kill(0)
    kill(1)
    for index, array in enumerate(arrays):
        loss_from(lambda array=array: np.asarray(add_one(array)), index)  # type: ignore[misc]
    for index in (0, 1):
        wait_replaced(index, old[index])
        equal(add_one(jax.device_put(np.arange(4), devices_of(index)[0])), np.arange(4) + 1)


@jax_process(slices=2)
def test_h_again_before_the_replacement_is_up() -> None:
    """A worker that dies while it starts is replaced like any other."""
    import jax
    import numpy as np

    import mainstay
    from probe import devices_of, equal, incarnation_of, kill, loss_from, wait_for, wait_replaced, worker_of

    lost = jax.device_put(np.arange(4), devices_of(0)[0]).block_until_ready()
    first, old = worker_of(0), incarnation_of(0)
    kill(0)
    wait_for(lambda: mainstay.slices()[0].pid not in (None, first), "the first replacement's process")
    assert not mainstay.slices()[0].is_healthy
    kill(0)
    wait_replaced(0, old)
    loss_from(lambda: np.asarray(lost), 0)
    equal(jax.device_put(np.arange(4), devices_of(0)[0]), np.arange(4))
    assert len(mainstay.slices()[0].losses) == 2


@jax_process(slices=2, env=RESTLESS)
def test_detection_is_quick() -> None:
    """Death to error at a waiting caller: typically within 100 ms."""
    import statistics
    import time

    import jax
    import numpy as np

    from probe import devices_of, incarnation_of, kill, long, loss_from, wait_replaced

    tiny = np.full((64, 64), 1e-6, np.float32)
    times = []
    for _ in range(7):
        doomed = long(jax.device_put(tiny, devices_of(0)[0]), 10_000_000)
        time.sleep(0.1)
        old, killed = incarnation_of(0), kill(0)
        loss_from(doomed.block_until_ready, 0)
        times.append(time.perf_counter() - killed)
        wait_replaced(0, old)
    print("death to error, ms:", [round(1000 * seconds, 1) for seconds in times])
    assert statistics.median(times) < 0.1


def test_the_client_dies() -> None:
    """A client that is killed leaves no worker, no compiler, no socket and no shared memory behind."""
    code = "import os, jax, signal\nassert jax.jit(lambda x: x + 1)(1) == 2\nos.kill(os.getpid(), signal.SIGKILL)"
    finished = run([sys.executable, "-c", code], Setup(slices=2))
    assert finished.returncode == -signal.SIGKILL, finished.stderr
