"""What a snapshot keeps of a tree's leaves besides the values: types, shardings, and where each shard lies."""

import copy
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Sharding

# The class of concrete arrays; jax.Array is a protocol that tracers and key arrays satisfy too.
ArrayImpl = jax._src.array.ArrayImpl

_IMMUTABLE = (int, float, complex, bool, str, bytes, type(None))


class Leaf(NamedTuple):
    """An array of a snapshot. A tuple, because a snapshot makes many of them and must not take long."""

    number: int
    """Its number among the snapshot's arrays."""
    aval: Any
    """Shape, type and weakness of the type."""
    sharding: Sharding
    """Where it was."""
    committed: bool
    """Whether it was bound to its devices."""
    keys: "Keys | None" = None
    """What it is to the user, where it holds random keys."""


@dataclass(frozen=True, slots=True)
class Keys:
    """An array of random keys; what is stored is the array of numbers below it."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Sharding
    implementation: Any

    def array_of(self, numbers: Array) -> Array:
        """The keys with these numbers."""
        return jax.random.wrap_key_data(numbers, impl=self.implementation)

    def below(self, sharding: Sharding) -> Sharding:
        """The sharding of the numbers, where the keys have this one."""
        from jax._src.sharding_impls import physical_sharding

        return physical_sharding(jax.core.ShapedArray(self.shape, self.dtype), sharding)


@dataclass(frozen=True, slots=True)
class Kept:
    """A leaf that is no array."""

    value: Any


class Parts:
    """The distinct shards of arrays of one shape and sharding."""

    __slots__ = ("devices", "layout", "places")

    def __init__(self, array: Array) -> None:
        """Finds out for an array; the same for all of its kind."""
        if not array.is_fully_addressable:
            raise ValueError(f"an array with sharding {array.sharding} is not all in this process")
        indices = array.sharding.addressable_devices_indices_map(array.shape)
        # In the order of its shards.
        self.devices = tuple(indices)
        # Where each distinct shard begins, and which of all shards it is.
        starts: dict[tuple[int, ...], int] = {}
        for place, index in enumerate(indices.values()):
            starts.setdefault(start_of(index or ()), place)
        self.places = tuple(starts.values())
        numbers = [array.ndim, *array.shape, len(starts), *(first for start in starts for first in start)]
        self.layout = struct.pack(f"<{len(numbers)}q", *numbers)


def reader(name: str) -> Callable[[Any], Any]:
    """What reads a property of a concrete array, and raises TypeError for anything else.

    The function behind the property is called directly, which halves the time.
    """

    def read(leaf: Any) -> Any:
        if type(leaf) is not ArrayImpl:
            raise TypeError(f"{type(leaf).__name__} is no concrete array")
        return getattr(leaf, name)

    return getattr(getattr(ArrayImpl, name), "fget", None) or read


_READERS = [reader(name) for name in ("aval", "_sharding", "_committed")]


class Kinds(NamedTuple):
    """What arrays are, a list for each property: compared at once, and fast where the objects are the same."""

    avals: list[Any]
    shardings: list[Sharding]
    committed: list[bool]

    @classmethod
    def of(cls, arrays: list[Any]) -> "Kinds":
        """The kinds of these arrays; TypeError where something else is among them."""
        return cls(*(list(map(read, arrays)) for read in _READERS))


def split(leaves: list[Any]) -> "tuple[list[Any], Kinds, list[Keys | Kept | None] | None]":
    """The arrays among the leaves (of random keys: those below), their kinds, and for each leaf what else it is.

    None instead of a list of None, where all leaves are plain arrays.
    """
    try:
        return leaves, Kinds.of(leaves), None
    except TypeError:
        # Some are not.
        pass
    arrays: list[Any] = []
    others: list[Keys | Kept | None] = []
    for leaf in leaves:
        if type(leaf) is ArrayImpl:
            arrays.append(leaf)
            others.append(None)
        elif below := keys_of(leaf):
            arrays.append(below[0])
            others.append(below[1])
        else:
            others.append(kept(leaf))
    return arrays, Kinds.of(arrays), others


def joined(arrays: list[Leaf], others: "list[Keys | Kept | None] | None") -> Sequence[Leaf | Kept]:
    """The leaves that `split` has split, in their order."""
    if others is None:
        return arrays
    left = iter(arrays)
    return [
        other if isinstance(other, Kept) else next(left) if other is None else next(left)._replace(keys=other)
        for other in others
    ]


def start_of(index: tuple[slice, ...]) -> tuple[int, ...]:
    """Where the part of an array that these slices name begins."""
    return tuple(one.start or 0 for one in index)


def kept(leaf: Any) -> Kept:
    """A leaf that is no array, safe from later changes.

    Raises TypeError for what stands for an array and has no value of its own: what is traced, references.
    """
    if hasattr(leaf, "aval"):
        raise TypeError(f"a snapshot holds arrays and plain values, not {type(leaf).__name__}: {leaf}")
    if isinstance(leaf, _IMMUTABLE):
        return Kept(leaf)
    if isinstance(leaf, np.ndarray):
        return Kept(leaf.copy())
    return Kept(copy.deepcopy(leaf))


def keys_of(leaf: Any) -> tuple[Array, Keys] | None:
    """The numbers below an array of random keys, and what it is; None for any other leaf."""
    if not isinstance(leaf, Array) or not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return None
    keys = Keys(leaf.shape, leaf.dtype, leaf.sharding, jax.random.key_impl(leaf))
    return jax.random.key_data(leaf), keys
