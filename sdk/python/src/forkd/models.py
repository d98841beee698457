"""The types of forkd's API, one class each.

Name the fields when you make one: their order is the document's, and may change.

`sdk/python/generate` writes this file from docs/openapi.json. Change nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional

from ._model import Model
from ._names import FileNames, SandboxNames

__all__ = [
    "AddKernel",
    "AddSnapshotSignature",
    "BranchSandbox",
    "BuildOutcome",
    "BuildSnapshot",
    "BuiltSnapshot",
    "Caller",
    "ChooseKernel",
    "CodeContext",
    "Counted",
    "Cpu",
    "CreateCodeContext",
    "CreateSandboxes",
    "CreateSnapshot",
    "CreateTiming",
    "CreatedSandboxes",
    "Credentials",
    "DebianImage",
    "Displayed",
    "DropReason",
    "Egress",
    "EgressMode",
    "EndReason",
    "Ended",
    "ErrorBody",
    "ErrorCode",
    "Eval",
    "EvalError",
    "EvalEvent",
    "EvalEventEnded",
    "Evaluated",
    "Event",
    "Exec",
    "ExecEvent",
    "ExecEventExited",
    "ExecEventStarted",
    "ExecEventStdinTaken",
    "ExecStart",
    "Executed",
    "FileInfo",
    "FileKind",
    "FileList",
    "Health",
    "HintCode",
    "ImageConfig",
    "ImageInfo",
    "ImageList",
    "ImageRecipe",
    "ImageSource",
    "ImageSummary",
    "Interrupt",
    "Interrupted",
    "Kernel",
    "KernelList",
    "KernelSource",
    "KvmStats",
    "Language",
    "LibraryProgress",
    "Limits",
    "ListRepository",
    "Named",
    "NetworkStats",
    "OnExpiry",
    "Problem",
    "ProblemList",
    "Process",
    "Progress",
    "PruneImages",
    "PruneSnapshots",
    "PrunedImages",
    "PrunedSnapshot",
    "PrunedSnapshots",
    "Publish",
    "PullImage",
    "PullSnapshot",
    "PushSnapshot",
    "PushedSnapshot",
    "ReadyProbe",
    "RemovedImage",
    "RemovedSnapshots",
    "RepositoryTag",
    "RepositoryTags",
    "ResolveSnapshot",
    "ResolvedSnapshot",
    "Rollback",
    "SandboxInfo",
    "SandboxList",
    "SandboxState",
    "SandboxStats",
    "Scope",
    "SendSignal",
    "SetBandwidth",
    "SetTtl",
    "Signal",
    "SnapshotDamage",
    "SnapshotHistory",
    "SnapshotHistoryEntry",
    "SnapshotInfo",
    "SnapshotKind",
    "SnapshotList",
    "SnapshotMemory",
    "SnapshotSignature",
    "SnapshotSize",
    "SnapshotStatus",
    "SnapshotVerification",
    "StartProcess",
    "StartedProcess",
    "StepTiming",
    "TcpPort",
    "TerminalSize",
    "TokenLimits",
    "Transfer",
    "Version",
    "WarmUp",
]

# A language of a guest's interpreters. The image determines which are available: TypeScript needs Node.js 22.13 or newer,
# Java a JDK.
Language = Literal["python", "javascript", "typescript", "bash", "r", "java"]

# A signal.
Signal = Literal["SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT", "SIGSTOP", "SIGTSTP"]

# Each code always comes with the same status.
ErrorCode = Literal[
    "malformed",
    "unauthorized",
    "forbidden",
    "permission_denied",
    "not_trusted",
    "not_found",
    "file_not_found",
    "method_not_allowed",
    "request_timeout",
    "name_taken",
    "has_dependents",
    "wrong_state",
    "sandbox_ended",
    "idempotency_mismatch",
    "is_directory",
    "not_directory",
    "too_large",
    "unsupported_media_type",
    "range_not_satisfiable",
    "build_failed",
    "too_many",
    "guest_failed",
    "port_closed",
    "upstream_failed",
    "guest_timeout",
    "no_memory",
    "no_disk",
    "guest_disk_full",
    "unavailable",
    "internal",
]

# The CPU model of a guest.
Cpu = Literal["host", "x86-64-v2", "x86-64-v3"]

# The values of EgressMode.
EgressMode = Literal["allow", "deny", "list"]

# The values of EndReason.
EndReason = Literal["shutdown", "reset", "kernel_panic", "failed", "killed", "out_of_memory", "expired"]

# The values of FileKind.
FileKind = Literal["file", "directory", "symlink", "other"]

# The values of KernelSource.
KernelSource = Literal["package", "host"]

# The values of SandboxState.
SandboxState = Literal["starting", "running", "paused", "ended"]

# The values of SnapshotStatus.
SnapshotStatus = Literal["live", "persisting", "ready", "failed"]

# What a build did, or would do.
BuildOutcome = Literal["unchanged", "reused", "made"]

# What a token allows. Each scope includes those before it.
Scope = Literal["read", "run", "admin"]

# What to do about an error.
HintCode = Literal[
    "list_sandboxes",
    "list_snapshots",
    "list_sources",
    "list_images",
    "list_kernels",
    "list_branches",
    "name_template",
    "choose_tag",
    "remove_dependents",
    "remove_names",
    "compact_dependents",
    "verify_snapshot",
    "move_name",
    "confirm_push",
    "list_names",
    "remove_users",
    "remove_branches",
    "remove_sandboxes",
    "raise_sandboxes",
    "raise_project_limits",
    "raise_token_limits",
    "free_memory",
    "free_disk",
    "remove_images",
    "make_again",
    "merge_layers",
    "fit_disk",
    "network_of_host",
    "network_of_snapshot",
    "allow_instead",
    "cgroup_of_host",
    "disk_of_host",
    "try_code",
    "image_with_language",
    "build_on_image",
    "pull_first",
    "set_up_template",
    "try_again",
    "try_later",
    "try_again_or_remove",
    "look_at_end",
    "look_at_console",
    "resume_first",
    "start_listening",
    "ask_for_archive",
    "daemon_log",
    "examine_host",
    "on_host",
    "needs_root",
    "registry_credentials",
    "choose_kernel",
    "needs_token",
    "needs_scope",
    "needs_project",
    "not_from_web_page",
    "send_json",
    "read_api",
    "use_method",
    "use_post",
    "new_key",
]

# What to do when a sandbox expires.
OnExpiry = Literal["end", "pause"]

# Whether a snapshot stores all of its memory.
SnapshotKind = Literal["full", "diff"]

# Why a packet or name was dropped.
DropReason = Literal["refused", "spoofed", "over_limit"]


@dataclass(frozen=True)
class AddKernel(Model):
    """Adds a kernel of the daemon's host."""

    default: bool = False
    """Whether to make it the default."""

    source: Optional[KernelSource] = None

    version: Optional[str] = None
    """The version, for the host's own kernels [default: the newest]."""


@dataclass(frozen=True)
class AddSnapshotSignature(Model):
    """Adds a signature to a snapshot in a registry. The client makes it with its private key."""

    key: str
    """The public key in PEM (ECDSA P-256). The signature is checked with it."""

    payload: str
    """The signed JSON, in cosign's simple signing format. At most 64 KiB."""

    reference: str
    """The signed snapshot, by digest: `registry.example/team/app@sha256:…`."""

    signature: str
    """The ECDSA signature of the payload's SHA-256, as base64 of DER."""

    credentials: Optional[Credentials] = None
    """Credentials for the registry [default: those of the daemon's Docker config file]."""


@dataclass(frozen=True)
class BranchSandbox(Model):
    """Makes a snapshot of a sandbox, which keeps running."""

    tag: Optional[str] = None
    """The snapshot's tag [default: a generated one]."""

    wait: bool = False
    """Whether to respond only when the snapshot is on disk, instead of as soon as it can be forked."""


@dataclass(frozen=True)
class BuildSnapshot(Model):
    """Builds a snapshot: makes it unless one with the same contents exists, and gives it a name."""

    contents: CreateSnapshot
    """The inputs, without a tag: the tag is the name with digits of the key."""

    name: str
    """The name: 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit. A snapshot that was built under
    this name before loses the name, but is not removed.
    """

    dry_run: bool = False
    """Whether to make nothing and only report what would be made."""

    no_cache: bool = False
    """Whether to make it again even if a snapshot with the same contents exists."""


@dataclass(frozen=True)
class BuiltSnapshot(Model):
    """The result of a build."""

    name: str

    outcome: BuildOutcome

    key: Optional[str] = None
    """The digest of its inputs. Missing if the snapshot that it is based on would have to be made first."""

    replaced: Optional[str] = None
    """The tag of the snapshot that had the name before, if it was another one."""

    snapshot: Optional[SnapshotInfo] = None
    """Missing if it does not exist yet."""


@dataclass(frozen=True)
class Caller(Model):
    """The caller of a request."""

    name: str
    """`token:NAME`, `unix:UID`, or `local` for a caller on the loopback without a token."""

    project: str
    """The project of the objects it creates."""

    scope: Scope

    limits: Optional[TokenLimits] = None
    """The limits on the objects it creates."""


@dataclass(frozen=True)
class ChooseKernel(Model):
    """Chooses the default."""

    kernel: str
    """A name or a unique prefix of one, such as a version."""


@dataclass(frozen=True)
class CodeContext(Model):
    """An interpreter with its state, which code in it shares."""

    busy: bool
    """Whether code is running in it."""

    cwd: str

    id: str

    language: str
    """The language's name, as in Eval; other agents may have other languages."""


@dataclass(frozen=True)
class Counted(Model):
    """The resource usage of a sandbox at two points of its creation."""

    ready: SandboxStats
    """When its guest had its identity and was ready."""

    running: SandboxStats
    """When its VM was running."""


@dataclass(frozen=True)
class CreateCodeContext(Model):
    """Makes a context and starts its interpreter."""

    cwd: Optional[str] = None
    """The working directory [default: the user's home directory]."""

    language: Optional[Language] = None


@dataclass(frozen=True)
class CreateSandboxes(Model):
    """Creates sandboxes in one operation."""

    counted: bool = False
    """Whether to measure the resource usage of each sandbox during the creation, which makes it slower."""

    egress: Optional[Egress] = None
    """What they may reach [default: the same as the sandbox that they or their snapshot come from, otherwise the
    internet].
    """

    env: dict[str, str] = field(default_factory=dict)
    """Added to the environment of every program started in them."""

    from_sandbox: Optional[str] = None
    """A sandbox to copy. It is branched and keeps running; the branch is removed when the copies exist."""

    limits: Optional[Limits] = None

    metadata: dict[str, str] = field(default_factory=dict)
    """Arbitrary keys and values, which lists can be filtered by."""

    n: int = 1
    """The number of sandboxes."""

    on_expiry: Optional[OnExpiry] = None
    """What to do when they expire."""

    partial: bool = False
    """Whether to keep the sandboxes that started when others fail."""

    snapshot_tag: Optional[str] = None
    """The snapshot to fork from."""

    source: Optional[str] = None
    """What to fork: the snapshot with this name, or else the sandbox with this id. Give exactly one of `source`,
    `snapshot_tag` and `from_sandbox`.
    """

    ttl_secs: Optional[int] = None
    """Seconds until they expire."""

    wake_on_traffic: bool = False
    """Whether requests to a paused sandbox (code, commands, files, ports) resume it for another `ttl_secs`."""


@dataclass(frozen=True)
class CreateSnapshot(Model):
    """Boots an image or forks a snapshot, runs commands and code in the guest, and takes a snapshot of it. Needs exactly
    one of `image` and `snapshot`.
    """

    cpu: Optional[Cpu] = None
    """The CPU model of the guest. A snapshot with a level runs on every host that has the level."""

    disk_mib: Optional[int] = None
    """The disk space that its sandboxes can write."""

    e2b: bool = False
    """Whether to set the guest up for E2B clients: commands, files and code run as the user `user` unless a call names
    another, in /home/user, with passwordless sudo, on any image.
    """

    env: dict[str, str] = field(default_factory=dict)

    host_certs: bool = False
    """Whether to pass the CA certificates and proxy settings of the daemon's host to the guest, for hosts behind an
    intercepting proxy: in its environment, in /run/forkd, and in its own file of trusted certificates, if it has one.
    Needs the scope admin.
    """

    image: Optional[str] = None
    """The name or id of an image."""

    kernel: Optional[str] = None
    """The id or version of a kernel [default: the default kernel]."""

    memory_mib: Optional[int] = None

    network: bool = True
    """Whether the guest has a network device. Without one, its sandboxes can only be reached through the daemon."""

    ready: Optional[ReadyProbe] = None

    run: list[str] = field(default_factory=list)
    """Commands to run in order, as root with `sh -c`, before `warm_up`. The request fails if one of them fails."""

    snapshot: Optional[str] = None
    """A snapshot to base the new one on, which stores only the difference. Needs a tag. The guest's configuration is
    inherited: of the other fields, only `env`, `run`, `warm_up` and `wait` can be given.
    """

    start: Optional[list[str]] = None
    """A program to start when the guest boots."""

    tag: Optional[str] = None
    """The tag. Without one, it is derived from the inputs, and the snapshot is made only once: equal requests get the same
    snapshot, also while it is still being made.
    """

    vcpus: Optional[int] = None

    wait: bool = True
    """Whether to respond only when the snapshot is on disk, instead of as soon as it can be forked."""

    warm_up: list[WarmUp] = field(default_factory=list)
    """Code to run in order before the snapshot is taken."""


@dataclass(frozen=True)
class CreateTiming(Model):
    """How long it took since the request was admitted."""

    ready_us: int
    """Until every guest had its identity and was ready."""

    restored_us: int
    """Until every VM was running."""

    steps: list[StepTiming] = field(default_factory=list)
    """The time of each step, without gaps. Steps that begin with `identity.` are parts of the step `identity`."""


@dataclass(frozen=True)
class CreatedSandboxes(Model):
    """The result of a request for sandboxes."""

    sandboxes: list[SandboxInfo]

    timing: CreateTiming

    counted: list[Counted] = field(default_factory=list)
    """The measured usage of each sandbox, if requested, in no particular order."""

    failures: list[ErrorBody] = field(default_factory=list)
    """The errors of those that failed, with `partial`."""


@dataclass(frozen=True)
class Credentials(Model):
    """Credentials for a registry. They are neither stored nor logged."""

    password: str

    username: str


@dataclass(frozen=True)
class DebianImage(Model):
    """Makes a Debian image from Debian packages."""

    include: list[str] = field(default_factory=list)
    """Packages to add to the minimal system."""

    mirror: Optional[str] = None
    """The package mirror: an http:// or https:// address."""

    name: Optional[str] = None
    """The name of the image [default: derived from the suite and the packages]."""

    size_mib: Optional[int] = None
    """The minimum size of the file system."""

    suite: str = "bookworm"


@dataclass(frozen=True)
class Displayed(Model):
    """A value that was displayed."""

    data: dict[str, str]
    """The value in each of its MIME types. Binary data is in base64."""

    main: bool
    """Whether it is the value of the last expression."""


@dataclass(frozen=True)
class Egress(Model):
    """Where a sandbox may send packets. The host and other sandboxes are never reachable."""

    mode: EgressMode

    allow: list[str] = field(default_factory=list)
    """Destinations allowed in the mode `list`, and in the mode `allow` in spite of `deny`: networks (`10.1.0.0/16`),
    addresses, names (`example.com`, `*.example.com`), each optionally with ports (`example.com:443`,
    `10.0.0.7:80,8000-8100`, `[2001:db8::/32]:443`).
    """

    deny: list[str] = field(default_factory=list)
    """Networks (`8.8.8.0/24`) and addresses that are blocked in the mode `allow`. `allow` takes precedence."""


@dataclass(frozen=True)
class Ended(Model):
    """Why a VM has ended."""

    at_unix: int

    detail: str

    reason: EndReason


@dataclass(frozen=True)
class ErrorBody(Model):
    """The body of every response with a status of 400 or more."""

    code: ErrorCode
    """What failed, as a code."""

    error: str
    """What failed, as text."""

    hint: Optional[str] = None
    """What to do about it, as text."""

    hint_code: Optional[HintCode] = None
    """What to do about it, as a code."""


@dataclass(frozen=True)
class Eval(Model):
    """Runs code in an interpreter that keeps its state."""

    code: str

    context: Optional[str] = None
    """The context to use [default: the language's default one]."""

    env: dict[str, str] = field(default_factory=dict)

    language: Optional[Language] = None

    timeout_secs: int = 30


@dataclass(frozen=True)
class EvalError(Model):
    """An error raised by the code."""

    name: str

    traceback: str

    value: str


@dataclass(frozen=True)
class EvalEventEnded(Model):
    """The last line."""

    timed_out: bool
    """Whether it was interrupted because it timed out."""

    truncated: bool
    """Whether output was cut because it was too large."""


@dataclass(frozen=True)
class EvalEvent(Model):
    """A line of the streamed response (`Accept: application/x-ndjson`)."""

    stdout: Optional[str] = None

    stderr: Optional[str] = None

    result: Optional[Displayed] = None

    raised: Optional[EvalError] = None
    """The code raised an error. `ended` follows."""

    ended: Optional[EvalEventEnded] = None
    """The last line."""

    error: Optional[ErrorBody] = None
    """The last line: the stream failed before the end."""


@dataclass(frozen=True)
class Evaluated(Model):
    """The result of code."""

    results: list[dict[str, str]]
    """Everything that was displayed, by MIME type, including the last expression."""

    stderr: str

    stdout: str

    truncated: bool
    """Whether output was cut because it did not fit into the response."""

    error: Optional[EvalError] = None

    result: Optional[str] = None
    """The value of the last expression, as text."""

    timed_out: bool = False
    """Whether it was interrupted because it timed out. The output until then is included."""


@dataclass(frozen=True)
class Event(Model):
    """An event."""

    event: Literal[
        "sandbox",
        "sandbox_removed",
        "panicked",
        "out_of_disk",
        "busy",
        "rolled_back",
        "dropped",
        "snapshot",
        "snapshot_removed",
        "missed",
    ]

    at_unix_ms: int

    ended: Optional[Ended] = None

    id: Optional[str] = None

    state: Optional[SandboxState] = None

    limit_bytes: Optional[int] = None

    contexts: list[str] = field(default_factory=list)

    tag: Optional[str] = None

    destination: Optional[str] = None

    name: Optional[str] = None
    """The queried name."""

    port: Optional[int] = None

    protocol: Optional[str] = None
    """`tcp`, `udp`, `icmp`, `icmpv6`, or an IP protocol number."""

    reason: Optional[DropReason] = None

    status: Optional[SnapshotStatus] = None

    count: Optional[int] = None
    """The number of missed events, unless the daemon has been restarted."""

    cursor: Optional[str] = None
    """A position in the stream: pass it as `after` to continue after this event."""


@dataclass(frozen=True)
class Exec(Model):
    """Runs a program and waits until it ends."""

    args: list[str]
    """The program and its arguments."""

    cwd: Optional[str] = None

    env: dict[str, str] = field(default_factory=dict)

    stdin: Optional[str] = None
    """The stdin of the program."""

    timeout_secs: int = 30

    user: Optional[str] = None
    """The user that runs it [default: the image's]."""


@dataclass(frozen=True)
class ExecEventStarted(Model):
    """The answer's type ExecEventStarted."""

    pid: int


@dataclass(frozen=True)
class ExecEventStdinTaken(Model):
    """Bytes of stdin that the program has read, or will never read, since the last such event. Only over a WebSocket, and
    only with `stdin_window`.
    """

    bytes: int


@dataclass(frozen=True)
class ExecEventExited(Model):
    """The last line: the program has ended."""

    exit_code: int

    timed_out: bool


@dataclass(frozen=True)
class ExecEvent(Model):
    """A line of the streamed response (`Accept: application/x-ndjson`). Bytes are in base64."""

    started: Optional[ExecEventStarted] = None

    stdout: Optional[str] = None

    stderr: Optional[str] = None

    stdin_taken: Optional[ExecEventStdinTaken] = None
    """Bytes of stdin that the program has read, or will never read, since the last such event. Only over a WebSocket, and
    only with `stdin_window`.
    """

    exited: Optional[ExecEventExited] = None
    """The last line: the program has ended."""

    error: Optional[ErrorBody] = None
    """The last line: the stream failed before the end."""


@dataclass(frozen=True)
class ExecStart(Model):
    """Starts an interactive program: the client's first message, as text."""

    args: list[str]
    """The program and its arguments."""

    cwd: Optional[str] = None

    env: dict[str, str] = field(default_factory=dict)

    stdin: Optional[str] = None
    """Stdin that precedes the binary messages."""

    stdin_window: bool = False
    """Whether to send `stdin_taken` events. While a client has sent at most 1 MiB more in binary messages than these
    report, the daemon keeps reading its messages even if the program does not read: signals, resizes and a disconnect
    take effect at once. Without these events, the daemon stops reading from a client that has sent more than 1 MiB
    until the program reads.
    """

    timeout_secs: Optional[int] = None
    """Seconds until it is killed [default: 30; with a terminal, 86400]."""

    tty: Optional[TerminalSize] = None
    """Gives the program a terminal of this size. `TERM` is `xterm-256color` unless `env` sets it."""

    user: Optional[str] = None
    """The user that runs it [default: the image's]."""


@dataclass(frozen=True)
class Executed(Model):
    """The result of a program."""

    exit_code: int
    """128 plus the signal number if a signal ended it."""

    stderr: str

    stdout: str
    """Invalid UTF-8 is replaced; the stream has the exact bytes."""

    timed_out: bool
    """Whether it was killed because it timed out."""

    truncated: bool
    """Whether output was cut because it did not fit into the response."""


@dataclass(frozen=True)
class FileInfo(FileNames, Model):
    """Metadata of a file. Symbolic links are followed."""

    group: str

    kind: FileKind

    mode: int
    """The permission bits as a number: `0o644` is 420."""

    modified_unix: int

    name: str

    owner: str

    path: str

    size: int

    symlink_target: Optional[str] = None
    """The target of a symbolic link."""


@dataclass(frozen=True)
class FileList(Model):
    """The entries of a directory, sorted by name."""

    files: list[FileInfo]

    truncated: bool
    """Whether there are more entries."""

    next: Optional[str] = None
    """If there are more: pass this as `after` to get the next page."""


@dataclass(frozen=True)
class Health(Model):
    """The answer's type Health."""

    ok: bool


@dataclass(frozen=True)
class ImageInfo(Model):
    """An image with its details."""

    created_at_unix: int

    default_user: str
    """The default user of its processes."""

    disk_bytes: int
    """Its size on disk."""

    id: str

    names: list[str]

    shared: bool
    """Whether it is in the shared, read-only library."""

    size_bytes: int
    """The size of its file system."""

    config: ImageConfig

    layers: list[str]
    """Digests of the unpacked layers, the lowest first."""

    source: ImageSource

    projects: list[str] = field(default_factory=list)
    """The projects it belongs to that the caller may see."""

    public: bool = False
    """Whether every project can make snapshots of it."""

    recipe: Optional[ImageRecipe] = None
    """Defaults for snapshots of it."""


@dataclass(frozen=True)
class ImageConfig(Model):
    """How processes of an image are started."""

    cmd: list[str]

    entrypoint: list[str]

    env: dict[str, str]

    labels: dict[str, str]

    user: Optional[str] = None

    workdir: Optional[str] = None


@dataclass(frozen=True)
class ImageList(Model):
    """The answer's type ImageList."""

    images: list[ImageSummary]


@dataclass(frozen=True)
class ImageRecipe(Model):
    """The image's `forkd.toml`."""

    warm_up: list[WarmUp]

    disk_mib: Optional[int] = None

    memory_mib: Optional[int] = None

    ready: Optional[ReadyProbe] = None

    start: Optional[list[str]] = None

    user: Optional[str] = None

    vcpus: Optional[int] = None


@dataclass(frozen=True)
class ImageSource(Model):
    """Where an image came from."""

    kind: Literal["registry", "archive", "debian", "build"]

    manifest: Optional[str] = None
    """The digest of the manifest."""

    reference: Optional[str] = None

    file: Optional[str] = None

    include: list[str] = field(default_factory=list)

    mirror: Optional[str] = None

    suite: Optional[str] = None


@dataclass(frozen=True)
class ImageSummary(Model):
    """An image in a list."""

    created_at_unix: int

    default_user: str
    """The default user of its processes."""

    disk_bytes: int
    """Its size on disk."""

    id: str

    names: list[str]

    shared: bool
    """Whether it is in the shared, read-only library."""

    size_bytes: int
    """The size of its file system."""

    projects: list[str] = field(default_factory=list)
    """The projects it belongs to that the caller may see."""

    public: bool = False
    """Whether every project can make snapshots of it."""


@dataclass(frozen=True)
class Interrupt(Model):
    """Interrupts the code that runs in a context."""

    grace_secs: int = 5
    """Seconds to wait for the code to end. If it is still running then, its interpreter is restarted."""


@dataclass(frozen=True)
class Interrupted(Model):
    """The result of an interruption."""

    restarted: bool
    """Whether the code did not end in time, so that the interpreter was restarted and lost its variables."""


@dataclass(frozen=True)
class Kernel(Model):
    """A kernel."""

    created_at_unix: int

    default: bool
    """Whether it is the default kernel."""

    missing: list[str]
    """Useful modules that it lacks."""

    modules: list[str]
    """Its modules, in loading order."""

    name: str

    shared: bool
    """Whether it is in the shared, read-only library."""

    version: str


@dataclass(frozen=True)
class KernelList(Model):
    """The answer's type KernelList."""

    kernels: list[Kernel]


@dataclass(frozen=True)
class KvmStats(Model):
    """Counters of KVM."""

    exits: int
    """Exits from the guest to KVM."""

    page_faults: int
    """Page faults on guest memory that was not mapped, or not for writing."""


@dataclass(frozen=True)
class LibraryProgress(Model):
    """A line of the streamed response (`Accept: application/x-ndjson`)."""

    step: Optional[str] = None
    """The current step."""

    detail: Optional[str] = None
    """The progress of the step; replaces the previous one."""

    transfer: Optional[Transfer] = None
    """The progress of a snapshot transfer; replaces the previous one."""

    output: Optional[str] = None
    """A line of output of a build step."""

    warning: Optional[str] = None
    """A warning."""

    image: Optional[ImageInfo] = None
    """The last line: the result."""

    kernel: Optional[Kernel] = None
    """The last line: the result."""

    snapshot: Optional[SnapshotInfo] = None
    """The last line: the result."""

    pushed: Optional[PushedSnapshot] = None
    """The last line: the result."""

    error: Optional[ErrorBody] = None
    """The last line: the error."""


@dataclass(frozen=True)
class Limits(Model):
    """The limits of a sandbox [default: those of the snapshot]."""

    bandwidth_mib: Optional[int] = None
    """Bandwidth in MiB per second, for each direction."""

    cpu_percent: Optional[int] = None
    """CPU time in percent of one CPU [default: all vCPUs of the guest]."""

    cpu_weight: Optional[int] = None
    """CPU weight under contention (1-10000, default 100)."""

    disk_mib: Optional[int] = None
    """The disk space that it can write, in MiB: at most that of the snapshot."""

    io_per_sec: Optional[int] = None
    """Disk I/O operations per second."""

    memory_mib: Optional[int] = None
    """Host memory in MiB for what it does not share with its parent. A sandbox that exceeds it is ended [default: the
    guest's memory plus the overhead of the VM].
    """

    read_bytes_per_sec: Optional[int] = None
    """Disk read bandwidth in bytes per second."""

    write_bytes_per_sec: Optional[int] = None
    """Disk write bandwidth in bytes per second."""


@dataclass(frozen=True)
class ListRepository(Model):
    """The repository whose tags to list."""

    repository: str
    """`registry.example/team/app`."""

    credentials: Optional[Credentials] = None
    """Credentials for the registry [default: those of the daemon's Docker config file]."""


@dataclass(frozen=True)
class Named(Model):
    """What a name refers to. A snapshot's tag takes precedence over a sandbox's id."""

    snapshot: Optional[SnapshotInfo] = None

    sandbox: Optional[SandboxInfo] = None


@dataclass(frozen=True)
class NetworkStats(Model):
    """The network traffic of a sandbox, and what was dropped."""

    over_limit_packets: int
    """Over the bandwidth or the limit of connections."""

    received_bytes: int

    received_packets: int

    refused_packets: int
    """Dropped: not allowed by its egress rules."""

    sent_bytes: int

    sent_packets: int

    spoofed_packets: int
    """Dropped: sent with an address that is not its own."""


@dataclass(frozen=True)
class Problem(Model):
    """A record, manifest or directory that the daemon cannot read. The daemon keeps it, with every process and file that
    may belong to it, and retries every minute.
    """

    path: str

    reason: str
    """Why it cannot be read."""


@dataclass(frozen=True)
class ProblemList(Model):
    """The answer's type ProblemList."""

    problems: list[Problem]


@dataclass(frozen=True)
class Process(Model):
    """A running program that a client has started; its child processes are not listed."""

    args: list[str]
    """The program and its arguments."""

    pid: int

    tty: bool
    """Whether it has a terminal."""

    cwd: Optional[str] = None

    tag: Optional[str] = None
    """A tag set by an E2B client."""


@dataclass(frozen=True)
class Progress(Model):
    """A line of the streamed response (`Accept: application/x-ndjson`)."""

    step: Optional[str] = None
    """The current step."""

    output: Optional[str] = None
    """A line of output of a step."""

    snapshot: Optional[SnapshotInfo] = None
    """The last line: the result."""

    built: Optional[BuiltSnapshot] = None
    """The last line of a build: the result."""

    error: Optional[ErrorBody] = None
    """The last line: the error."""


@dataclass(frozen=True)
class PruneImages(Model):
    """Which unused objects to remove: cached build steps, and images without a name."""

    images: bool = False
    """Whether to also remove images without a name, unless snapshots or sandboxes need them."""

    keep_mib: Optional[int] = None
    """How much of the most recently used build steps to keep, in MiB."""


@dataclass(frozen=True)
class PruneSnapshots(Model):
    """Which unused snapshots to remove. Never removed: snapshots that have sandboxes or that sandboxes can be rolled back
    to, public ones, and those that a remaining snapshot is based on.
    """

    dry_run: bool = False
    """Only report what would be removed."""

    keep_mib: Optional[int] = None
    """Stop when the remaining snapshots take at most this much disk space, in MiB. The least recently used are removed
    first.
    """

    named: bool = False
    """Whether to also remove snapshots with a chosen name, not only those with a generated one. Needs `unused_seconds` or
    `keep_mib`.
    """

    project: Optional[str] = None
    """Only those of this project [default: all that the caller may remove]."""

    unused_seconds: Optional[int] = None
    """Only those that were not forked for this many seconds."""


@dataclass(frozen=True)
class PrunedImages(Model):
    """The answer's type PrunedImages."""

    freed_bytes: int

    images: int

    steps: int


@dataclass(frozen=True)
class PrunedSnapshot(Model):
    """The answer's type PrunedSnapshot."""

    freed_bytes: int

    tag: str

    used_at_unix: int
    """When it was last forked, or made."""


@dataclass(frozen=True)
class PrunedSnapshots(Model):
    """The snapshots that were or would be removed, in this order."""

    freed_bytes: int
    """Freed bytes on disk."""

    snapshots: list[PrunedSnapshot]


@dataclass(frozen=True)
class Publish(Model):
    """Makes something usable by every project, or only its own."""

    public: bool


@dataclass(frozen=True)
class PullImage(Model):
    """Pulls an image from a registry."""

    reference: str
    """A Docker reference: `python:3.12`, `registry.example/team/app@sha256:…`. Plain HTTP is used only with the daemon's
    own host.
    """

    credentials: Optional[Credentials] = None
    """Credentials for the registry [default: those of the daemon's Docker config file]."""

    name: Optional[str] = None
    """The name of the image [default: the reference]."""

    size_mib: Optional[int] = None
    """The minimum size of the file system."""


@dataclass(frozen=True)
class PullSnapshot(Model):
    """Pulls a snapshot from a registry."""

    reference: str
    """The source: `registry.example/team/app:tag`, or with `@sha256:…`."""

    credentials: Optional[Credentials] = None
    """Credentials for the registry [default: those of the daemon's Docker config file]."""

    key: Optional[str] = None
    """A public key in PEM (ECDSA P-256) that must have signed it, in addition to the daemon's policy."""

    reuse: bool = False
    """If this daemon has the same snapshot under any tag, return it and fetch nothing. Otherwise, without a tag, name it
    after the reference and its digest: `app-tag-0123456789ab`.
    """

    tag: Optional[str] = None
    """The tag on this daemon [default: the tag of the sender]."""


@dataclass(frozen=True)
class PushSnapshot(Model):
    """Pushes a snapshot to a registry, with all snapshots that it is based on."""

    reference: str
    """The destination: `registry.example/team/app:tag`."""

    credentials: Optional[Credentials] = None
    """Credentials for the registry [default: those of the daemon's Docker config file]."""

    mount_from: list[str] = field(default_factory=list)
    """Repositories of the same registry, without the registry's name, that may already have some of the blobs. The daemon
    adds those that the snapshot, or one it is based on, was pushed to or pulled from.
    """

    variant: Optional[str] = None
    """Adds the snapshot to the tag as the variant with this name (1-63 of a-z, 0-9 and `._-`), replacing an earlier one
    with that name. A pull of the tag gets the first variant that fits the host. Without it, the tag then names this
    snapshot alone.
    """

    variants_key: Optional[str] = None
    """With `variant`: a public key in PEM (ECDSA P-256). If what the reference names already is not signed with it,
    nothing is pushed. For those who will sign the reference with this key, and with it the variants of others.
    """

    yes: bool = False
    """Confirms the push of a snapshot that contains the memory of a sandbox's users: a snapshot of a sandbox, or one based
    on it.
    """


@dataclass(frozen=True)
class PushedSnapshot(Model):
    """The result of a push."""

    present_bytes: int
    """Bytes that the registry already had, or mounted from another repository."""

    reference: str
    """Its reference with the digest."""

    sent_bytes: int
    """Bytes sent."""


@dataclass(frozen=True)
class ReadyProbe(Model):
    """How to detect that the guest is ready. Needs exactly one of `port` and `command`."""

    command: Optional[list[str]] = None
    """Ready when this command exits with 0."""

    port: Optional[int] = None
    """Ready when a process listens on this port."""

    timeout_secs: Optional[int] = None


@dataclass(frozen=True)
class RemovedImage(Model):
    """What was removed."""

    freed_bytes: int
    """Freed bytes on disk."""

    id: str

    names: list[str]
    """The removed names."""

    removed: bool
    """Whether the image itself was removed: by its id or with its last name."""


@dataclass(frozen=True)
class RemovedSnapshots(Model):
    """The removed snapshots, in this order."""

    removed: list[str]

    names: list[str] = field(default_factory=list)
    """The removed name, if the request named not the tag of a snapshot but one of its other names."""


@dataclass(frozen=True)
class RepositoryTag(Model):
    """A tag of a repository, and what it names."""

    digest: str
    """The digest of the manifest: `sha256:…`."""

    snapshot: bool
    """Whether it is a snapshot that can be pulled."""

    tag: str

    created_at_unix: Optional[int] = None
    """When the snapshot was made, if its manifest has the time."""

    kind: Optional[str] = None
    """The media type of the object."""

    size_bytes: Optional[int] = None
    """Its compressed size, if the registry reports it."""


@dataclass(frozen=True)
class RepositoryTags(Model):
    """The tags of a repository."""

    repository: str

    tags: list[RepositoryTag]
    """In the registry's order, at most 1000."""

    truncated: bool
    """Whether there are more entries."""


@dataclass(frozen=True)
class ResolveSnapshot(Model):
    """Resolves a reference to a registry."""

    reference: str
    """`registry.example/team/app:tag`, or with `@sha256:…`."""

    credentials: Optional[Credentials] = None
    """Credentials for the registry [default: those of the daemon's Docker config file]."""


@dataclass(frozen=True)
class ResolvedSnapshot(Model):
    """A snapshot in a registry."""

    digest: str
    """The digest to sign and to verify: `sha256:…`."""

    repository: str
    """Registry and repository, in the form that signatures and policies use."""


@dataclass(frozen=True)
class Rollback(Model):
    """Rolls a sandbox back to one of its own branches."""

    tag: str


@dataclass(frozen=True)
class SandboxInfo(SandboxNames, Model):
    """A sandbox."""

    branches: list[str]
    """Its own branches, oldest first."""

    created_at_unix: int

    disk_mib: int
    """The disk space that it can write, in MiB."""

    id: str

    memory_mib: int

    metadata: dict[str, str]

    snapshot_tag: str
    """The snapshot it was forked from."""

    state: SandboxState

    vcpus: int

    egress: Optional[Egress] = None
    """What it may reach. Missing without a network."""

    ended: Optional[Ended] = None
    """Why it has ended."""

    expires_at_unix: Optional[int] = None
    """When it expires."""

    limits: Optional[Limits] = None
    """Its enforced limits."""

    on_expiry: Optional[OnExpiry] = None

    owner: Optional[str] = None
    """Who created it: `token:NAME`, `unix:UID`, or `local`."""

    pid: Optional[int] = None
    """The process id of its VM on the host."""

    project: Optional[str] = None
    """The project it belongs to."""

    wake_on_traffic: bool = False
    """Whether a request to it resumes it when it is paused."""


@dataclass(frozen=True)
class SandboxList(Model):
    """Sandboxes, oldest first."""

    sandboxes: list[SandboxInfo]

    next: Optional[str] = None
    """If there are more: pass this as `after` to get the next page."""


@dataclass(frozen=True)
class SandboxStats(Model):
    """Resource usage of a sandbox."""

    cpu_us: int
    """CPU time of the VM process so far."""

    disk_bytes: int
    """Bytes written to its disk since its last branch."""

    memory_private_bytes: int
    """Memory that only this sandbox maps."""

    memory_shared_bytes: int
    """Memory that it shares with a snapshot's process, and through that with other sandboxes."""

    kvm: Optional[KvmStats] = None
    """KVM's counters of its guest since it was forked or last rolled back. Missing if the host's kernel does not have
    them.
    """

    memory_shared_with: Optional[str] = None
    """The snapshot that it shares this memory with: its latest branch in memory, or the snapshot it was forked from.
    Missing if neither is in memory.
    """

    network: Optional[NetworkStats] = None
    """Its network traffic, if it has a network."""

    process_faults: Optional[int] = None
    """Page faults of the VM process, without those of its guest."""


@dataclass(frozen=True)
class SendSignal(Model):
    """Sends a signal to a program and its process group."""

    signal: Signal


@dataclass(frozen=True)
class SetBandwidth(Model):
    """Changes the bandwidth of a sandbox."""

    bandwidth_mib: Optional[int] = None
    """Bandwidth in MiB per second, for each direction; `null` for the daemon's default."""


@dataclass(frozen=True)
class SetTtl(Model):
    """Changes when a sandbox expires."""

    ttl_secs: Optional[int] = None
    """Seconds from now; `null` for never."""


@dataclass(frozen=True)
class SnapshotInfo(Model):
    """A snapshot."""

    children: list[str]
    """The snapshots that are based on this one."""

    created_at_unix: int

    disk_mib: int

    loaded: bool
    """Whether it is held in memory, ready to fork."""

    memory_mib: int

    size: SnapshotSize
    """Its size on disk so far."""

    status: SnapshotStatus

    tag: str

    vcpus: int

    branched_from: Optional[str] = None
    """The sandbox that it was branched from."""

    build_key: Optional[str] = None
    """For a built snapshot: the digest of its inputs. A build with the same key reuses this snapshot."""

    cpu: Optional[Cpu] = None
    """The CPU model of its sandboxes."""

    error: Optional[str] = None
    """The reason, if it failed."""

    image: Optional[str] = None
    """The image that it was booted from."""

    names: list[str] = field(default_factory=list)
    """Its other names. Each can be used instead of the tag."""

    network: bool = False
    """Whether its sandboxes have a network device."""

    parent: Optional[str] = None
    """The snapshot that this one is based on."""

    pause_us: Optional[int] = None
    """How long the sandbox was paused for it, in microseconds."""

    project: Optional[str] = None
    """The project it belongs to."""

    public: bool = False
    """Whether every project can fork it."""

    resident: Optional[SnapshotMemory] = None
    """The memory of the process that holds it."""


@dataclass(frozen=True)
class SnapshotDamage(Model):
    """A damaged file."""

    problem: str
    """What is wrong with it."""

    file: Optional[str] = None
    """The path of the file, relative to the daemon's directory."""


@dataclass(frozen=True)
class SnapshotHistory(Model):
    """A snapshot, the snapshots it is based on, and those based on it."""

    snapshots: list[SnapshotHistoryEntry]
    """Its chain from the base up, the snapshot itself, then its dependents, each directly after its parent or a sibling's
    dependents. Snapshots that the caller may not see are omitted.
    """

    tag: str
    """The snapshot that was asked for."""


@dataclass(frozen=True)
class SnapshotHistoryEntry(Model):
    """A snapshot in a history."""

    created_at_unix: int

    dependents: list[str]
    """The snapshots that are directly based on it."""

    depth: int
    """The number of snapshots that it is based on, directly or indirectly."""

    kind: SnapshotKind

    own_bytes: int
    """Bytes on disk that only it and its dependents use: its memory, its state, and the disk layers that came with it."""

    shared_bytes: int
    """Bytes on disk that it shares with others: the memory of the snapshots it is based on, their disk layers, and the
    image.
    """

    status: SnapshotStatus

    tag: str

    names: list[str] = field(default_factory=list)
    """Its other names."""

    parent: Optional[str] = None
    """The snapshot that it is based on."""


@dataclass(frozen=True)
class SnapshotList(Model):
    """The answer's type SnapshotList."""

    snapshots: list[SnapshotInfo]


@dataclass(frozen=True)
class SnapshotMemory(Model):
    """The memory of a snapshot's process. For a branch, this is the memory of the sandbox at that time."""

    private_bytes: int
    """Memory that only this process maps. It is freed when the snapshot is removed."""

    shared_bytes: int
    """Memory that it shares with sandboxes and other snapshots."""


@dataclass(frozen=True)
class SnapshotSignature(Model):
    """A signature in a registry."""

    added: bool
    """False if this key had already signed it: the existing signature is kept."""

    key: str
    """The first 16 digits of the SHA-256 of the public key's DER form."""

    reference: str
    """The signed snapshot, by digest."""


@dataclass(frozen=True)
class SnapshotSize(Model):
    """The answer's type SnapshotSize."""

    disk_bytes: int

    memory_bytes: int


@dataclass(frozen=True)
class SnapshotVerification(Model):
    """The result of reading every file of a snapshot and of the snapshots it is based on."""

    bytes: int
    """The number of bytes read, including holes of disk layers."""

    disk_layers: int
    """The number of disk layers read, including the image."""

    intact: bool
    """Whether all files are intact."""

    snapshots: int
    """The number of snapshots read: itself and those it is based on."""

    tag: str

    damage: Optional[SnapshotDamage] = None
    """The first damaged file, if any. Files after it were not read."""


@dataclass(frozen=True)
class StartProcess(Model):
    """Starts a program in the background."""

    args: list[str]
    """The program and its arguments."""

    cwd: Optional[str] = None

    env: dict[str, str] = field(default_factory=dict)

    stdin: bool = False
    """Whether its stdin is open for writing. Otherwise it is at its end from the start."""

    timeout_secs: Optional[int] = None
    """Seconds until it is killed [default: unlimited]."""

    user: Optional[str] = None
    """The user that runs it [default: the image's]."""


@dataclass(frozen=True)
class StartedProcess(Model):
    """A program that was started."""

    pid: int


@dataclass(frozen=True)
class StepTiming(Model):
    """The time that sandboxes took for one step."""

    count: int
    """The number of sandboxes that took it."""

    max_us: int

    p50_us: int

    p99_us: int

    step: str


@dataclass(frozen=True)
class TcpPort(Model):
    """The TCP port that the daemon listens on."""

    needs_token: bool
    """Whether requests to this port need a token."""

    url: str
    """The URL of the port on the daemon's host, such as `http://127.0.0.1:8889`."""


@dataclass(frozen=True)
class TerminalSize(Model):
    """The answer's type TerminalSize."""

    cols: int

    rows: int


@dataclass(frozen=True)
class TokenLimits(Model):
    """Limits on what a token or a project uses in total [default: unlimited]."""

    memory_mib: Optional[int] = None
    """Memory of their guests and of their branches, in MiB."""

    sandboxes: Optional[int] = None
    """The number of sandboxes, including guests that make snapshots and images."""

    snapshot_mib: Optional[int] = None
    """Disk space of their snapshots in MiB, without what they share with those they are based on. A snapshot that is being
    made may exceed it; the next one is refused.
    """

    snapshots: Optional[int] = None
    """The number of snapshots, including branches."""

    vcpus: Optional[int] = None


@dataclass(frozen=True)
class Transfer(Model):
    """The progress of a transfer."""

    done_bytes: int
    """Bytes transferred so far, uncompressed."""

    total_bytes: int
    """Bytes to transfer in total, uncompressed. A pull excludes what the daemon already has; a push counts what the
    registry already has as done.
    """


@dataclass(frozen=True)
class Version(Model):
    """The answer's type Version."""

    api: str
    """The version of the API."""

    version: str
    """The version of the daemon."""

    emulated: bool = False
    """Whether the host's CPU is emulated: everything works, but many times slower."""

    tcp: Optional[TcpPort] = None
    """The TCP port, if the daemon listens on one."""


@dataclass(frozen=True)
class WarmUp(Model):
    """Code for one of the guest's interpreters."""

    code: str

    language: Language
