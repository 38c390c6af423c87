"""Lowers programs of many kinds with JAX for 8 devices, for the Rust test `tests/spanning_plan.rs` to run over slices.

Usage: python programs.py FOLDER. Writes NAME.mlir and NAME.options for each; needs jax, and no plugin.
"""

import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import compiler
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_enable_x64", True)

MESH = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
CUBE = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("x", "y", "z"))
ALL = ("a", "b")
FOLDER = Path(sys.argv[1])


def sharded(*spec, mesh=MESH):
    return NamedSharding(mesh, P(*spec))


def save(name, lowered, replicas=1, partitions=8, shardy=True):
    options = compiler.get_compile_options(
        num_replicas=replicas,
        num_partitions=partitions,
        device_assignment=np.arange(replicas * partitions).reshape(replicas, partitions),
    )
    build = options.executable_build_options
    build.use_spmd_partitioning = partitions > 1
    build.use_shardy_partitioner = shardy and partitions > 1
    propagate = lowered._lowering.compile_args
    if propagate.get("allow_prop_to_inputs") is not None:
        build.allow_spmd_sharding_propagation_to_parameters = list(propagate["allow_prop_to_inputs"])
    if propagate.get("allow_prop_to_outputs") is not None:
        build.allow_spmd_sharding_propagation_to_output = list(propagate["allow_prop_to_outputs"])
    module = lowered.compiler_ir("stablehlo")
    (FOLDER / f"{name}.mlir").write_text(module.operation.get_asm(enable_debug_info=False))
    (FOLDER / f"{name}.options").write_bytes(options.SerializeAsString())


def jit(name, function, shapes, specs, out=None, donate=(), mesh=MESH, dtype=jnp.float32):
    shardings = tuple(sharded(*spec, mesh=mesh) for spec in specs)
    arguments = [
        jax.ShapeDtypeStruct(shape, kind)
        for shape, kind in ((s, dtype) if isinstance(s[0], int) else s for s in shapes)
    ]
    options = {} if out is None else {"out_shardings": out}
    save(name, jax.jit(function, in_shardings=shardings, donate_argnums=donate, **options).lower(*arguments))


def shard_map(name, function, shape, spec=P(ALL), out=P(ALL), dtype=jnp.float32, mesh=MESH):
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)
    save(name, jax.jit(mapped).lower(jax.ShapeDtypeStruct(shape, dtype)))


def attempt(make, *arguments, **options):
    """What this version of JAX can't lower is left out, and said."""
    try:
        make(*arguments, **options)
    except Exception as error:
        print(f"{arguments[0]}: not lowered: {str(error)[:150]}")


def reductions():
    kinds = ["float32", "float16", "bfloat16", "float64", "complex64", "complex128"]
    kinds += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    for kind in kinds:
        dtype = jnp.dtype(kind)

        def every(x):
            results = [lax.psum(x, ALL), lax.psum(x, "a"), lax.psum_scatter(x, "b", scatter_dimension=1, tiled=True)]
            if not jnp.issubdtype(x.dtype, jnp.complexfloating):
                results += [lax.pmax(x, ALL), lax.pmin(x, "b")]
            return tuple(results)

        attempt(shard_map, f"reduce_{kind}", every, (64, 12), dtype=dtype)
        attempt(
            shard_map,
            f"reduce_large_{kind}",
            lambda x: (lax.psum(x, ALL), lax.psum(x * 3, "b")),
            (8, 20000),
            dtype=dtype,
        )
        attempt(jit, f"prod_{kind}", lambda x: jnp.prod(x, axis=0), [((64, 6), dtype)], [(ALL, None)])
    for kind in ("float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "float8_e4m3fnuz"):
        dtype = jnp.dtype(kind)
        attempt(
            shard_map,
            f"reduce_{kind}",
            lambda x: (lax.psum(x, ALL), lax.pmax(x, "a"), lax.all_gather(x, "b")),
            (64, 12),
            dtype=dtype,
        )
    for name, combine, start in (("and", lax.bitwise_and, -1), ("or", lax.bitwise_or, 0), ("xor", lax.bitwise_xor, 0)):
        attempt(
            jit,
            f"bits_{name}",
            lambda x, c=combine, s=start: lax.reduce(x, np.int32(s), c, (0,)),
            [((64, 6), jnp.int32)],
            [(ALL, None)],
        )
    jit(
        "any_all",
        lambda x: (jnp.any(x > 1, axis=0), jnp.all(x < 1.5, axis=0), jnp.any(x > 5), jnp.all(x < 9)),
        [(64, 6)],
        [(ALL, None)],
    )
    shard_map("pred_psum", lambda x: lax.psum(x > 0, ALL), (64, 6))
    shard_map(
        "variadic_psum",
        lambda x: lax.psum((x, x * 2, x.astype(jnp.bfloat16), (x * 4).astype(jnp.int32)), ALL),
        (64, 6),
        out=(P(ALL),) * 4,
    )
    shard_map("zero_size", lambda x: (lax.psum(x[:0], ALL), lax.all_gather(x[:0], "a")), (64, 6))


def moves():
    def gathers(x):
        return (
            lax.all_gather(x, "a"),
            lax.all_gather(x, ALL, axis=1),
            lax.all_gather(x, "b", axis=2, tiled=True),
            lax.all_gather(x, ALL, axis=0, tiled=True),
            lax.all_gather(x, "b", axis=1, tiled=True),
        )

    for kind in ("float32", "bfloat16", "int8", "bool", "complex64", "float64"):
        dtype = jnp.dtype(kind)
        source = jnp.float32 if kind == "bool" else dtype
        shard_map(f"all_gather_{kind}", lambda x, d=dtype: gathers(x.astype(d)), (16, 3, 5), dtype=source)
    for kind in ("int4", "uint4", "float4_e2m1fn"):
        attempt(
            shard_map,
            f"narrow_{kind}",
            lambda x, k=kind: tuple(
                y.astype(jnp.float32)
                for y in (
                    lax.all_gather(x.astype(k), "a"),
                    lax.ppermute(x.astype(k), "b", [(0, 1), (1, 2)]),
                    lax.all_to_all(x.astype(k), ALL, 0, 0, tiled=True),
                )
            ),
            (64, 6),
        )
    shard_map(
        "all_gather_large", lambda x: (lax.all_gather(x, ALL), lax.all_gather(x, "a", axis=1, tiled=True)), (64, 3000)
    )

    def exchanges(x):
        return (
            lax.all_to_all(x, ALL, 0, 0, tiled=True),
            lax.all_to_all(x, "b", 1, 0, tiled=True),
            lax.all_to_all(x, "a", 2, 1, tiled=True),
            lax.all_to_all(x[:4], "b", 0, 2),
            lax.all_to_all(x.astype(jnp.bfloat16), "a", 0, 0, tiled=True),
        )

    shard_map("all_to_all", exchanges, (64, 8, 6))
    shard_map("all_to_all_large", lambda x: lax.all_to_all(x, ALL, 1, 0, tiled=True), (64, 4000))
    for dimension in (0, 1, 2):
        shard_map(
            f"reduce_scatter_{dimension}",
            lambda x, d=dimension: (
                lax.psum_scatter(x, ALL, scatter_dimension=d, tiled=True),
                lax.psum_scatter(x, "a", scatter_dimension=d, tiled=True),
                lax.psum_scatter(x.astype(jnp.bfloat16), "b", scatter_dimension=d, tiled=True),
            ),
            (64, 16, 8),
        )
    shard_map("reduce_scatter_large", lambda x: lax.psum_scatter(x, ALL, scatter_dimension=1, tiled=True), (8, 80000))
    shard_map("reduce_scatter_untiled", lambda x: lax.psum_scatter(x[:4], "b", scatter_dimension=0), (32, 6))

    def permutes(x):
        ring = [(i, (i + 1) % 8) for i in range(8)]
        return (
            lax.ppermute(x, ALL, ring),
            lax.ppermute(x, "a", [(0, 1)]),
            lax.ppermute(x, "b", [(3, 0), (1, 2)]),
            lax.ppermute(x, ALL, [(7, 0), (2, 5)]),
            lax.ppermute((x, x * 2), "b", [(0, 1), (1, 0)])[1],
            lax.pshuffle(x, "b", [2, 3, 1, 0]),
        )

    shard_map("ppermute", permutes, (64, 6))
    shard_map("ppermute_large", lambda x: lax.ppermute(x, ALL, [(i, 7 - i) for i in range(8)]), (64, 9000))
    attempt(shard_map, "pbroadcast", lambda x: (lax.pbroadcast(x, "b", 2), lax.pbroadcast(x, "a", 1)), (64, 6))
    shard_map(
        "axis_index", lambda x: (x + lax.axis_index("a"), x * lax.axis_index("b"), x + lax.axis_index(ALL)), (64, 6)
    )
    shard_map(
        "cube",
        lambda x: (
            lax.psum(x, ("x", "z")),
            lax.all_gather(x, ("z", "y")),
            lax.psum_scatter(x, ("y", "x"), tiled=True),
            lax.ppermute(x, "y", [(0, 1)]),
        ),
        (64, 6),
        spec=P(("x", "y", "z")),
        out=P(("x", "y", "z")),
        mesh=CUBE,
    )


def control_flow():
    def loops(x):
        def body(c, _):
            c = lax.psum(jnp.sin(c), "a") * 0.5
            c = lax.ppermute(c, "b", [(i, (i + 1) % 4) for i in range(4)])
            return lax.psum(c * 1.1, ALL) * 0.1, jnp.sum(c)

        c, sums = lax.scan(body, x, None, length=7)
        more, _ = lax.while_loop(
            lambda s: lax.psum(s[0], ALL)[0] < 100.0,
            lambda s: (s[0] + lax.psum(s[1], "a"), s[1]),
            (jnp.zeros((1,)), jnp.full((1,), 1.0)),
        )
        return c, sums, more

    shard_map("loops", loops, (32, 4))

    def branches(x):
        total = lax.psum(jnp.sum(x), ALL)
        chosen = lax.cond(total > 0, lambda y: lax.psum(y, "a"), lambda y: lax.psum(y * 2, "b"), x)
        number = jnp.clip(total.astype(jnp.int32) % 3, 0, 2)
        other = lax.switch(number, [lambda y: lax.all_gather(y, "b")[1], lambda y: lax.pmax(y, ALL), lambda y: y], x)
        return chosen, other

    shard_map("branches", branches, (32, 4))

    def nested(x):
        def outer(c, _):
            def inner(i, d):
                return lax.cond(
                    lax.psum(i, "a") % 4 == 0, lambda e: lax.psum(e, "b") * 0.25, lambda e: lax.pmin(e, "a") + 1, d
                )

            return lax.fori_loop(0, 3, inner, c), lax.psum(jnp.sum(c), ALL)

        return lax.scan(outer, x, None, length=3)

    shard_map("nested", nested, (32, 4))

    @jax.jit
    def twice(x):
        return lax.psum(x, "a") + lax.all_gather(x, "b")[0]

    shard_map("called_twice", lambda x: (twice(x), twice(x * 2), twice(twice(x))), (32, 4))
    shard_map(
        "many", lambda x: tuple(lax.psum(jnp.sin(x * (i + 1)), ALL if i % 2 else "a") for i in range(24)), (64, 64)
    )
    shard_map(
        "remat", jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda y: jnp.sin(lax.psum(jnp.sin(y), "a")))(x))), (32, 4)
    )


def partitioned(prefix=""):
    normal = lambda: jax.random.normal(jax.random.key(0), (64, 8))

    def operations(x, y):
        return (
            jnp.roll(x, 1, axis=0),
            lax.with_sharding_constraint(x.T, sharded("b", "a")),
            x @ y,
            jnp.sort(x, axis=0),
            jnp.argmax(x, axis=0),
            lax.with_sharding_constraint(normal(), sharded(ALL, None)),
            x[jnp.array([3, 50, 7, 20])],
            jnp.cumsum(x, axis=0),
            jnp.concatenate([x, x * 2], axis=0)[::3],
            jnp.flip(x, axis=0),
            x.at[jnp.array([1, 40])].add(1.0),
            jnp.linalg.norm(x),
            jnp.einsum("ij,ik->jk", x, x),
            lax.dynamic_slice(x, (jnp.int32(13), jnp.int32(2)), (9, 5)),
            jnp.pad(x, ((3, 5), (0, 0))),
            jnp.std(x, axis=0),
        )

    out = None
    jit(prefix + "operations", operations, [(64, 32), (32, 48)], [(ALL, None), ("a", "b")], out)
    jit(
        prefix + "convolution",
        lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME"),
        [(2, 3, 32, 32), (5, 3, 3, 3)],
        [(None, None, "b", None), ()],
    )
    jit(
        prefix + "reshard",
        lambda x: (
            lax.with_sharding_constraint(x, sharded("b", "a")),
            lax.with_sharding_constraint(x, sharded(None, ALL)),
            lax.with_sharding_constraint(x * 2, sharded(("b", "a"), None)),
            lax.with_sharding_constraint(x.reshape(32, 64), sharded("a", "b")),
        ),
        [(64, 32)],
        [("a", "b")],
    )
    jit(
        prefix + "uneven",
        lambda x: (lax.with_sharding_constraint(jnp.concatenate([x, x[:3]]), sharded(ALL)) * 2).sum(0),
        [(64, 5)],
        [(ALL, None)],
    )
    jit(prefix + "no_collectives", lambda x: jnp.sin(x) * 2, [(64, 8)], [(ALL, None)])
    jit(prefix + "replicated", lambda x: jnp.sin(x) * 2, [(8, 8)], [()])

    def mlp(w0, w1, w2, x, y):
        def loss(w):
            return jnp.mean((jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) @ w[2] - y) ** 2)

        value, gradient = jax.value_and_grad(loss)([w0, w1, w2])
        return tuple(w - 0.1 * g for w, g in zip([w0, w1, w2], gradient)) + (value,)

    shapes = [(64, 128), (128, 128), (128, 16), (64, 64), (64, 16)]
    tensor = [(None, "b"), ("b", None), (None, None), ("a", None), ("a", None)]
    jit(prefix + "mlp_tensor", mlp, shapes, tensor, tuple(sharded(*s) for s in tensor[:3]) + (sharded(),), (0, 1, 2))
    data = [(), (), (), (ALL,), (ALL,)]
    jit(prefix + "mlp_data", mlp, shapes, data, (sharded(),) * 4, (0, 1, 2))
    for kind in ("bfloat16", "float16"):
        jit(f"{prefix}mlp_{kind}", mlp, shapes, tensor, dtype=jnp.dtype(kind))


def transformer():
    width, heads, depth = 32, 4, 2
    keys = ("query", "key", "value", "out", "up", "down")
    specs = {
        "query": (None, "b"),
        "key": (None, "b"),
        "value": (None, "b"),
        "out": ("b", None),
        "up": (None, "b"),
        "down": ("b", None),
    }

    def layer(x, w):
        split = lambda y: y.reshape(*y.shape[:2], heads, -1)
        q, k, v = (split(x @ w[name]) for name in keys[:3])
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def step(weights, x, y):
        def loss(weights):
            h, _ = lax.scan(lambda h, w: (layer(h, w), None), x, weights)
            return jnp.mean((h - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), value

    shape = {"up": (width, 4 * width), "down": (4 * width, width)}
    weights = {k: jax.ShapeDtypeStruct((depth, *shape.get(k, (width, width))), jnp.float32) for k in keys}
    weight_shardings = {k: sharded(None, *specs[k]) for k in keys}
    batch = jax.ShapeDtypeStruct((8, 16, width), jnp.float32)
    lowered = jax.jit(
        step,
        in_shardings=(weight_shardings, sharded("a"), sharded("a")),
        out_shardings=(weight_shardings, sharded()),
        donate_argnums=0,
    ).lower(weights, batch, batch)
    save("transformer", lowered)


def replicas():
    def pmap(name, function, shape, **options):
        lowered = jax.pmap(function, axis_name="i", **options).lower(jax.ShapeDtypeStruct(shape, jnp.float32))
        partitions = 1 if "num_replicas = 8" in lowered.as_text() else 8
        save(name, lowered, 8 // partitions, partitions)

    attempt(pmap, "pmap_psum", lambda x: (lax.psum(x, "i"), lax.pmax(x, "i"), lax.axis_index("i") + x), (8, 5))
    attempt(
        pmap,
        "pmap_moves",
        lambda x: (
            lax.all_gather(x, "i"),
            lax.ppermute(x, "i", [(0, 3), (3, 0)]),
            lax.all_to_all(x.reshape(8, -1), "i", 0, 0),
        ),
        (8, 16),
    )
    attempt(pmap, "pmap_groups", lambda x: lax.psum(x, "i", axis_index_groups=[[0, 5], [1, 4], [2, 7], [3, 6]]), (8, 5))


def measures():
    def sums(x):
        for _ in range(10):
            x = lax.psum(x, ALL) * 0.125
        return x

    shard_map("measure_small", sums, (8 * 16,))
    shard_map("measure_large", lambda x: lax.psum(x, ALL), (8 << 22,))


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    reductions()
    moves()
    control_flow()
    partitioned()
    transformer()
    replicas()
    measures()
    try:
        jax.config.update("jax_use_shardy_partitioner", False)
    except Exception as error:
        print(f"no GSPMD in this version of JAX: {error}")
        return
    global save
    with_shardy = save
    save = lambda *a, **k: with_shardy(*a, shardy=False, **k)
    partitioned("gspmd_")


main()
