# `sdk/python/generate` writes this file from _async/fork.py. Change nothing here.

"""New sandboxes: of a snapshot or of a sandbox, they are made in one way."""

from __future__ import annotations

from typing import Optional

from .. import models
from .._arguments import seconds
from .controller import Controller


def forked(
    controller: Controller,
    n: int = 1,
    *,
    snapshot_tag: Optional[str] = None,
    from_sandbox: Optional[str] = None,
    timeout: Optional[float],
    envs: Optional[dict[str, str]],
    metadata: Optional[dict[str, str]],
    limits: Optional[models.Limits],
    egress: Optional[models.Egress],
    on_expiry: Optional[models.OnExpiry],
    wake_on_traffic: bool,
) -> list[models.SandboxInfo]:
    """Forks so many sandboxes of a snapshot or of a sandbox, all of them or none."""
    body = models.CreateSandboxes(
        snapshot_tag=snapshot_tag,
        from_sandbox=from_sandbox,
        n=n,
        ttl_secs=seconds(timeout),
        env=envs or {},
        metadata=metadata or {},
        limits=limits,
        egress=egress,
        on_expiry=on_expiry,
        wake_on_traffic=wake_on_traffic,
    )
    return (controller.create_sandboxes(body)).sandboxes
