"""Snapshots: what comes back is what was there, whatever is donated, killed or asked for where.

`MAINSTAY_TEST_LONG=1` makes the tests that count on chance as long as the project's goals say.
"""

import os
import random
import threading
from typing import Any, NamedTuple

import pytest

from harness import RESTLESS, jax_process

LONG = {"LONG": os.environ.get("MAINSTAY_TEST_LONG", "")}
PATIENCE = 600.0 if LONG["LONG"] else 120.0


class _Point(NamedTuple):
    """A container that files don't know."""

    x: Any
    z: Any


def _times(usual: int, long: int) -> int:
    return long if os.environ.get("LONG") else usual


def _same(tree: Any, other: Any) -> None:
    """Fails unless two trees have the same structure, kinds of leaves and values."""
    import jax
    import numpy as np

    def same(a: Any, b: Any) -> None:
        assert type(a) is type(b), f"{a!r} became {b!r}"
        if not isinstance(a, jax.Array):
            np.testing.assert_array_equal(a, b)
            return
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if jax.numpy.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert a.weak_type == b.weak_type
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    jax.tree.map(same, tree, other)


def _latest(store: Any) -> Any:
    """The newest whole snapshot, which must be there."""
    latest = store.latest()
    assert latest is not None
    return latest


def _meshes() -> Any:
    """A mesh of each slice's devices, and one of all."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    devices = np.array(jax.devices())
    return Mesh(devices[:2], ("x",)), Mesh(devices[2:], ("x",)), Mesh(devices.reshape(2, 2), ("x", "y"))


def _odd_tree() -> Any:
    """Every kind of leaf, on one device, on a slice and on both."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, SingleDeviceSharding
    from jax.sharding import PartitionSpec as P

    first, _, both = _meshes()
    values = np.arange(24 * 8, dtype=np.float32).reshape(24, 8)
    one = jax.devices()[3]
    return {
        "one": jax.device_put(values, one),
        "slice": jax.device_put(values, NamedSharding(first, P("x"))),
        "both": [jax.device_put(values, NamedSharding(both, spec)) for spec in (P("x", "y"), P(None, "x"), P())],
        "host": jax.device_put(values, SingleDeviceSharding(one, memory_kind="pinned_host")),
        "keys": (
            jax.random.key(1),
            jax.device_put(jax.random.split(jax.random.key(2), 6), NamedSharding(first, P("x"))),
        ),
        "rbg": jax.random.key(3, impl="rbg"),
        "small": [jnp.arange(7, dtype=kind) for kind in (jnp.int4, jnp.uint4, jnp.int8, jnp.bfloat16)],
        "truth": jnp.arange(5) > 2,
        "wide": jnp.arange(5, dtype=jnp.complex64) * 1j,
        "empty": [jnp.zeros((0, 3)), jax.device_put(np.zeros((2, 0), np.int32), NamedSharding(first, P("x")))],
        "scalar": jnp.asarray(2.5),
        "weak": jnp.asarray(3) * 1,
        "plain": [1, 2.5, "text", None, (), True, np.arange(3), np.float32(7)],
    }


@jax_process(slices=2)
def test_everything_comes_back_where_it_was() -> None:
    """Types, values, shardings and what is no array."""
    import jax

    from mainstay import snapshot

    tree = _odd_tree()
    store = snapshot.Store()
    taken = store.take(tree, step=5, label="odd")
    assert taken.wait(60)
    assert (taken.step, taken.label, taken.progress.fraction) == (5, "odd", 1.0)
    taken.verify()
    back = snapshot.restore(taken)
    _same(tree, back)

    def placed(a: Any, b: Any) -> None:
        assert a.sharding == b.sharding

    arrays = [[leaf for leaf in jax.tree.leaves(one) if isinstance(leaf, jax.Array)] for one in (tree, back)]
    jax.tree.map(placed, *arrays)
    # What is restored is independent of the snapshot, and of what is done to the original.
    tree["plain"][6][:] = 9
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    jax.block_until_ready(add(back["one"]))
    _same(snapshot.restore(taken)["one"], tree["one"])
    taken.drop()
    assert taken.is_dropped()
    assert store.latest() is None
    _same(back["both"], tree["both"])
    with pytest.raises(snapshot.SnapshotError, match=r"FAILED_PRECONDITION.*step 5 .odd. is gone"):
        snapshot.restore(taken)


@jax_process(slices=2, env=RESTLESS)
def test_again_and_again_without_making_arrays_of_shards() -> None:
    """From the third snapshot of a tree on its buffers are found by a program that is not run, also after a loss."""
    import jax

    from mainstay import snapshot
    from mainstay.snapshot import _capture
    from probe import incarnation_of, kill, wait_for, wait_replaced

    store = snapshot.Store()

    def check(tree: Any) -> None:
        taken = store.take(tree)
        assert taken.wait(60)
        _same(snapshot.restore(taken), tree)

    tree = _odd_tree()
    taken = store.take(tree)
    with jax.transfer_guard("disallow"):
        back = snapshot.restore(taken)
    _same(back, tree)
    assert not _capture._Program._all
    check(tree)
    programs = list(_capture._Program._all.values())
    # On the first slice, and on both.
    assert len(programs) == 2
    wait_for(lambda: all(program.executable is not None for program in programs), "the programs")

    def refuse(arrays: Any) -> Any:
        raise AssertionError("arrays are made of shards")

    usual, _capture._shards_of = _capture._shards_of, refuse
    for _ in range(3):
        check(tree)
    old = incarnation_of(1)
    kill(1)
    wait_replaced(1, old)
    check(_odd_tree())
    _capture._shards_of = usual
    tree = _odd_tree()
    tree["both"][1].delete()
    with pytest.raises(RuntimeError, match="deleted"):
        store.take(tree)
    # Programs that do the same by chance are run, and nothing is left behind.
    assert float(jax.jit(lambda x: x + 1)(tree["scalar"])) == 3.5


@jax_process(slices=2)
def test_restored_onto_other_meshes() -> None:
    """Any sharding from any sharding: pieces of several stored shards, and replicas."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, SingleDeviceSharding
    from jax.sharding import PartitionSpec as P

    from mainstay import snapshot

    first, second, both = _meshes()
    cube = np.arange(8 * 12 * 4, dtype=np.int32).reshape(8, 12, 4)
    sources = [NamedSharding(both, spec) for spec in (P("x", "y"), P("y", None, "x"), P(("x", "y")), P())]
    sources.append(NamedSharding(first, P(None, "x")))
    targets: list[Any] = [NamedSharding(second, spec) for spec in (P("x"), P(None, None, "x"), P())]
    targets += [NamedSharding(both, spec) for spec in (P("y", "x"), P(None, ("y", "x")), P(None, "x"))]
    targets.append(SingleDeviceSharding(jax.devices()[1]))
    targets.append(NamedSharding(second, P("x"), memory_kind="pinned_host"))
    tree = [jax.device_put(cube, source) for source in sources]
    store = snapshot.Store(1)
    taken = store.take(tree)
    assert taken.wait(60)
    # Replicas are stored once: five times the array, not more.
    assert taken.progress.total == len(sources) * cube.nbytes
    for target in targets:
        for array in snapshot.restore(taken, shardings=target):
            assert array.sharding == target
            np.testing.assert_array_equal(np.asarray(array), cube)
    like = [jax.ShapeDtypeStruct(cube.shape, cube.dtype, sharding=target) for target in targets[: len(sources)]]
    for array, model in zip(snapshot.restore(taken, like=like), like, strict=True):
        assert array.sharding == model.sharding
        np.testing.assert_array_equal(np.asarray(array), cube)
    with pytest.raises(ValueError, match="`like` has"):
        snapshot.restore(taken, like=[jax.ShapeDtypeStruct((8,), np.int32)] * len(sources))
    with pytest.raises(ValueError, match="structure"):
        snapshot.restore(taken, like={"a": 1})


@jax_process(slices=2, env=RESTLESS)
def test_restored_where_the_slices_it_was_taken_from_are_gone() -> None:
    """The values outlive the workers; a snapshot that a loss cut short is dropped, and the last whole one stays."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from mainstay import snapshot
    from probe import incarnation_of, kill, wait_replaced

    tree = _odd_tree()
    store = snapshot.Store()
    assert store.take(tree, step=1).wait(60)
    for index in (0, 1):
        old = incarnation_of(index)
        kill(index)
        wait_replaced(index, old)
        lost = store.take(tree, step=2)
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"DATA_LOSS: slice {index}"):
            lost.wait()
        if index == 0:
            tree = snapshot.restore(_latest(store))
    assert [one.step for one in store.list()] == [1]
    _latest(store).verify()
    _same(snapshot.restore(_latest(store)), _odd_tree())
    _, second, _ = _meshes()
    _same(snapshot.restore(_latest(store), shardings=NamedSharding(second, P())), _odd_tree())


@jax_process(slices=2, env=LONG, timeout=PATIENCE)
def test_values_are_those_of_the_call_though_donated_right_after() -> None:
    """Several threads, each taking snapshots between donating steps; other threads read addresses meanwhile."""
    import threading

    import jax
    import numpy as np

    from mainstay import snapshot

    rounds, failures = _times(100, 2000), []
    step = jax.jit(lambda x: x * 3 + 1, donate_argnums=0)
    over = threading.Event()

    def work(number: int) -> None:
        device = jax.devices()[number]
        store = snapshot.Store(4, checksum=number % 2 == 0)
        state = {"a": jax.device_put(np.full(4096, number, np.uint32), device)}
        expected, pending = np.full(4096, number, np.uint32), []
        for _ in range(rounds):
            pending.append((store.take(state), expected))
            state = {"a": step(state["a"])}
            expected = expected * 3 + 1
            if len(pending) == 4:
                taken, values = pending.pop(0)
                assert taken.wait(60)
                np.testing.assert_array_equal(np.asarray(snapshot.restore(taken)["a"]), values)
        np.testing.assert_array_equal(np.asarray(state["a"]), expected)

    def guarded(body: Any, *arguments: Any) -> None:
        try:
            body(*arguments)
        except BaseException as error:
            failures.append(error)
            raise

    def read_addresses() -> None:
        array = jax.device_put(np.arange(1000, dtype=np.float32), jax.devices()[0])
        address = array.unsafe_buffer_pointer()
        while not over.is_set():
            assert array.unsafe_buffer_pointer() == address
            fresh = jax.device_put(np.ones(64, np.float32), jax.devices()[2])
            np.testing.assert_array_equal(np.asarray(fresh), 1)

    reader = threading.Thread(target=guarded, args=(read_addresses,))
    threads = [threading.Thread(target=guarded, args=(work, number)) for number in range(4)]
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    reader.join()
    assert not failures


@jax_process(slices=2, env=RESTLESS | LONG, timeout=PATIENCE)
def test_killed_at_random_moments_of_take_commit_and_restore() -> None:
    """The newest whole snapshot is always there, and right; what was restored is right or lost, never wrong."""
    import time

    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import mainstay
    from mainstay import snapshot
    from probe import devices_of, incarnation_of, kill, wait_for, wait_replaced

    chance = random.Random(7)  # noqa: S311
    first, second, both = _meshes()
    store = snapshot.Store(2)
    shardings = [NamedSharding(both, P(("x", "y"))), NamedSharding(first, P("x")), NamedSharding(second, P())]

    def values(step: int) -> list[np.ndarray]:
        return [np.arange(step, step + 1_500_000, dtype=np.int32) for _ in shardings]

    def correct(tree: Any, step: int) -> None:
        for array, expected in zip(tree, values(step), strict=True):
            np.testing.assert_array_equal(np.asarray(array), expected)

    whole = 0
    assert store.take([jax.device_put(*pair) for pair in zip(values(0), shardings, strict=True)], step=0).wait(60)
    kills = _times(14, 200)
    for step in range(1, kills + 1):
        index = chance.randrange(2)
        old = incarnation_of(index)
        state = [jax.device_put(*pair) for pair in zip(values(step), shardings, strict=True)]
        if chance.random() < 0.5:
            jax.block_until_ready(state)
        taken = store.take(state, step=step)
        base = _latest(store)
        restored = snapshot.restore(base) if chance.random() < 0.5 else None
        time.sleep(chance.random() * 0.01)
        kill(index)
        try:
            taken.wait()
            whole = step
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error), error
        latest = _latest(store)
        assert latest.step == whole, (latest, whole)
        latest.verify()
        # On the slice that lives, at once.
        alive = devices_of(1 - index)[chance.randrange(2)]
        correct(snapshot.restore(latest, shardings=jax.sharding.SingleDeviceSharding(alive)), whole)
        if restored is not None:
            try:
                correct(restored, base.step)
            except jax.errors.JaxRuntimeError as error:
                assert "DATA_LOSS" in str(error), error
        wait_replaced(index, old)
        correct(snapshot.restore(latest), whole)
    print(f"{kills} kills, the last whole snapshot is of step {whole}")
    store.clear()
    wait_for(lambda: all(one.is_healthy for one in mainstay.slices()), "both slices")


@jax_process(slices=2, env=RESTLESS)
def test_a_value_that_was_there_outlives_its_slice_uncopied() -> None:
    """What was ready at the call is read from the memory that the dead worker leaves; what was not is lost with it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mainstay import snapshot
    from probe import devices_of, incarnation_of, kill, wait_replaced

    device = devices_of(1)[0]
    make = jax.jit(lambda start: jnp.arange(8 << 20, dtype=jnp.int32) + start)
    there = jax.block_until_ready(make(jax.device_put(jnp.int32(5), device)))
    store, old = snapshot.Store(), incarnation_of(1)
    taken = store.take(there, step=1)
    kill(1)
    assert taken.wait(60)
    taken.verify()
    wait_replaced(1, old)
    np.testing.assert_array_equal(np.asarray(snapshot.restore(taken)), np.arange(8 << 20, dtype=np.int32) + 5)


@jax_process(slices=1)
def test_large_values_wherever_their_memory_is() -> None:
    """Made by a program, put there from the host, passed on by donation, restored; progress moves within one value."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mainstay import snapshot

    count = 12 << 20
    values = np.arange(count, dtype=np.int32)
    add = jax.jit(lambda x, n: x + n, donate_argnums=0)
    store = snapshot.Store(1)

    def check(array: Any, expected: Any) -> Any:
        taken = store.take([array, array])
        seen = {taken.progress.done}
        while taken.is_copying():
            seen.add(taken.progress.done)
        assert taken.progress.done == taken.progress.total == 2 * array.nbytes
        taken.verify()
        first, second = snapshot.restore(taken)
        np.testing.assert_array_equal(np.asarray(first), expected)
        np.testing.assert_array_equal(np.asarray(second), expected)
        print(f"progress was seen at {len(seen)} points")
        return first

    restored = check(jax.jit(lambda: jnp.arange(count, dtype=jnp.int32))(), values)
    check(restored, values)
    put = jax.device_put(values)
    check(put, values)
    donated = add(put, 3)
    check(donated, values + 3)
    pending = add(add(donated, 1), 1)
    check(pending, values + 5)
    # The address of the device's memory is asked for: the array has a view in place while it is copied and donated.
    pending.unsafe_buffer_pointer()
    taken = store.take(pending)
    later = add(pending, 4)
    assert taken.wait(60)
    np.testing.assert_array_equal(np.asarray(snapshot.restore(taken)), values + 5)
    np.testing.assert_array_equal(np.asarray(later), values + 9)


@jax_process(slices=2, env=LONG, timeout=PATIENCE)
def test_memory_is_flat_over_many_snapshots() -> None:
    """A ring of snapshots takes its size and no more, however many are taken and restored."""
    import gc

    import jax
    import numpy as np

    from mainstay import snapshot
    from probe import usage

    store = snapshot.Store(2)
    state = [jax.device_put(np.full(20_000, number, np.float32), jax.devices()[number % 4]) for number in range(20)]

    def some(count: int) -> dict[str, int]:
        for number in range(count):
            taken = store.take(state, step=number)
            assert taken.wait(60)
            if number % 10 == 0:
                jax.block_until_ready(snapshot.restore(taken))
        assert [one.step for one in store.list()] == [count - 2, count - 1]
        gc.collect()
        return usage()

    before = some(60)
    after = some(_times(200, 10_000))
    print(before, after)
    assert after["memory"] - before["memory"] < 4 << 10
    assert after["shared"] - before["shared"] < 16 << 10
    assert after["threads"] <= before["threads"]
    assert after["descriptors"] <= before["descriptors"]
    assert after["mappings"] <= before["mappings"] + 8


@jax_process(slices=1, env={"MAINSTAY_HOST_MEMORY": "104MiB"})
def test_needs_a_copy_for_each_kept_one_and_for_the_one_that_is_taken() -> None:
    """Three times the state, which a program has made, and a little: enough for a store of two, again and again."""
    import jax
    import jax.numpy as jnp

    from mainstay import snapshot

    make = jax.jit(lambda n: [jnp.full(2 << 20, n), jnp.full(5 << 20, n), jnp.full(1 << 20, n)] + [n * 1.0] * 100)
    store = snapshot.Store(2)
    for number in range(12):
        taken = store.take(make(jnp.float32(number)), step=number)
        assert taken.wait(60)
    assert [one.step for one in store.list()] == [10, 11]
    for array in jax.tree.leaves(snapshot.restore(_latest(store))):
        assert bool((array == 11).all())


@jax_process(slices=1, env={"MAINSTAY_HOST_MEMORY": "104MiB"})
def test_a_dropped_snapshot_frees_its_memory_though_a_value_is_still_to_come() -> None:
    """There is room for the same again, while the program goes on that the value comes from."""
    import time

    import jax
    import jax.numpy as jnp
    import numpy as np

    from mainstay import snapshot
    from probe import kill

    here, there = jax.devices()
    large = jax.block_until_ready(jax.device_put(jnp.full(15 << 20, 1.0), here))
    spin = jax.jit(lambda end: jax.lax.while_loop(lambda n: n < end, lambda n: n + 1, np.int32(0)))
    late = spin(jax.device_put(np.int32(2**31 - 1), there))
    store = snapshot.Store(1)
    store.take([large, late]).drop()
    until = time.monotonic() + 20
    again = None
    while again is None:
        try:
            again = store.take([large])
        except snapshot.SnapshotError as error:
            # A piece that is being copied is finished first.
            assert time.monotonic() < until, error
    assert not late.is_ready(), "it was to be late"
    assert again.wait(60)
    kill(0)


@jax_process(slices=1, env={"MAINSTAY_HOST_MEMORY": "104MiB"})
def test_what_is_restored_leaves_room_for_snapshots() -> None:
    """Restored arrays that are kept are no reason for a later snapshot to find no room."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from mainstay import snapshot

    make = jax.jit(lambda n: [jnp.full(2 << 20, n), jnp.full(5 << 20, n), jnp.full(1 << 20, n)])
    store = snapshot.Store(2)
    kept = []
    for number in range(8):
        assert store.take(make(jnp.float32(number)), step=number).wait(60)
        kept.append(jax.block_until_ready(snapshot.restore(_latest(store))))
    for number, arrays in enumerate(kept):
        for array in arrays:
            np.testing.assert_array_equal(np.asarray(array[::4096]), np.float32(number))


@jax_process(slices=2, env={"MAINSTAY_HOST_MEMORY": "104MiB"})
def test_what_is_put_together_leaves_room_too() -> None:
    """The same for parts of stored values, which are put together in host memory."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from mainstay import snapshot

    first, _, both = _meshes()
    values = np.arange(5 << 20, dtype=np.float32).reshape(1024, -1)
    state = jax.jit(lambda x: x + 0, out_shardings=NamedSharding(both, P(None, "x")))(values)
    store = snapshot.Store(2)
    kept = []
    for number in range(8):
        assert store.take(state, step=number).wait(60)
        kept.append(snapshot.restore(_latest(store), shardings=NamedSharding(first, P("x"))))
        jax.block_until_ready(kept[-1])
    for array in kept:
        np.testing.assert_array_equal(np.asarray(array), values)


@jax_process(slices=2)
def test_within_another() -> None:
    """A snapshot of another tree is taken and restored in the midst of one, as a signal's handler may do."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from mainstay import snapshot
    from mainstay.snapshot._engine import engine

    _, _, both = _meshes()
    spread, one = NamedSharding(both, P(("x", "y"))), jax.devices()[1]

    def tree(value: int, count: int) -> list[Any]:
        where = [spread if number % 2 else one for number in range(count)]
        return [jax.device_put(np.full(64, value + number, np.int32), place) for number, place in enumerate(where)]

    outer, inner = tree(0, 12), tree(1000, 8)
    store, other = snapshot.Store(), snapshot.Store()
    usual = engine().call
    within: list[str] = []

    def interrupt(name: str) -> None:
        if "now" not in within:
            within.append("now")
            taken = other.take(inner)
            assert taken.wait(60)
            _same(snapshot.restore(taken), inner)
            within[-1] = name

    def interrupted(name: str, **given: Any) -> Any:
        if name == "Mainstay_Snapshot_Take":
            interrupt(name)
        result = usual(name, **given)
        if name in ("Mainstay_Capture_Begin", "Mainstay_Supply_Begin"):
            interrupt(name)
        return result

    engine().call = interrupted  # type: ignore[method-assign]
    # The first time arrays are made of shards; later a program may be there.
    for _ in range(4):
        taken = store.take(outer)
        assert taken.wait(60)
        _same(snapshot.restore(taken), outer)
    assert len(within) == 12, within


@jax_process(slices=1)
def test_a_take_that_is_interrupted_leaves_nothing_behind() -> None:
    """Whether the interrupt comes before the library takes the buffers that it has noted, or after."""
    import jax
    import numpy as np

    from mainstay import snapshot
    from mainstay.snapshot._engine import engine

    array = jax.device_put(np.arange(4096, dtype=np.int32))
    address = array.unsafe_buffer_pointer()
    store = snapshot.Store()
    usual = engine().call
    for is_before in (True, False):

        def interrupted(name: str, is_before: bool = is_before, **given: Any) -> Any:
            if name == "Mainstay_Snapshot_Take" and is_before:
                raise KeyboardInterrupt
            result = usual(name, **given)
            if name == "Mainstay_Snapshot_Take":
                raise KeyboardInterrupt
            return result

        engine().call = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            store.take([array])
        engine().call = usual  # type: ignore[method-assign]
        assert array.unsafe_buffer_pointer() == address
    with pytest.raises(TypeError, match="float"):
        store.take([array], step=1.5)  # type: ignore[arg-type]
    taken = store.take([array], step=np.int64(3))  # type: ignore[arg-type]
    assert taken.wait(60)
    assert taken.step == 3
    _same(snapshot.restore(taken), [array])


@jax_process(slices=1, env={"JAX_PLATFORMS": "mainstay,cpu"})
def test_arrays_of_another_backend_are_refused() -> None:
    """One or many, the first time and later; and what is not an array of Mainstay's is no reason to fail afterwards."""
    import jax
    import numpy as np

    from mainstay import snapshot

    elsewhere, here = jax.devices("cpu")[0], jax.devices()[0]
    store = snapshot.Store()
    for count in (1, 100):
        own = [jax.device_put(np.full(8, number, np.int32), here) for number in range(count)]
        foreign = [jax.device_put(np.full(8, number, np.int32), elsewhere) for number in range(count)]
        for _ in range(4):
            with pytest.raises(ValueError, match="not on Mainstay's devices"):
                store.take(foreign)
            with pytest.raises(ValueError, match="not on Mainstay's devices"):
                store.take([*own, *foreign])
            taken = store.take(own)
            assert taken.wait(60)
            _same(snapshot.restore(taken), own)
            # From the second time on, by a program.
            for thread in threading.enumerate():
                if thread.name == "mainstay-capture":
                    thread.join(60)


@jax_process(slices=1)
def test_leaves_that_are_no_arrays_go_with_their_snapshot() -> None:
    """However many snapshots a store has dropped."""
    import gc
    import weakref

    import jax
    import numpy as np

    from mainstay import snapshot

    class Large:
        pass

    store, array = snapshot.Store(1), jax.device_put(np.arange(8))
    kept = []
    for _ in range(6):
        taken = store.take({"array": array, "other": Large()})
        assert taken.wait(60)
        kept.append(weakref.ref(taken.structure["other"]))
        del taken
    gc.collect()
    assert sum(one() is not None for one in kept) <= 2


@jax_process(slices=1, env={"MAINSTAY_HOST_MEMORY": "96MiB"})
def test_without_room_the_last_snapshot_stays() -> None:
    """RESOURCE_EXHAUSTED names what is asked for, used and allowed; nothing else is lost."""
    import jax
    import numpy as np

    from mainstay import snapshot

    store = snapshot.Store(2)
    state = jax.device_put(np.arange(4 << 20, dtype=np.float32))
    assert store.take(state, step=1).wait(60)
    large = [state + number for number in range(6)]
    with pytest.raises(snapshot.SnapshotError, match=r"RESOURCE_EXHAUSTED: .*16.0 MiB asked for.*of 96.0 MiB in use"):
        store.take(large, step=2)
    assert _latest(store).step == 1
    _latest(store).verify()
    np.testing.assert_array_equal(np.asarray(snapshot.restore(_latest(store))), np.asarray(state))


@jax_process(slices=2)
def test_rings_and_mistakes() -> None:
    """The oldest make room; what can't be taken says why; deleted arrays and other backends' are refused."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from mainstay import snapshot

    store = snapshot.Store(3)
    taken = [store.take({"x": jnp.full(1000, number)}, step=number) for number in range(8)]
    for one in taken:
        one.wait(60)
    assert [one.step for one in store.list()] == [5, 6, 7]
    assert taken[0].is_dropped()
    assert not taken[7].is_copying()
    store.list()[1].drop()
    assert [one.step for one in store.list()] == [5, 7]
    assert store.take({}, step=9).wait(60)
    assert snapshot.restore(_latest(store)) == {}
    assert snapshot.take(jnp.ones(3), step=11).wait(60)
    assert _latest(snapshot).step == 11
    assert "step=11" in repr(snapshot.snapshots()[0])

    gone = jnp.ones(4) + 1
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        store.take([jnp.ones(3), gone])
    _, _, both = _meshes()
    spread = jax.device_put(jnp.ones(4), NamedSharding(both, PartitionSpec("x")))
    spread.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        store.take([jnp.ones(3), spread])
    for size in 0, 2**64:
        with pytest.raises(ValueError, match=f"keep {size} snapshots"):
            snapshot.Store(size)

    def traced(x: Any) -> Any:
        with pytest.raises(TypeError, match="not .*Tracer"):
            store.take([x])
        return x

    jax.jit(traced)(jnp.ones(3))
    unchecked = snapshot.Store(1, checksum=False)
    one = unchecked.take(jnp.ones(3))
    one.wait(60)
    with pytest.raises(snapshot.SnapshotError, match="without checksums"):
        one.verify()
    # A call that failed leaves no mode behind: addresses are addresses again.
    assert float(jnp.asarray(2.0) + 1) == 3


@jax_process(slices=2)
def test_files() -> None:
    """A snapshot written to a file and read back is the same; a damaged file is refused; progress is told."""
    import tempfile
    from pathlib import Path

    import jax
    import numpy as np

    from mainstay import snapshot

    tree = _odd_tree()
    tree["plain"] = tree["plain"][:7]
    store = snapshot.Store()
    taken = store.take(tree, step=4, label="four")
    assert taken.wait(60)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        told: list[snapshot.Progress] = []
        snapshot.save(taken, path, progress=told.append)
        assert told[-1].done == told[-1].total == taken.progress.total
        read = snapshot.load(path)
        assert read.wait(60)
        assert (read.step, read.label) == (4, "four")
        read.verify()
        _same(snapshot.restore(read), tree)
        placed = snapshot.restore(read, like=tree)
        _same(placed, tree)
        assert placed["both"][0].sharding == tree["both"][0].sharding

        def stop(_: snapshot.Progress) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            snapshot.save(taken, path.with_name("other"), progress=stop)
        assert [one.name for one in Path(folder).iterdir()] == [path.name]

        path.write_bytes(path.read_bytes()[:-8])
        for damaged in (path, Path(__file__), Path(folder)):
            with pytest.raises(snapshot.SnapshotError, match="FAILED_PRECONDITION"):
                snapshot.load(damaged)

        # Nobody else's containers: a dictionary by name, or whatever is asked for.
        point = _Point(jax.numpy.arange(3.0), {"y": jax.numpy.ones(2)})
        taken = store.take(point)
        taken.wait(60)
        snapshot.save(taken, path)
        read = snapshot.load(path, store=store)
        assert sorted(snapshot.restore(read)) == ["x", "z.y"]
        np.testing.assert_array_equal(snapshot.restore(read, like=point).z["y"], 1)
