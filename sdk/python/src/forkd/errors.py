"""What goes wrong, one class a family.

```text
ForkdError ─┬─ ConnectionFailedError   no daemon answers, or the connection broke
            ├─ TimedOutError ──────────┬─ RequestTimeoutError   the daemon did not answer in time
            │                          ├─ CommandTimeoutError   a command took too long
            │                          └─ GuestTimeoutError     so did something else in the sandbox: code, for one
            ├─ ProtocolError           the answer is not one of forkd's
            ├─ InvalidArgumentError    the request is invalid
            ├─ AuthenticationError     no token, or an unknown one
            ├─ ForbiddenError          the token does not allow this
            ├─ NotFoundError           there is no such thing ◀─┐
            ├─ FileError ──────────────┬─ SandboxFileNotFoundError
            │                          └─ NotEnoughSpaceError   the sandbox's disk is full
            ├─ ConflictError           the name is taken, or the state does not allow it
            ├─ CapacityError           too many, or no memory or disk left on the host
            ├─ BuildError              an image or snapshot cannot be built
            ├─ GuestError              the guest gave no usable answer
            ├─ UpstreamError           a registry or a mirror failed
            ├─ ServerError             the daemon failed, is starting or is stopping
            ├─ CommandExitError        a command has failed
            └─ EvaluationError         code has failed
```

The daemon's own word for what is wrong is `code`; `hint` says what to do about it, and `hint_code` the same for programs.
`request_id` finds the request in the daemon's log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from ._results import Execution

__all__ = [
    "AuthenticationError",
    "AuthenticationException",
    "BuildError",
    "CapacityError",
    "CommandExitError",
    "CommandExitException",
    "CommandTimeoutError",
    "ConflictError",
    "ConnectionFailedError",
    "ControllerError",
    "EvaluationError",
    "EvaluationTimeoutError",
    "FileError",
    "FileNotFoundException",
    "ForbiddenError",
    "ForkdError",
    "GuestError",
    "GuestTimeoutError",
    "InvalidArgumentError",
    "InvalidArgumentException",
    "NotEnoughSpaceError",
    "NotEnoughSpaceException",
    "NotFoundError",
    "NotFoundException",
    "ProtocolError",
    "RequestTimeoutError",
    "SandboxException",
    "SandboxFileNotFoundError",
    "ServerError",
    "TimedOutError",
    "TimeoutException",
    "UpstreamError",
]


class ForkdError(RuntimeError):
    """Anything that goes wrong between a caller and a sandbox."""

    def __init__(
        self,
        message: str,
        *,
        code: Optional[str] = None,
        hint: Optional[str] = None,
        hint_code: Optional[str] = None,
        status: Optional[int] = None,
        request_id: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.hint_code = hint_code
        self.status = status
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConnectionFailedError(ForkdError):
    """No daemon answers, or the connection to it broke."""


class TimedOutError(ForkdError):
    """Something took too long."""


class RequestTimeoutError(TimedOutError):
    """The daemon did not answer in time, or the request did not reach it in time."""


class ProtocolError(ForkdError):
    """What answers is not a daemon of forkd's, or not one that this client understands."""


class InvalidArgumentError(ForkdError):
    """The request is invalid."""


class AuthenticationError(ForkdError):
    """There is no token, or the daemon does not know it."""


class ForbiddenError(ForkdError):
    """The token does not allow this."""


class NotFoundError(ForkdError):
    """There is no such thing."""


class FileError(ForkdError):
    """A file of a sandbox is of the wrong kind, or its user may not do this."""


class SandboxFileNotFoundError(FileError, NotFoundError):
    """The sandbox has no such file."""


class NotEnoughSpaceError(FileError):
    """The sandbox's disk is full."""


class ConflictError(ForkdError):
    """The name is taken, others depend on it, or its state does not allow this."""


class CapacityError(ForkdError):
    """There are too many already, or the host has no memory or disk left."""


class BuildError(ForkdError):
    """An image or snapshot cannot be built, or a command of the build failed."""


class GuestError(ForkdError):
    """The guest gave no usable answer."""


class GuestTimeoutError(GuestError, TimedOutError):
    """What runs in the sandbox took too long to answer."""


class UpstreamError(ForkdError):
    """A registry or a mirror gave no usable answer."""


class ServerError(ForkdError):
    """The daemon failed, is starting or is stopping."""


class CommandExitError(ForkdError):
    """A command has ended with another code than 0."""

    def __init__(self, *, exit_code: int, stdout: str, stderr: str) -> None:
        last = stderr.strip().splitlines()[-1:]
        super().__init__(": ".join([f"the command ended with {exit_code}", *last]))
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class CommandTimeoutError(TimedOutError):
    """A command was ended because its time was over."""

    def __init__(self, *, timeout: float, stdout: str = "", stderr: str = "") -> None:
        super().__init__(f"the command did not end within {timeout:g} s", hint="timeout= gives it more")
        self.stdout = stdout
        self.stderr = stderr


class EvaluationError(ForkdError):
    """Code has failed."""

    def __init__(self, *, name: str, value: str, traceback: str) -> None:
        super().__init__(f"{name}: {value}")
        self.name = name
        self.value = value
        self.traceback = traceback


class EvaluationTimeoutError(GuestTimeoutError):
    """Code was interrupted because its time was over. `execution` has all output until then."""

    def __init__(self, *, timeout: float, execution: Execution) -> None:
        super().__init__(f"the code did not end within {timeout:g} s", hint="timeout= gives it more")
        self.execution = execution


FAMILIES: dict[str, type[ForkdError]] = {
    "malformed": InvalidArgumentError,
    "method_not_allowed": InvalidArgumentError,
    "too_large": InvalidArgumentError,
    "unsupported_media_type": InvalidArgumentError,
    "range_not_satisfiable": InvalidArgumentError,
    "unauthorized": AuthenticationError,
    "forbidden": ForbiddenError,
    "not_trusted": ForbiddenError,
    "not_found": NotFoundError,
    "file_not_found": SandboxFileNotFoundError,
    "permission_denied": FileError,
    "is_directory": FileError,
    "not_directory": FileError,
    "guest_disk_full": NotEnoughSpaceError,
    "request_timeout": RequestTimeoutError,
    "name_taken": ConflictError,
    "has_dependents": ConflictError,
    "wrong_state": ConflictError,
    "sandbox_ended": ConflictError,
    "idempotency_mismatch": ConflictError,
    "too_many": CapacityError,
    "no_memory": CapacityError,
    "no_disk": CapacityError,
    "build_failed": BuildError,
    "guest_failed": GuestError,
    "port_closed": GuestError,
    "guest_timeout": GuestTimeoutError,
    "upstream_failed": UpstreamError,
    "unavailable": ServerError,
    "internal": ServerError,
}

TOKEN_HINT = "FORKD_TOKEN or token= gives a token; forkd token create makes one"
# What the daemon says in words of its API, for those who use this client. Other hints are shown as they come.
HINTS = {
    "list_sandboxes": "list_sandboxes() lists those there are",
    "list_snapshots": "list_snapshots() lists those there are",
    "list_images": "list_images() lists those there are",
    "list_kernels": "list_kernels() lists those there are",
    "needs_token": TOKEN_HINT,
    "remove_dependents": "remove them first, or all with cascade=True",
    "remove_names": "remove those names first, or all with all_names=True",
    "move_name": "choose another name, or move it with force=True",
    "confirm_push": "push it with yes=True if everybody who can pull it may see that memory",
    "verify_snapshot": "verify_snapshot() names the damaged file",
}


def refusal(status: int, body: bytes, request_id: Optional[str] = None) -> ForkdError:
    """The error that an answer of 400 or more is."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or not isinstance(said.get("error"), str):
        message = f"what answers is not forkd's daemon: status {status} without a reason"
        return ProtocolError(message, status=status, request_id=request_id, hint="FORKD_ADDRESS names another")
    return from_body(said, status, request_id)


def from_body(said: dict[str, object], status: Optional[int] = None, request_id: Optional[str] = None) -> ForkdError:
    """The error of an ErrorBody, also one with a code that this client does not know."""
    code = str(said.get("code"))
    hint, hint_code = said.get("hint"), said.get("hint_code")
    if code == "unauthorized":
        # Also one of a proxy before the daemon, which has no hint.
        hint_code = "needs_token"
    if isinstance(hint_code, str):
        hint = HINTS.get(hint_code, hint)
    family = FAMILIES.get(code, ForkdError)
    return family(
        str(said.get("error")),
        code=code,
        hint=hint if isinstance(hint, str) else None,
        hint_code=hint_code if isinstance(hint_code, str) else None,
        status=status,
        request_id=request_id,
    )


# The names that E2B's and the reference's clients have for them.
ControllerError = ForkdError
SandboxException = ForkdError
TimeoutException = TimedOutError
InvalidArgumentException = InvalidArgumentError
AuthenticationException = AuthenticationError
NotFoundException = NotFoundError
FileNotFoundException = SandboxFileNotFoundError
NotEnoughSpaceException = NotEnoughSpaceError
CommandExitException = CommandExitError
