"""JAX on Mainstay while nothing goes wrong: devices, arrays, memories, programs, and what a user is told."""

import json
import os
import subprocess
import sys

import pytest

from harness import EXECUTABLE, Setup, check, jax_process, plugin_paths, run


@jax_process(slices=2, devices=2)
def test_devices() -> None:
    """All slices' devices in one client, with their slice's index and the inner plugin's memories."""
    import jax

    devices = jax.devices()
    assert [device.slice_index for device in devices] == [0, 0, 1, 1]
    assert len({device.id for device in devices}) == 4
    assert devices == jax.local_devices()
    for device in devices:
        kinds = {memory.kind for memory in device.addressable_memories()}
        assert kinds == {"device", "pinned_host", "unpinned_host"}, kinds
        assert device.default_memory().kind == "device"
    assert jax.process_count() == 1


@jax_process(slices=2, devices=2)
def test_array_values() -> None:
    """Every element type and odd shape goes to a device and comes back as it was."""
    import itertools

    import jax
    import jax.numpy as jnp
    import ml_dtypes
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    types = [
        *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3b11fnuz),
        *(ml_dtypes.int4, ml_dtypes.uint4),
    ]
    shapes = [(), (1,), (0,), (7,), (3, 5), (2, 0, 4), (2, 3, 4, 5)]
    rng = np.random.default_rng(0)
    for dtype, shape in itertools.product(types, shapes):
        values = rng.integers(0, 2 if dtype == np.bool_ else 8, shape).astype(dtype)
        for device in (jax.devices()[0], jax.devices()[3]):
            array = jax.device_put(values, device)
            assert array.dtype == values.dtype
            back = np.asarray(array)
            assert back.dtype == values.dtype
            assert back.tobytes() == values.tobytes(), (dtype, shape)
    strided = np.arange(60.0).reshape(3, 4, 5)
    for view in (strided.T, strided[::2, ::-1], strided[:, 1:3, ::2], np.broadcast_to(strided[0, 0], (2, 5))):
        np.testing.assert_array_equal(np.asarray(jnp.asarray(view)), view)


@jax_process(slices=2, devices=2)
def test_copies_between_devices_and_slices() -> None:
    """Arrays go from any device to any other, and through host memories, with their values."""
    import itertools

    import jax
    import numpy as np
    from jax.sharding import SingleDeviceSharding

    values = np.random.default_rng(0).normal(size=(33, 17)).astype(np.float32)
    for source, target in itertools.product(jax.devices(), jax.devices()):
        array = jax.device_put(jax.device_put(values, source), target)
        assert array.device == target
        np.testing.assert_array_equal(np.asarray(array), values)
    for kind in ("pinned_host", "unpinned_host"):
        sharding = SingleDeviceSharding(jax.devices()[3], memory_kind=kind)
        array = jax.device_put(jax.device_put(values, jax.devices()[0]), sharding)
        assert array.sharding.memory_kind == kind
        np.testing.assert_array_equal(np.asarray(array), values)
        np.testing.assert_array_equal(np.asarray(jax.device_put(array, jax.devices()[1])), values)


@jax_process(slices=2, devices=2)
def test_programs_on_each_slice() -> None:
    """A sharded program with a collective, a gradient and donation, on each slice's own mesh."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from probe import devices_of

    values = np.arange(24.0, dtype=np.float32).reshape(8, 3)
    for index in (0, 1):
        sharding = NamedSharding(Mesh(devices_of(index), ("d",)), PartitionSpec("d"))
        array = jax.device_put(values, sharding)
        total, gradient = jax.jit(jax.value_and_grad(lambda x: jnp.sum(x**2)))(array)
        assert float(total) == float((values**2).sum())
        np.testing.assert_array_equal(np.asarray(gradient), 2 * values)
        donated = jax.jit(lambda x: x + 1, donate_argnums=0)(array)
        assert array.is_deleted()
        np.testing.assert_array_equal(np.asarray(donated), values + 1)


@jax_process(slices=2, devices=2)
def test_errors_of_programs_come_through() -> None:
    """An error of the inner plugin on a healthy slice is its own, not the loss of a slice."""
    import jax
    import numpy as np

    import mainstay

    x = jax.device_put(np.eye(3, dtype=np.float32), jax.devices()[0])
    try:
        jax.block_until_ready(jax.jit(lambda y: jax.pure_callback(np.sin, y, y))(x))
    except Exception as error:
        assert "UNIMPLEMENTED: the program calls xla_ffi" in str(error), error
    else:
        raise AssertionError("a Python callback ran in another process")
    assert all(one.is_healthy and not one.losses for one in mainstay.slices())


@jax_process(slices=3, devices=1)
def test_slices_as_python_sees_them() -> None:
    """`mainstay.slices()` is empty before there is a client and then tells of every slice."""
    import mainstay

    assert mainstay.slices() == ()
    import jax
    import numpy as np

    kept = jax.device_put(np.zeros(1024, np.float32), jax.devices()[1]).block_until_ready()
    one, two, three = mainstay.slices()
    assert [one.index, two.index, three.index] == [0, 1, 2]
    assert {one.state, two.state, three.state} == {"healthy"}
    assert len({one.pid, two.pid, three.pid}) == 3
    assert two.devices == (jax.devices()[1].id,)
    assert (one.buffers, two.buffers) == (0, 1)
    assert two.bytes["device"] == kept.nbytes
    assert two.losses == ()


@jax_process(slices=2, devices=1, env={"STATUS": str(EXECUTABLE)})
def test_status_from_outside() -> None:
    """`mainstay status` tells another process the same, for people and as JSON."""
    import json
    import os
    import subprocess

    import jax
    import numpy as np

    import mainstay

    kept = jax.device_put(np.zeros(1024, np.float32), jax.devices()[1]).block_until_ready()
    command = [os.environ["STATUS"], "status", "--pid", str(os.getpid())]
    text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    assert "healthy" in text, text
    printed = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=20, check=True)
    document = json.loads(printed.stdout)
    (client,) = document["clients"]
    assert [one["pid"] for one in client["slices"]] == [one.pid for one in mainstay.slices()]
    assert client["slices"][1]["bytes"]["device"] == kept.nbytes


@jax_process(slices=1, devices=1, env={"STATUS": str(EXECUTABLE), "MAINSTAY_HOST_MEMORY_NODES": "0"})
def test_host_memory_lies_on_the_nodes_that_are_named() -> None:
    """The policy is that of the memory itself: client and worker have it alike."""
    import os
    import subprocess
    from pathlib import Path

    import jax

    import mainstay

    jax.devices()
    (one,) = mainstay.slices()
    for pid in (os.getpid(), one.pid):
        lines = Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
        assert {line.split()[1] for line in lines if "mainstay-arena" in line} == {"interleave:0"}, lines
    command = [os.environ["STATUS"], "status", "--pid", str(os.getpid())]
    text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    assert "allowed, spread over NUMA nodes 0\n" in text, text


@pytest.mark.parametrize("plugin", [0, 1, 2], ids=["0.115", "0.106", "0.81"])
def test_every_plugin(plugin: int) -> None:
    """Upload, compute, read, on each of the CPU plugins, with two slices."""
    code = """if True:
        import jax, numpy as np
        for device in jax.devices():
            x = jax.device_put(np.arange(5, dtype=np.float32), device)
            np.testing.assert_array_equal(np.asarray(x), np.arange(5))
            np.testing.assert_array_equal(np.asarray(jax.jit(lambda y: y @ y)(x)), 30)
        print(len(jax.devices()))
        """
    setup = Setup(slices=2, plugin=plugin_paths()[plugin])
    assert check(run([sys.executable, "-c", code], setup)).strip() == "4"


def test_registration_by_the_package() -> None:
    """With the package installed, `JAX_PLATFORMS=mainstay` is enough; without it nothing is started."""
    code = "import jax; print(jax.devices()[0].platform, len(jax.devices()))"
    nothing = {"PJRT_NAMES_AND_LIBRARY_PATHS": "", "MAINSTAY_PLUGIN": "", "JAX_PLATFORMS": ""}
    environment = {**os.environ, **nothing}
    for name in nothing:
        del environment[name]
    for platforms, expected in (("mainstay", "cpu 4"), (None, "cpu 1")):
        asked = environment | ({"JAX_PLATFORMS": platforms} if platforms else {})
        finished = subprocess.run(
            [sys.executable, "-c", code], env=asked, capture_output=True, text=True, timeout=60, check=False
        )
        assert finished.stdout.strip() == expected, finished.stderr


def test_status_of_nobody() -> None:
    """`mainstay status` of a process that is no client is an error in words."""
    finished = run([str(EXECUTABLE), "status", "--json", "--pid", str(os.getpid())], Setup())
    assert finished.returncode != 0
    assert str(os.getpid()) in finished.stderr
    assert not finished.stdout or json.loads(finished.stdout)
