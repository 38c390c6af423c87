"""The wheel as a user gets it: built from the checkout, installed alone, used from another folder with no setting."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from harness import CHECKOUT, Setup, check, run

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# What the harness sets and this user doesn't.
_SETTINGS = ("MAINSTAY_PLUGIN", "MAINSTAY_SLICES", "MAINSTAY_DEVICES_PER_SLICE", "PJRT_NAMES_AND_LIBRARY_PATHS")

_PROGRAM = """
import json, os, subprocess, sys
import jax, jax.numpy as jnp
import mainstay, mainstay.elastic

assert mainstay.__file__.startswith(sys.prefix), mainstay.__file__
assert jax.devices()[0].slice_index == 0, jax.devices()
assert float(jax.jit(lambda x: (x * 2).sum())(jnp.arange(4.0))) == 12
(one,) = mainstay.slices()
shown = json.loads(subprocess.check_output(["mainstay", "status", "--json", "--pid", str(os.getpid())]))
assert str(one.pid) in json.dumps(shown), shown
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout. Quick: cargo has built what goes into it."""
    if "MAINSTAY_TEST_LIBRARY" in os.environ:
        pytest.skip("another build than the release one is tested, and a wheel has the release one")
    folder = tmp_path_factory.mktemp("wheel")
    command = [*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_what_a_wheel_holds(wheel: Path) -> None:
    """The library, the executable, the types; and its name says that it is for this kind of machine."""
    with zipfile.ZipFile(wheel) as file:
        modes = {entry.filename: entry.external_attr >> 16 for entry in file.infolist()}
    assert {"mainstay/libmainstay.so", "mainstay/mainstay", "mainstay/py.typed"} <= modes.keys(), modes
    assert modes["mainstay/mainstay"] & 0o111, "the executable can't be run"
    assert wheel.stem.startswith("mainstay-")
    assert "-py3-none-linux_" in wheel.stem


def test_a_wheel_is_all_that_a_user_installs(wheel: Path, tmp_path: Path) -> None:
    """`JAX_PLATFORMS=mainstay` is enough, and `mainstay` is a command."""
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(home), "platbase": str(home)})
    # What a wheel of ours needs is there already, as the project's own environment has it.
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "mainstay" not in entry.name and entry.suffix != ".pth":
            (Path(paths["purelib"]) / entry.name).symlink_to(entry)
    python = home / "bin" / "python"
    subprocess.run([*_PIP, "--python", python, "install", "--quiet", "--no-index", f"{wheel}[cpu]"], check=True)
    unset = [f"--unset={name}" for name in (*_SETTINGS, "PYTHONPATH")]
    command = ["env", *unset, f"--chdir={tmp_path}", f"PATH={home / 'bin'}:{os.environ['PATH']}"]
    check(run([*command, str(python), "-c", _PROGRAM], Setup()))
