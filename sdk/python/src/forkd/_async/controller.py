"""Every request of the API, typed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Optional, Union

from .. import _address, _api, _autostart, _policy, models
from .._call import Call, parsed
from .._model import M, Model
from .._pack import packed
from .._policy import RETRIES, USUAL
from .._wire import Verify
from ..errors import ConnectionFailedError, ForkdError, ProtocolError, from_body
from . import io
from .transport import AsyncLines, AsyncTransport

BranchMode = Literal["full", "diff", "live"]


class AsyncController:
    """A daemon.

    Without an address, uses the one of FORKD_ADDRESS or FORKD_URL, else this host's daemon, else the machine's; without a
    token, the one in FORKD_TOKEN_FILE or FORKD_TOKEN. `timeout` is how long the daemon may take to answer, if a request has no
    limit of its own. `retries` is how often a repeatable request is repeated. `verify` is a file of certificates to trust, or
    `False` to trust all.

    With `autostart`, or FORKD_AUTOSTART=1, the first request starts a private daemon if none is running and no address is
    given. It ends, with all of its sandboxes, when its last client is closed or has exited.
    """

    def __init__(
        self,
        address: Optional[str] = None,
        token: Optional[str] = None,
        timeout: float = USUAL,
        *,
        retries: int = RETRIES,
        verify: Verify = True,
        autostart: Optional[bool] = None,
    ) -> None:
        self._helper = _autostart.Helper(token) if _autostart.wanted(autostart, address) else None
        self.transport = AsyncTransport(self._helper or _address.find(address, token), timeout, verify, retries)

    @classmethod
    def shared(cls, address: Optional[str] = None, token: Optional[str] = None) -> AsyncController:
        """The default controller of sandboxes and snapshots."""
        if _autostart.wanted(None, address):
            helper = _autostart.shared(token)
            return io.shared(helper, lambda: cls._with(helper))
        found, shown = _address.find(address, token)
        return io.shared((found, shown), lambda: cls(str(found), shown))

    @classmethod
    def _with(cls, helper: _autostart.Helper) -> AsyncController:
        """A controller that does not stop the helper when it is closed, since others use it, too."""
        made = cls.__new__(cls)
        made._helper = None
        made.transport = AsyncTransport(helper, USUAL, True, RETRIES)
        return made

    @property
    def base_url(self) -> str:
        """Where the daemon is."""
        return str(self.transport.address)

    async def __aenter__(self) -> AsyncController:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections, and releases a daemon started by `autostart`. The next request connects again."""
        await self.transport.aclose()
        if self._helper is not None:
            await io.aside(_autostart.Helper.end, self._helper)

    async def health(self) -> models.Health:
        """Whether the daemon accepts requests."""
        return await self.transport.send(_api.health())

    async def version(self) -> models.Version:
        """The versions of the daemon and of its API."""
        return await self.transport.send(_api.version())

    async def caller(self) -> models.Caller:
        """The caller's name, scope, project and limits, as the daemon sees them."""
        return await self.transport.send(_api.caller())

    async def problems(self) -> list[models.Problem]:
        """Files that the daemon cannot read, with reasons. It does not change them, and tries again every minute."""
        return (await self.transport.send(_api.problems())).problems

    async def resolve_name(self, name: str) -> models.Named:
        """Whether a name is a snapshot's tag or a sandbox's id; a tag takes precedence."""
        return await self.transport.send(_api.resolve_name(name))

    async def metrics(self) -> str:
        """The daemon's metrics, in the format of OpenMetrics."""
        return await self.transport.send(_api.metrics())

    async def ca(self) -> str:
        """The certificate of the daemon's own CA, in PEM, for verifying TLS on the daemon's port."""
        return await self.transport.send(_api.ca())

    async def events(
        self,
        *,
        after: Optional[str] = None,
        sandbox: Union[str, Sequence[str]] = (),
        snapshot: Union[str, Sequence[str]] = (),
        event: Union[str, Sequence[str]] = (),
    ) -> AsyncIterator[models.Event]:
        """What happens from now on, or after the `cursor` of an event, without an end.

        `sandbox`, `snapshot` and `event` (the kind) pick events; one must pass all that are given. When the connection breaks,
        it is opened again where it was. Events that the daemon no longer has are told as `missed`. The iterator fails when the
        connection has broken, without an event in between, more often than requests are repeated.
        """
        picked = [[words] if isinstance(words, str) else list(words) for words in (sandbox, snapshot, event)]
        attempts = 0
        while True:
            call = _api.events(after, *picked)
            lines = None
            try:
                lines = AsyncLines(self.transport, await self.transport.open(call))
                while True:
                    line = await lines.next()
                    if line is None:
                        break
                    told = call.read(line)
                    after, attempts = told.cursor or after, 0
                    yield told
                # A daemon without cursors cannot say what was missed.
                if after is None:
                    return
                raise ConnectionFailedError("the daemon ended the stream of events", hint="its log may have the reason")
            except ForkdError as error:
                attempts += 1
                if (lines is not None and after is None) or not self.transport.again(call, None, attempts, error):
                    raise
            finally:
                if lines is not None:
                    await lines.aclose()
            await io.sleep(_policy.pause(attempts))

    async def create_sandboxes(self, body: models.CreateSandboxes) -> models.CreatedSandboxes:
        """Forks sandboxes from a snapshot or from a sandbox: all of them or, unless `partial` is set, none."""
        return await self.transport.send(_api.create_sandboxes(body))

    async def spawn_sandboxes(
        self,
        snapshot_tag: str,
        n: int = 1,
        per_child_netns: bool = False,
        memory_limit_mib: Optional[int] = None,
        prewarm: bool = False,
        live_fork: bool = False,
        hugepages: bool = False,
        *,
        ttl_secs: Optional[int] = None,
        metadata: Optional[dict[str, str]] = None,
        env: Optional[dict[str, str]] = None,
        egress: Optional[models.Egress] = None,
    ) -> list[models.SandboxInfo]:
        """Forks sandboxes from a snapshot.

        `per_child_netns`, `prewarm`, `live_fork` and `hugepages` are accepted for compatibility and have no effect: every
        sandbox has its own network and is forked from a live parent, and huge pages are configured on the host.
        """
        limits = None if memory_limit_mib is None else models.Limits(memory_mib=memory_limit_mib)
        body = models.CreateSandboxes(
            snapshot_tag=snapshot_tag,
            n=n,
            limits=limits,
            ttl_secs=ttl_secs,
            metadata=metadata or {},
            env=env or {},
            egress=egress,
        )
        return (await self.create_sandboxes(body)).sandboxes

    async def list_sandboxes(
        self, *, state: Optional[str] = None, snapshot_tag: Optional[str] = None, metadata: Optional[str] = None
    ) -> list[models.SandboxInfo]:
        """All sandboxes, the oldest first, including recently ended ones. `metadata` is a filter `key=value`."""
        sandboxes: list[models.SandboxInfo] = []
        after = None
        while True:
            page = await self.transport.send(_api.list_sandboxes(state, snapshot_tag, metadata, limit=1000, after=after))
            sandboxes += page.sandboxes
            if page.next is None:
                return sandboxes
            after = page.next

    async def get_sandbox(self, sandbox_id: str) -> models.SandboxInfo:
        """A sandbox."""
        return await self.transport.send(_api.get_sandbox(sandbox_id))

    async def kill_sandbox(self, sandbox_id: str) -> None:
        """Ends a sandbox and removes it. Its branches stay."""
        await self.transport.send(_api.remove_sandbox(sandbox_id))

    async def branch_sandbox(
        self,
        sandbox_id: str,
        tag: Optional[str] = None,
        diff: bool = False,
        measure_diff: bool = False,
        mode: Optional[BranchMode] = None,
        wait: bool = True,
    ) -> models.SnapshotInfo:
        """Makes a snapshot of a sandbox, which keeps running.

        With `wait`, returns when the snapshot is on disk; it can be forked at once. `diff`, `measure_diff` and `mode` are
        accepted for compatibility and have no effect: there is one mode, which copies no memory while the sandbox is paused.
        """
        return await self.transport.send(_api.branch_sandbox(sandbox_id, models.BranchSandbox(tag=tag, wait=wait)))

    async def pause_sandbox(self, sandbox_id: str) -> models.SandboxInfo:
        """Pauses a sandbox."""
        return await self.transport.send(_api.pause_sandbox(sandbox_id))

    async def resume_sandbox(self, sandbox_id: str) -> models.SandboxInfo:
        """Resumes a paused sandbox."""
        return await self.transport.send(_api.resume_sandbox(sandbox_id))

    async def rollback_sandbox(self, sandbox_id: str, tag: str) -> models.SandboxInfo:
        """Returns a sandbox to the state of one of its own branches."""
        return await self.transport.send(_api.rollback_sandbox(sandbox_id, tag))

    async def set_sandbox_ttl(self, sandbox_id: str, ttl_secs: Optional[int]) -> models.SandboxInfo:
        """Changes when a sandbox expires: seconds from now, or `None` for never."""
        return await self.transport.send(_api.set_ttl(sandbox_id, ttl_secs))

    async def set_sandbox_egress(self, sandbox_id: str, egress: models.Egress) -> models.SandboxInfo:
        """Changes which addresses a sandbox may connect to."""
        return await self.transport.send(_api.set_egress(sandbox_id, egress))

    async def set_sandbox_bandwidth(self, sandbox_id: str, bandwidth_mib: Optional[int]) -> models.SandboxInfo:
        """Changes the bandwidth limit of a sandbox, in MiB/s each way; `None` for the daemon's default."""
        body = models.SetBandwidth(bandwidth_mib=bandwidth_mib)
        return await self.transport.send(_api.set_bandwidth(sandbox_id, body))

    async def sandbox_stats(self, sandbox_id: str) -> models.SandboxStats:
        """The CPU time, memory, disk and network use of a sandbox."""
        return await self.transport.send(_api.stats(sandbox_id))

    async def sandbox_console(self, sandbox_id: str, size: Optional[int] = None) -> str:
        """The end of the console output of a guest."""
        return await self.transport.send(_api.console(sandbox_id, size))

    async def exec_command(
        self,
        sandbox_id: str,
        args: Sequence[str],
        timeout_secs: int = 30,
        *,
        cwd: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        user: Optional[str] = None,
        stdin: Optional[str] = None,
    ) -> models.Executed:
        """Runs a program in a sandbox and waits until it ends."""
        body = models.Exec(args=list(args), cwd=cwd, env=env or {}, stdin=stdin, timeout_secs=timeout_secs, user=user)
        return await self.transport.send(_api.execute(sandbox_id, body))

    async def eval_code(
        self,
        sandbox_id: str,
        code: str,
        *,
        language: models.Language = "python",
        context: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        timeout_secs: int = 30,
    ) -> models.Evaluated:
        """Runs code in an interpreter of a sandbox, which keeps its state between calls."""
        body = models.Eval(code=code, context=context, env=env or {}, language=language, timeout_secs=timeout_secs)
        return await self.transport.send(_api.evaluate(sandbox_id, body))

    async def ping_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """Whether the guest of a sandbox answers, and how long that took."""
        begun = time.monotonic()
        await self.transport.send(_api.file_info(sandbox_id, "/", None))
        return {"pong": True, "round_trip_us": round((time.monotonic() - begun) * 1e6)}

    async def create_snapshot(
        self, body: models.CreateSnapshot, on_progress: Optional[io.Handler[models.Progress]] = None
    ) -> models.SnapshotInfo:
        """Boots an image, or forks a snapshot, runs commands and code in it, and freezes it."""
        last = await self._followed(_api.create_snapshot(body), models.Progress, on_progress)
        return last.snapshot or _nothing()

    async def build_snapshot(
        self, body: models.BuildSnapshot, on_progress: Optional[io.Handler[models.Progress]] = None
    ) -> models.BuiltSnapshot:
        """Makes a snapshot, unless one with the same contents exists, and gives it a name."""
        last = await self._followed(_api.build_snapshot(body), models.Progress, on_progress)
        return last.built or _nothing()

    async def list_snapshots(self) -> list[models.SnapshotInfo]:
        """All snapshots."""
        return (await self.transport.send(_api.list_snapshots())).snapshots

    async def get_snapshot(self, tag: str) -> models.SnapshotInfo:
        """A snapshot."""
        return await self.transport.send(_api.get_snapshot(tag))

    async def delete_snapshot(self, tag: str, *, cascade: bool = False, all_names: bool = False) -> list[str]:
        """Removes a snapshot, or an additional name of one. Returns what was removed, in order.

        With `cascade`, also removes the snapshots based on it. A snapshot with other names is removed only with `all_names`.
        """
        removed = await self.transport.send(_api.remove_snapshot(tag, cascade, all_names))
        return [] if removed is None else [*removed.removed, *removed.names]

    async def snapshot_history(self, tag: str) -> models.SnapshotHistory:
        """The chain of snapshots that a snapshot is based on, and those based on it, with sizes on disk."""
        return await self.transport.send(_api.snapshot_history(tag))

    async def verify_snapshot(self, tag: str) -> models.SnapshotVerification:
        """Reads and verifies every file of a snapshot and of the snapshots it is based on."""
        return await self.transport.send(_api.verify_snapshot(tag))

    async def prune_snapshots(
        self,
        *,
        unused_seconds: Optional[int] = None,
        keep_mib: Optional[int] = None,
        named: bool = False,
        project: Optional[str] = None,
        dry_run: bool = False,
    ) -> models.PrunedSnapshots:
        """Removes snapshots that no sandbox or snapshot needs, least recently used first; with `dry_run`, only lists them.

        Snapshots with a chosen name are removed only with `named`, and with `unused_seconds` or `keep_mib`.
        """
        body = models.PruneSnapshots(
            unused_seconds=unused_seconds, keep_mib=keep_mib, named=named, project=project, dry_run=dry_run
        )
        return await self.transport.send(_api.prune_snapshots(body))

    async def publish_snapshot(self, tag: str, public: bool = True) -> models.SnapshotInfo:
        """Makes a snapshot available to every project, or no longer."""
        return await self.transport.send(_api.publish_snapshot(tag, models.Publish(public=public)))

    async def compact_snapshot(self, tag: str) -> models.SnapshotInfo:
        """Makes a snapshot independent of those it is based on."""
        return await self.transport.send(_api.compact_snapshot(tag))

    async def resolve_snapshot(
        self, reference: str, *, credentials: Optional[models.Credentials] = None
    ) -> models.ResolvedSnapshot:
        """The digest of the snapshot that a registry reference points to: what a signature covers."""
        body = models.ResolveSnapshot(reference=reference, credentials=credentials)
        return await self.transport.send(_api.resolve_snapshot(body))

    async def add_snapshot_signature(
        self,
        reference: str,
        *,
        payload: str,
        signature: str,
        key: str,
        credentials: Optional[models.Credentials] = None,
    ) -> models.SnapshotSignature:
        """Stores a signature of a snapshot in the snapshot's registry, as cosign does. The private key stays with the caller.

        `reference` names the snapshot by its digest. `payload` is what was signed, in cosign's form; `signature` is base64 of
        the DER of an ECDSA signature of its SHA-256, and `key` the public key in PEM, on the curve P-256.
        """
        body = models.AddSnapshotSignature(
            key=key, payload=payload, reference=reference, signature=signature, credentials=credentials
        )
        return await self.transport.send(_api.add_snapshot_signature(body))

    async def add_snapshot_name(self, tag: str, name: str, *, force: bool = False) -> models.SnapshotInfo:
        """Gives a snapshot another name; with `force`, moves the name from another snapshot."""
        return await self.transport.send(_api.add_snapshot_name(tag, name, force))

    async def remove_snapshot_name(self, tag: str, name: str) -> models.SnapshotInfo:
        """Removes a name of a snapshot; the snapshot stays."""
        return await self.transport.send(_api.remove_snapshot_name(tag, name)) or await self.get_snapshot(tag)

    async def save_snapshot(self, tag: str) -> AsyncIterator[bytes]:
        """A snapshot with everything it is based on, as a stream of pieces of an archive."""
        response = await self.transport.begin(_api.save_snapshot(tag))
        return self.transport.pieces(response)

    async def load_snapshot(
        self,
        archive: Any,
        *,
        tag: Optional[str] = None,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.SnapshotInfo:
        """Loads a snapshot from an archive: an open file, or an iterator of pieces.

        Without a tag, it gets the name under which it was saved.
        """
        last = await self._followed(_api.load_snapshot(tag), models.LibraryProgress, on_progress, archive)
        return last.snapshot or _nothing()

    async def pull_snapshot(
        self,
        reference: str,
        *,
        tag: Optional[str] = None,
        reuse: bool = False,
        key: Optional[str] = None,
        credentials: Optional[models.Credentials] = None,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.SnapshotInfo:
        """Pulls a snapshot from a registry. Data that a failed pull has stored is not fetched again.

        Without a tag, it keeps the name that its sender gave it. With `reuse`, a snapshot that is already stored under any
        tag is not pulled; a pulled one is named after the reference and its digest. `key` is a public key in PEM that must
        have signed it.
        """
        body = models.PullSnapshot(reference=reference, tag=tag, reuse=reuse, key=key, credentials=credentials)
        last = await self._followed(_api.pull_snapshot(body), models.LibraryProgress, on_progress)
        return last.snapshot or _nothing()

    async def push_snapshot(
        self,
        tag: str,
        reference: str,
        *,
        yes: bool = False,
        mount_from: Sequence[str] = (),
        variant: Optional[str] = None,
        credentials: Optional[models.Credentials] = None,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.PushedSnapshot:
        """Pushes a snapshot, with everything it is based on, to a registry. Data that the registry has is not sent again.

        A snapshot of a sandbox contains the memory of its user, and is pushed only with `yes`. `mount_from` are repositories
        of the same registry that may have parts of it. With `variant`, it is added under this name to the snapshots of the
        tag; a pull takes the first that fits its host.
        """
        body = models.PushSnapshot(
            reference=reference, yes=yes, mount_from=list(mount_from), variant=variant, credentials=credentials
        )
        last = await self._followed(_api.push_snapshot(tag, body), models.LibraryProgress, on_progress)
        return last.pushed or _nothing()

    async def list_repository(
        self, repository: str, *, credentials: Optional[models.Credentials] = None
    ) -> models.RepositoryTags:
        """The tags of a repository, with the snapshots they point to."""
        body = models.ListRepository(repository=repository, credentials=credentials)
        return await self.transport.send(_api.list_repository(body))

    async def list_images(self) -> list[models.ImageSummary]:
        """All images."""
        return (await self.transport.send(_api.list_images())).images

    async def get_image(self, image: str) -> models.ImageInfo:
        """An image, by a name or its id."""
        return await self.transport.send(_api.get_image(image))

    async def pull_image(
        self,
        reference: str,
        *,
        name: Optional[str] = None,
        credentials: Optional[models.Credentials] = None,
        size_mib: Optional[int] = None,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.ImageInfo:
        """Pulls an image from a registry."""
        body = models.PullImage(reference=reference, credentials=credentials, name=name, size_mib=size_mib)
        last = await self._followed(_api.pull_image(body), models.LibraryProgress, on_progress)
        return last.image or _nothing()

    async def debian_image(
        self,
        include: Sequence[str] = (),
        *,
        name: Optional[str] = None,
        suite: str = "bookworm",
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.ImageInfo:
        """Makes a Debian image with these packages, without a registry."""
        body = models.DebianImage(include=list(include), name=name, suite=suite)
        last = await self._followed(_api.debian_image(body), models.LibraryProgress, on_progress)
        return last.image or _nothing()

    async def build_image(
        self,
        directory: str,
        *,
        name: Optional[str] = None,
        dockerfile: Optional[str] = None,
        target: Optional[str] = None,
        no_cache: bool = False,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.ImageInfo:
        """Builds an image from the Dockerfile in a directory, which is sent as a whole. Each step runs in a guest."""
        call = _api.build_image({"name": name, "dockerfile": dockerfile, "target": target, "no_cache": no_cache or None})
        with await io.aside(packed, directory) as archive:
            last = await self._followed(call, models.LibraryProgress, on_progress, archive)
        return last.image or _nothing()

    async def import_image(
        self,
        archive: Any,
        name: str,
        *,
        size_mib: Optional[int] = None,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.ImageInfo:
        """Imports an image from an archive, as `docker save` writes it: an open file, or an iterator of pieces."""
        last = await self._followed(_api.import_image(name, size_mib), models.LibraryProgress, on_progress, archive)
        return last.image or _nothing()

    async def prune_images(self, *, keep_mib: Optional[int] = None, images: bool = False) -> models.PrunedImages:
        """Removes cached build steps, except the last used `keep_mib`; with `images`, also removes unnamed images."""
        return await self.transport.send(_api.prune_images(models.PruneImages(images=images, keep_mib=keep_mib)))

    async def publish_image(self, image: str, public: bool = True) -> models.ImageInfo:
        """Makes an image available to every project, or no longer."""
        return await self.transport.send(_api.publish_image(image, models.Publish(public=public)))

    async def remove_image(self, image: str) -> Optional[models.RemovedImage]:
        """Removes an image, or a name of it. Returns `None` if it was removed a moment ago."""
        return await self.transport.send(_api.remove_image(image))

    async def list_kernels(self) -> list[models.Kernel]:
        """All kernels."""
        return (await self.transport.send(_api.list_kernels())).kernels

    async def add_kernel(
        self,
        *,
        source: Optional[models.KernelSource] = None,
        version: Optional[str] = None,
        default: bool = False,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.Kernel:
        """Adds the kernel of the daemon's host, or of its distribution; with `default`, makes it the default."""
        body = models.AddKernel(default=default, source=source, version=version)
        last = await self._followed(_api.add_kernel(body), models.LibraryProgress, on_progress)
        return last.kernel or _nothing()

    async def import_kernel(
        self,
        archive: Any,
        *,
        default: bool = False,
        on_progress: Optional[io.Handler[models.LibraryProgress]] = None,
    ) -> models.Kernel:
        """Imports a kernel from an archive: an open file, or an iterator of pieces. With `default`, makes it the default."""
        last = await self._followed(_api.import_kernel(default), models.LibraryProgress, on_progress, archive)
        return last.kernel or _nothing()

    async def choose_kernel(self, kernel: str) -> models.Kernel:
        """Sets the default kernel, by its id or version, or a prefix of one."""
        return await self.transport.send(_api.choose_kernel(models.ChooseKernel(kernel=kernel)))

    async def remove_kernel(self, kernel: str, *, force: bool = False) -> Optional[models.Kernel]:
        """Removes a kernel; with `force`, also the default one. Returns `None` if it was removed a moment ago."""
        return await self.transport.send(_api.remove_kernel(kernel, force))

    async def _followed(self, call: Call[Any], kind: type[M], handler: Optional[io.Handler[M]], content: Any = None) -> M:
        """Reports progress, and returns the last line of a stream."""
        lines = await self.transport.lines(call, content)
        try:
            while True:
                line = await lines.next()
                if line is None:
                    raise ProtocolError("the daemon ended the connection before its last word")
                told = kind.from_json(parsed(line))
                error = told.get("error")
                if isinstance(error, Model):
                    raise from_body(error.to_json(), request_id=lines.request_id)
                if any(told.get(name) is not None for name in ("snapshot", "built", "image", "kernel", "pushed")):
                    return told
                await io.tell(handler, told)
        finally:
            await lines.aclose()


def _nothing() -> Any:
    raise ProtocolError("the daemon's last word is about something else")
