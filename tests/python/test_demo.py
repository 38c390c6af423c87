"""The demo does what it says, and leaves nothing behind."""

import sys

from harness import CHECKOUT, Setup, check, run


def test_demo() -> None:
    printed = check(run([sys.executable, str(CHECKOUT / "examples" / "digits.py")], Setup(slices=2, devices=2)))
    for expected in (
        "kill -9",
        "caught JaxRuntimeError",
        "DATA_LOSS: ",
        "done on slice 1",
        "slice 0 is back",
        "bit for bit: yes",
    ):
        assert expected in printed, printed
