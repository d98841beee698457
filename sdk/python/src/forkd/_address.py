"""Finding the daemon, as the command line does.

```text
address=  ──▶  FORKD_ADDRESS  ──▶  FORKD_URL  ──▶  the socket: FORKD_SOCKET, else forkd.sock among forkd's files
token=    ──▶  FORKD_TOKEN_FILE  ──▶  FORKD_TOKEN
```

A daemon in a machine is found by its address only: `forkd machine serve` prints what to set.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Optional

from .errors import AuthenticationError, InvalidArgumentError

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
            f"{text!r} is no address of a daemon", hint="expected unix:///path, http://host:port or https://host:port"
        )
    return Address(f"{match[1]}://{match[2]}:{port}")


def find(given: Optional[str] = None) -> Address:
    """The daemon that is named, or this host's own."""
    text = given or os.environ.get("FORKD_ADDRESS") or os.environ.get("FORKD_URL")
    if text:
        return parse(text)
    return Address("http://localhost", str(_socket()))


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
    if named:
        return Path(named)
    for variable, below in [("FORKD_HOME", ""), ("XDG_DATA_HOME", "forkd"), ("HOME", ".local/share/forkd")]:
        path = Path(os.environ.get(variable, ""))
        if path.is_absolute():
            return path / below / "forkd.sock"
    raise InvalidArgumentError(
        "neither FORKD_HOME nor XDG_DATA_HOME nor HOME is set to an absolute path", hint="FORKD_ADDRESS names a daemon"
    )
