# `sdk/python/generate` writes this file from _async/sandbox.py. Change nothing here.

"""Sandboxes."""

from __future__ import annotations

import builtins
import os
import time
from typing import Optional, TypeVar, Union

import httpx

from .. import _api, models
from .._arguments import limit, seconds
from .._call import Call, nothing
from .._results import Command, CommandResult, Execution, ExecutionError, Result, arguments, of_evaluated, of_executed
from .._wire import LARGEST
from ..errors import EvaluationError, EvaluationTimeoutError, ForkdError, InvalidArgumentError, NotFoundError
from . import io
from .code import Contexts, identity, run_code
from .commands import Commands, follow
from .controller import Controller
from .files import Files
from .fork import forked
from .pages import SandboxPaginator
from .snapshot import Snapshot

S = TypeVar("S", bound="Sandbox")


class Sandbox:
    """A sandbox. As a context manager, it is removed at the end.

    `info` is the state in the daemon's last answer. `files` and `commands` are as in E2B's client.
    """

    def __init__(self, controller: Controller, info: models.SandboxInfo) -> None:
        self.controller = controller
        self.info = info
        self.files = Files(controller, info.id)
        self.commands = Commands(controller, info.id)
        self.contexts = Contexts(controller, info.id)

    @property
    def sandbox_id(self) -> str:
        """Its id."""
        return self.info.id

    id = sandbox_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r} of {self.info.snapshot_tag!r})"

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.kill()
        except ForkdError:
            # What went wrong before says more.
            if kind is None:
                raise

    @classmethod
    def create(
        cls: type[S],
        snapshot: Union[str, Snapshot, None] = None,
        *,
        template: Optional[str] = None,
        timeout: Optional[float] = 300,
        metadata: Optional[dict[str, str]] = None,
        envs: Optional[dict[str, str]] = None,
        limits: Optional[models.Limits] = None,
        egress: Optional[models.Egress] = None,
        on_expiry: Optional[models.OnExpiry] = None,
        wake_on_traffic: bool = False,
        address: Optional[str] = None,
        token: Optional[str] = None,
        controller: Optional[Controller] = None,
    ) -> S:
        """Forks a sandbox from a snapshot [default: FORKD_TAG, else `base`]. `template` is E2B's word for a snapshot.

        It expires after `timeout` seconds; with `None`, never. It is then removed, or paused if `on_expiry` is `pause`. With
        `wake_on_traffic`, requests to a paused sandbox resume it for another `timeout`.
        """
        named = snapshot or template or os.environ.get("FORKD_TAG") or "base"
        tag = named if isinstance(named, str) else named.tag
        if controller is None and not isinstance(named, str):
            controller = named.controller
        controller = controller or Controller.shared(address, token)
        made = forked(
            controller,
            snapshot_tag=tag,
            timeout=timeout,
            envs=envs,
            metadata=metadata,
            limits=limits,
            egress=egress,
            on_expiry=on_expiry,
            wake_on_traffic=wake_on_traffic,
        )
        return cls(controller, made[0])

    @classmethod
    def connect(
        cls: type[S],
        sandbox_id: str,
        timeout: Optional[float] = None,
        *,
        address: Optional[str] = None,
        token: Optional[str] = None,
        controller: Optional[Controller] = None,
    ) -> S:
        """Connects to a sandbox, and resumes it if it is paused. With a `timeout`, it lives at least that many seconds."""
        controller = controller or Controller.shared(address, token)
        sandbox = cls(controller, controller.get_sandbox(sandbox_id))
        if sandbox.info.state == "paused":
            sandbox.resume()
        if timeout is not None:
            sandbox.extend_timeout(timeout)
        return sandbox

    @classmethod
    def list(
        cls,
        *,
        state: Optional[models.SandboxState] = None,
        metadata: Optional[dict[str, str]] = None,
        snapshot: Optional[str] = None,
        limit: Optional[int] = None,
        address: Optional[str] = None,
        token: Optional[str] = None,
        controller: Optional[Controller] = None,
    ) -> SandboxPaginator:
        """Lists sandboxes, page by page. Ended ones are listed only if `state` asks for them."""
        controller = controller or Controller.shared(address, token)
        return SandboxPaginator(controller, state, metadata or {}, snapshot, limit)

    def get_info(self) -> models.SandboxInfo:
        """Requests its current state."""
        self.info = self.controller.get_sandbox(self.id)
        return self.info

    def is_running(self) -> bool:
        """Whether it is running: neither paused nor ended."""
        try:
            return (self.get_info()).state == "running"
        except NotFoundError:
            return False

    def exec(
        self,
        command: Command,
        *,
        timeout: Optional[float] = 30,
        cwd: Optional[str] = None,
        envs: Optional[dict[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
        on_stdout: Optional[io.Handler[str]] = None,
        on_stderr: Optional[io.Handler[str]] = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command and waits until it ends. A string is a shell command, a list a program and its arguments.

        `on_stdout` and `on_stderr` are called with its output as it arrives. A `timeout` of 0 or `None` is a day. With
        `check`, raises CommandExitError if it fails, and CommandTimeoutError if it exceeds the timeout.
        """
        body = models.Exec(
            args=arguments(command),
            cwd=cwd,
            env=envs or {},
            stdin=stdin,
            timeout_secs=limit(timeout),
            user=user,
        )
        call = _api.execute(self.id, body)
        if on_stdout is None and on_stderr is None:
            result = of_executed(self.controller.transport.send(call))
        else:
            result = follow(self.controller.transport.lines(call), on_stdout, on_stderr)
        return result.checked(body.timeout_secs) if check else result

    def eval(self, code: str, *, language: models.Language = "python", timeout: Optional[float] = 30) -> Optional[str]:
        """Runs code, and returns the value of its last expression as text. Variables are kept between calls.

        Raises EvaluationError if the code fails, and EvaluationTimeoutError if it exceeds the timeout.
        """
        evaluated = self.controller.eval_code(self.id, code, language=language, timeout_secs=limit(timeout))
        error = evaluated.error
        if evaluated.timed_out:
            raise EvaluationTimeoutError(timeout=limit(timeout), execution=of_evaluated(evaluated))
        if error is not None:
            raise EvaluationError(name=error.name, value=error.value, traceback=error.traceback)
        return evaluated.result

    def run_code(
        self,
        code: str,
        language: models.Language = "python",
        *,
        context: Union[str, models.CodeContext, None] = None,
        envs: Optional[dict[str, str]] = None,
        timeout: Optional[float] = 300,
        on_stdout: Optional[io.Handler[str]] = None,
        on_stderr: Optional[io.Handler[str]] = None,
        on_result: Optional[io.Handler[Result]] = None,
        on_error: Optional[io.Handler[ExecutionError]] = None,
    ) -> Execution:
        """Runs code in an interpreter that keeps its state, and returns its values, pictures, output and error.

        `on_stdout`, `on_stderr`, `on_result` and `on_error` are called with each as it arrives. Code that exceeds the timeout
        raises EvaluationTimeoutError, which has the output until then.
        """
        body = models.Eval(
            code=code,
            context=None if context is None else identity(context),
            env=envs or {},
            language=language,
            timeout_secs=limit(timeout),
        )
        return run_code(self.controller, self.id, body, on_stdout, on_stderr, on_result, on_error)

    def branch(self, tag: Optional[str] = None, *, wait: bool = False) -> Snapshot:
        """Makes a snapshot of it while it keeps running. With `wait`, returns when the snapshot is on disk."""
        info = self.controller.branch_sandbox(self.id, tag, wait=wait)
        return Snapshot(self.controller, info)

    def fork(
        self,
        n: int = 1,
        *,
        timeout: Optional[float] = 300,
        envs: Optional[dict[str, str]] = None,
        metadata: Optional[dict[str, str]] = None,
        limits: Optional[models.Limits] = None,
        egress: Optional[models.Egress] = None,
        on_expiry: Optional[models.OnExpiry] = None,
        wake_on_traffic: bool = False,
    ) -> builtins.list[Sandbox]:
        """Forks `n` copies of it, all of them or none, while it keeps running."""
        made = forked(
            self.controller,
            n,
            from_sandbox=self.id,
            timeout=timeout,
            envs=envs,
            metadata=metadata,
            limits=limits,
            egress=egress,
            on_expiry=on_expiry,
            wake_on_traffic=wake_on_traffic,
        )
        return [Sandbox(self.controller, info) for info in made]

    def pause(self) -> models.SandboxInfo:
        """Pauses it: its CPUs stop, its memory stays."""
        self.info = self.controller.pause_sandbox(self.id)
        return self.info

    def resume(self) -> models.SandboxInfo:
        """Resumes it."""
        self.info = self.controller.resume_sandbox(self.id)
        return self.info

    def rollback(self, branch: Union[str, Snapshot]) -> models.SandboxInfo:
        """Returns it to the state of one of its own branches. Its id and its expiry stay the same."""
        tag = branch if isinstance(branch, str) else branch.tag
        self.info = self.controller.rollback_sandbox(self.id, tag)
        return self.info

    def kill(self) -> bool:
        """Removes it. Returns `False` if the daemon does not know it; it knows those removed in the last ten minutes."""
        try:
            self.controller.kill_sandbox(self.id)
        except NotFoundError:
            return False
        return True

    def set_timeout(self, timeout: Optional[float]) -> None:
        """Changes when it expires: seconds from now, or `None` for never."""
        self.info = self.controller.set_sandbox_ttl(self.id, seconds(timeout))

    def extend_timeout(self, timeout: float) -> None:
        """Delays its expiry to at least so many seconds from now."""
        ends = (self.get_info()).expires_at_unix
        if ends is not None and ends < time.time() + timeout:
            self.set_timeout(timeout)

    def set_egress(self, egress: models.Egress) -> None:
        """Changes which addresses it may connect to, also for open connections."""
        self.info = self.controller.set_sandbox_egress(self.id, egress)

    def logs(self, size: Optional[int] = None) -> str:
        """The last bytes of its console output [default: 65536]."""
        return self.controller.sandbox_console(self.id, size)

    def stats(self) -> models.SandboxStats:
        """Its CPU time, memory, disk and network use."""
        return self.controller.sandbox_stats(self.id)

    def proxy_url(self, port: int, path: str = "/") -> str:
        """The URL of one of its ports, for clients with a token of the daemon. A daemon on a Unix socket has no such URL."""
        address = self.controller.transport.address
        if address.socket is not None:
            raise InvalidArgumentError(
                f"the daemon is at {address}, which no URL leads to", hint="fetch() asks a port over the socket"
            )
        return address.base + _api.proxy(self.id, port, path)

    def fetch(
        self,
        port: int,
        path: str = "/",
        *,
        method: str = "GET",
        content: Optional[bytes] = None,
        headers: Optional[dict[str, str]] = None,
        timeout: Optional[float] = None,
    ) -> httpx.Response:
        """Sends an HTTP request to one of its ports. The answer is the guest's, with any status."""
        call: Call[None] = Call(
            method,
            _api.proxy(self.id, port, path),
            nothing,
            accept="*/*",
            headers=headers or {},
            body=content,
            timeout=timeout,
        )
        transport = self.controller.transport
        answer = transport.exchange(call)
        body = transport.body(answer, LARGEST)
        return httpx.Response(answer.status_code, headers=answer.headers, content=body, request=answer.request)
