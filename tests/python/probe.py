"""What test bodies share: kill a slice's worker, wait for its replacement, expect the loss."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import mainstay

# Longer than any replacement takes on a busy machine; a test that waits this long fails.
PATIENCE = 60.0


def wait_for(condition: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Returns once the condition holds; fails, naming it, when patience is over."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience} s for {what}; slices: {mainstay.slices()}"
        time.sleep(0.001)


def devices_of(index: int) -> list[jax.Device]:
    """The devices of a slice, in order."""
    return [device for device in jax.devices() if device.slice_index == index]


def worker_of(index: int) -> int:
    """The pid of a slice's worker, which must be alive."""
    pid = mainstay.slices()[index].pid
    assert pid is not None, f"slice {index} has no worker: {mainstay.slices()[index]}"
    return pid


def kill(index: int) -> float:
    """Kills a slice's worker with SIGKILL; returns the time of the kill (`time.perf_counter`)."""
    pid = worker_of(index)
    at = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    return at


def wait_replaced(index: int, old_incarnation: int) -> None:
    """Returns once a slice is healthy in a later incarnation than the one given."""

    def replaced() -> bool:
        one = mainstay.slices()[index]
        return one.is_healthy and one.incarnation > old_incarnation

    wait_for(replaced, f"slice {index} to be replaced after incarnation {old_incarnation}")


def incarnation_of(index: int) -> int:
    """The incarnation of a slice now."""
    return mainstay.slices()[index].incarnation


def compilers() -> set[int]:
    """The pids of this process's children that are no slice's worker: the compiler, once it has started."""
    children = {
        int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    }
    return children - {one.pid for one in mainstay.slices() if one.pid is not None}


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@jax.jit
def long(x: jax.Array, rounds: int) -> jax.Array:
    """A program that runs as long as one likes: 2,000 rounds on 64 by 64 numbers are some 100 ms."""
    return jax.lax.fori_loop(0, rounds, lambda _, y: np.float32(0.5) * (y @ y) + y, x)


def loss_from(access: Callable[[], Any], index: int) -> str:
    """Makes an access that must fail with the loss of a slice; returns the error's text."""
    try:
        access()
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
    else:
        raise AssertionError(f"expected the loss of slice {index}, but the access succeeded")
    assert text.startswith("DATA_LOSS: "), f"expected DATA_LOSS, got: {text}"
    assert f"slice {index}" in text, f"the error does not name slice {index}: {text}"
    return text


def equal(array: Any, expected: Any) -> None:
    """Fails unless an array, read to the host, has these values."""
    np.testing.assert_array_equal(np.asarray(array), expected)


def usage() -> dict[str, int]:
    """What this process holds: KiB of private and of shared memory, threads, descriptors, mappings."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory": int(status["RssAnon"].split()[0]),
        "shared": int(status["RssShmem"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
    }
