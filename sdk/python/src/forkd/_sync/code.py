# `sdk/python/generate` writes this file from _async/code.py. Change nothing here.

"""Code in a sandbox's interpreters, and the contexts that it runs in."""

from __future__ import annotations

import builtins
from typing import Optional, Union

from .. import _api, models
from .._call import LINES, parsed
from .._results import Execution, ExecutionError, Logs, Result, of_evaluated
from .._wire import LARGEST
from ..errors import ConnectionFailedError, EvaluationTimeoutError, from_body
from . import io
from .controller import Controller
from .transport import Lines


def run_code(
    controller: Controller,
    sandbox_id: str,
    body: models.Eval,
    on_stdout: Optional[io.Handler[str]],
    on_stderr: Optional[io.Handler[str]],
    on_result: Optional[io.Handler[Result]],
    on_error: Optional[io.Handler[ExecutionError]],
) -> Execution:
    """Runs code, and returns its values, output and error."""
    transport = controller.transport
    call = _api.evaluate(sandbox_id, body)
    response = transport.open(call.streamed())
    if response.headers.get("content-type", "").startswith(LINES):
        execution = _followed(Lines(transport, response), on_stdout, on_stderr, on_result, on_error)
    else:
        # A daemon that does not stream code: all is told at the end.
        execution = of_evaluated(call.read(transport.body(response, LARGEST)))
        _told(execution, on_stdout, on_stderr, on_result, on_error)
    if execution.timed_out:
        raise EvaluationTimeoutError(timeout=body.timeout_secs, execution=execution)
    return execution


def _followed(
    lines: Lines,
    on_stdout: Optional[io.Handler[str]],
    on_stderr: Optional[io.Handler[str]],
    on_result: Optional[io.Handler[Result]],
    on_error: Optional[io.Handler[ExecutionError]],
) -> Execution:
    """An answer that comes line by line."""
    results: list[Result] = []
    logs = Logs([], [])
    error: Optional[ExecutionError] = None
    try:
        while True:
            line = lines.next()
            if line is None:
                raise ConnectionFailedError("the daemon ended the connection before the code's end")
            event = models.EvalEvent.from_json(parsed(line))
            if event.error is not None:
                raise from_body(event.error.to_json(), request_id=lines.request_id)
            if event.stdout is not None:
                logs.stdout.append(event.stdout)
                io.tell(on_stdout, event.stdout)
            if event.stderr is not None:
                logs.stderr.append(event.stderr)
                io.tell(on_stderr, event.stderr)
            if event.result is not None:
                results.append(Result(event.result.data, is_main_result=event.result.main))
                io.tell(on_result, results[-1])
            if event.raised is not None:
                error = ExecutionError(event.raised.name, event.raised.value, event.raised.traceback)
                io.tell(on_error, error)
            if event.ended is not None:
                return Execution(results, logs, error, event.ended.timed_out, event.ended.truncated)
    finally:
        lines.close()


def _told(
    execution: Execution,
    on_stdout: Optional[io.Handler[str]],
    on_stderr: Optional[io.Handler[str]],
    on_result: Optional[io.Handler[Result]],
    on_error: Optional[io.Handler[ExecutionError]],
) -> None:
    for text in execution.logs.stdout:
        io.tell(on_stdout, text)
    for text in execution.logs.stderr:
        io.tell(on_stderr, text)
    for result in execution.results:
        io.tell(on_result, result)
    if execution.error is not None:
        io.tell(on_error, execution.error)


class Contexts:
    """The interpreters of a sandbox. Each keeps its state from call to call."""

    def __init__(self, controller: Controller, sandbox_id: str) -> None:
        self._transport = controller.transport
        self._id = sandbox_id

    def list(self) -> builtins.list[models.CodeContext]:
        """All of them."""
        return self._transport.send(_api.list_contexts(self._id))

    def create(self, language: models.Language = "python", *, cwd: Optional[str] = None) -> models.CodeContext:
        """Starts an interpreter."""
        body = models.CreateCodeContext(language=language, cwd=cwd)
        return self._transport.send(_api.create_context(self._id, body))

    def remove(self, context: Union[str, models.CodeContext]) -> None:
        """Ends an interpreter."""
        self._transport.send(_api.remove_context(self._id, identity(context)))

    def restart(self, context: Union[str, models.CodeContext]) -> None:
        """Restarts an interpreter: its state is lost."""
        self._transport.send(_api.restart_context(self._id, identity(context)))

    def interrupt(self, context: Union[str, models.CodeContext], *, grace: int = 5) -> bool:
        """Interrupts the code that runs. Code that does not stop within `grace` seconds (default 5) is ended with its
        interpreter, which starts anew. Whether that happened.
        """
        body = models.Interrupt(grace_secs=grace)
        return (self._transport.send(_api.interrupt_context(self._id, identity(context), body))).restarted


def identity(context: Union[str, models.CodeContext]) -> str:
    """The id of a context."""
    return context if isinstance(context, str) else context.id
