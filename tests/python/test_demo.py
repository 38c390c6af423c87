"""The demo does what it says, and leaves nothing behind."""

import re
import sys
from pathlib import Path

from harness import CHECKOUT, Setup, check, run


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
