"""What commands and code have come to."""

from __future__ import annotations

import codecs
import dataclasses
import json
import shlex
from collections.abc import Sequence
from typing import Any, Optional, Union

from .errors import CommandExitError, CommandTimeoutError, InvalidArgumentError
from .models import Evaluated, Executed

Command = Union[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class CommandResult:
    """How a command has ended."""

    stdout: str
    stderr: str
    exit_code: int
    """128 and the signal's number if a signal has ended it."""
    timed_out: bool = False
    """Whether it was ended because its time was over."""
    truncated: bool = False
    """Whether there was more output than an answer holds."""

    @property
    def error(self) -> Optional[str]:
        """What went wrong, as E2B's client has it."""
        return None if self.exit_code == 0 else f"exit status {self.exit_code}"

    def checked(self, timeout: float) -> CommandResult:
        """The same, unless the command has failed."""
        if self.timed_out:
            raise CommandTimeoutError(timeout=timeout, stdout=self.stdout, stderr=self.stderr)
        if self.exit_code != 0:
            raise CommandExitError(exit_code=self.exit_code, stdout=self.stdout, stderr=self.stderr)
        return self


def of_executed(executed: Executed) -> CommandResult:
    return CommandResult(executed.stdout, executed.stderr, executed.exit_code, executed.timed_out, executed.truncated)


def arguments(command: Command) -> list[str]:
    """A program and its arguments; a text is for the shell."""
    if isinstance(command, str):
        return ["/bin/sh", "-c", command]
    if not command:
        raise InvalidArgumentError("there is no program to run")
    return list(command)


def shown(command: Command) -> str:
    """A command as one would type it."""
    return command if isinstance(command, str) else shlex.join(command)


class Text:
    """Bytes of a stream that become text as they come; a character may be in two pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []

    def add(self, data: bytes) -> str:
        """What they are, as far as it is known."""
        part = self._decoder.decode(data)
        self._parts.append(part)
        return part

    def end(self) -> str:
        """The text of an incomplete character at the end."""
        part = self._decoder.decode(b"", True)
        self._parts.append(part)
        return part

    def __str__(self) -> str:
        return "".join(self._parts)


@dataclasses.dataclass(frozen=True)
class Logs:
    """What code has printed."""

    stdout: list[str]
    stderr: list[str]


@dataclasses.dataclass(frozen=True)
class ExecutionError:
    """The code has failed."""

    name: str
    value: str
    traceback: str


@dataclasses.dataclass(frozen=True)
class Result:
    """Something that was displayed: the same in several formats, by MIME type. Pictures are in base64."""

    formats: dict[str, str]
    is_main_result: bool = False
    """Whether it is the value of the last expression."""

    def __getitem__(self, kind: str) -> str:
        return self.formats[kind]

    @property
    def text(self) -> Optional[str]:
        return self.formats.get("text/plain")

    @property
    def html(self) -> Optional[str]:
        return self.formats.get("text/html")

    @property
    def markdown(self) -> Optional[str]:
        return self.formats.get("text/markdown")

    @property
    def svg(self) -> Optional[str]:
        return self.formats.get("image/svg+xml")

    @property
    def png(self) -> Optional[str]:
        return self.formats.get("image/png")

    @property
    def jpeg(self) -> Optional[str]:
        return self.formats.get("image/jpeg")

    @property
    def latex(self) -> Optional[str]:
        return self.formats.get("text/latex")

    @property
    def json(self) -> Any:
        """The value itself; `None` if it is missing or not JSON."""
        try:
            return json.loads(self.formats["application/json"])
        except (KeyError, ValueError):
            return None


@dataclasses.dataclass(frozen=True)
class Execution:
    """What code has come to."""

    results: list[Result]
    logs: Logs
    error: Optional[ExecutionError] = None
    timed_out: bool = False
    """Whether the code was interrupted because its time was over."""
    truncated: bool = False
    """Whether there was more output than an answer holds."""

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression, as text."""
        return next((result.text for result in self.results if result.is_main_result), None)


def of_evaluated(evaluated: Evaluated) -> Execution:
    results = [Result(formats) for formats in evaluated.results]
    if evaluated.result is not None:
        # What is displayed comes in order, and the last expression's value last.
        main = results.pop().formats if results else {"text/plain": evaluated.result}
        results.append(Result(main, is_main_result=True))
    error = evaluated.error
    return Execution(
        results,
        Logs([evaluated.stdout] if evaluated.stdout else [], [evaluated.stderr] if evaluated.stderr else []),
        None if error is None else ExecutionError(error.name, error.value, error.traceback),
        evaluated.timed_out,
        evaluated.truncated,
    )
