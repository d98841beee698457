"""Requests and their answers, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Optional, TypeVar, Union

import httpx
from websockets.exceptions import InvalidStatus, WebSocketException

from .. import _policy, _wire
from .._address import Address, Found
from .._autostart import Helper
from .._call import Call
from ..errors import ForkdError, ProtocolError, refusal
from . import io

T = TypeVar("T")


class AsyncTransport:
    """Connections to one daemon. They are made when they are needed, and kept for a moment.

    With a helper, the daemon is found, or started, by the first request.
    """

    def __init__(self, daemon: Union[Found, Helper], timeout: float, verify: _wire.Verify, retries: int) -> None:
        self.timeout = timeout
        self.retries = retries
        self._verify = verify
        self._helper = daemon if isinstance(daemon, Helper) else None
        self._daemon: Optional[Found] = None
        if not isinstance(daemon, Helper):
            self._use(daemon)

    @property
    def address(self) -> Address:
        """Where the daemon is. One that is yet to be started is waited for."""
        if self._daemon is None:
            assert self._helper is not None
            self._use(self._helper.find())
        assert self._daemon is not None
        return self._daemon[0]

    def _use(self, daemon: Found) -> None:
        address, token = daemon
        self._headers = _wire.headers(token)
        self._context = _wire.trust(address, self._verify)
        self._daemon = daemon
        self._client = self._made(address)
        _wire.warn_if_open(address, token)

    async def _ready(self) -> Address:
        """Where the daemon is; it is started again if it has ended with the process that held it."""
        if self._helper is not None:
            found = self._helper.found
            if found is None:
                found = await io.aside(Helper.find, self._helper)
            if found != self._daemon:
                await self.aclose()
                self._use(found)
        return self.address

    async def send(self, call: Call[T], content: Any = None) -> T:
        """What is answered. A request that may be repeated is, if the daemon cannot be reached or says that this will pass."""
        attempts = 0
        while True:
            try:
                response = await self.open(call, content)
                return call.read(await self.body(response, _wire.LARGEST))
            except ForkdError as error:
                attempts += 1
                if not self.again(call, content, attempts, error):
                    raise
            await io.sleep(_policy.pause(attempts))

    async def begin(self, call: Call[Any]) -> httpx.Response:
        """An answer with a status below 400, of which nothing is read yet. The request is repeated until the answer begins."""
        attempts = 0
        while True:
            try:
                return await self.open(call)
            except ForkdError as error:
                attempts += 1
                if not self.again(call, None, attempts, error):
                    raise
            await io.sleep(_policy.pause(attempts))

    def again(self, call: Call[Any], content: Any, attempts: int, error: ForkdError) -> bool:
        """Whether a request is repeated that has failed so often."""
        return call.repeatable and content is None and attempts <= self.retries and _policy.may_pass(error)

    async def lines(self, call: Call[Any], content: Any = None) -> AsyncLines:
        """An answer in lines. It is not repeated: what makes something and tells how far it is would begin again."""
        return AsyncLines(self, await self.open(call.streamed(), content))

    async def open(self, call: Call[Any], content: Any = None) -> httpx.Response:
        """An answer with a status below 400, of which nothing is read yet. The request is sent once."""
        response = await self.exchange(call, content)
        if response.status_code < 400:
            return response
        said = await self.body(response, _wire.LARGEST_ERROR)
        raise refusal(response.status_code, said, response.headers.get("x-request-id"))

    async def exchange(self, call: Call[Any], content: Any = None) -> httpx.Response:
        """An answer with any status, of which nothing is read yet."""
        address = await self._ready()
        client = self._client
        body = content if content is None or isinstance(content, bytes) else io.pieces(content)
        try:
            request = client.build_request(
                call.method,
                address.base + call.path,
                headers={"accept": call.accept, **call.headers},
                content=call.body if body is None else body,
                timeout=_wire.timeout(call, self.timeout),
            )
            return await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if self._helper is not None and isinstance(error, httpx.ConnectError):
                self._helper.lost()
            raise _wire.failure(error, address) from error

    async def body(self, response: httpx.Response, most: int) -> bytes:
        """The whole body of an answer, if it is not too large."""
        pieces = []
        async for piece in self.pieces(response):
            most -= len(piece)
            if most < 0:
                await response.aclose()
                raise ProtocolError("the daemon's answer is too large")
            pieces.append(piece)
        return b"".join(pieces)

    async def pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body of an answer as it comes."""
        try:
            async for piece in response.aiter_raw():
                yield piece
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _wire.failure(error, self.address) from error
        finally:
            await response.aclose()

    async def websocket(self, path: str) -> io.WebSocket:
        """A WebSocket at a path of the API."""
        address = await self._ready()
        try:
            return await io.websocket(address, path, self._headers, self._context)
        except InvalidStatus as error:
            answer = error.response
            raise refusal(answer.status_code, bytes(answer.body or b""), answer.headers.get("x-request-id")) from error
        except (WebSocketException, OSError) as error:
            raise _wire.failure(error, address) from error

    async def aclose(self) -> None:
        """Ends all connections. The next request makes new ones."""
        if self._daemon is not None:
            client, self._client = self._client, self._made(self._daemon[0])
            await client.aclose()

    def _made(self, address: Address) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(**_wire.options(address, self._context))
        return httpx.AsyncClient(transport=transport, headers=self._headers, trust_env=False)


class AsyncLines:
    """The lines of an answer, as they come."""

    def __init__(self, transport: AsyncTransport, response: httpx.Response) -> None:
        self._response = response
        self._pieces = transport.pieces(response)
        self._rest = b""
        self.request_id: Optional[str] = response.headers.get("x-request-id")

    async def next(self) -> Optional[bytes]:
        """The next line; nothing at the end."""
        while b"\n" not in self._rest:
            if len(self._rest) > _wire.LONGEST_LINE:
                raise ProtocolError("a line of the daemon's answer is too long")
            try:
                self._rest += await self._pieces.__anext__()
            except StopAsyncIteration:
                line, self._rest = self._rest, b""
                return line or None
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    async def aclose(self) -> None:
        """Closes the connection of an answer that is not read to its end."""
        await self._response.aclose()
