"""Files of a sandbox."""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncIterator, Sequence
from typing import IO, Any, Literal, Optional, Union, overload

from .. import _api, models
from .._pack import packed
from ..errors import FileError, NotFoundError
from . import io
from .controller import AsyncController

# What a file is made of: text, bytes, a file that is open, or pieces as they come.
Content = Union[str, bytes, IO[Any], Any]

# Entries of a directory that are asked for at once, if a limit is given.
_PAGE = 1000
_RENAME = 'if [ -d "$2" ]; then rmdir -- "$2" || exit; fi; mkdir -p -- "$(dirname -- "$2")" && mv -- "$1" "$2"'


class AsyncFiles:
    """The files of a sandbox. Paths that are not absolute begin at the user's directory."""

    def __init__(self, controller: AsyncController, sandbox_id: str) -> None:
        self._controller = controller
        self._transport = controller.transport
        self._id = sandbox_id

    @overload
    async def read(self, path: str, format: Literal["text"] = "text", *, user: Optional[str] = None) -> str: ...

    @overload
    async def read(self, path: str, format: Literal["bytes"], *, user: Optional[str] = None) -> bytes: ...

    @overload
    async def read(self, path: str, format: Literal["stream"], *, user: Optional[str] = None) -> AsyncIterator[bytes]: ...

    async def read(
        self, path: str, format: Literal["text", "bytes", "stream"] = "text", *, user: Optional[str] = None
    ) -> Union[str, bytes, AsyncIterator[bytes]]:
        """The content of a file: as text, as bytes, or in pieces as they come."""
        call = _api.read_file(self._id, path, user)
        if format == "stream":
            return self._transport.pieces(await self._transport.begin(call))
        content = await self._transport.send(call)
        return content.decode("utf-8", "replace") if format == "text" else content

    async def write(self, path: str, data: Content, *, user: Optional[str] = None) -> models.FileInfo:
        """Makes a file, or replaces one. Directories above it are made."""
        content = data.encode() if isinstance(data, str) else data
        await self._transport.send(_api.write_file(self._id, path, user), content)
        return await self.get_info(path, user=user)

    async def write_files(
        self, files: Sequence[dict[str, Any]], *, user: Optional[str] = None
    ) -> builtins.list[models.FileInfo]:
        """Makes several files, each given as `{"path": …, "data": …}`."""
        return [await self.write(file["path"], file["data"], user=user) for file in files]

    async def list(
        self, path: str, *, user: Optional[str] = None, limit: Optional[int] = None, after: Optional[str] = None
    ) -> builtins.list[models.FileInfo]:
        """Lists a directory, sorted by name: at most `limit` files, and only those after a name."""
        files: builtins.list[models.FileInfo] = []
        while limit is None or len(files) < limit:
            size = None if limit is None else min(limit - len(files), _PAGE)
            page = await self._transport.send(_api.list_files(self._id, path, user, size, after))
            files += page.files
            if page.next is None:
                break
            after = page.next
        return files[:limit]

    async def get_info(self, path: str, *, user: Optional[str] = None) -> models.FileInfo:
        """The metadata of a file. Links are followed."""
        return await self._transport.send(_api.file_info(self._id, path, user))

    async def exists(self, path: str, *, user: Optional[str] = None) -> bool:
        """Whether a file or directory exists."""
        try:
            await self.get_info(path, user=user)
        except NotFoundError as error:
            if error.code != "file_not_found":
                raise
            return False
        return True

    async def make_dir(self, path: str, *, user: Optional[str] = None) -> bool:
        """Makes a directory and those above it. Returns `False` if it exists."""
        if await self.exists(path, user=user):
            return False
        made = await self._controller.exec_command(self._id, ["mkdir", "-p", "--", path], user=user)
        _refuse(made, "the directory cannot be made")
        return True

    async def rename(self, old_path: str, new_path: str, *, user: Optional[str] = None) -> models.FileInfo:
        """Moves a file or a directory. Directories above the new path are made, and a file that is there is replaced."""
        await self.get_info(old_path, user=user)
        moved = await self._controller.exec_command(
            self._id, ["/bin/sh", "-c", _RENAME, "rename", old_path, new_path], user=user
        )
        _refuse(moved, "the file cannot be moved")
        return await self.get_info(new_path, user=user)

    async def remove(self, path: str, *, user: Optional[str] = None) -> None:
        """Removes a file, or a directory with everything in it."""
        await self._transport.send(_api.remove_file(self._id, path, user))

    async def read_archive(self, path: str, *, user: Optional[str] = None) -> AsyncIterator[bytes]:
        """A file or a directory as a tar archive, in pieces as they come. Its names begin with the path's last part."""
        response = await self._transport.begin(_api.read_file(self._id, path, user, archive=True))
        return self._transport.pieces(response)

    async def write_archive(self, path: str, archive: Content, *, user: Optional[str] = None) -> None:
        """Unpacks a tar archive into a directory, which is made if it is not there."""
        await self._transport.send(_api.write_file(self._id, path, user, archive=True), archive)

    async def upload(self, local: str, path: str, *, user: Optional[str] = None) -> None:
        """Copies a file of this host to a path; or a directory into one, which is made if it is not there.

        Without a user, what is in a directory becomes root's: this host's users are not the sandbox's.
        """
        file, archive = await io.aside(_opened, local)
        with file:
            await self._transport.send(_api.write_file(self._id, path, user, archive), file)


def _opened(local: str) -> tuple[IO[bytes], bool]:
    """A file, or an archive of a directory; and whether it is one."""
    if os.path.isfile(local):
        return open(local, "rb"), False
    return packed(local), True


def _refuse(executed: models.Executed, what: str) -> None:
    if executed.exit_code != 0:
        raise FileError(f"{what}: {executed.stderr.strip() or executed.exit_code}")
