"""Runs a test's body in a process of its own, with Mainstay under JAX, and looks at what it leaves behind.

One process has one PJRT client, so every test body gets a fresh one:

    @jax_process(slices=2, devices=2)
    def test_something() -> None:
        import jax
        ...

The body runs in a child; its failure, its output and anything left behind fail the test here.
"""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
# Another build than the release one can be tested by naming its library.
LIBRARY = Path(os.environ.get("MAINSTAY_TEST_LIBRARY", CHECKOUT / "target" / "release" / "libmainstay.so"))
EXECUTABLE = LIBRARY.with_name("mainstay")

_PR_SET_CHILD_SUBREAPER = 36
# Orphans die by a signal that the kernel sends at their parent's death: soon, not at once.
_GRACE = 5.0


@cache
def plugin_paths() -> tuple[str, ...]:
    """The real CPU plugins, newest interface first."""
    script = CHECKOUT / "scripts" / "plugins.py"
    printed = subprocess.run([sys.executable, script, "all"], capture_output=True, text=True, check=True)
    return tuple(printed.stdout.strip().split(":"))


# For tests that kill again and again: no growing waits, and no end of replacements.
RESTLESS = {
    "MAINSTAY_REPLACE_LIMIT": "100000",
    "MAINSTAY_REPLACE_BACKOFF": "1ms",
    "MAINSTAY_REPLACE_BACKOFF_MAX": "1ms",
}


@dataclass(frozen=True)
class Setup:
    """What a child process gets to see of Mainstay."""

    slices: int = 1
    devices: int = 2
    plugin: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 120.0

    def environment(self, home: Path) -> dict[str, str]:
        """The child's environment; `home` is a folder of its own for everything temporary."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAINSTAY_", "JAX_"))}
        return kept | {
            "PJRT_NAMES_AND_LIBRARY_PATHS": f"mainstay:{LIBRARY}",
            "JAX_PLATFORMS": "mainstay",
            "MAINSTAY_PLUGIN": self.plugin or plugin_paths()[0],
            "MAINSTAY_SLICES": str(self.slices),
            "MAINSTAY_DEVICES_PER_SLICE": str(self.devices),
            "PYTHONPATH": os.pathsep.join(str(path) for path in (HERE, CHECKOUT / "python", CHECKOUT / "examples")),
            "PYTHONFAULTHANDLER": "1",
            "TMPDIR": str(home),
            "XDG_RUNTIME_DIR": str(home),
            **self.env,
        }


def run(arguments: list[str], setup: Setup) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns it, whatever its exit code.

    Fails if it takes longer than `setup.timeout`, or if a process, a temporary file, a socket or shared
    memory stays behind. Whatever stays behind is removed, so that one test's failure is not the next one's.
    """
    _adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="mainstay-test-") as folder:
        home = Path(folder)
        before = _traces()
        child = subprocess.Popen(
            arguments,
            env=setup.environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = child.communicate(timeout=setup.timeout)
        except subprocess.TimeoutExpired:
            # SIGABRT: faulthandler prints where each of the child's threads is.
            child.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                stdout, stderr = child.communicate(timeout=_GRACE)
            raise AssertionError(f"still running after {setup.timeout} s\n{_output(stdout, stderr)}") from None
        finally:
            child.kill()
            orphans = _wait_for_no_orphans()
        finished = subprocess.CompletedProcess(arguments, child.returncode, stdout, stderr)
        left = orphans + sorted(_traces() - before) + sorted(str(path) for path in home.rglob("*"))
    assert not left, f"left behind: {left}\n{_output(stdout, stderr)}"
    return finished


def check(finished: subprocess.CompletedProcess[str]) -> str:
    """The standard output of a command that must have succeeded."""
    assert finished.returncode == 0, f"exit code {finished.returncode}\n{_output(finished.stdout, finished.stderr)}"
    return finished.stdout


def jax_process(
    slices: int = 1,
    devices: int = 2,
    *,
    plugin: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120.0,
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Makes a test of a function whose body runs in a process of its own, with Mainstay as JAX's platform."""
    setup = Setup(slices, devices, plugin, env or {}, timeout)

    def decorate(body: Callable[[], None]) -> Callable[[], None]:
        def test() -> None:
            call = f"import {body.__module__} as module; module.{body.__name__}.body()"
            print(check(run([sys.executable, "-c", call], setup)))

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.body = body  # type: ignore[attr-defined]
        # Pytest's own limit would leave behind what `run` removes.
        return pytest.mark.timeout(timeout + 180)(test)

    return decorate


def _output(stdout: str, stderr: str) -> str:
    return f"--- stdout\n{stdout[-4000:]}\n--- stderr\n{stderr[-8000:]}"


@cache
def _adopt_orphans() -> None:
    """From now on the orphans of this process's children become its own children, where they can be seen."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text().split())


def _wait_for_no_orphans() -> list[str]:
    """Reaps orphans; what is still alive after the grace period is named and killed."""
    deadline = time.monotonic() + _GRACE
    while True:
        alive = []
        for pid in _children():
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    alive.append(pid)
        if not alive:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    named = []
    for pid in alive:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        named.append(f"process {pid}: {command}")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return named


def _traces() -> set[str]:
    """What the machine shows of Mainstay outside processes, named after processes that are no more."""
    shared = [str(path) for path in Path("/dev/shm").glob("*mainstay*")]
    listed = Path("/proc/net/unix").read_text().splitlines()
    sockets = [line.split()[-1] for line in listed if "@mainstay/" in line]
    # Other programs that use Mainstay may run meanwhile. mainstay-plan-PID-COUNT, @mainstay/USER/PID
    owners = [(name, re.findall(r"[0-9]+", name)[:1]) for name in shared]
    owners += [(name, re.findall(r"[0-9]+$", name)) for name in sockets]
    return {name for name, pids in owners if not any(Path("/proc", pid).exists() for pid in pids)}
