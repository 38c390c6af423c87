"""Which slices work, asked of Mainstay itself: no program has to run for that."""

from collections.abc import Iterable, Mapping, Sequence

import jax

import mainstay
from mainstay.elastic._errors import ElasticRuntimeError


def by_slice(devices: Iterable[jax.Device]) -> dict[int, list[jax.Device]]:
    """Devices by the slice that they belong to, slices in order.

    Raises ValueError for devices that are not Mainstay's.
    """
    found: dict[int, list[jax.Device]] = {}
    for device in devices:
        index = getattr(device, "slice_index", None)
        if index is None:
            raise ValueError(f"devices: {device} belongs to no slice; use those of jax.devices() under Mainstay")
        found.setdefault(index, []).append(device)
    if not found:
        raise ValueError("devices: there are none")
    return dict(sorted(found.items()))


def healthy_slices(among: Iterable[int] | None = None) -> dict[int, int]:
    """The slices that work now, with their incarnations; only those named, where some are."""
    wanted = None if among is None else frozenset(among)
    return {
        one.index: one.incarnation
        for one in mainstay.slices()
        if one.is_healthy and (wanted is None or one.index in wanted)
    }


def wait_for_slices(
    slice_count: int | None = None,
    poll_interval: float = 10.0,
    timeout: float | None = None,
    slice_to_devices: Mapping[int, Sequence[jax.Device]] | None = None,
) -> frozenset[int]:
    """Waits until so many slices work (by default: all), and returns their indices.

    `slice_to_devices` restricts it to those slices. `poll_interval` is what the calls of the same name elsewhere have:
    Mainstay tells of a change at once, so it only bounds a single wait, in seconds.

    Raises TimeoutError after `timeout` seconds, and ElasticRuntimeError where so many slices will not come: the
    others have failed for good.
    """
    if poll_interval <= 0:
        raise ValueError(f"poll_interval must be positive, but is {poll_interval}")
    if slice_to_devices is None:
        slice_to_devices = by_slice(jax.devices())
    among = frozenset(slice_to_devices)
    wanted = len(among) if slice_count is None else slice_count
    if not 0 < wanted <= len(among):
        raise ValueError(f"slice_count must be between 1 and {len(among)}, but is {slice_count}")

    def is_decided(now: tuple[mainstay.Slice, ...]) -> bool:
        of_interest = [one for one in now if one.index in among]
        working = sum(one.is_healthy for one in of_interest)
        possible = sum(one.state not in _ENDED for one in of_interest)
        return working >= wanted or possible < wanted

    now = mainstay.wait_until(is_decided, timeout)
    working = frozenset(one.index for one in now if one.index in among and one.is_healthy)
    if len(working) < wanted:
        ended = {one.index: one.losses[-1].reason for one in now if one.state in _ENDED and one.losses}
        raise ElasticRuntimeError(f"{wanted} slices are wanted, but slices stay down: {ended}")
    return working


_ENDED = ("failed", "closed", "stopping", "suspended")
