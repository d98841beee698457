"""Snapshots: what sandboxes are forked from."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional, Union

from .. import models
from .._arguments import new_sandboxes
from . import io
from .controller import AsyncController

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox


class AsyncSnapshot:
    """A frozen guest. `info` is what was known of it when it was last asked."""

    def __init__(self, controller: AsyncController, info: models.SnapshotInfo) -> None:
        self.controller = controller
        self.info = info

    @property
    def tag(self) -> str:
        """Its name."""
        return self.info.tag

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tag!r}, {self.info.status})"

    @classmethod
    async def create(
        cls,
        tag: str,
        image: str,
        *,
        warm_up: Union[str, Sequence[models.WarmUp]] = (),
        start: Optional[Sequence[str]] = None,
        ready: Optional[models.ReadyProbe] = None,
        envs: Optional[dict[str, str]] = None,
        vcpus: Optional[int] = None,
        memory_mib: Optional[int] = None,
        disk_mib: Optional[int] = None,
        network: bool = True,
        kernel: Optional[str] = None,
        wait: bool = True,
        on_progress: Optional[io.Handler[models.Progress]] = None,
        controller: Optional[AsyncController] = None,
    ) -> AsyncSnapshot:
        """Boots an image, warms it up and freezes it.

        `warm_up` is code that has run when sandboxes begin: a text is Python. `on_progress` is told each step and what it
        prints. `wait` is whether the snapshot is on disk when this returns; it can be forked from before that.
        """
        codes = [models.WarmUp(code=warm_up, language="python")] if isinstance(warm_up, str) else list(warm_up)
        body = models.CreateSnapshot(
            image=image,
            tag=tag,
            warm_up=codes,
            start=None if start is None else list(start),
            ready=ready,
            env=envs or {},
            vcpus=vcpus,
            memory_mib=memory_mib,
            disk_mib=disk_mib,
            network=network,
            kernel=kernel,
            wait=wait,
        )
        controller = controller or AsyncController.shared()
        return cls(controller, await controller.create_snapshot(body, on_progress))

    @classmethod
    async def from_sandbox(
        cls,
        sandbox: Union[str, AsyncSandbox],
        tag: Optional[str] = None,
        *,
        wait: bool = True,
        controller: Optional[AsyncController] = None,
    ) -> AsyncSnapshot:
        """Makes a snapshot of a sandbox, which goes on."""
        if not isinstance(sandbox, str):
            return await sandbox.branch(tag, wait=wait)
        controller = controller or AsyncController.shared()
        return cls(controller, await controller.branch_sandbox(sandbox, tag, wait=wait))

    @classmethod
    async def get(cls, tag: str, *, controller: Optional[AsyncController] = None) -> AsyncSnapshot:
        """A snapshot by its name."""
        controller = controller or AsyncController.shared()
        return cls(controller, await controller.get_snapshot(tag))

    @classmethod
    async def list(cls, *, controller: Optional[AsyncController] = None) -> builtins.list[AsyncSnapshot]:
        """All snapshots."""
        controller = controller or AsyncController.shared()
        return [cls(controller, info) for info in await controller.list_snapshots()]

    async def refresh(self) -> models.SnapshotInfo:
        """What is known of it now."""
        self.info = await self.controller.get_snapshot(self.tag)
        return self.info

    async def fork(
        self,
        n: int = 1,
        *,
        timeout: Optional[float] = 300,
        envs: Optional[dict[str, str]] = None,
        metadata: Optional[dict[str, str]] = None,
        limits: Optional[models.Limits] = None,
        egress: Optional[models.Egress] = None,
    ) -> builtins.list[AsyncSandbox]:
        """New sandboxes that begin where this was frozen, all of them or none."""
        from .sandbox import AsyncSandbox

        body = new_sandboxes(
            snapshot_tag=self.tag, n=n, timeout=timeout, envs=envs, metadata=metadata, limits=limits, egress=egress
        )
        created = await self.controller.create_sandboxes(body)
        return [AsyncSandbox(self.controller, info) for info in created.sandboxes]

    async def delete(self, *, cascade: bool = False) -> builtins.list[str]:
        """Removes it; with `cascade`, also the snapshots that are changes of it. What was removed, in this order."""
        return await self.controller.delete_snapshot(self.tag, cascade=cascade)
