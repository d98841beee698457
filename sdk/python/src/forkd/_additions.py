"""Types of the API that docs/openapi.json does not have yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from . import models
from ._model import Model


@dataclass(frozen=True)
class CodeContext(Model):
    """An interpreter that keeps its state."""

    id: str
    language: str
    cwd: str
    busy: bool
    """Whether code runs in it."""


@dataclass(frozen=True)
class CreateCodeContext(Model):
    """Starts an interpreter."""

    cwd: Optional[str] = None
    language: models.Language = "python"


@dataclass(frozen=True)
class Interrupt(Model):
    """Interrupts code."""

    grace_secs: int = 5


@dataclass(frozen=True)
class Interrupted(Model):
    """The code has stopped."""

    restarted: bool
    """Whether it did not stop in time, and its interpreter was started anew."""


@dataclass(frozen=True)
class Process(Model):
    """A program that runs."""

    pid: int
    args: list[str]
    tty: bool
    """Whether it has a terminal."""
    cwd: Optional[str] = None
    tag: Optional[str] = None
    """A name that an E2B client has given it."""


@dataclass(frozen=True)
class StartProcess(Model):
    """Starts a program that nobody waits for."""

    args: list[str]
    cwd: Optional[str] = None
    env: dict[str, str] = field(default_factory=dict)
    stdin: bool = False
    """Whether it can be written to."""
    timeout_secs: Optional[int] = None
    user: Optional[str] = None


@dataclass(frozen=True)
class StartedProcess(Model):
    """It runs."""

    pid: int


@dataclass(frozen=True)
class SendSignal(Model):
    """A signal to a program and its process group."""

    signal: models.Signal


@dataclass(frozen=True)
class Displayed(Model):
    """Something that was displayed, by MIME type."""

    data: dict[str, str]
    main: bool


@dataclass(frozen=True)
class EvalEventEnded(Model):
    """The code has ended."""

    timed_out: bool
    truncated: bool


@dataclass(frozen=True)
class EvalEvent(Model):
    """A line of the stream that code tells."""

    stdout: Optional[str] = None
    stderr: Optional[str] = None
    result: Optional[Displayed] = None
    raised: Optional[models.EvalError] = None
    ended: Optional[EvalEventEnded] = None
    error: Optional[models.ErrorBody] = None


@dataclass(frozen=True)
class Evaluated(models.Evaluated):
    """What the code has come to."""

    timed_out: bool = False
    """Whether it was interrupted because its time was over."""


@dataclass(frozen=True)
class FileList(models.FileList):
    """A page of what is in a directory."""

    next: Optional[str] = None
    """Where the next page begins, if there is one."""


@dataclass(frozen=True)
class Event(models.Event):
    """Something has happened."""

    cursor: Optional[str] = None
    """Where to continue: `events(after=…)`."""
