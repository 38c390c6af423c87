"""Snapshots in safetensors files: each array a tensor, everything else in the file's metadata, as JSON."""

import base64
import ctypes
import json
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mainstay.snapshot._engine import Progress, engine
from mainstay.snapshot._leaves import Kept, Keys, Leaf
from mainstay.snapshot._store import Snapshot, Store

Watcher = Callable[[Progress], None]

_VERSION = 1
_WATCH = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
_SCALARS = (bool, int, float, str, type(None))
# By the interface's numbers, from 1 on.
_TYPES = """
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 complex64 complex128
float8_e5m2 float8_e4m3fn float8_e4m3b11fnuz float8_e5m2fnuz float8_e4m3fnuz int4 uint4 token int2 uint2 float8_e4m3
float8_e3m4 float8_e8m0fnu float4_e2m1fn int1 uint1 float6_e2m3fn float6_e3m2fn
"""


def save(snapshot: Snapshot, path: str | os.PathLike[str], *, progress: Watcher | None = None) -> None:
    """Writes a whole snapshot to a safetensors file, which is whole or absent.

    Tensors are named by their places in the tree, such as `params.layers.0.weight`, and are whole arrays whatever their
    shardings. Other leaves must be numbers, strings, None or NumPy arrays. `progress` is called as it advances; what it
    raises ends the writing.
    """
    name = os.fspath(path).encode()
    names = leaf_names(snapshot._structure)
    pairs = list(zip(snapshot._leaves, names, strict=True))
    tensors = b"".join(name.encode() + b"\0" for leaf, name in pairs if isinstance(leaf, Leaf))
    document = {
        "version": _VERSION,
        "leaves": [_encode(leaf, name) for leaf, name in pairs],
        "structure": _plain(jax.tree.unflatten(snapshot._structure, range(len(pairs)))),
    }
    metadata = json.dumps(document).encode()
    with _Watch(progress) as watch:
        snapshot._engine.call(
            "Mainstay_Snapshot_Export",
            snapshot=snapshot._handle,
            path=name,
            path_size=len(name),
            names=tensors,
            names_size=len(tensors),
            metadata=metadata,
            metadata_size=len(metadata),
            watch=watch,
        )


def load(path: str | os.PathLike[str], *, store: Store | None = None, progress: Watcher | None = None) -> Snapshot:
    """Reads a safetensors file, written by `save` or by anybody else, into a snapshot in host memory.

    The tree is the one that was saved where it was made of dictionaries, lists, tuples and None. Otherwise, and for
    other people's files, it is a dictionary by the tensors' names; `restore(…, like=tree)` then finds by name what
    belongs where. The snapshot counts among those of `store`, or is kept by itself.
    """
    name = os.fspath(path).encode()
    keeper = Store(1) if store is None else store
    with _Watch(progress) as watch:
        read = engine().call(
            "Mainstay_Snapshot_Import", store=keeper._handle, path=name, path_size=len(name), watch=watch
        )
    tensors = ctypes.string_at(read.names, read.names_size).decode().split("\0")[:-1]
    info = engine().call("Mainstay_Snapshot_Info", snapshot=read.snapshot)
    text = ctypes.string_at(info.metadata, info.metadata_size)
    label = ctypes.string_at(info.label, info.label_size).decode()
    snapshot = Snapshot(read.snapshot, None, [], info.step, label)
    foreign = {"leaves": [{"name": name} for name in tensors], "structure": None}
    document: dict[str, Any] = json.loads(text) if text else foreign
    numbers = {name: number for number, name in enumerate(tensors)}
    leaves = [_decode(one, numbers, snapshot) for one in document["leaves"]]
    names = [one["name"] for one in document["leaves"]]
    structure = document["structure"]
    tree = dict(zip(names, range(len(names)), strict=True)) if structure is None else _build(structure)
    order, snapshot._structure = jax.tree.flatten(tree)
    snapshot._leaves = [leaves[number] for number in order]
    snapshot._names = [names[number] for number in order]
    if store is None:
        snapshot._keeper = keeper
        return snapshot
    return store._adopt(snapshot)


def leaf_names(structure: Any) -> list[str]:
    """A name for each leaf: its place in the tree, short where that is unique."""
    paths = [path for path, _ in jax.tree.leaves_with_path(jax.tree.unflatten(structure, range(structure.num_leaves)))]
    short = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    return short if len(set(short)) == len(short) else [jax.tree_util.keystr(path) for path in paths]


class _Watch:
    """A caller's function as the library calls it; what it raises ends the call and comes out of it."""

    def __init__(self, progress: Watcher | None) -> None:
        self._progress = progress
        self._raised: BaseException | None = None

    def __enter__(self) -> Any:
        self._function = _WATCH(self._told)
        return ctypes.cast(self._function, ctypes.c_void_p)

    def __exit__(self, *_: object) -> None:
        if self._raised is not None:
            raise self._raised

    def _told(self, _: int, done: int, total: int) -> bool:
        try:
            if self._progress is not None:
                self._progress(Progress(done, total))
        except BaseException as error:
            self._raised = error
        return self._raised is None


def _encode(leaf: Leaf | Kept, name: str) -> dict[str, Any]:
    if isinstance(leaf, Leaf):
        array: dict[str, Any] = {"name": name, "weak": leaf.aval.weak_type}
        if leaf.keys is not None:
            if not isinstance(leaf.keys.implementation, str):
                raise TypeError(f"{name} has random keys of an implementation without a name; it can't be saved")
            array["keys"] = leaf.keys.implementation
        return array
    value = leaf.value
    if isinstance(value, _SCALARS):
        return {"name": name, "value": value}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = base64.b64encode(value.tobytes()).decode()
        return {"name": name, "numpy": [value.dtype.name, value.shape, data]}
    raise TypeError(f"{name} is a {type(value).__name__}; only arrays, numbers, strings and None can be saved")


def _decode(one: dict[str, Any], numbers: dict[str, int], snapshot: Snapshot) -> Leaf | Kept:
    if "value" in one:
        return Kept(one["value"])
    if "numpy" in one:
        dtype, shape, data = one["numpy"]
        return Kept(np.frombuffer(base64.b64decode(data), jax.numpy.dtype(dtype)).reshape(shape).copy())
    number = numbers[one["name"]]
    array = engine().call("Mainstay_Snapshot_Array", snapshot=snapshot._handle, array=number)
    shape = tuple(ctypes.cast(array.dims, ctypes.POINTER(ctypes.c_int64))[: array.num_dims])
    dtype = jax.numpy.dtype(_TYPES.split()[array.type - 1])
    aval = jax.core.ShapedArray(shape, dtype, weak_type=one.get("weak", False))
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    keys = None
    if "keys" in one:
        kind = jax.eval_shape(lambda: jax.random.key(0, impl=one["keys"]))
        numbers_each = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=one["keys"]))).ndim
        keys = Keys(shape[: len(shape) - numbers_each], kind.dtype, where, one["keys"])
    return Leaf(number, aval, where, False, keys)


def _plain(tree: Any) -> Any:
    """A tree of plain containers as JSON; None where it has others."""
    try:
        return _container(tree)
    except TypeError:
        return None


def _container(node: Any) -> Any:
    if type(node) is int:
        return node
    if node is None:
        return {"none": []}
    if type(node) is dict and all(type(key) is str for key in node):
        return {"dict": [[key, _container(value)] for key, value in node.items()]}
    if type(node) in (list, tuple):
        return {type(node).__name__: [_container(value) for value in node]}
    raise TypeError


def _build(node: Any) -> Any:
    if isinstance(node, int):
        return node
    ((kind, items),) = node.items()
    match kind:
        case "dict":
            return {key: _build(value) for key, value in items}
        case "list":
            return [_build(value) for value in items]
        case "tuple":
            return tuple(_build(value) for value in items)
        case _:
            return None
