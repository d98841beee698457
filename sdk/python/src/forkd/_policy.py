"""Retries and time limits: docs/clients.md describes them, and the TypeScript client has the same."""

from __future__ import annotations

import random

from .errors import ConnectionFailedError, ForkdError, ServerError

# Seconds until there is a connection.
CONNECT = 10.0
# Seconds until an answer begins, and between two of its pieces, unless a request has a limit of its own.
USUAL = 60.0
# The same while sandboxes are made or a snapshot is written.
LONG = 600.0
# Seconds after a command's own limit within which the daemon says that it is over.
GRACE = 30.0
# Seconds until forkd hold has found or started a daemon. Its own limits are shorter: 60 s, half an hour for a new machine.
START = 1900.0
# The longest that a command or code may be given, in seconds.
LONGEST = 86400

# How often a request is repeated that may be, unless the caller says.
RETRIES = 2
# Seconds before the second, third, … attempt; the last one counts for all that follow.
PAUSES = (0.1, 0.5)
# Each pause is longer by a random part of this much of it, so that clients do not come back all at once.
JITTER = 0.5


def may_pass(error: ForkdError) -> bool:
    """Whether the same request may succeed a moment later."""
    return isinstance(error, ConnectionFailedError) or (isinstance(error, ServerError) and error.code == "unavailable")


def pause(attempts: int) -> float:
    """Seconds to wait before another attempt, of which there were so many."""
    return PAUSES[min(attempts, len(PAUSES)) - 1] * (1 + random.random() * JITTER)
