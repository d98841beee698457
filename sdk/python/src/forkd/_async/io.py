"""Where the asynchronous client waits in another way than the synchronous one."""

from __future__ import annotations

import asyncio
import inspect
import ssl
import weakref
from collections.abc import AsyncIterator
from typing import Any, Callable, Optional, TypeVar

from websockets.asyncio.client import ClientConnection, connect, unix_connect

from .._address import Address
from .._policy import CONNECT
from .._wire import LONGEST_LINE, PIECE

A = TypeVar("A")
T = TypeVar("T")
# Is told something. It may be a coroutine function.
Handler = Callable[[T], object]
WebSocket = ClientConnection

Condition = asyncio.Condition
sleep = asyncio.sleep

_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Any]] = weakref.WeakKeyDictionary()


async def tell(handler: Optional[Handler[T]], value: T) -> None:
    """Calls a handler, if there is one, and waits for it."""
    if handler is not None:
        answer = handler(value)
        if inspect.isawaitable(answer):
            await answer


async def aside(function: Callable[[A], T], argument: A) -> T:
    """Runs a blocking function in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, function, argument)


async def pieces(content: Any) -> AsyncIterator[bytes]:
    """What is to be sent: a file, or anything that comes in pieces."""
    if hasattr(content, "read"):
        while True:
            piece = content.read(PIECE)
            if inspect.isawaitable(piece):
                piece = await piece
            if not piece:
                return
            yield piece.encode() if isinstance(piece, str) else piece
    elif hasattr(content, "__aiter__"):
        async for piece in content:
            yield piece
    else:
        for piece in content:
            yield piece


def shared(key: Any, make: Callable[[], T]) -> T:
    """The one that all of this event loop have."""
    known: dict[Any, T] = _shared.setdefault(asyncio.get_running_loop(), {})
    if key not in known:
        known[key] = make()
    return known[key]


async def websocket(address: Address, path: str, headers: dict[str, str], context: Optional[ssl.SSLContext]) -> WebSocket:
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
        return await unix_connect(address.socket, uri, **known)
    return await connect(uri, proxy=None, **known)
