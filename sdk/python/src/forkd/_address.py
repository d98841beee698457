"""Finding the daemon, as the command line does.

```text
address=  ──▶  FORKD_ADDRESS  ──▶  FORKD_URL  ──▶  this host's socket  ──▶  the machine's daemon
token=    ──▶  FORKD_TOKEN_FILE  ──▶  FORKD_TOKEN                           with the machine's own token

With FORKD_AUTOSTART=1, or autostart=True, and no address, `forkd hold` finds the daemon in the same order, or starts one.

the socket     FORKD_SOCKET, else forkd.sock among forkd's files, if a daemon listens there; else that of the host's service,
               unless FORKD_SOCKET or FORKD_HOME is set
the machine    FORKD_MACHINE, else `default`, if it runs
forkd's files  FORKD_HOME, else $XDG_DATA_HOME/forkd, else ~/.local/share/forkd
```
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
from pathlib import Path
from typing import Optional

from .errors import AuthenticationError, InvalidArgumentError

# The socket of the service that packages install.
SERVICE = "/run/forkd/forkd.sock"
# The port of daemons that listen on TCP.
PORT = 8889

_TCP = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?")


@dataclasses.dataclass(frozen=True)
class Address:
    """`unix:///path`, `http://host:port` or `https://host:port`."""

    # What requests begin with. Over a socket, the host is only a word.
    base: str
    socket: Optional[str] = None

    def __str__(self) -> str:
        return self.base if self.socket is None else f"unix://{self.socket}"


def parse(text: str) -> Address:
    """The address that a text is."""
    if text.startswith("unix:///") and "\0" not in text:
        return Address("http://localhost", text[len("unix://") :])
    match = _TCP.fullmatch(text)
    port = int(match[3] or PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise InvalidArgumentError(
            f"{text!r} is not a valid address of a daemon", hint="expected unix:///path, http://host:port or https://host:port"
        )
    return Address(f"{match[1]}://{match[2]}:{port}")


# A daemon, and the token to show it.
Found = tuple[Address, Optional[str]]


def named(address: Optional[str] = None) -> Optional[Address]:
    """The address that is given or that the environment names."""
    text = address or os.environ.get("FORKD_ADDRESS") or os.environ.get("FORKD_URL")
    return parse(text) if text else None


def find(address: Optional[str] = None, shown: Optional[str] = None) -> Found:
    """The daemon that is named, this host's own, or the machine's; and the token to show it."""
    given = named(address)
    if given is not None:
        return given, token(shown)
    own = Address("http://localhost", str(_socket()))
    if _listens(str(own.socket)):
        return own, token(shown)
    service = _service()
    if service is not None:
        return service, token(shown)
    machine = _machine()
    return (own, token(shown)) if machine is None else machine


def token(given: Optional[str] = None) -> Optional[str]:
    """The token to show, if there is one."""
    text = given
    path = os.environ.get("FORKD_TOKEN_FILE")
    if text is None and path:
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise AuthenticationError(f"the token file {path} cannot be read: {error.strerror}") from error
    if text is None:
        text = os.environ.get("FORKD_TOKEN")
    text = (text or "").strip()
    if not re.fullmatch(r"[\x21-\x7e]*", text):
        raise AuthenticationError("the token has characters that no token has")
    return text or None


def _socket() -> Path:
    named = os.environ.get("FORKD_SOCKET")
    return Path(named) if named else _home() / "forkd.sock"


def _service() -> Optional[Address]:
    """The daemon of the host's service, if this user may use it and the environment names no other."""
    if os.environ.get("FORKD_SOCKET") or os.environ.get("FORKD_HOME"):
        return None
    return Address("http://localhost", SERVICE) if os.access(SERVICE, os.W_OK) and _listens(SERVICE) else None


def _home() -> Path:
    for variable, below in [("FORKD_HOME", ""), ("XDG_DATA_HOME", "forkd"), ("HOME", ".local/share/forkd")]:
        path = Path(os.environ.get(variable, ""))
        if path.is_absolute():
            return path / below
    raise InvalidArgumentError(
        "neither FORKD_HOME nor XDG_DATA_HOME nor HOME is set to an absolute path", hint="FORKD_ADDRESS names a daemon"
    )


def _listens(path: str) -> bool:
    """Whether a daemon listens. A socket that this user may not open belongs to one, and is no reason to look elsewhere."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except PermissionError:
            return True
        except (OSError, ValueError):
            return False
    return True


def _machine() -> Optional[tuple[Address, str]]:
    """The daemon of a machine that runs, if one was started in it."""
    name = os.environ.get("FORKD_MACHINE") or "default"
    if not re.fullmatch(r"[a-z0-9-]{1,32}", name):
        return None
    directory = _home() / "machines" / name
    try:
        port = json.loads((directory / "run.json").read_text())["ports"]["api"]
        key = (directory / "token").read_text().strip()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return parse(f"http://127.0.0.1:{port}"), key
