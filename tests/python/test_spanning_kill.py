"""A worker is killed with SIGKILL while programs over several slices run.

Every result says so, nobody waits for ever, and the surviving slice trains on alone, on a mesh of its own, in the same
process.
"""

import os
from collections.abc import Callable

from harness import RESTLESS, jax_process

# Death to error at the waiting caller, on a busy machine; typically some milliseconds.
LATE = 2.0

# So many kills at random moments; 200 take a few minutes. No name of Mainstay's: the test bodies must see it.
KILLS = int(os.environ.get("RANDOM_KILLS", "20"))


def _wait_in_a_collective(victim: int, waits: int) -> None:
    """Slice `waits` waits in a collective for the other one, which is far from it; `victim` is killed."""
    import time
    from functools import partial

    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from probe import (
        cpu_seconds,
        devices_of,
        equal,
        incarnation_of,
        kill,
        loss_from,
        wait_for,
        wait_replaced,
        worker_of,
    )

    mesh = Mesh(np.array(jax.devices()), ("all",))
    split = NamedSharding(mesh, PartitionSpec("all"))
    spec = PartitionSpec("all")

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    def late(x: jax.Array, rounds: jax.Array) -> jax.Array:
        y = jax.lax.fori_loop(0, rounds[0], lambda _, y: np.float32(0.5) * (y @ y) + y, x[0] * np.float32(1e-6))
        return jax.lax.pcast(jax.lax.psum(y[None] * 0 + x, "all"), "all", to="varying")

    def arguments(busy: int, rounds: int) -> tuple[jax.Array, jax.Array]:
        counts = [rounds if device.slice_index == busy else 0 for device in jax.devices()]
        ones = np.ones((mesh.size, 64, 64), np.float32)
        return jax.device_put(ones, split), jax.device_put(np.array(counts, np.int32), split)

    def train_alone(index: int) -> None:
        one = NamedSharding(Mesh(np.array(devices_of(index)), ("x",)), PartitionSpec("x"))
        equal(jax.jit(lambda x: x.sum())(jax.device_put(np.ones(8, np.float32), one)), 8)

    add_one = jax.jit(lambda x: x + 1)
    equal(add_one(late(*arguments(0, 0)))[0, 0, 0], mesh.size + 1)
    train_alone(0)
    train_alone(1)
    old, survivor, busy = incarnation_of(victim), 1 - victim, 1 - waits
    # Short enough that a survivor which is the busy one is soon done.
    rounds = 10_000_000 if victim == busy else 20_000
    donated, counts = arguments(busy, rounds)
    before = cpu_seconds(worker_of(busy))
    doomed = late(donated, counts)
    follower = add_one(doomed)
    wait_for(lambda: cpu_seconds(worker_of(busy)) > before + 0.1, "the busy slice to be in its loop")
    assert not doomed.is_ready()
    killed = kill(victim)
    loss_from(doomed.block_until_ready, victim)
    waited = time.perf_counter() - killed
    loss_from(follower.block_until_ready, victim)
    train_alone(survivor)
    print(f"death to error: {1000 * waited:.1f} ms; survivor done after {1000 * (time.perf_counter() - killed):.1f} ms")
    assert waited < LATE
    for shard in doomed.addressable_shards:
        loss_from(lambda shard=shard: np.asarray(shard.data), victim)
    assert donated.is_deleted()
    wait_replaced(victim, old)
    equal(late(*arguments(0, 0))[0, 0, 0], mesh.size)


@jax_process(slices=2)
def test_a_slice_dies_while_the_other_waits_for_it_in_a_collective() -> None:
    """The survivor is released by the death."""
    _wait_in_a_collective(victim=1, waits=0)


@jax_process(slices=2)
def test_a_slice_dies_while_it_waits_in_a_collective() -> None:
    """The survivor comes to the collective after the death."""
    _wait_in_a_collective(victim=0, waits=0)


@jax_process(slices=2, devices=1)
def test_a_slice_of_one_device_dies_while_the_other_waits() -> None:
    """XLA runs programs of one device inside the call that launches them."""
    _wait_in_a_collective(victim=1, waits=0)


def _not_started(victim: int) -> None:
    """Slice 1 has not started its part, for an input that comes late; `victim` is killed."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from probe import devices_of, equal, incarnation_of, kill, long, loss_from, wait_replaced

    mesh = Mesh(np.array(jax.devices()), ("all",))
    split = NamedSharding(mesh, PartitionSpec("all"))
    total = jax.jit(lambda x: x.sum())
    ones = np.ones(mesh.size, np.float32)
    equal(total(jax.device_put(ones, split)), mesh.size)
    old = incarnation_of(victim)
    # Runs on slice 0, for ever if that is the one to be killed, and is wanted on slice 1.
    tiny = jax.device_put(np.full((64, 64), 1e-6, np.float32), devices_of(0)[1])
    first = jax.jit(lambda y: y[0, :1] * 0 + 1)
    equal(first(long(tiny, 1)), 1)
    slow = first(long(tiny, 10_000_000 if victim == 0 else 2_000))
    last = jax.device_put(slow, devices_of(1)[-1])
    shards = [jax.device_put(ones[:1], device) for device in jax.devices()[:-1]]
    array = jax.make_array_from_single_device_arrays((mesh.size,), split, [*shards, last])
    doomed = total(array)
    assert not doomed.is_ready()
    kill(victim)
    loss_from(doomed.block_until_ready, victim)
    one = NamedSharding(Mesh(np.array(devices_of(1 - victim)), ("x",)), PartitionSpec("x"))
    equal(total(jax.device_put(np.ones(8, np.float32), one)), 8)
    wait_replaced(victim, old)
    equal(total(jax.device_put(ones, split)), mesh.size)


@jax_process(slices=2)
def test_a_slice_dies_before_it_has_started_its_part() -> None:
    """The other one waits in its part for a part that will never start."""
    _not_started(1)


@jax_process(slices=2)
def test_a_slice_dies_before_the_other_has_started_its_part() -> None:
    """The survivor's part still waits for its input, which dies with the slice."""
    _not_started(0)


@jax_process(slices=2, env=RESTLESS)
def test_a_slice_dies_while_it_loads_a_program() -> None:
    """The first launch of a new program is lost or not; a replacement gets the program anew, and dies as well."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import mainstay
    from probe import equal, incarnation_of, kill, wait_for, wait_replaced

    mesh = Mesh(np.array(jax.devices()), ("all",))
    split = NamedSharding(mesh, PartitionSpec("all"))
    for number in range(4):
        values = jax.device_put(np.ones((mesh.size, 4), np.float32), split)
        step = jax.jit(lambda x, number=number: (x * number).sum())
        compiled = step.lower(values).compile()
        old = incarnation_of(number % 2)
        kill(number % 2)
        try:
            assert float(compiled(values)) == 16 * number
        except jax.errors.JaxRuntimeError as error:
            assert str(error).startswith("DATA_LOSS: "), error
        # The replacement loads it while it starts.
        wait_for(lambda: incarnation_of(number % 2) > old, "the next incarnation")  # noqa: B023
        if mainstay.slices()[number % 2].pid is not None:
            kill(number % 2)
        wait_replaced(number % 2, old)
        equal(compiled(jax.device_put(np.ones((mesh.size, 4), np.float32), split)), 16 * number)


def _killed_while_compiling(victim: Callable[[int], None]) -> Callable[[], None]:
    """Compiles a program over both slices; meanwhile calls `victim` with the compiler's pid. Returns what checks it."""
    import threading

    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from probe import compilers, cpu_seconds, wait_for

    mesh = Mesh(np.array(jax.devices()), ("all",))
    split = NamedSharding(mesh, PartitionSpec("all"))

    def unrolled(x: jax.Array) -> jax.Array:
        for i in range(30):
            x = jax.numpy.sin(x) * (x.sum() * 1e-3 + i * 1e-6)
        return x

    values = np.ones(mesh.size, np.float32)
    assert float(jax.jit(lambda x: x.sum())(jax.device_put(values, split))) == mesh.size
    lowered = jax.jit(unrolled).lower(jax.device_put(values, split))
    (compiler,) = compilers()
    idle = cpu_seconds(compiler)

    def kill_when_it_compiles() -> None:
        wait_for(lambda: cpu_seconds(compiler) > idle + 0.1, "the compiler to compile")
        victim(compiler)

    killer = threading.Thread(target=kill_when_it_compiles)
    killer.start()
    try:
        compiled = lowered.compile()
    finally:
        killer.join()

    def run() -> None:
        assert np.isfinite(np.asarray(compiled(jax.device_put(values, split)))).all()

    return run


@jax_process(slices=2)
def test_a_slice_dies_while_a_program_is_compiled_for_it() -> None:
    """Compilation needs no slice: it goes on, and the program runs once there is a replacement."""
    import jax

    from probe import incarnation_of, kill, wait_replaced

    jax.devices()
    old = incarnation_of(0)
    run_it = _killed_while_compiling(lambda _compiler: print(kill(0)))
    wait_replaced(0, old)
    run_it()


@jax_process(slices=2)
def test_the_compiler_dies_while_it_compiles_a_program_for_both_slices() -> None:
    """Its death is an error of that one compile; no slice is lost, and the next compile works."""
    import signal

    import jax

    import mainstay

    try:
        _killed_while_compiling(lambda compiler: os.kill(compiler, signal.SIGKILL))
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
    else:
        raise AssertionError("the compile was over before the kill")
    assert "compil" in text, text
    assert not any(word in text for word in ("DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED")), text
    assert all(one.is_healthy and not one.losses for one in mainstay.slices())
    _killed_while_compiling(lambda _compiler: None)()


@jax_process(slices=2, env=RESTLESS, timeout=120 + 3 * KILLS)
def test_kills_at_random_moments_of_a_training_loop() -> None:
    """The moments follow from a fixed seed. The survivor gets the bits that it would have got alone from the start."""
    import random
    import threading
    import time
    from typing import Any

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import mainstay
    from probe import devices_of, kill, wait_for

    moments = random.Random(20)  # noqa: S311
    numbers = np.random.default_rng(0)
    weights = {"up": numbers.normal(size=(16, 32)) * 0.1, "down": numbers.normal(size=(32, 4)) * 0.1}
    batch = numbers.normal(size=(16, 16)), numbers.normal(size=(16, 4))

    def body(w: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: ((jnp.tanh(x @ w["up"]) @ w["down"] - y) ** 2).mean())(w)
        return jax.tree.map(lambda a, b: a - 0.1 * b, w, gradient), loss

    step = jax.jit(body, donate_argnums=0)

    def begin(devices: list[jax.Device]) -> tuple[Any, jax.Array, jax.Array]:
        mesh = Mesh(np.array(devices), ("data",))
        split = NamedSharding(mesh, PartitionSpec("data"))
        return jax.device_put((weights, *batch), (NamedSharding(mesh, PartitionSpec()), split, split))

    def losses(devices: list[jax.Device], steps: int, access: Callable[[jax.Array], Any]) -> list[Any]:
        w, x, y = begin(devices)
        kept = []
        for _ in range(steps):
            w, loss = step(w, x, y)
            kept.append(loss)
        return [access(loss) for loss in kept]

    alone = {index: losses(devices_of(index), 5, float) for index in (0, 1)}
    together = losses(jax.devices(), 5, float)
    waited = []
    for number in range(KILLS):
        wait_for(lambda: all(one.is_healthy for one in mainstay.slices()), "all slices to be there")
        w, x, y = begin(jax.devices())
        victim, moment, died = moments.randrange(2), moments.random() * 0.05, [0.0]

        def kill_then(victim: int = victim, moment: float = moment, died: list[float] = died) -> None:
            # Not to wait for anything: it is the random moment itself.
            time.sleep(moment)
            died[0] = kill(victim)

        killer = threading.Thread(target=kill_then)
        killer.start()
        try:
            while True:
                w, loss = step(w, x, y)
                if moments.random() < 0.3:
                    loss.block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            late = time.perf_counter() - died[0]
            assert str(error).startswith(f"DATA_LOSS: slice {victim} "), f"kill {number}: {error}"
        killer.join()
        waited.append(late)
        survivor = 1 - victim
        assert losses(devices_of(survivor), 5, float) == alone[survivor], f"kill {number}"
    waited.sort()
    print(
        f"{KILLS} kills; death to error: median {1000 * waited[len(waited) // 2]:.1f} ms, "
        f"at most {1000 * waited[-1]:.1f} ms"
    )
    assert waited[len(waited) // 2] < LATE
    wait_for(lambda: all(one.is_healthy for one in mainstay.slices()), "all slices to be there")
    assert losses(jax.devices(), 5, float) == together


@jax_process(slices=2, devices=1)
def test_what_was_left_with_a_killed_client_is_cleared_up() -> None:
    """A compiler that is killed together with its client leaves the folder of its plan; a later one removes it."""
    import os
    import shutil
    import subprocess
    import sys
    import time
    from pathlib import Path

    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, recent = (Path(f"/dev/shm/mainstay-plan-{dead.pid}-{number}") for number in range(2))
    try:
        for folder in (left, recent):
            folder.mkdir()
        (left / "module.hlo.pb").write_bytes(b"x")
        long_ago = time.time() - 3600
        os.utime(left, (long_ago, long_ago))
        mesh = Mesh(np.array(jax.devices()), "x")
        ones = jax.device_put(np.ones(2, np.float32), NamedSharding(mesh, P("x")))
        assert float(jax.jit(lambda x: x.sum())(ones)) == 2
        assert not left.exists()
        assert recent.exists()
    finally:
        for folder in (left, recent):
            shutil.rmtree(folder, ignore_errors=True)
