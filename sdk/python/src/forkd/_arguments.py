"""What callers of both clients give, as the API has it."""

from __future__ import annotations

import math
from typing import Optional

from . import models
from ._api import LONGEST


def new_sandboxes(
    *,
    snapshot_tag: Optional[str] = None,
    from_sandbox: Optional[str] = None,
    n: int = 1,
    timeout: Optional[float],
    envs: Optional[dict[str, str]],
    metadata: Optional[dict[str, str]],
    limits: Optional[models.Limits],
    egress: Optional[models.Egress],
) -> models.CreateSandboxes:
    """Asks for sandboxes of a snapshot or of a sandbox, with what the client's methods take."""
    return models.CreateSandboxes(
        snapshot_tag=snapshot_tag,
        from_sandbox=from_sandbox,
        n=n,
        ttl_secs=seconds(timeout),
        env=envs or {},
        metadata=metadata or {},
        limits=limits,
        egress=egress,
    )


def limit(timeout: Optional[float]) -> int:
    """How long something may take, in whole seconds; 0 and `None` are as long as it may be."""
    return min(seconds(timeout or None) or LONGEST, LONGEST)


def seconds(timeout: Optional[float]) -> Optional[int]:
    """A time as the API has it, in whole seconds."""
    return None if timeout is None else max(1, math.ceil(timeout))
