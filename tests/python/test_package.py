"""The Python package alone: finding the library, reading its status, and staying out of the way."""

from pathlib import Path

import jax
import pytest

from mainstay import Loss, Spare, _locate, _register, _status


def test_status_document_becomes_typed() -> None:
    document = {
        "slices": [
            {
                "index": 0,
                "state": "replacing",
                "incarnation": 2,
                "pid": 0,
                "devices": [0, 1],
                "buffers": 3,
                "bytes": {"device": 12, "pinned_host": 0},
                "loss_count": 1,
                "losses": [{"incarnation": 1, "reason": "killed by SIGKILL", "at": 1.5}],
                "something newer": True,
            }
        ],
        "spares": [{"pid": 7, "ready": True}],
    }
    client = _status._client(document)
    (one,) = client.slices
    assert (one.index, one.incarnation, one.pid, one.devices) == (0, 2, None, (0, 1))
    assert not one.is_healthy
    assert one.bytes["device"] == 12
    assert client.spares == (Spare(pid=7, ready=True),)
    assert one.loss_count == 1
    assert one.losses == (Loss(incarnation=1, reason="killed by SIGKILL", at=1.5),)


def test_library_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libmainstay.so"
    monkeypatch.setenv("MAINSTAY_LIBRARY", str(library))
    with pytest.raises(FileNotFoundError, match=str(library)):
        _locate.library()
    library.touch()
    assert _locate.library() == library


def test_cpu_plugin_of_the_environment() -> None:
    plugin = _locate.cpu_plugin()
    assert plugin is not None
    assert plugin.is_file()


def test_plugin_to_wrap_comes_from_the_environment_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSTAY_PLUGIN", raising=False)
    assert _register._options() == {"plugin": str(_locate.cpu_plugin())}
    monkeypatch.setenv("MAINSTAY_PLUGIN", "/some/plugin.so")
    assert _register._options() == {}


def test_registers_nothing_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAINSTAY_PLUGIN", raising=False)
    registered: list[str] = []
    monkeypatch.setattr("jax._src.xla_bridge.register_plugin", lambda name, **_: registered.append(name))
    jax.config.update("jax_platforms", "cpu")
    _register.initialize()
    assert registered == []
