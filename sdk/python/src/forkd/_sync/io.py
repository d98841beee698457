"""Where the synchronous client waits in another way than the asynchronous one."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar

from websockets.sync.client import ClientConnection, connect, unix_connect

from .._address import Address
from .._policy import CONNECT
from .._wire import LONGEST_LINE, PIECE

A = TypeVar("A")
T = TypeVar("T")
# Is told something.
Handler = Callable[[T], object]
WebSocket = ClientConnection

Condition = threading.Condition
sleep = time.sleep

_lock = threading.Lock()
_shared: dict[Any, Any] = {}


def tell(handler: Optional[Handler[T]], value: T) -> None:
    """Calls a handler, if there is one."""
    if handler is not None:
        handler(value)


def aside(function: Callable[[A], T], argument: A) -> T:
    """Calls a function; the asynchronous client does so in a thread."""
    return function(argument)


def pieces(content: Any) -> Iterator[bytes]:
    """What is to be sent: a file, or anything that comes in pieces."""
    if not hasattr(content, "read"):
        yield from content
        return
    while True:
        piece = content.read(PIECE)
        if not piece:
            return
        yield piece.encode() if isinstance(piece, str) else piece


def shared(key: Any, make: Callable[[], T]) -> T:
    """The one that all of this process have. A child process may not use its parent's connections."""
    key = (os.getpid(), key)
    with _lock:
        if key not in _shared:
            _shared[key] = make()
        known: T = _shared[key]
        return known


def websocket(address: Address, path: str, headers: dict[str, str], context: Optional[ssl.SSLContext]) -> WebSocket:
    """A WebSocket to the daemon."""
    uri = address.base.replace("http", "ws", 1) + path
    known: dict[str, Any] = {
        "additional_headers": headers,
        "user_agent_header": None,
        "compression": None,
        "open_timeout": CONNECT,
        # A daemon in an emulator may be busy for a while.
        "ping_timeout": 60,
        "max_size": LONGEST_LINE,
    }
    if context is not None:
        known["ssl"] = context
    if address.socket is not None:
        opened = unix_connect(address.socket, uri, **known)
    else:
        opened = connect(uri, proxy=None, **known)
    # Some versions give a connection, others what makes one: entering either gives the connection.
    made: WebSocket = opened.__enter__()
    return made
