"""Programs in the background, over WebSockets."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Callable

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from fake import ID, SANDBOX
from forkd import Controller, Sandbox, models

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
        sending = threading.Thread(target=lambda: handle.send_stdin(b"x" * (4 * WINDOW)), daemon=True)
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
