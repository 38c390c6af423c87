"""What NumPy sees of a device's value in place stays as it was, whatever becomes of the array."""

from harness import jax_process


@jax_process(slices=1, devices=2)
def test_a_view_outlives_deletion_and_donation() -> None:
    """Deleted and donated arrays leave what was read of them as it was, though memory is used again."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    make = jax.jit(lambda value: jnp.full((64, 1024), value, jnp.float32))
    add_one = jax.jit(lambda x: x + 1, donate_argnums=0)
    views = []
    for value in range(30):
        array = make(np.float32(value))
        view = np.asarray(array)
        if value % 3 == 0:
            array.delete()
        elif value % 3 == 1:
            result = add_one(array)
            assert array.is_deleted()
            assert (np.asarray(result) == value + 1).all()
        del array
        views.append((value, view))
    for value, view in views:
        assert (view == value).all(), value
    moved = jax.device_put(make(np.float32(7)), jax.devices()[1])
    again = add_one(moved)
    assert (np.asarray(again) == 8).all()


@jax_process(slices=1, devices=1)
def test_a_view_outlives_the_worker() -> None:
    """What was read before a worker's death stays readable; what was not read by the time it is noticed is lost."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from probe import incarnation_of, kill, loss_from, wait_replaced

    make = jax.jit(lambda value: jnp.arange(100_000, dtype=jnp.float32) + value)
    read, unread = make(np.float32(1)), make(np.float32(2))
    jax.block_until_ready((read, unread))
    view, old = np.asarray(read), incarnation_of(0)
    kill(0)
    wait_replaced(0, old)
    loss_from(lambda: np.asarray(unread), 0)
    np.testing.assert_array_equal(view, np.arange(100_000, dtype=np.float32) + 1)
    np.testing.assert_array_equal(np.asarray(make(np.float32(3))), view + 2)
    np.testing.assert_array_equal(view, np.arange(100_000, dtype=np.float32) + 1)


@jax_process(slices=1, devices=1)
def test_viewed_memory_is_given_back() -> None:
    """Many large arrays, each read and dropped, need no more memory than a few."""
    from pathlib import Path

    import jax
    import jax.numpy as jnp
    import numpy as np

    from probe import worker_of

    def resident() -> int:
        status = Path(f"/proc/{worker_of(0)}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in status if line.startswith("RssShmem")) // 1024

    make = jax.jit(lambda value: jnp.full(4 << 20, value, jnp.float32))
    for value in range(100):
        assert np.asarray(make(np.float32(value)))[-1] == value
    assert resident() < 600, f"{resident()} MiB"


@jax_process(slices=1, devices=2)
def test_values_that_are_wanted_before_they_are_there() -> None:
    """Copies to the host that are asked for early come, also where the worker has to be asked for the value."""
    import jax
    import numpy as np

    from probe import long

    for device in jax.devices():
        # Uploaded and donated: the result lies where the upload did, which the client can't see in place.
        add_one = jax.jit(lambda x, other: x + other[0, 0] * 0 + 1, donate_argnums=0)
        uploaded = jax.device_put(np.arange(1000, dtype=np.float32), device)
        busy = long(jax.device_put(np.full((64, 64), 1e-6, np.float32), device), 2000)
        result = add_one(uploaded, busy)
        result.copy_to_host_async()
        np.testing.assert_array_equal(np.asarray(result), np.arange(1000) + 1)


@jax_process(slices=1, devices=1)
def test_a_view_that_goes_while_its_array_is_donated() -> None:
    """A launch that uses an array up is not overtaken by the end of the last view of it."""
    import threading

    import jax
    import jax.numpy as jnp
    import numpy as np

    make = jax.jit(lambda value: jnp.full(1024, value, jnp.float32))
    add_one = jax.jit(lambda x: x + 1, donate_argnums=0)
    results = []
    for value in range(1000):
        array = make(np.float32(value))
        views = [np.asarray(array)]
        begin = threading.Barrier(2)

        def let_go(views: list[np.ndarray] = views, begin: threading.Barrier = begin) -> None:
            begin.wait(60)
            views.clear()

        thread = threading.Thread(target=let_go)
        thread.start()
        begin.wait(60)
        results.append(add_one(array))
        thread.join()
    for value, result in enumerate(results):
        assert (np.asarray(result) == value + 1).all(), value
