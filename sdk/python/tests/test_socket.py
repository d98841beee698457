"""Programs in the background, over WebSockets."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Callable

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from fake import ID, SANDBOX
from forkd import AsyncController, AsyncSandbox, ConnectionFailedError, Controller, Sandbox, models

# What a client may send before the program has taken any of it.
WINDOW = 1 << 20


@contextlib.contextmanager
def sandbox_of(handler: Callable[[ServerConnection], None]) -> Iterator[Sandbox]:
    """A sandbox of a daemon that serves WebSockets only."""
    with serve(handler, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        try:
            with Controller(address, token="secret") as controller:
                yield Sandbox(controller, models.SandboxInfo.from_json(SANDBOX))
        finally:
            server.shutdown()


def test_a_program_that_was_connected_to_and_reads_nothing_can_be_killed() -> None:
    received = 0

    def deaf(peer: ServerConnection) -> None:
        nonlocal received
        assert peer.request is not None
        assert peer.request.path == f"/v1/sandboxes/{ID}/processes/9"
        with contextlib.suppress(ConnectionClosed):
            while True:
                message = peer.recv()
                if isinstance(message, bytes):
                    received += len(message)
                elif "SIGKILL" in message:
                    peer.send(json.dumps({"exited": {"exit_code": 137, "timed_out": False}}))

    with sandbox_of(deaf) as sandbox:
        handle = sandbox.commands.connect(9)

        def send() -> None:
            # When the program has ended, the rest may be for nobody.
            with contextlib.suppress(ConnectionFailedError):
                handle.send_stdin(b"x" * (4 * WINDOW))

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        time.sleep(0.3)
        assert 0 < received <= WINDOW
        assert handle.kill()
        assert handle.ended().exit_code == 137
        sending.join(10)


def test_a_program_that_was_connected_to_takes_what_it_is_sent() -> None:
    def cat(peer: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                message = peer.recv()
                if isinstance(message, bytes):
                    peer.send(b"\1" + message)
                    peer.send(json.dumps({"stdin_taken": {"bytes": len(message)}}))
                elif message == '"close_stdin"':
                    peer.send(json.dumps({"exited": {"exit_code": 0, "timed_out": False}}))

    with sandbox_of(cat) as sandbox:
        handle = sandbox.commands.connect(9)
        handle.send_stdin("x" * (3 * WINDOW))
        handle.close_stdin()
        assert len(handle.wait().stdout) == 3 * WINDOW


# What a client may send at once.
LARGEST = 256 << 10


def cat_of(peer: ServerConnection, heard: list[str]) -> None:
    """A program that says what it reads, and ends with its input; its first messages are kept."""
    with contextlib.suppress(ConnectionClosed):
        heard.append(str(peer.recv()))
        peer.send(json.dumps({"started": {"pid": 7}}))
        while True:
            message = peer.recv()
            if isinstance(message, bytes):
                assert len(message) <= LARGEST
                peer.send(b"\1" + message)
                peer.send(json.dumps({"stdin_taken": {"bytes": len(message)}}))
            elif message == '"close_stdin"':
                peer.send(json.dumps({"exited": {"exit_code": 0, "timed_out": False}}))


@pytest.mark.parametrize("size", [0, 5, LARGEST + 1, 3 * WINDOW + 5])
def test_a_long_stdin_goes_in_messages_of_its_own(size: int) -> None:
    heard: list[str] = []
    with sandbox_of(lambda peer: cat_of(peer, heard)) as sandbox:
        told: list[str] = []
        text = "é" * (size // 2) + "x" * (size % 2)
        assert sandbox.commands.run("cat", stdin=text, on_stdout=told.append).stdout == text
        assert "".join(told) == text
        assert sandbox.commands.run("cat", background=True, stdin=text).wait().stdout == text
    assert len(heard) == 2
    for first in heard:
        assert len(first) < 1000
        assert "stdin" not in json.loads(first)


def test_a_program_that_reads_none_of_a_long_stdin_may_end() -> None:
    def busy(peer: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            peer.recv()
            peer.send(json.dumps({"started": {"pid": 7}}))
            while not isinstance(peer.recv(), bytes):
                pass
            peer.send(b"\1enough")
            peer.send(json.dumps({"exited": {"exit_code": 0, "timed_out": False}}))

    with sandbox_of(busy) as sandbox:
        handle = sandbox.commands.run("true", background=True, stdin="x" * (8 * WINDOW))
        assert handle.wait().stdout == "enough"


async def test_a_long_stdin_of_the_asynchronous_client() -> None:
    heard: list[str] = []
    with sandbox_of(lambda peer: cat_of(peer, heard)) as sandbox:
        async with AsyncController(sandbox.controller.base_url, token="secret") as controller:
            waiting = AsyncSandbox(controller, sandbox.info)
            text = "x" * (3 * WINDOW + 5)
            assert (await waiting.commands.run("cat", stdin=text)).stdout == text
