"""Directories of this host as archives."""

from __future__ import annotations

import tarfile
import tempfile
from typing import IO


def packed(directory: str) -> IO[bytes]:
    """An archive of a directory, in a file that is gone when it is closed. All in it is root's: this host's users are not known
    there.
    """
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with tarfile.open(fileobj=spool, mode="w") as tar:
            tar.add(directory, arcname=".", filter=_nobodys)
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return spool


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
