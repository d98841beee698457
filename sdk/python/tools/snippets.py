"""Runs the Python blocks of a Markdown file, one after another, as one program.

with-tools python3 -m tools.snippets ../../docs/sdk-python.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main(path: Path) -> None:
    text = path.read_text()
    known: dict[str, Any] = {"__name__": "__main__"}
    blocks = list(BLOCK.finditer(text))
    if not blocks:
        raise SystemExit(f"{path} has no Python in it")
    for block in blocks:
        # Errors name the line of the file.
        before = "\n" * (text.count("\n", 0, block.start()) + 1)
        exec(compile(before + block[1], str(path), "exec"), known)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
