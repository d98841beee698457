# `sdk/python/generate` writes this file from _async/snapshot.py. Change nothing here.

"""Snapshots: what sandboxes are forked from."""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Optional, Union

from .. import models
from ..errors import ProtocolError
from . import io
from .controller import Controller
from .fork import forked

if TYPE_CHECKING:
    from .sandbox import Sandbox


class Snapshot:
    """A frozen guest. `info` is the state in the daemon's last answer."""

    def __init__(self, controller: Controller, info: models.SnapshotInfo) -> None:
        self.controller = controller
        self.info = info

    @property
    def tag(self) -> str:
        """Its name."""
        return self.info.tag

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tag!r}, {self.info.status})"

    @classmethod
    def create(
        cls,
        tag: str,
        image: str,
        *,
        run: Sequence[str] = (),
        warm_up: Union[str, Sequence[models.WarmUp]] = (),
        start: Optional[Sequence[str]] = None,
        ready: Optional[models.ReadyProbe] = None,
        envs: Optional[dict[str, str]] = None,
        vcpus: Optional[int] = None,
        memory_mib: Optional[int] = None,
        disk_mib: Optional[int] = None,
        network: bool = True,
        kernel: Optional[str] = None,
        cpu: Optional[models.Cpu] = None,
        host_certs: bool = False,
        e2b: bool = False,
        wait: bool = True,
        on_progress: Optional[io.Handler[models.Progress]] = None,
        controller: Optional[Controller] = None,
    ) -> Snapshot:
        """Boots an image, runs commands and code in it, and freezes it.

        `run` are shell commands, run as root before `warm_up`; if one fails, no snapshot is made. `warm_up` is code that runs
        before the freeze; a string is Python. `on_progress` is called with each step and its output. With `wait`, returns when
        the snapshot is on disk; it can be forked before that.

        `cpu` is the CPU model of the guest: the host's, or a feature level, so that the snapshot runs on other hosts. With
        `host_certs`, the guest has the certificates and proxy settings of the daemon's host; that needs the scope admin.
        With `e2b`, commands, files and code belong to the user `user`, in /home/user, as in E2B.
        """
        body = models.CreateSnapshot(
            image=image,
            tag=tag,
            run=list(run),
            warm_up=_codes(warm_up),
            start=None if start is None else list(start),
            ready=ready,
            env=envs or {},
            vcpus=vcpus,
            memory_mib=memory_mib,
            disk_mib=disk_mib,
            network=network,
            kernel=kernel,
            cpu=cpu,
            host_certs=host_certs,
            e2b=e2b,
            wait=wait,
        )
        controller = controller or Controller.shared()
        return cls(controller, controller.create_snapshot(body, on_progress))

    @classmethod
    def build(
        cls,
        name: str,
        *,
        image: Optional[str] = None,
        snapshot: Optional[Union[str, Snapshot]] = None,
        run: Sequence[str] = (),
        warm_up: Union[str, Sequence[models.WarmUp]] = (),
        start: Optional[Sequence[str]] = None,
        ready: Optional[models.ReadyProbe] = None,
        envs: Optional[dict[str, str]] = None,
        vcpus: Optional[int] = None,
        memory_mib: Optional[int] = None,
        disk_mib: Optional[int] = None,
        network: bool = True,
        kernel: Optional[str] = None,
        cpu: Optional[models.Cpu] = None,
        host_certs: bool = False,
        e2b: bool = False,
        no_cache: bool = False,
        on_progress: Optional[io.Handler[models.Progress]] = None,
        controller: Optional[Controller] = None,
    ) -> Snapshot:
        """Makes a snapshot of an image or of another snapshot, or finds the one with the same contents.

        Give either `image` or `snapshot`; the other arguments are those of `create`, and with a snapshot only `run`, `warm_up`
        and `envs`. The name is moved to it from the snapshot that was built under it before, which stays. With `no_cache`,
        it is made even if one exists.
        """
        contents = models.CreateSnapshot(
            image=image,
            snapshot=snapshot.tag if isinstance(snapshot, Snapshot) else snapshot,
            run=list(run),
            warm_up=_codes(warm_up),
            start=None if start is None else list(start),
            ready=ready,
            env=envs or {},
            vcpus=vcpus,
            memory_mib=memory_mib,
            disk_mib=disk_mib,
            network=network,
            kernel=kernel,
            cpu=cpu,
            host_certs=host_certs,
            e2b=e2b,
        )
        controller = controller or Controller.shared()
        body = models.BuildSnapshot(name=name, contents=contents, no_cache=no_cache)
        built = controller.build_snapshot(body, on_progress)
        if built.snapshot is None:
            raise ProtocolError("the daemon has built a snapshot and does not name it")
        return cls(controller, built.snapshot)

    @classmethod
    def from_sandbox(
        cls,
        sandbox: Union[str, Sandbox],
        tag: Optional[str] = None,
        *,
        wait: bool = True,
        controller: Optional[Controller] = None,
    ) -> Snapshot:
        """Makes a snapshot of a sandbox, which keeps running."""
        if not isinstance(sandbox, str):
            return sandbox.branch(tag, wait=wait)
        controller = controller or Controller.shared()
        return cls(controller, controller.branch_sandbox(sandbox, tag, wait=wait))

    @classmethod
    def get(cls, tag: str, *, controller: Optional[Controller] = None) -> Snapshot:
        """A snapshot by its name."""
        controller = controller or Controller.shared()
        return cls(controller, controller.get_snapshot(tag))

    @classmethod
    def list(cls, *, controller: Optional[Controller] = None) -> builtins.list[Snapshot]:
        """All snapshots."""
        controller = controller or Controller.shared()
        return [cls(controller, info) for info in controller.list_snapshots()]

    @classmethod
    def load(
        cls,
        archive: Any,
        tag: Optional[str] = None,
        *,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
        controller: Optional[Controller] = None,
    ) -> Snapshot:
        """Loads a snapshot that `save` has written: the path of a file, an open file, or an iterator of pieces."""
        controller = controller or Controller.shared()
        if not isinstance(archive, (str, os.PathLike)):
            return cls(controller, controller.load_snapshot(archive, tag=tag, on_progress=on_progress))
        with io.aside(_readable, archive) as file:
            return cls(controller, controller.load_snapshot(file, tag=tag, on_progress=on_progress))

    @classmethod
    def pull(
        cls,
        reference: str,
        tag: Optional[str] = None,
        *,
        reuse: bool = False,
        key: Optional[str] = None,
        credentials: Optional[models.Credentials] = None,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
        controller: Optional[Controller] = None,
    ) -> Snapshot:
        """Pulls a snapshot from a registry. Data that a failed pull has stored is not fetched again.

        Without a tag, it keeps the name that its sender gave it. With `reuse`, a snapshot that is already stored under any
        tag is not pulled; a pulled one is named after the reference and its digest. `key` is a public key in PEM that must
        have signed it.
        """
        controller = controller or Controller.shared()
        info = controller.pull_snapshot(
            reference, tag=tag, reuse=reuse, key=key, credentials=credentials, on_progress=on_progress
        )
        return cls(controller, info)

    @classmethod
    def list_repository(
        cls,
        repository: str,
        *,
        credentials: Optional[models.Credentials] = None,
        controller: Optional[Controller] = None,
    ) -> models.RepositoryTags:
        """The tags of a repository, with the snapshots they point to."""
        controller = controller or Controller.shared()
        return controller.list_repository(repository, credentials=credentials)

    def archive(self) -> Iterator[bytes]:
        """It and everything it is based on, as a stream of pieces of an archive."""
        return self.controller.save_snapshot(self.tag)

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes it and everything it is based on to a file, which appears when it is complete. Only its owner can read the
        file: it has the memory of the guest.
        """
        part = f"{os.fspath(path)}.part"
        file = io.aside(_private, part)
        try:
            with file:
                for piece in self.archive():
                    io.aside(file.write, piece)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise

    def push(
        self,
        reference: str,
        *,
        yes: bool = False,
        mount_from: Sequence[str] = (),
        variant: Optional[str] = None,
        credentials: Optional[models.Credentials] = None,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.PushedSnapshot:
        """Pushes it, with everything it is based on, to a registry. Data that the registry has is not sent again.

        A snapshot of a sandbox contains the memory of its user, and is pushed only with `yes`. With `variant`, it is added
        under this name to the snapshots of the tag; a pull takes the first that fits its host.
        """
        return self.controller.push_snapshot(
            self.tag,
            reference,
            yes=yes,
            mount_from=mount_from,
            variant=variant,
            credentials=credentials,
            on_progress=on_progress,
        )

    def refresh(self) -> models.SnapshotInfo:
        """Requests its current state."""
        self.info = self.controller.get_snapshot(self.tag)
        return self.info

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
        """Forks `n` sandboxes from it, all of them or none."""
        from .sandbox import Sandbox

        made = forked(
            self.controller,
            n,
            snapshot_tag=self.tag,
            timeout=timeout,
            envs=envs,
            metadata=metadata,
            limits=limits,
            egress=egress,
            on_expiry=on_expiry,
            wake_on_traffic=wake_on_traffic,
        )
        return [Sandbox(self.controller, info) for info in made]

    def derive(
        self,
        tag: str,
        *,
        run: Sequence[str] = (),
        warm_up: Union[str, Sequence[models.WarmUp]] = (),
        envs: Optional[dict[str, str]] = None,
        wait: bool = True,
        on_progress: Optional[io.Handler[models.Progress]] = None,
    ) -> Snapshot:
        """Makes a snapshot based on this one, after running commands and code; the arguments are those of `create`."""
        body = models.CreateSnapshot(
            snapshot=self.tag, tag=tag, run=list(run), warm_up=_codes(warm_up), env=envs or {}, wait=wait
        )
        return type(self)(self.controller, self.controller.create_snapshot(body, on_progress))

    def history(self) -> builtins.list[models.SnapshotHistoryEntry]:
        """The chain of snapshots it is based on, itself, and the snapshots based on it."""
        return (self.controller.snapshot_history(self.tag)).snapshots

    def verify(self) -> models.SnapshotVerification:
        """Reads and verifies every file of it and of the snapshots it is based on."""
        return self.controller.verify_snapshot(self.tag)

    def compact(self) -> models.SnapshotInfo:
        """Makes it independent of the snapshots it is based on."""
        self.info = self.controller.compact_snapshot(self.tag)
        return self.info

    def add_name(self, name: str, *, force: bool = False) -> models.SnapshotInfo:
        """Gives it another name; with `force`, moves the name from another snapshot."""
        self.info = self.controller.add_snapshot_name(self.tag, name, force=force)
        return self.info

    def remove_name(self, name: str) -> models.SnapshotInfo:
        """Removes one of its names."""
        self.info = self.controller.remove_snapshot_name(self.tag, name)
        return self.info

    def delete(self, *, cascade: bool = False, all_names: bool = False) -> builtins.list[str]:
        """Removes it; with `cascade`, also the snapshots based on it. Returns what was removed, in order.

        A snapshot with other names is removed only with `all_names`.
        """
        return self.controller.delete_snapshot(self.tag, cascade=cascade, all_names=all_names)


def _readable(path: Union[str, os.PathLike[str]]) -> IO[bytes]:
    return open(path, "rb")


def _private(path: str) -> IO[bytes]:
    """A new file that only its owner can read."""
    # What was left there may be anybody's, or a link.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _codes(warm_up: Union[str, Sequence[models.WarmUp]]) -> builtins.list[models.WarmUp]:
    """A text is Python."""
    return [models.WarmUp(code=warm_up, language="python")] if isinstance(warm_up, str) else list(warm_up)
