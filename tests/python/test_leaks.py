"""Two hundred kills in a row leave the client as large as the first twenty did."""

from harness import RESTLESS, jax_process

KILLS, WARM_UP = 200, 20
# What the allocator and Python may do on their own in 180 rounds; a leaked buffer, mapping, thread or
# descriptor per kill would be far above.
MEMORY_KIB, SHARED_KIB, COUNT = 24 * 1024, 8 * 1024, 4


@jax_process(slices=2, devices=2, timeout=900, env=RESTLESS)
def test_kills_leak_nothing() -> None:
    """Memory, shared memory, descriptors, threads and mappings are flat over 200 kills."""
    import gc

    import jax
    import numpy as np

    from probe import devices_of, equal, incarnation_of, kill, loss_from, usage, wait_replaced

    values = np.arange(256 << 10, dtype=np.float32)
    add_one = jax.jit(lambda x: x + 1)
    before: dict[str, int] = {}
    for count in range(KILLS):
        index = count % 2
        array = jax.device_put(values, devices_of(index)[0])
        other = jax.device_put(values, devices_of(1 - index)[1])
        equal(add_one(array)[:8], values[:8] + 1)
        old = incarnation_of(index)
        kill(index)
        loss_from(add_one(array).block_until_ready, index)
        equal(add_one(other)[:8], values[:8] + 1)
        wait_replaced(index, old)
        del array, other
        if count == WARM_UP:
            gc.collect()
            before = usage()
    gc.collect()
    after = usage()
    growth = {name: after[name] - before[name] for name in after}
    print(f"after {KILLS} kills: {after}; growth since kill {WARM_UP}: {growth}")
    assert growth["memory"] < MEMORY_KIB, growth
    assert growth["shared"] < SHARED_KIB, growth
    assert max(growth[name] for name in ("threads", "descriptors", "mappings")) <= COUNT, growth
