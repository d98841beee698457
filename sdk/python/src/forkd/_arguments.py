"""What callers of both clients give, as the API has it."""

from __future__ import annotations

import math
from typing import Optional

from ._policy import LONGEST


def limit(timeout: Optional[float]) -> int:
    """How long something may take, in whole seconds; 0 and `None` are as long as it may be."""
    return min(seconds(timeout or None) or LONGEST, LONGEST)


def seconds(timeout: Optional[float]) -> Optional[int]:
    """A time as the API has it, in whole seconds."""
    return None if timeout is None else max(1, math.ceil(timeout))
