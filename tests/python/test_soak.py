"""A short soak; `make soak` is the long one."""

import sys

from harness import HERE, Setup, check, run


def test_a_short_soak() -> None:
    """Some faults of every kind: all recovered, and the parameters are those of a training without any."""
    settings = {"MAINSTAY_SPARES": "1", "MAINSTAY_HEARTBEAT_TIMEOUT": "2s"}
    setup = Setup(slices=3, devices=1, env=settings, timeout=280)
    printed = check(run([sys.executable, str(HERE / "soak.py"), "--faults", "12", "--seed", "2"], setup))
    print(printed)
    assert "\n12 faults recovered" in printed, printed
    assert "bit for bit" in printed, printed
