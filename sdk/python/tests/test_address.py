"""Which daemon is asked, and with which token."""

from __future__ import annotations

import socket
import warnings
from pathlib import Path

import pytest

from forkd import AuthenticationError, Controller, InvalidArgumentError, _address


def test_addresses_are_read() -> None:
    assert str(_address.parse("unix:///run/forkd.sock")) == "unix:///run/forkd.sock"
    assert str(_address.parse("http://127.0.0.1:1")) == "http://127.0.0.1:1"
    assert str(_address.parse("https://host.example/")) == "https://host.example:8889"
    assert str(_address.parse("http://[::1]:8889")) == "http://[::1]:8889"


@pytest.mark.parametrize(
    "text",
    ["host:1", "unix://x", "http://", "http://:1", "http://h:0", "http://h:65536", "http://u@h", "http://h/p", "ftp://h"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a valid address"):
        Controller(text)


def test_the_order_is_the_command_lines(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("HOME", "/home/a")
    clean.delenv("XDG_DATA_HOME", raising=False)
    for variable, value, expected in [
        ("XDG_DATA_HOME", "/data", "unix:///data/forkd/forkd.sock"),
        ("FORKD_HOME", "/forkd", "unix:///forkd/forkd.sock"),
        ("FORKD_SOCKET", "/s", "unix:///s"),
        ("FORKD_URL", "http://url:1", "http://url:1"),
        ("FORKD_ADDRESS", "http://address:1", "http://address:1"),
    ]:
        clean.setenv(variable, value)
        assert Controller().base_url == expected
    assert Controller("http://given:1").base_url == "http://given:1"
    for variable in ["FORKD_ADDRESS", "FORKD_URL", "FORKD_SOCKET", "FORKD_HOME", "XDG_DATA_HOME"]:
        clean.delenv(variable)
    assert Controller().base_url == "unix:///home/a/.local/share/forkd/forkd.sock"


def test_the_machines_daemon_is_the_last_one(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean.setenv("FORKD_HOME", str(tmp_path))
    machine = tmp_path / "machines" / "default"
    machine.mkdir(parents=True)
    here = f"unix://{tmp_path}/forkd.sock"
    for state in ["", "{}", '{"ports": null}', '{"ports": {"ssh": 1, "api": 2}}']:
        (machine / "run.json").write_text(state)
        assert Controller().base_url == here
    (machine / "token").write_text("key")
    assert _address.find() == (_address.parse("http://127.0.0.1:2"), "key")
    clean.setenv("FORKD_MACHINE", "../default")
    assert Controller().base_url == here
    clean.delenv("FORKD_MACHINE")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "forkd.sock"))
        assert Controller().base_url == "http://127.0.0.1:2"
        listener.listen()
        assert Controller().base_url == here


def test_tokens(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _address.token() is None
    clean.setenv("FORKD_TOKEN", "variable")
    assert _address.token() == "variable"
    file = tmp_path / "token"
    file.write_text("file\n")
    clean.setenv("FORKD_TOKEN_FILE", str(file))
    assert _address.token() == "file"
    assert _address.token("given") == "given"
    with pytest.raises(AuthenticationError):
        _address.token("two\nlines")
    clean.setenv("FORKD_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(AuthenticationError, match="cannot be read"):
        _address.token()


def test_a_token_that_goes_out_unencrypted_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="unencrypted"):
        Controller("http://host.example:1", "token")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Controller("https://host.example:1", "token")
        Controller("http://127.0.0.1:1", "token")
