"""The demo does what it says, and leaves nothing behind."""

import re
import sys
from pathlib import Path

from harness import CHECKOUT, EXECUTABLE, Setup, check, run


def test_demo(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    command = [sys.executable, str(CHECKOUT / "examples" / "demo.py"), "--picture", str(picture)]
    printed = check(run(command, Setup(slices=2, devices=2, env={"MAINSTAY_SPARES": "1"}, timeout=280)))
    for expected in (
        "kill -9",
        "caught JaxRuntimeError",
        "DATA_LOSS: slice 1",
        "with 1 of 2 slices",
        "bit for bit: yes",
    ):
        assert expected in printed, printed
    # One more where the dead spare was taken before its death was known.
    assert re.search(r"slice 1: healthy, incarnation [34]", printed), printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_demo_bears_what_others_do(tmp_path: Path) -> None:
    """Somebody kills the worker of slice 0 in each of its parts: it goes on, and ends as it should."""
    demo = [sys.executable, str(CHECKOUT / "examples" / "demo.py"), "--picture", str(tmp_path / "demo.png")]
    command = [sys.executable, "-c", _KILL_MEANWHILE, str(EXECUTABLE), *demo]
    printed = check(run(command, Setup(slices=2, devices=2, env={"MAINSTAY_SPARES": "1"}, timeout=280)))
    assert printed.count("by another hand") == 3, printed
    assert printed.count("somebody") >= 3, printed
    assert "bit for bit: yes" in printed, printed


# Runs a demo, shows its lines, and kills the worker of slice 0 in each of its three trainings, later each time: the
# third changes slices where the second did for its losses, and would not miss slice 0 there.
_KILL_MEANWHILE = """
import json, os, signal, subprocess, sys
executable, *command = sys.argv[1:]
demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
part, killed = 0, 0
for line in demo.stdout:
    print(line, end="", flush=True)
    part += any(begin in line for begin in ("left alone: 4", "with kills: 4", "without a kill:"))
    if killed < part and f"step {part}00/" in line:
        killed = part
        process = json.loads(subprocess.check_output([executable, "status", "--json", "--pid", str(demo.pid)]))
        pid = process["clients"][0]["slices"][0]["pid"]
        print("by another hand:", pid, flush=True)
        os.kill(pid, signal.SIGKILL)
sys.exit(demo.wait())
"""
