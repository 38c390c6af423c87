"""What a user can get wrong: one sentence at client creation that names it, and nothing left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import LIBRARY, Setup, run

CREATE = "import jax; jax.devices()"
# Words that elastic libraries take for a lost slice.
MISLEADING = ("DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED")


def refusal(**env: str) -> str:
    """The error that JAX shows where a client can't be made in this environment."""
    finished = run([sys.executable, "-c", CREATE], Setup(env=env))
    assert finished.returncode == 1, f"exit code {finished.returncode}: {finished.stdout} {finished.stderr}"
    (*_, last) = finished.stderr.strip().splitlines()
    assert not any(word in last for word in MISLEADING), last
    return finished.stderr


def test_plugin_that_is_not_there() -> None:
    assert "/nowhere/plugin.so" in refusal(MAINSTAY_PLUGIN="/nowhere/plugin.so")


def test_no_plugin_named() -> None:
    assert "MAINSTAY_PLUGIN" in refusal(MAINSTAY_PLUGIN="")


def test_plugin_that_is_no_library(tmp_path: Path) -> None:
    text = tmp_path / "plugin.so"
    text.write_text("this is not a shared library")
    assert str(text) in refusal(MAINSTAY_PLUGIN=str(text))


def test_library_that_is_no_plugin(tmp_path: Path) -> None:
    source, library = tmp_path / "empty.c", tmp_path / "foreign.so"
    source.write_text("int nothing(void) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)  # noqa: S607
    text = refusal(MAINSTAY_PLUGIN=str(library))
    assert str(library) in text
    assert "GetPjrtApi" in text


def test_mainstay_itself_as_the_inner_plugin() -> None:
    assert "libmainstay.so" in refusal(MAINSTAY_PLUGIN=str(LIBRARY))


@pytest.mark.parametrize("value", ["0", "-1", "two", "33", "1000000", "1.5", ""])
def test_slices_that_make_no_sense(value: str) -> None:
    text = refusal(MAINSTAY_SLICES=value)
    assert "slices" in text.lower()
    assert value in text


@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_devices_that_make_no_sense(value: str) -> None:
    text = refusal(MAINSTAY_DEVICES_PER_SLICE=value)
    assert "devices_per_slice" in text.lower()
    assert value in text


@pytest.mark.parametrize("value", ["1023", "0-1023", "1-0", "every", ""])
def test_numa_nodes_that_are_not_there(value: str) -> None:
    text = refusal(MAINSTAY_HOST_MEMORY_NODES=value)
    assert f"MAINSTAY_HOST_MEMORY_NODES={value}: " in text
    assert "that this process may use are 0" in text


def test_setting_that_does_not_exist() -> None:
    assert "MAINSTAY_SLICE_COUNT" in refusal(MAINSTAY_SLICE_COUNT="2")


def test_worker_that_is_not_there() -> None:
    assert "/nowhere/mainstay" in refusal(MAINSTAY_WORKER="/nowhere/mainstay")


def test_worker_that_cannot_be_executed(tmp_path: Path) -> None:
    worker = tmp_path / "mainstay"
    worker.write_text("not a program")
    assert str(worker) in refusal(MAINSTAY_WORKER=str(worker))


def test_worker_that_is_another_program() -> None:
    refused = refusal(MAINSTAY_WORKER="/bin/true")
    assert "left with exit code 0" in refused
    assert "/bin/true (MAINSTAY_WORKER)" in refused


def test_option_that_does_not_exist(tmp_path: Path) -> None:
    config = tmp_path / "mainstay.json"
    config.write_text(f'{{"library_path": "{LIBRARY}", "create_options": {{"slicez": 2}}}}')
    text = refusal(PJRT_NAMES_AND_LIBRARY_PATHS=f"mainstay:{config}")
    assert "slicez" in text


def test_one_bad_client_does_not_spoil_the_next() -> None:
    """Where the first client can't be made, a later one in the same process can."""
    code = """if True:
        import os, jax
        good = os.environ["MAINSTAY_PLUGIN"]
        os.environ["MAINSTAY_PLUGIN"] = "/nowhere/plugin.so"
        try:
            jax.devices()
        except RuntimeError:
            pass
        else:
            raise AssertionError("a client without a plugin")
        os.environ["MAINSTAY_PLUGIN"] = good
        assert len(jax.devices()) == 4
        assert jax.jit(lambda x: x + 1)(1) == 2
        """
    finished = run([sys.executable, "-c", code], Setup(slices=2))
    assert finished.returncode == 0, finished.stderr
