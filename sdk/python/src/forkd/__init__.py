"""Sandboxes that fork like processes.

```python
from forkd import Sandbox

with Sandbox.create("python") as sandbox:
    sandbox.eval("x = 20")
    children = sandbox.fork(3)
    print([child.eval(f"x + {number}") for number, child in enumerate(children)])
```

`Sandbox` and `Snapshot` are what most programs need, `Controller` has every request of the API, `models` its types, and
`errors` what goes wrong. `AsyncSandbox`, `AsyncSnapshot` and `AsyncController` are the same for asyncio.
"""

from . import errors, models
from ._async.code import AsyncContexts
from ._async.commands import AsyncCommandHandle, AsyncCommands
from ._async.controller import AsyncController
from ._async.files import AsyncFiles
from ._async.pages import AsyncSandboxPaginator
from ._async.sandbox import AsyncSandbox
from ._async.snapshot import AsyncSnapshot
from ._names import FileType
from ._results import CommandResult, Execution, ExecutionError, Logs, Result
from ._sync.code import Contexts
from ._sync.commands import CommandHandle, Commands
from ._sync.controller import BranchMode, Controller
from ._sync.files import Files
from ._sync.pages import SandboxPaginator
from ._sync.sandbox import Sandbox
from ._sync.snapshot import Snapshot
from ._wire import VERSION as __version__
from .errors import *  # noqa: F403
from .models import CodeContext, Egress, FileInfo, Limits, Process, ReadyProbe, SandboxInfo, SnapshotInfo, WarmUp

__all__ = [
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncContexts",
    "AsyncController",
    "AsyncFiles",
    "AsyncSandbox",
    "AsyncSandboxPaginator",
    "AsyncSnapshot",
    "BranchMode",
    "CodeContext",
    "CommandHandle",
    "CommandResult",
    "Commands",
    "Contexts",
    "Controller",
    "Egress",
    "Execution",
    "ExecutionError",
    "FileInfo",
    "FileType",
    "Files",
    "Limits",
    "Logs",
    "Process",
    "ReadyProbe",
    "Result",
    "Sandbox",
    "SandboxInfo",
    "SandboxPaginator",
    "Snapshot",
    "SnapshotInfo",
    "WarmUp",
    "__version__",
    "errors",
    "models",
]
__all__ += errors.__all__
