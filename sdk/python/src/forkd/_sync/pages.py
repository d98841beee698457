# `sdk/python/generate` writes this file from _async/pages.py. Change nothing here.

"""Lists of sandboxes, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from .. import _api, models
from .controller import Controller


class SandboxPaginator:
    """Sandboxes, the oldest first. Iterate over it, or call `next_items()` while `has_next` is true."""

    def __init__(
        self,
        controller: Controller,
        state: Optional[models.SandboxState],
        metadata: dict[str, str],
        snapshot: Optional[str],
        limit: Optional[int],
    ) -> None:
        self._controller = controller
        self._state = state
        self._metadata = metadata
        self._snapshot = snapshot
        self._limit = limit
        self._after: Optional[str] = None
        self.has_next = True

    def next_items(self) -> list[models.SandboxInfo]:
        """The next page, which may be empty."""
        if not self.has_next:
            return []
        # The daemon looks for one word of metadata; the others are looked for here.
        first = next((f"{key}={value}" for key, value in self._metadata.items()), None)
        call = _api.list_sandboxes(self._state, self._snapshot, first, self._limit, self._after)
        page = self._controller.transport.send(call)
        self._after = page.next
        self.has_next = page.next is not None
        return [info for info in page.sandboxes if self._wanted(info)]

    def __iter__(self) -> Iterator[models.SandboxInfo]:
        while self.has_next:
            for info in self.next_items():
                yield info

    def _wanted(self, info: models.SandboxInfo) -> bool:
        there = self._state is not None or info.state != "ended"
        return there and self._metadata.items() <= info.metadata.items()
