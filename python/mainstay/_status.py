"""What the library says about its clients: slices, their workers and their losses."""

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mainstay import _loaded


@dataclass(frozen=True)
class Loss:
    """One loss of a slice."""

    incarnation: int
    """The incarnation that was lost."""
    reason: str
    """What happened to its worker, in words."""
    at: float
    """When it was noticed, in seconds since the Unix epoch."""


@dataclass(frozen=True)
class Slice:
    """A group of devices that fails and is replaced as one, as it was when asked."""

    index: int
    """The `slice_index` of its devices."""
    state: str
    """`healthy` where it works; `starting`, `suspect`, `lost` or `replacing` where that is a matter of time; `failed`
    where it stays down; at the end `stopping`, `suspended` or `closed`."""
    incarnation: int
    """The count of workers it has had."""
    pid: int | None
    """The process of its worker, or None while it has none."""
    devices: tuple[int, ...]
    """The ids of its devices."""
    buffers: int
    """Live buffers of the client on this slice."""
    bytes: Mapping[str, int]
    """Bytes of those buffers, by kind of memory."""
    loss_count: int
    """How many incarnations were lost so far."""
    losses: tuple[Loss, ...]
    """The newest of those losses, at most 100, oldest first."""

    @property
    def is_healthy(self) -> bool:
        """Whether work given to the slice now runs."""
        return self.state == "healthy"


@dataclass(frozen=True)
class Spare:
    """A worker that is kept ready to become the next incarnation of a lost slice."""

    pid: int
    """Its process."""
    ready: bool
    """Whether it is up."""


@dataclass(frozen=True)
class ClientStatus:
    """One PJRT client of this process."""

    slices: tuple[Slice, ...]
    """Its slices, by index."""
    spares: tuple[Spare, ...]
    """Its spares."""


def slices() -> tuple[Slice, ...]:
    """The slices of this process's client, by index; empty before JAX has made the client.

    Cheap: no worker is asked. Safe from any thread.
    """
    return tuple(one for client in status() for one in client.slices)


def status() -> tuple[ClientStatus, ...]:
    """Every client of this process. JAX makes one; empty before that."""
    library = _loaded.library()
    if library is None:
        return ()
    text = library.mainstay_status_json()
    if not text:
        raise MemoryError("libmainstay.so gave no status: out of memory")
    try:
        document = json.loads(ctypes.string_at(text))
    finally:
        library.mainstay_string_free(text)
    return tuple(_client(client) for client in document["clients"])


def _client(document: Mapping[str, Any]) -> ClientStatus:
    return ClientStatus(
        slices=tuple(_slice(one) for one in document["slices"]),
        spares=tuple(Spare(one["pid"], one["ready"]) for one in document["spares"]),
    )


def _slice(document: Mapping[str, Any]) -> Slice:
    return Slice(
        index=document["index"],
        state=document["state"],
        incarnation=document["incarnation"],
        pid=document["pid"] or None,
        devices=tuple(document["devices"]),
        buffers=document["buffers"],
        bytes=dict(document["bytes"]),
        loss_count=document["loss_count"],
        losses=tuple(Loss(loss["incarnation"], loss["reason"], loss["at"]) for loss in document["losses"]),
    )
