"""The names that E2B's client has for the same things."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Optional, cast

if TYPE_CHECKING:
    from .models import FileInfo, SandboxInfo


class FileType(str, Enum):
    """E2B's words for the two kinds of files that it knows."""

    FILE = "file"
    DIR = "dir"


class SandboxNames:
    """E2B's names for what is known of a sandbox."""

    @property
    def sandbox_id(self) -> str:
        return _sandbox(self).id

    @property
    def template_id(self) -> str:
        return _sandbox(self).snapshot_tag

    @property
    def cpu_count(self) -> int:
        return _sandbox(self).vcpus

    @property
    def memory_mb(self) -> int:
        return _sandbox(self).memory_mib

    @property
    def started_at(self) -> datetime:
        return _moment(_sandbox(self).created_at_unix)

    @property
    def end_at(self) -> Optional[datetime]:
        """When it expires; `None` for never."""
        expires = _sandbox(self).expires_at_unix
        return None if expires is None else _moment(expires)


class FileNames:
    """E2B's names for what is known of a file."""

    @property
    def type(self) -> Optional[FileType]:
        """`None` for what is neither a file nor a directory."""
        return {"file": FileType.FILE, "directory": FileType.DIR}.get(_file(self).kind)

    @property
    def modified_time(self) -> datetime:
        return _moment(_file(self).modified_unix)


def _sandbox(names: SandboxNames) -> SandboxInfo:
    return cast("SandboxInfo", names)


def _file(names: FileNames) -> FileInfo:
    return cast("FileInfo", names)


def _moment(unix: int) -> datetime:
    return datetime.fromtimestamp(unix, timezone.utc)
