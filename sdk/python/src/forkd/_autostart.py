"""A private daemon, started by `forkd hold` if none is running; this module starts `forkd hold`.

```text
this process ══ a pipe, closed when this process ends, however it does ══▶ forkd hold ──▶ the daemon, or the machine
             ◀── one line of JSON: where the daemon is ──
```
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
import weakref
from typing import Any, Optional

from . import _address
from ._address import Found
from ._policy import START
from .errors import ConnectionFailedError, InvalidArgumentError, ProtocolError

VARIABLE = "FORKD_AUTOSTART"
# Names the program, if it is not on PATH.
PROGRAM = "FORKD_BIN"
# The longest line that is read.
LONGEST = 1 << 16

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
# What decides which daemon a helper finds.
_VARIABLES = [f"FORKD_{name}" for name in ("HOME", "SOCKET", "MACHINE", "BIN")] + ["XDG_DATA_HOME", "HOME"]


def wanted(given: Optional[bool], address: Optional[str]) -> bool:
    """Whether to start a daemon if none is running. If an address is given, no daemon is started."""
    if _address.named(address) is not None:
        return False
    if given is not None:
        return given
    text = os.environ.get(VARIABLE, "").lower()
    if text not in _YES + _NO:
        raise InvalidArgumentError(f"{VARIABLE} is {text!r}", hint="expected 1 or 0")
    return text in _YES


class Helper:
    """`forkd hold`, started when it is needed. The daemon ends with the last such process."""

    def __init__(self, token: Optional[str] = None) -> None:
        self._token = token
        self._lock = threading.Lock()
        self._found: Optional[Found] = None
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._end: Optional[weakref.finalize[Any, Any]] = None
        _helpers.add(self)

    @property
    def found(self) -> Optional[Found]:
        """Where the daemon is, while it is held or runs without being held."""
        process = self._process
        return None if process is not None and process.poll() is not None else self._found

    def find(self) -> Found:
        """Where the daemon is. One that is gone is started again."""
        with self._lock:
            found = self.found
            if found is None:
                self._stop()
                found = self._found = self._start()
            return found

    def lost(self) -> None:
        """Called if the daemon does not listen. One that was not held may have been stopped, and is looked for again."""
        # Without the lock: a thread that starts a daemon keeps it for long.
        if self._process is None:
            self._found = None

    def end(self) -> None:
        """Lets go of the daemon. The next `find` starts over."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        self._found = self._process = None
        if self._end is not None:
            self._end()
            self._end = None

    def _start(self) -> Found:
        process = _spawned()
        end = weakref.finalize(self, _ended, process)
        try:
            answer = _answer(process)
            if "error" in answer:
                raise ConnectionFailedError(str(answer["error"]), hint=answer.get("hint"))
            address = _address.parse(str(answer["url"]))
            own = answer.get("token")
            is_private = bool(answer["private"])
        except KeyError as error:
            end()
            raise ProtocolError(f"forkd hold has said no {error}", hint="is it of another version?") from error
        except BaseException:
            end()
            raise
        if is_private:
            self._process, self._end = process, end
        else:
            end()
        return address, own if own else _address.token(self._token)

    def _forget(self) -> None:
        """In a child of fork(2): the daemon is held by the parent, and not by a copy of its end of the pipe."""
        self._lock = threading.Lock()
        process, self._found, self._process = self._process, None, None
        if self._end is not None:
            self._end.detach()
            self._end = None
        if process is not None and process.stdin is not None:
            process.returncode = 0
            with contextlib.suppress(OSError):
                process.stdin.close()


_helpers: weakref.WeakSet[Helper] = weakref.WeakSet()
_shared: dict[Any, Helper] = {}
_shared_lock = threading.Lock()


def shared(token: Optional[str] = None) -> Helper:
    """The helper of all controllers that callers have not made. It ends with this process."""
    key = (os.getpid(), token, *(os.environ.get(name) for name in _VARIABLES))
    with _shared_lock:
        return _shared.setdefault(key, Helper(token))


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for helper in list(_helpers):
        helper._forget()
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork)


def _spawned() -> subprocess.Popen[bytes]:
    named = os.environ.get(PROGRAM)
    program = shutil.which(named or "forkd")
    if program is None:
        missing = f"{PROGRAM} names {named}, which is no program" if named else "there is no program forkd on PATH"
        raise ConnectionFailedError(
            f"no daemon can be started: {missing}", hint=f"install forkd, or {PROGRAM} names it, or FORKD_ADDRESS a daemon"
        )
    try:
        # In a session of its own: a Ctrl-C is for this process, which may have sandboxes to remove.
        return subprocess.Popen(
            [program, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
    except OSError as error:
        raise ConnectionFailedError(f"{program} cannot be run: {error.strerror}") from error


def _answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The line that it says when the daemon answers."""
    assert process.stdout is not None
    line, ends = b"", time.monotonic() + START
    ready = select.poll()
    ready.register(process.stdout, select.POLLIN)
    while not line.endswith(b"\n"):
        left = ends - time.monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            raise ConnectionFailedError(f"forkd hold has found and started no daemon within {START:.0f} s")
        piece = os.read(process.stdout.fileno(), LONGEST)
        if not piece:
            status = process.wait()
            raise ConnectionFailedError(
                f"forkd hold ended with status {status} and no answer", hint="run it by hand: forkd hold </dev/null"
            )
        line += piece
        if len(line) > LONGEST:
            raise ProtocolError("the answer of forkd hold is too long")
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ProtocolError("the answer of forkd hold is not a line of JSON", hint="is FORKD_BIN forkd?")
    return answer


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Closes the pipe, which is all that a helper waits for. It sees the daemon's end, which this process does not wait for."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if not sys.is_finalizing():
        with contextlib.suppress(RuntimeError):  # too late for a thread: this process is about to end
            threading.Thread(target=process.wait, daemon=True).start()
            return
    process.returncode = 0
