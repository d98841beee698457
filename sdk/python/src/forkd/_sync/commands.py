# `sdk/python/generate` writes this file from _async/commands.py. Change nothing here.

"""Commands of a sandbox, in the foreground and in the background."""

from __future__ import annotations

import base64
import builtins
import json
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Callable, Literal, Optional, Union, overload

from websockets.exceptions import ConnectionClosed

from .. import _api, models
from .._arguments import limit
from .._call import parsed
from .._results import Command, CommandResult, Text, arguments
from ..errors import ConnectionFailedError, ForkdError, NotFoundError, ProtocolError, from_body
from . import io
from .controller import Controller
from .transport import Lines

# The first byte of what a program says.
_STDERR = 2
# What a client may send at once.
_LARGEST_INPUT = 256 << 10
# What a client may send before the program has taken any of it. The daemon listens for signals meanwhile.
_WINDOW = 1 << 20
_CLOSE_STDIN = '"close_stdin"'


class Commands:
    """Runs commands in a sandbox. A text is a command of the shell, `/bin/sh`; a list is a program and its arguments."""

    def __init__(self, controller: Controller, sandbox_id: str) -> None:
        self._controller = controller
        self._id = sandbox_id

    @overload
    def run(
        self,
        cmd: Command,
        background: Literal[False] = False,
        envs: Optional[dict[str, str]] = None,
        user: Optional[str] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[io.Handler[str]] = None,
        on_stderr: Optional[io.Handler[str]] = None,
        stdin: Union[bool, str, None] = None,
        timeout: Optional[float] = 60,
        *,
        tty: Optional[models.TerminalSize] = None,
    ) -> CommandResult: ...

    @overload
    def run(
        self,
        cmd: Command,
        background: Literal[True],
        envs: Optional[dict[str, str]] = None,
        user: Optional[str] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[io.Handler[str]] = None,
        on_stderr: Optional[io.Handler[str]] = None,
        stdin: Union[bool, str, None] = None,
        timeout: Optional[float] = 60,
        *,
        tty: Optional[models.TerminalSize] = None,
    ) -> CommandHandle: ...

    def run(
        self,
        cmd: Command,
        background: bool = False,
        envs: Optional[dict[str, str]] = None,
        user: Optional[str] = None,
        cwd: Optional[str] = None,
        on_stdout: Optional[io.Handler[str]] = None,
        on_stderr: Optional[io.Handler[str]] = None,
        stdin: Union[bool, str, None] = None,
        timeout: Optional[float] = 60,
        *,
        tty: Optional[models.TerminalSize] = None,
    ) -> Union[CommandResult, CommandHandle]:
        """Runs a command.

        In the foreground, returns when it has ended, and raises CommandExitError if it has failed; `on_stdout` and `on_stderr`
        are called with its output as it arrives. In the background, returns a handle at once. `stdin` is its input, or
        `True` if the handle will send that; of a text, 1 MiB is sent at once, and the rest while the handle is waited for or
        iterated over. A `timeout` of 0 or `None` is a day. With `tty`, the command has a terminal of this size, which merges
        stdout and stderr.
        """
        is_open = background and stdin is True
        text = stdin if isinstance(stdin, str) else ""
        body = models.ExecStart(
            args=arguments(cmd),
            cwd=cwd,
            env=envs or {},
            stdin_window=is_open or text != "",
            timeout_secs=limit(timeout),
            tty=tty,
            user=user,
        )
        # The text is not in the first message, which has a largest size as all have.
        handle = CommandHandle.start(
            self._controller, self._id, body, on_stdout, on_stderr, stdin=None if is_open else text.encode()
        )
        if background:
            return handle
        try:
            return handle.wait()
        finally:
            handle.disconnect()

    def start(
        self,
        cmd: Command,
        *,
        envs: Optional[dict[str, str]] = None,
        user: Optional[str] = None,
        cwd: Optional[str] = None,
        stdin: bool = False,
        timeout: Optional[float] = None,
    ) -> int:
        """Starts a program in the background and returns its process id. Without a `timeout`, its time is unlimited.

        With `stdin`, `send_stdin` writes to its stdin; without, its stdin is at its end from the start.
        """
        body = models.StartProcess(
            args=arguments(cmd),
            cwd=cwd,
            env=envs or {},
            stdin=stdin,
            timeout_secs=limit(timeout) if timeout else None,
            user=user,
        )
        return (self._controller.transport.send(_api.start_process(self._id, body))).pid

    def list(self) -> builtins.list[models.Process]:
        """Lists the running programs."""
        return self._controller.transport.send(_api.list_processes(self._id))

    def connect(self, pid: int) -> CommandHandle:
        """Attaches to a running program. Output from before the call is not repeated."""
        socket = self._controller.transport.websocket(_api.connect_process(self._id, pid))
        handle = CommandHandle(socket, 0, has_window=True)
        handle.pid = pid
        return handle

    def send_signal(self, pid: int, signal: models.Signal) -> None:
        """Sends a signal to a program and its process group."""
        self._controller.transport.send(_api.signal_process(self._id, pid, signal))

    def send_stdin(self, pid: int, data: Union[str, bytes]) -> None:
        """Writes to the stdin of a program."""
        for piece in _pieces(data.encode() if isinstance(data, str) else data):
            self._controller.transport.send(_api.process_stdin(self._id, pid), piece)

    def close_stdin(self, pid: int) -> None:
        """Closes the stdin of a program."""
        self._controller.transport.send(_api.process_stdin(self._id, pid, close=True), b"")

    def kill(self, pid: int) -> bool:
        """Kills a program and its process group. Returns `False` if no program has this id."""
        try:
            self.send_signal(pid, "SIGKILL")
        except NotFoundError:
            return False
        return True


class CommandHandle:
    """A running command. Its output is read while a caller waits for it or iterates over it."""

    def __init__(self, socket: io.WebSocket, limit: int, *, has_window: bool) -> None:
        self._socket = socket
        self._limit = limit
        self._stdout = Text()
        self._stderr = Text()
        self._result: Optional[CommandResult] = None
        self._messages: deque[Union[models.ExecEvent, tuple[int, bytes]]] = deque()
        self._over = False
        # Bytes that were sent and that the program has not taken; nothing if the daemon does not report it.
        self._unread: Optional[int] = 0 if has_window else None
        # The unsent rest of the stdin that it was started with.
        self._pending: deque[Union[str, bytes]] = deque()
        # One task at a time receives, and notifies the others.
        self._receiving = False
        self._changed = io.Condition()
        self._on_stdout: Optional[io.Handler[str]] = None
        self._on_stderr: Optional[io.Handler[str]] = None
        self.pid = 0

    @classmethod
    def start(
        cls,
        controller: Controller,
        sandbox_id: str,
        body: models.ExecStart,
        on_stdout: Optional[io.Handler[str]] = None,
        on_stderr: Optional[io.Handler[str]] = None,
        *,
        stdin: Optional[bytes] = None,
    ) -> CommandHandle:
        """Starts a program. Without `stdin`, the handle's caller sends its stdin and closes it."""
        socket = controller.transport.websocket(_api.interact(sandbox_id))
        handle = cls(socket, body.timeout_secs or 0, has_window=body.stdin_window)
        handle._on_stdout, handle._on_stderr = on_stdout, on_stderr
        handle._send(json.dumps(body.to_json()))
        if stdin is not None:
            handle._pending.extend(_pieces(stdin))
            handle._pending.append(_CLOSE_STDIN)
            handle._feed()
        started = handle._next()
        if not isinstance(started, models.ExecEvent) or started.started is None:
            handle.disconnect()
            raise ProtocolError("the daemon did not say that the program runs")
        handle.pid = started.started.pid
        return handle

    @property
    def stdout(self) -> str:
        """Its stdout so far."""
        return str(self._stdout)

    @property
    def stderr(self) -> str:
        """Its stderr so far."""
        return str(self._stderr)

    @property
    def exit_code(self) -> Optional[int]:
        """`None` until the command is known to have ended."""
        return None if self._result is None else self._result.exit_code

    def wait(self, on_stdout: Optional[io.Handler[str]] = None, on_stderr: Optional[io.Handler[str]] = None) -> CommandResult:
        """Waits until it ends. Raises CommandExitError if it failed, CommandTimeoutError if it exceeded its timeout."""
        return (self.ended(on_stdout, on_stderr)).checked(self._limit)

    def ended(self, on_stdout: Optional[io.Handler[str]] = None, on_stderr: Optional[io.Handler[str]] = None) -> CommandResult:
        """Waits until it ends, with any exit code."""
        self._on_stdout = on_stdout or self._on_stdout
        self._on_stderr = on_stderr or self._on_stderr
        while self._result is None:
            self._read()
        return self._result

    def __iter__(self) -> Iterator[tuple[Optional[str], Optional[str]]]:
        """Its stdout and stderr, as they arrive: in each pair, one of the two is `None`."""
        while self._result is None:
            told = self._read()
            if told is not None:
                yield told

    def send_stdin(self, data: Union[str, bytes]) -> None:
        """Writes to its stdin. Waits while the command has more than 1 MiB to read; signals are sent meanwhile."""
        for piece in _pieces(data.encode() if isinstance(data, str) else data):
            self._until(partial(self._reserve, len(piece)))
            self._send(piece)

    def close_stdin(self) -> None:
        """Closes its stdin."""
        self._send(_CLOSE_STDIN)

    def resize(self, cols: int, rows: int) -> None:
        """Changes the size of its terminal."""
        self._send(json.dumps({"resize": {"cols": cols, "rows": rows}}))

    def send_signal(self, signal: models.Signal) -> None:
        """Sends a signal to it and its process group."""
        self._send(json.dumps({"signal": signal}))

    def kill(self) -> bool:
        """Kills it. Returns `False` if it had ended."""
        if self._result is not None:
            return False
        self.send_signal("SIGKILL")
        return True

    def disconnect(self) -> None:
        """Stops following it. It keeps running until its timeout."""
        self._socket.close()

    def _send(self, message: Union[str, bytes]) -> None:
        try:
            self._socket.send(message)
        except ConnectionClosed as error:
            raise ConnectionFailedError("the connection to the program is over") from error

    def _read(self) -> Optional[tuple[Optional[str], Optional[str]]]:
        """Reads the next output and calls its handlers; `None` at the end."""
        event = self._next()
        if isinstance(event, tuple):
            stream, data = event
            text, handler = (self._stderr, self._on_stderr) if stream == _STDERR else (self._stdout, self._on_stdout)
            part = text.add(data)
            if not part:
                return None
            io.tell(handler, part)
            return (None, part) if stream == _STDERR else (part, None)
        if event.exited is not None:
            for text, handler in ((self._stdout, self._on_stdout), (self._stderr, self._on_stderr)):
                rest = text.end()
                if rest:
                    io.tell(handler, rest)
            exited = event.exited
            self._result = CommandResult(self.stdout, self.stderr, exited.exit_code, exited.timed_out)
            self._socket.close()
        return None

    def _next(self) -> Union[models.ExecEvent, tuple[int, bytes]]:
        """The daemon's next message: an event, or output."""
        self._until(lambda: len(self._messages) > 0)
        event = self._messages.popleft()
        if isinstance(event, models.ExecEvent) and event.error is not None:
            self._socket.close()
            response = self._socket.response
            raise _error(event, None if response is None else response.headers.get("x-request-id"))
        return event

    def _reserve(self, size: int) -> bool:
        """Whether `size` bytes may be sent now; if so, counts them as sent."""
        if self._unread is not None and not self._over:
            if self._unread + size > _WINDOW:
                return False
            self._unread += size
        return True

    def _feed(self) -> None:
        """Sends what there is room for of the stdin that it was started with."""
        while self._pending and not self._over:
            piece = self._pending[0]
            with self._changed:
                if isinstance(piece, bytes) and not self._reserve(len(piece)):
                    return
            self._pending.popleft()
            try:
                self._send(piece)
            except ConnectionFailedError:
                # The daemon's last message says why, and is still to be received.
                self._pending.clear()

    def _until(self, reached: Callable[[], bool]) -> None:
        """Receives messages until a condition holds, or waits while another task receives."""
        while True:
            with self._changed:
                while not (done := reached()) and self._receiving:
                    self._changed.wait()
                if done:
                    return
                self._receiving = True
            try:
                self._receive()
            finally:
                with self._changed:
                    self._receiving = False
                    self._changed.notify_all()

    def _receive(self) -> None:
        try:
            message = self._socket.recv()
        except ConnectionClosed as error:
            raise ConnectionFailedError("the daemon ended the connection before the program's end") from error
        if isinstance(message, bytes):
            self._messages.append((message[0], message[1:]) if message else (0, b""))
            return
        event = models.ExecEvent.from_json(parsed(message.encode()))
        if event.stdin_taken is not None:
            with self._changed:
                self._unread = max(0, (self._unread or 0) - event.stdin_taken.bytes)
            self._feed()
            return
        self._over = event.exited is not None or event.error is not None
        self._messages.append(event)


def follow(lines: Lines, on_stdout: Optional[io.Handler[str]], on_stderr: Optional[io.Handler[str]]) -> CommandResult:
    """Follows a program, whose output arrives as lines, to its end."""
    streams = {"stdout": (Text(), on_stdout), "stderr": (Text(), on_stderr)}
    try:
        while True:
            line = lines.next()
            if line is None:
                raise ConnectionFailedError("the daemon ended the connection before the program's end")
            event = models.ExecEvent.from_json(parsed(line))
            if event.error is not None:
                raise _error(event, lines.request_id)
            for name, (text, handler) in streams.items():
                said = event.get(name)
                part = text.add(_bytes(said)) if said else (text.end() if event.exited is not None else "")
                if part:
                    io.tell(handler, part)
            if event.exited is not None:
                texts = [str(text) for text, _ in streams.values()]
                return CommandResult(texts[0], texts[1], event.exited.exit_code, event.exited.timed_out)
    finally:
        lines.close()


def _error(event: models.ExecEvent, request_id: Optional[str]) -> ForkdError:
    return from_body(event.error.to_json() if event.error is not None else {}, request_id=request_id)


def _pieces(data: bytes) -> Iterable[bytes]:
    """Stdin in pieces that a message may have."""
    return (data[begin : begin + _LARGEST_INPUT] for begin in range(0, len(data), _LARGEST_INPUT))


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ProtocolError("the output in the daemon's answer is no base64") from error
