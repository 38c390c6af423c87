"""Programs over several slices: the bits of one client of all devices, no standstill, and what JAX asks of them."""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from harness import HERE, Setup, check, jax_process, plugin_paths, run


def _on_raw_plugin(folder: Path, devices: int) -> Setup:
    """The real plugin itself, as one client of so many devices."""
    config = folder / "raw.json"
    options = {"cpu_device_count": devices}
    config.write_text(json.dumps({"library_path": plugin_paths()[0], "create_options": options}))
    return Setup(env={"PJRT_NAMES_AND_LIBRARY_PATHS": f"raw:{config}", "JAX_PLATFORMS": "raw"})


TRANSFORMER = [sys.executable, str(HERE / "transformer_loop.py"), "100"]


@cache
def _raw_losses() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        return check(run([*TRANSFORMER, "one-at-a-time"], _on_raw_plugin(Path(folder), 8))).splitlines()


@pytest.mark.parametrize(("slices", "devices"), [(2, 4), (4, 2)])
def test_a_transformer_learns_bit_for_bit_as_on_the_raw_plugin(slices: int, devices: int) -> None:
    """100 training steps, data-parallel over halves of the devices and model-parallel within: equal losses."""
    raw = _raw_losses()
    ours = check(run(TRANSFORMER, Setup(slices, devices))).splitlines()
    assert len(raw) == 100
    first, last = (float(raw[index].split()[1]) for index in (0, -1))
    assert last < first / 2, f"it should learn: the loss went from {first} to {last}"
    different = [step for step, (one, other) in enumerate(zip(raw, ours, strict=True)) if one != other]
    assert not different, f"step {different[0]}: {raw[different[0]]} on the raw plugin, {ours[different[0]]} here"


def _many_threads_and_late_inputs(rounds: int) -> None:
    """Independent programs over both slices, from many threads; inputs of some come late, and on one slice only."""
    import threading
    from functools import partial

    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from probe import devices_of, long

    mesh = Mesh(np.array(jax.devices()), ("all",))
    split = NamedSharding(mesh, PartitionSpec("all"))
    count = mesh.size
    tiny = np.full((64, 64), 1e-6, np.float32)

    @partial(jax.jit, static_argnums=1)
    @partial(jax.shard_map, mesh=mesh, in_specs=(PartitionSpec("all"), None), out_specs=PartitionSpec("all"))
    def sums(x: jax.Array, kind: int) -> jax.Array:
        for _ in range(4):
            x = jax.lax.psum(x, "all") * np.float32(0.5) + kind
            x = jax.lax.pcast(x, "all", to="varying")
        return x

    def expected(values: np.ndarray, kind: int) -> np.ndarray:
        for _ in range(4):
            values = np.full_like(values, values.sum() * np.float32(0.5) + kind)
        return values

    late = jax.jit(lambda x, value: x.max() * np.float32(0) + value)

    def shard(device: jax.Device, value: float, waits_for: jax.Device | None) -> jax.Array:
        """A value on a device; where another device is named, one that comes from a long program there."""
        if waits_for is None:
            return jax.device_put(np.full(1, value, np.float32), device)
        slow = long(jax.device_put(tiny, waits_for), 500)
        return jax.device_put(late(slow, np.full(1, value, np.float32)), device)

    failures: list[str] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        running = []
        for number in range(rounds):
            values = random.integers(1, 9, size=count).astype(np.float32)
            slow_slice = int(random.integers(0, 4))
            shards = []
            for device, value in zip(jax.devices(), values, strict=True):
                comes_late = slow_slice < 2 and device == devices_of(slow_slice)[-1]
                shards.append(shard(device, value, devices_of(1 - slow_slice)[0] if comes_late else None))
            array = jax.make_array_from_single_device_arrays((count,), split, shards)
            kind = (seed + number) % 3
            running.append((sums(array, kind), expected(values, kind)))
            if number % 3 == 2:
                result, wanted = running[int(random.integers(len(running)))]
                np.asarray(result)
        for result, wanted in running:
            if not np.array_equal(np.asarray(result), wanted):
                failures.append(f"thread {seed}: {np.asarray(result)} instead of {wanted}")

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@jax_process(slices=2, devices=2)
def test_late_inputs_bring_nothing_to_a_standstill() -> None:
    """Two devices on each slice: XLA runs a slice's launches one after the other."""
    _many_threads_and_late_inputs(12)


@jax_process(slices=2, devices=1)
def test_late_inputs_bring_nothing_to_a_standstill_with_one_device_each() -> None:
    """One device on each slice: XLA runs small programs inside the call that launches them."""
    _many_threads_and_late_inputs(12)


@jax_process(slices=2, devices=1)
def test_a_slice_in_a_collective_still_does_what_the_other_waits_for() -> None:
    """A launch waits in slice 0 for slice 1, which waits for a value that slice 0 has yet to compute."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from probe import equal, long

    here, there = jax.devices()
    split = NamedSharding(Mesh(np.array([here, there]), ("all",)), PartitionSpec("all"))
    total = jax.jit(lambda x: x.sum())
    double = jax.jit(lambda x: x * 2)
    one = np.ones(1, np.float32)
    tiny = np.full((64, 64), 1e-6, np.float32)
    equal(total(jax.device_put(np.ones(2, np.float32), split)), 2)

    # From slice 1, late; doubled on slice 0; back to slice 1, where the program over both wants it.
    slow = jax.jit(lambda x: x[0, :1] * 0 + 3)(long(jax.device_put(tiny, there), 2000))
    doubled = double(jax.device_put(slow, here))
    back = jax.device_put(doubled, there)
    array = jax.make_array_from_single_device_arrays((2,), split, [jax.device_put(one, here), back])
    results = [total(array)]
    results += [total(jax.device_put(np.full(2, k, np.float32), split)) for k in range(5)]
    equal(results[0], 7)
    for k, result in enumerate(results[1:]):
        equal(result, 2 * k)


def _collectives_of_no_single_client() -> None:
    """Collectives that XLA's CPU plugin does not have on one client, compared with what they mean."""
    import jax
    import numpy as np
    from jax._src.interpreters import mlir
    from jax._src.lax import parallel
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from probe import equal

    # JAX lowers it for GPUs only, since no other single client has it.
    mlir.register_lowering(parallel.pbroadcast_p, parallel._pbroadcast_lowering, platform="cpu")
    count = jax.device_count()
    spec = PartitionSpec("all")
    mesh = Mesh(np.array(jax.devices()), ("all",))
    split = NamedSharding(mesh, spec)
    random = np.random.default_rng(0)

    def over_all(function: Callable[..., jax.Array], operands: int) -> Callable[..., jax.Array]:
        mapped = jax.shard_map(function, mesh=mesh, in_specs=(spec,) * operands, out_specs=spec, check_vma=False)
        return lambda *arguments: jax.jit(mapped)(*(jax.device_put(argument, split) for argument in arguments))

    # Rows that each device sends to each other one, from where to where.
    sizes = random.integers(0, 3, size=(count, count)).astype(np.int32)
    starts = (np.cumsum(sizes, 1) - sizes).astype(np.int32)
    places = (np.cumsum(sizes, 0) - sizes).astype(np.int32)
    rows = random.normal(size=(count, 2 * count, 5)).astype(np.float32)
    before = np.full((count, 2 * count, 5), -1, np.float32)
    after = before.copy()
    for sender in range(count):
        for receiver in range(count):
            size, start, place = (table[sender, receiver] for table in (sizes, starts, places))
            after[receiver, place : place + size] = rows[sender, start : start + size]

    def ragged(*operands: jax.Array) -> jax.Array:
        return jax.lax.ragged_all_to_all(*(operand[0] for operand in operands), axis_name="all")[None]

    equal(over_all(ragged, 6)(rows, before, starts, sizes, places, np.ascontiguousarray(sizes.T)), after)

    values = random.normal(size=(count, 3)).astype(np.float32)
    source = count - 1
    equal(over_all(lambda x: jax.lax.pbroadcast(x, ("all",), source), 1)(values), np.tile(values[source], (count, 1)))


@pytest.mark.parametrize("plugin", range(3))
def test_ragged_all_to_all_and_broadcast(plugin: int) -> None:
    """Two slices of four devices, on every plugin."""
    call = "import test_spanning; test_spanning._collectives_of_no_single_client()"
    check(run([sys.executable, "-c", call], Setup(2, 4, plugin_paths()[plugin])))


@jax_process(slices=4, devices=1)
def test_ragged_all_to_all_and_broadcast_with_one_device_each() -> None:
    """Four slices of one device."""
    _collectives_of_no_single_client()


@jax_process(slices=3, devices=2)
def test_any_devices_in_any_order() -> None:
    """Subsets of the slices, of their devices, interleaved and reversed: each device gets what its place is due."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from probe import equal

    spec = PartitionSpec("all")
    everybody = jax.devices()
    for places in ([0, 1, 4, 5], [0, 2, 4, 1, 3, 5], [5, 3, 1, 4, 2, 0], [4, 0, 1], [3, 2, 0], [0, 2, 4], [5, 0]):
        count = len(places)
        mesh = Mesh(np.array([everybody[place] for place in places]), ("all",))
        split = NamedSharding(mesh, spec)

        def body(x: jax.Array, count: int = count) -> tuple[jax.Array, ...]:
            ring = [(rank, (rank + 1) % count) for rank in range(count)]
            rank = jax.lax.axis_index("all")
            return (
                jax.lax.psum(x, "all"),
                jax.lax.all_gather(x, "all", tiled=True),
                jax.lax.ppermute(x, "all", ring),
                jax.lax.all_to_all(x, "all", 1, 1, tiled=True),
                x * 0 + rank,
            )

        values = np.arange(count * count, dtype=np.int32).reshape(count, count) ** 2
        mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=(spec,) * 5, check_vma=False)
        total, gathered, shifted, exchanged, ranks = jax.jit(mapped)(jax.device_put(values, split))
        equal(total, np.tile(values.sum(0), (count, 1)))
        equal(gathered, np.tile(values, (count, 1)))
        equal(shifted, np.roll(values, 1, axis=0))
        equal(exchanged, values.T)
        equal(ranks, np.tile(np.arange(count)[:, None], (1, count)))
        for place, shard in zip(places, ranks.addressable_shards, strict=True):
            assert shard.device == everybody[place]


# A program with a donated argument, sharded over all eight devices; `ASK` prints what JAX says of it.
PROGRAM = """
import hashlib, json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))
split, halves = NamedSharding(mesh, P("a", "b")), NamedSharding(mesh, P("a"))
x = jax.device_put(np.arange(64 * 32, dtype=np.float32).reshape(64, 32) / 2048, split)
w = jax.device_put(np.arange(32 * 16, dtype=np.float32).reshape(32, 16) / 512, halves)
def step(x, w):
    return jnp.tanh(x @ w).sum(0), x * 2
lowered = jax.jit(step, donate_argnums=0).lower(x, w)
"""
ASK = """
compiled = lowered.compile()
memory = compiled.memory_analysis()
text = compiled.as_text()
costs = compiled.cost_analysis() or {}
print(json.dumps({
    "text": hashlib.sha256(text.encode()).hexdigest(),
    "collectives": sorted({word for word in ("all-reduce", "all-gather", "custom-call") if word + "(" in text}),
    "partitions": "num_partitions=8" in text,
    "costs": {key: costs[key] for key in ("flops", "bytes accessed") if key in costs},
    "memory": [memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.alias_size_in_bytes,
               memory.temp_size_in_bytes],
}, sort_keys=True))
"""


def test_what_jax_asks_of_a_program_is_the_whole_programs(tmp_path: Path) -> None:
    """Optimized program, costs and memory are those of one client of all devices, not of a slice's part."""
    command = [sys.executable, "-c", PROGRAM + ASK]
    raw = json.loads(check(run(command, _on_raw_plugin(tmp_path, 8))))
    ours = json.loads(check(run(command, Setup(2, 4))))
    assert raw["partitions"], raw
    assert "all-reduce" in raw["collectives"], raw
    assert ours == raw


SERIALIZED = """
from jax.experimental import serialize_executable as se
import pickle, sys
path = sys.argv[1]
if sys.argv[2] == "write":
    compiled = lowered.compile()
    with open(path, "wb") as file:
        pickle.dump(se.serialize(compiled), file)
else:
    with open(path, "rb") as file:
        compiled = se.deserialize_and_load(*pickle.load(file))
    assert "num_partitions=8" in compiled.as_text()
total, doubled = compiled(x, w)
print(hashlib.sha256(np.asarray(total).tobytes() + np.asarray(doubled).tobytes()).hexdigest())
"""


def test_a_serialized_program_runs_in_another_process(tmp_path: Path) -> None:
    """`PJRT_Executable_Serialize` and `DeserializeAndLoad` carry all parts, and what JAX asks later."""
    arguments = [sys.executable, "-c", PROGRAM + SERIALIZED, str(tmp_path / "program")]
    written = check(run([*arguments, "write"], Setup(2, 4)))
    assert check(run([*arguments, "read"], Setup(2, 4))) == written


CACHED = """
import jax._src.monitoring as monitoring
seen = []
monitoring.register_event_listener(lambda event, **_: seen.append(event))
total, doubled = jax.jit(step)(x, w)
print(hashlib.sha256(np.asarray(total).tobytes() + np.asarray(doubled).tobytes()).hexdigest())
print(sum("cache_hit" in event for event in seen), sum("cache_miss" in event for event in seen))
"""


def test_the_persistent_compilation_cache_serves_a_fresh_process(tmp_path: Path) -> None:
    """What one process compiled the next one finds, with the same bits."""
    settings = {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", PROGRAM + CACHED]
    first, second = (check(run(command, Setup(2, 4, env=settings))).splitlines() for _ in range(2))
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("0 1", "1 0")
