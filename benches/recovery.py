"""Times of recovery: from a worker's death to the error, to a slice that works again, to the next training step done.

Part of `make bench`. One process without a spare and one with a spare kill
the worker of a slice again and again; the last rows are of the demo's training over two slices.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from measuring import CHECKOUT, LIBRARY, clean_environment, default_plugin

ROWS = {
    "error": "death to error at the waiting caller",
    "usable": "death to a program done on the slice",
    "step": "death to the next training step done",
    "whole": "death to a training step done on all slices",
}
PATIENCE = 60.0


def environment(spares: int) -> dict[str, str]:
    """The environment of a process that measures."""
    return clean_environment() | {
        "PJRT_NAMES_AND_LIBRARY_PATHS": f"mainstay:{LIBRARY}",
        "JAX_PLATFORMS": "mainstay",
        "MAINSTAY_PLUGIN": str(default_plugin()),
        "MAINSTAY_SLICES": "2",
        "MAINSTAY_DEVICES_PER_SLICE": "2",
        "MAINSTAY_SPARES": str(spares),
        "MAINSTAY_REPLACE_LIMIT": "100000",
        "MAINSTAY_REPLACE_BACKOFF": "1ms",
        "MAINSTAY_REPLACE_BACKOFF_MAX": "1ms",
        "PYTHONPATH": os.pathsep.join(str(CHECKOUT / name) for name in ("python", "examples")),
    }


# ---- In the process that measures. ----


def settle() -> None:
    """Waits until every slice works and every spare is ready, and a little longer: the next death is a fresh one."""
    import mainstay

    until = time.monotonic() + PATIENCE
    while True:
        (client,) = mainstay.status()
        up = all(one.is_healthy for one in client.slices) and all(spare.ready for spare in client.spares)
        if up and len(client.spares) == int(os.environ["MAINSTAY_SPARES"]):
            break
        if time.monotonic() > until:
            sys.exit(f"recovery: not settled after {PATIENCE:.0f} s: {client}")
        time.sleep(0.01)
    time.sleep(0.2)


def worker_of(index: int) -> int:
    """The pid of a slice's worker."""
    import mainstay

    pid = mainstay.slices()[index].pid
    assert pid is not None
    return pid


def of_a_slice(rounds: int, times: dict[str, list[float]]) -> None:
    """Kills a worker while a caller waits for a long program; then launches on the slice until that works."""
    import jax
    import jax.numpy as jnp

    device = next(one for one in jax.devices() if one.slice_index == 1)
    x = jnp.full((64, 64), 1e-6, jnp.float32)
    long = jax.jit(lambda x: jax.lax.fori_loop(0, 1_000_000, lambda _, y: 0.5 * (y @ y) + y, x))
    short = jax.jit(lambda x: x * 2)
    jax.block_until_ready(short(jax.device_put(x, device)))
    for _ in range(rounds):
        settle()
        result = long(jax.device_put(x, device))
        # By another process, as this one waits.
        killer = subprocess.Popen([sys.executable, "-c", _KILL, str(worker_of(1))], stdout=subprocess.PIPE, text=True)
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.block_until_ready(result)
        noticed = time.monotonic()
        while True:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                jax.block_until_ready(short(jax.device_put(x, device)))
                break
        usable = time.monotonic()
        killed = float(killer.communicate()[0])
        times["error"].append(noticed - killed)
        times["usable"].append(usable - killed)


_KILL = "import os, sys, time; time.sleep(0.3); now = time.monotonic(); os.kill(int(sys.argv[1]), 9); print(now)"


def of_training(rounds: int, times: dict[str, list[float]]) -> None:
    """Kills a worker of the demo's training, again and again."""
    import jax

    import mainstay
    from digits_model import batch_of, digits, mesh_of, put_batch
    from elastic_training import Watcher, start, train
    from mainstay import elastic

    for slices in ((0, 1), (0,)):
        mesh = mesh_of([device for device in jax.devices() if device.slice_index in slices])
        state, train_step = start(mesh)
        jax.block_until_ready(train_step(state, *put_batch(batch_of(digits()[0], 0), mesh)))

    class Killer(Watcher):
        final_step = 2**40
        killed: float | None = None
        caught_it = stepped = False
        calm = 0

        def before_step(self, step: int) -> None:
            if self.killed is None and self.calm >= 10:
                settle()
                self.killed, self.caught_it, self.stepped = time.monotonic(), False, False
                os.kill(worker_of(1), signal.SIGKILL)

        def caught(self, step: int, error: Exception) -> None:
            self.caught_it = True

        def after_step(self, step: int, loss: float, slices: tuple[int, ...]) -> None:
            self.calm += 1
            if self.killed is None or not self.caught_it:
                return
            since = time.monotonic() - self.killed
            if not self.stepped:
                self.stepped = True
                times["step"].append(since)
            if len(slices) == len(mainstay.slices()):
                times["whole"].append(since)
                self.killed, self.calm = None, 0
                if len(times["whole"]) == rounds:
                    self.final_step = step

    train(elastic.Manager(snapshot_period=5, reshard_check_period=1), Killer())


def measure(rounds: int) -> None:
    """Measures all and prints the times as JSON."""
    times: dict[str, list[float]] = {name: [] for name in ROWS}
    of_a_slice(rounds, times)
    of_training(rounds, times)
    print(json.dumps(times))


# ---- In the process that was started. ----


def spread(times: list[float]) -> str:
    """Median and worst."""
    return f"{1000 * statistics.median(times):.0f} ms, {1000 * max(times):.0f} ms"


def show(rounds: int) -> None:
    """Measures without and with a spare, and prints the table. So many deaths make a row."""
    columns = []
    for spares in (0, 1):
        command = [sys.executable, __file__, str(rounds)]
        output = subprocess.check_output(command, env=environment(spares), text=True, timeout=600)
        columns.append(json.loads(output.splitlines()[-1]))
    print("\n| recovery: median, worst | without a spare | with a spare |\n|---|---|---|")
    for name, words in ROWS.items():
        print(f"| {words} | {spread(columns[0][name])} | {spread(columns[1][name])} |", flush=True)


if __name__ == "__main__":
    measure(int(sys.argv[1]))
