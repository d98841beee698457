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
    "TerminalSize",
    "TokenLimits",
    "Transfer",
    "Version",
    "WarmUp",
]

# A language of a guest's interpreters. Which ones there are is up to the image: TypeScript needs Node.js 22.13 or newer, Java
# a JDK.
Language = Literal["python", "javascript", "typescript", "bash", "r", "java"]

# A signal that programs are sent.
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

# What a build has done, or would do.
BuildOutcome = Literal["unchanged", "reused", "made"]

# What a guest is shown of the host's CPU.
Cpu = Literal["host", "x86-64-v2", "x86-64-v3"]

# What a token allows. Each scope has all of those before it.
Scope = Literal["read", "run", "admin"]

# What can be done about a failure.
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

# What happens to a sandbox when its time is over.
OnExpiry = Literal["end", "pause"]

# Whether a snapshot has all of its memory.
SnapshotKind = Literal["full", "diff"]

# Why something was dropped.
DropReason = Literal["refused", "spoofed", "over_limit"]


@dataclass(frozen=True)
class AddKernel(Model):
    """Adds a kernel that the daemon's host can get."""

    default: bool = False
    """Whether it becomes the default."""

    source: Optional[KernelSource] = None

    version: Optional[str] = None
    """Of the host's own kernels, this version; without one, the newest."""


@dataclass(frozen=True)
class AddSnapshotSignature(Model):
    """Stores a signature of a snapshot that is in a registry. It is made where the private key is."""

    key: str
    """The public key in PEM (ECDSA P-256). The signature is checked with it."""

    payload: str
    """The JSON that was signed, in the form of cosign's simple signing. At most 64 KiB."""

    reference: str
    """What was signed, by its digest: `registry.example/team/app@sha256:…`."""

    signature: str
    """ECDSA of the payload's SHA-256, as DER in base64."""

    credentials: Optional[Credentials] = None
    """Without them, those of the daemon's Docker config file."""


@dataclass(frozen=True)
class BranchSandbox(Model):
    """Makes a snapshot of a sandbox, which goes on."""

    tag: Optional[str] = None
    """The snapshot's name. Without one, it gets one."""

    wait: bool = False
    """Whether the answer comes when the snapshot is on disk, or as soon as it can be forked from."""


@dataclass(frozen=True)
class BuildSnapshot(Model):
    """Builds a snapshot: makes it, unless there is one of the same contents, and gives it a name."""

    contents: CreateSnapshot
    """What it is made of, without a tag: that is the name with digits of the key."""

    name: str
    """The name that it gets: 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit. A snapshot that was
    built under this name before loses it, and stays.
    """

    dry_run: bool = False
    """Whether nothing is made, and the answer says what would be."""

    no_cache: bool = False
    """Whether it is made anew even if there is one of the same contents."""


@dataclass(frozen=True)
class BuiltSnapshot(Model):
    """What came of a build."""

    name: str

    outcome: BuildOutcome

    key: Optional[str] = None
    """The digest of what it is made of. Missing if the snapshot that it is based on would be made first."""

    replaced: Optional[str] = None
    """The tag of the snapshot that had the name before, if it was another one."""

    snapshot: Optional[SnapshotInfo] = None
    """Missing if it would be made."""


@dataclass(frozen=True)
class Caller(Model):
    """Who a request is from."""

    name: str
    """`token:NAME`, `unix:UID`, or `local` for a caller on the loopback without a token."""

    project: str
    """The project of what it makes."""

    scope: Scope

    limits: Optional[TokenLimits] = None
    """The most that there may be at once of what it makes."""


@dataclass(frozen=True)
class ChooseKernel(Model):
    """Chooses the default."""

    kernel: str
    """A name, or its beginning: a version."""


@dataclass(frozen=True)
class CodeContext(Model):
    """An interpreter with its state: what code has defined in it, other code in it finds."""

    busy: bool
    """Whether code runs in it."""

    cwd: str

    id: str

    language: str
    """The language's name, as in Eval; a guest with another agent may have others."""


@dataclass(frozen=True)
class Counted(Model):
    """What a sandbox used at two moments of its creation."""

    ready: SandboxStats
    """When its guest had its identity and was ready."""

    running: SandboxStats
    """When its VM ran."""


@dataclass(frozen=True)
class CreateCodeContext(Model):
    """Makes a context, and starts its interpreter."""

    cwd: Optional[str] = None
    """Where its code begins. Without it, the user's directory."""

    language: Optional[Language] = None


@dataclass(frozen=True)
class CreateSandboxes(Model):
    """Asks for sandboxes, as one operation."""

    counted: bool = False
    """Whether to look on the way at what each of them uses: for measurements, since it takes time."""

    egress: Optional[Egress] = None
    """What they may reach. Without it, what the sandbox may that `from_sandbox` or the snapshot comes from, else the
    internet.
    """

    env: dict[str, str] = field(default_factory=dict)
    """Added to the environment of everything that is started in them."""

    from_sandbox: Optional[str] = None
    """A sandbox to copy: it is branched, goes on, and the branch is removed when the copies are there."""

    limits: Optional[Limits] = None

    metadata: dict[str, str] = field(default_factory=dict)
    """The caller's own words, which lists can be filtered by."""

    n: int = 1
    """How many."""

    on_expiry: Optional[OnExpiry] = None
    """What happens to them when they expire."""

    partial: bool = False
    """Whether those that came up are kept when others did not."""

    snapshot_tag: Optional[str] = None
    """The snapshot to fork from."""

    source: Optional[str] = None
    """What to fork: a snapshot of this name, or else a sandbox with this id. Either this, `snapshot_tag` or
    `from_sandbox`.
    """

    ttl_secs: Optional[int] = None
    """Seconds until they expire."""

    wake_on_traffic: bool = False
    """Whether a request to one that is paused wakes it, for another `ttl_secs`: code, commands, files and ports."""


@dataclass(frozen=True)
class CreateSnapshot(Model):
    """Boots an image, or forks a snapshot, runs commands and code in it, and freezes it. One of `image` and `snapshot`."""

    cpu: Optional[Cpu] = None
    """What the guest is shown of the host's CPU. A snapshot of a level can be used on every host that has the level."""

    disk_mib: Optional[int] = None
    """What its sandboxes may write to their disks."""

    e2b: bool = False
    """Whether it is for programs that are written for E2B: commands, files and code are those of the user `user` unless a
    call names another, in /home/user, with passwordless sudo, whatever the image has.
    """

    env: dict[str, str] = field(default_factory=dict)

    host_certs: bool = False
    """Whether the guest sees the certificates and proxy settings of the daemon's host, for hosts behind an intercepting
    proxy: in its environment, in /run/forkd, and in its own file of trusted certificates, if it has one. Needs the
    scope admin.
    """

    image: Optional[str] = None
    """A name or an id of an image."""

    kernel: Optional[str] = None
    """A name of a kernel; without one, the default."""

    memory_mib: Optional[int] = None

    network: bool = True
    """Whether the guest has a network device. Without one, its sandboxes reach nothing but what the daemon carries to
    them.
    """

    ready: Optional[ReadyProbe] = None

    run: list[str] = field(default_factory=list)
    """Commands to run, one after another, as root with `sh -c`, before `warm_up`. One that fails ends it."""

    snapshot: Optional[str] = None
    """A snapshot to base the new one on, which has only what differs from it. Needs a tag, and has what the guest is: of
    the other fields, only `env`, `run`, `warm_up` and `wait` can be given.
    """

    start: Optional[list[str]] = None
    """A program that runs from the start."""

    tag: Optional[str] = None
    """Without one, the snapshot is named after what it is made of, and made once: the same request gets the same snapshot,
    also while it is being made for somebody else.
    """

    vcpus: Optional[int] = None

    wait: bool = True
    """Whether the answer comes when the snapshot is on disk, or as soon as it can be forked from."""

    warm_up: list[WarmUp] = field(default_factory=list)
    """Code to run, one after another, before the guest is frozen."""


@dataclass(frozen=True)
class CreateTiming(Model):
    """How long it took, from the moment the request was admitted."""

    ready_us: int
    """Until every guest had its identity and was ready."""

    restored_us: int
    """Until every VM ran."""

    steps: list[StepTiming] = field(default_factory=list)
    """Where the time of each of them went, without a gap. Steps that begin with `identity.` are parts of the step
    `identity`.
    """


@dataclass(frozen=True)
class CreatedSandboxes(Model):
    """What became of a request for sandboxes."""

    sandboxes: list[SandboxInfo]

    timing: CreateTiming

    counted: list[Counted] = field(default_factory=list)
    """What each of them used on the way, if that was asked for. In no order."""

    failures: list[ErrorBody] = field(default_factory=list)
    """Those that did not come up, if the others were to be kept."""


@dataclass(frozen=True)
class Credentials(Model):
    """For a registry. They are neither kept nor logged."""

    password: str

    username: str


@dataclass(frozen=True)
class DebianImage(Model):
    """Makes a Debian image, without any registry."""

    include: list[str] = field(default_factory=list)
    """Packages beyond the smallest system."""

    mirror: Optional[str] = None
    """Where packages come from, an address that begins with http:// or https://."""

    name: Optional[str] = None
    """Without one, it is made of the suite and the packages."""

    size_mib: Optional[int] = None
    """The least size of the file system."""

    suite: str = "bookworm"


@dataclass(frozen=True)
class Displayed(Model):
    """A value that was displayed."""

    data: dict[str, str]
    """The same value in each of its MIME types. What is binary is in base64."""

    main: bool
    """Whether it is the value of the last expression."""


@dataclass(frozen=True)
class Egress(Model):
    """Where the packets of a sandbox may go. The host and other sandboxes are never among it."""

    mode: EgressMode

    allow: list[str] = field(default_factory=list)
    """What is reached in the mode `list`, and in the mode `allow` although `deny` has it: networks (`10.1.0.0/16`),
    addresses, names (`example.com`, `*.example.com`), each with ports if only those are meant (`example.com:443`,
    `10.0.0.7:80,8000-8100`, `[2001:db8::/32]:443`).
    """

    deny: list[str] = field(default_factory=list)
    """Networks (`8.8.8.0/24`) and addresses that are not reached in the mode `allow`. What `allow` has wins over them."""


@dataclass(frozen=True)
class Ended(Model):
    """Why a VM has ended."""

    at_unix: int

    detail: str

    reason: EndReason


@dataclass(frozen=True)
class ErrorBody(Model):
    """The body of every answer with a status of 400 or more."""

    code: ErrorCode
    """What failed, for programs."""

    error: str
    """What failed, for people."""

    hint: Optional[str] = None
    """What to do about it, for people."""

    hint_code: Optional[HintCode] = None
    """What to do about it, for programs."""


@dataclass(frozen=True)
class Eval(Model):
    """Runs code in an interpreter that keeps its state."""

    code: str

    context: Optional[str] = None
    """A context of its own instead of the language's default one."""

    env: dict[str, str] = field(default_factory=dict)

    language: Optional[Language] = None

    timeout_secs: int = 30


@dataclass(frozen=True)
class EvalError(Model):
    """The code has failed."""

    name: str

    traceback: str

    value: str


@dataclass(frozen=True)
class EvalEventEnded(Model):
    """The last line."""

    timed_out: bool
    """Whether it was interrupted because its time was over."""

    truncated: bool
    """Whether something was too large to be sent."""


@dataclass(frozen=True)
class EvalEvent(Model):
    """A line of the stream that is the answer when `application/x-ndjson` is accepted."""

    stdout: Optional[str] = None

    stderr: Optional[str] = None

    result: Optional[Displayed] = None

    raised: Optional[EvalError] = None
    """The code has failed. `ended` follows."""

    ended: Optional[EvalEventEnded] = None
    """The last line."""

    error: Optional[ErrorBody] = None
    """The last line: it could not be followed to its end."""


@dataclass(frozen=True)
class Evaluated(Model):
    """What the code has come to."""

    results: list[dict[str, str]]
    """Everything that was displayed, by MIME type, the last expression included."""

    stderr: str

    stdout: str

    truncated: bool
    """Whether there was more output than an answer holds."""

    error: Optional[EvalError] = None

    result: Optional[str] = None
    """The value of the last expression, as text."""

    timed_out: bool = False
    """Whether it was interrupted because its time was over. What it printed and displayed until then is here."""


@dataclass(frozen=True)
class Event(Model):
    """Something has happened."""

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
    """The name that was asked for."""

    port: Optional[int] = None

    protocol: Optional[str] = None
    """`tcp`, `udp`, `icmp`, `icmpv6`, or a number of IP."""

    reason: Optional[DropReason] = None

    status: Optional[SnapshotStatus] = None

    count: Optional[int] = None
    """How many. Not known of a daemon that has ended."""

    cursor: Optional[str] = None
    """A place in the stream: `after` with it continues behind this event."""


@dataclass(frozen=True)
class Exec(Model):
    """Runs a program and waits for its end."""

    args: list[str]
    """The program and its arguments."""

    cwd: Optional[str] = None

    env: dict[str, str] = field(default_factory=dict)

    stdin: Optional[str] = None
    """What the program reads."""

    timeout_secs: int = 30

    user: Optional[str] = None
    """Without one, the image's."""


@dataclass(frozen=True)
class ExecEventStarted(Model):
    """The answer's type ExecEventStarted."""

    pid: int


@dataclass(frozen=True)
class ExecEventStdinTaken(Model):
    """The program has taken this much of what came in binary messages, or will never read it. Only over a WebSocket, and
    only for a client that asked with `stdin_window`.
    """

    bytes: int


@dataclass(frozen=True)
class ExecEventExited(Model):
    """The last line: it has ended."""

    exit_code: int

    timed_out: bool


@dataclass(frozen=True)
class ExecEvent(Model):
    """A line of the stream that is the answer when `application/x-ndjson` is accepted. Bytes are in base64."""

    started: Optional[ExecEventStarted] = None

    stdout: Optional[str] = None

    stderr: Optional[str] = None

    stdin_taken: Optional[ExecEventStdinTaken] = None
    """The program has taken this much of what came in binary messages, or will never read it. Only over a WebSocket, and
    only for a client that asked with `stdin_window`.
    """

    exited: Optional[ExecEventExited] = None
    """The last line: it has ended."""

    error: Optional[ErrorBody] = None
    """The last line: it could not be followed to its end."""


@dataclass(frozen=True)
class ExecStart(Model):
    """Begins an interactive program: the first message of a client, as text."""

    args: list[str]
    """The program and its arguments."""

    cwd: Optional[str] = None

    env: dict[str, str] = field(default_factory=dict)

    stdin: Optional[str] = None
    """What the program reads first, before what comes in binary messages."""

    stdin_window: bool = False
    """Whether the client wants `stdin_taken` events. One that sends at most 1 MiB in binary messages more than these
    report is listened to while its program reads nothing: signals, sizes and its going away arrive at once. Without
    them, a client that has sent more than that is not listened to until the program reads.
    """

    timeout_secs: Optional[int] = None
    """Without it, 30 seconds; with a terminal, a day."""

    tty: Optional[TerminalSize] = None
    """With it, the program has a terminal of this size; `TERM` is `xterm-256color` if `env` does not say."""

    user: Optional[str] = None
    """Without one, the image's."""


@dataclass(frozen=True)
class Executed(Model):
    """How a program has ended."""

    exit_code: int
    """128 and the signal's number if a signal has ended it."""

    stderr: str

    stdout: str
    """What is not UTF-8 is replaced; the stream has it exactly."""

    timed_out: bool
    """Whether it was ended because its time was over."""

    truncated: bool
    """Whether there was more output than an answer holds."""


@dataclass(frozen=True)
class FileInfo(FileNames, Model):
    """What is known of a file. A link is shown as what it leads to."""

    group: str

    kind: FileKind

    mode: int
    """The permissions: `0o644` is 420."""

    modified_unix: int

    name: str

    owner: str

    path: str

    size: int

    symlink_target: Optional[str] = None
    """Where a link leads."""


@dataclass(frozen=True)
class FileList(Model):
    """What is in a directory, in the order of names."""

    files: list[FileInfo]

    truncated: bool
    """Whether there are more."""

    next: Optional[str] = None
    """If there are: `after` with it gives the next of them."""


@dataclass(frozen=True)
class Health(Model):
    """The answer's type Health."""

    ok: bool


@dataclass(frozen=True)
class ImageInfo(Model):
    """An image with all that is known of it."""

    created_at_unix: int

    default_user: str
    """Who processes belong to when nobody says otherwise."""

    disk_bytes: int
    """What it takes on disk."""

    id: str

    names: list[str]

    shared: bool
    """Whether it is in the library that the daemon only reads."""

    size_bytes: int
    """The size of its file system."""

    config: ImageConfig

    layers: list[str]
    """Digests of the unpacked layers, the lowest first."""

    source: ImageSource

    projects: list[str] = field(default_factory=list)
    """The projects that it belongs to, as far as the caller sees them."""

    public: bool = False
    """Whether every project may make snapshots of it."""

    recipe: Optional[ImageRecipe] = None
    """What its snapshots get unless something else is asked for."""


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
    """An image, as lists have it."""

    created_at_unix: int

    default_user: str
    """Who processes belong to when nobody says otherwise."""

    disk_bytes: int
    """What it takes on disk."""

    id: str

    names: list[str]

    shared: bool
    """Whether it is in the library that the daemon only reads."""

    size_bytes: int
    """The size of its file system."""

    projects: list[str] = field(default_factory=list)
    """The projects that it belongs to, as far as the caller sees them."""

    public: bool = False
    """Whether every project may make snapshots of it."""


@dataclass(frozen=True)
class Interrupt(Model):
    """Interrupts the code that runs in a context."""

    grace_secs: int = 5
    """What the code gets to end in. Code that still runs then is ended with its interpreter, and a new one is started."""


@dataclass(frozen=True)
class Interrupted(Model):
    """What became of an interruption."""

    restarted: bool
    """Whether the code did not end in time. The context has a new interpreter then, without the variables of the old one."""


@dataclass(frozen=True)
class Kernel(Model):
    """A kernel."""

    created_at_unix: int

    default: bool
    """Whether it is used when none is named."""

    missing: list[str]
    """Modules that would be of use and that it does not have."""

    modules: list[str]
    """Modules that come with it, in the order in which they are loaded."""

    name: str

    shared: bool
    """Whether it is in the library that the daemon only reads."""

    version: str


@dataclass(frozen=True)
class KernelList(Model):
    """The answer's type KernelList."""

    kernels: list[Kernel]


@dataclass(frozen=True)
class KvmStats(Model):
    """What KVM has counted."""

    exits: int
    """From the guest to KVM."""

    page_faults: int
    """On guest memory that was not mapped, or not for writing."""


@dataclass(frozen=True)
class LibraryProgress(Model):
    """A line of the stream that is the answer when `application/x-ndjson` is accepted."""

    step: Optional[str] = None
    """What is being done now."""

    detail: Optional[str] = None
    """How far it is. Each replaces the one before."""

    transfer: Optional[Transfer] = None
    """How far a transfer of a snapshot is. Each replaces the one before."""

    output: Optional[str] = None
    """A line of what a build step prints."""

    warning: Optional[str] = None
    """Something to know, whatever becomes of it."""

    image: Optional[ImageInfo] = None
    """The last line: it is done."""

    kernel: Optional[Kernel] = None
    """The last line: it is done."""

    snapshot: Optional[SnapshotInfo] = None
    """The last line: it is here."""

    pushed: Optional[PushedSnapshot] = None
    """The last line: it is there."""

    error: Optional[ErrorBody] = None
    """The last line: it failed."""


@dataclass(frozen=True)
class Limits(Model):
    """What a sandbox may use. What is not said is as the snapshot has it."""

    bandwidth_mib: Optional[int] = None
    """MiB a second that it may send, and may receive."""

    cpu_percent: Optional[int] = None
    """CPU time, in hundredths of one CPU. Without it, all of its CPUs."""

    cpu_weight: Optional[int] = None
    """Its share where CPUs are short, against 100 of another."""

    disk_mib: Optional[int] = None
    """What it may write to its disk: at most what the snapshot's may."""

    io_per_sec: Optional[int] = None
    """How often it may do either."""

    memory_mib: Optional[int] = None
    """Of the host's memory, for what it does not share with its parent. One that needs more is ended. Without it, as much
    as its guest has, and what that costs the host.
    """

    read_bytes_per_sec: Optional[int] = None
    """What it may read from the device of its disk, each second."""

    write_bytes_per_sec: Optional[int] = None
    """What it may write there."""


@dataclass(frozen=True)
class ListRepository(Model):
    """Whose tags are listed."""

    repository: str
    """`registry.example/team/app`."""

    credentials: Optional[Credentials] = None
    """Without them, those of the daemon's Docker config file."""


@dataclass(frozen=True)
class Named(Model):
    """What a name means: a snapshot's tag comes before a sandbox's id."""

    snapshot: Optional[SnapshotInfo] = None

    sandbox: Optional[SandboxInfo] = None


@dataclass(frozen=True)
class NetworkStats(Model):
    """What a sandbox has sent and received, and what was dropped of it."""

    over_limit_packets: int
    """Beyond its bandwidth, or with more connections than a sandbox may have."""

    received_bytes: int

    received_packets: int

    refused_packets: int
    """Not allowed by its egress."""

    sent_bytes: int

    sent_packets: int

    spoofed_packets: int
    """With addresses that are not its own."""


@dataclass(frozen=True)
class Problem(Model):
    """A record, manifest or directory of the daemon's that it cannot read. It leaves that as it is, with every process and
    file that may belong to it, and tries again every minute.
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
    """A program that runs: one that a client has started, not one of its children."""

    args: list[str]
    """The program and its arguments."""

    pid: int

    tty: bool
    """Whether it has a terminal."""

    cwd: Optional[str] = None

    tag: Optional[str] = None
    """A name that an E2B client has given it."""


@dataclass(frozen=True)
class Progress(Model):
    """A line of the stream that is the answer when `application/x-ndjson` is accepted."""

    step: Optional[str] = None
    """What is being done now."""

    output: Optional[str] = None
    """A line of what a step prints."""

    snapshot: Optional[SnapshotInfo] = None
    """The last line: it is done."""

    built: Optional[BuiltSnapshot] = None
    """The last line of a build: it is done."""

    error: Optional[ErrorBody] = None
    """The last line: it failed."""


@dataclass(frozen=True)
class PruneImages(Model):
    """What is removed of what nobody names: steps that builds have kept, and images."""

    images: bool = False
    """Whether images without a name go too, unless snapshots or sandboxes need them."""

    keep_mib: Optional[int] = None
    """How much is kept of the steps that were used last."""


@dataclass(frozen=True)
class PruneSnapshots(Model):
    """Which snapshots are removed that nobody needs. Those that sandboxes were forked from or can be rolled back to,
    public ones, and those that others are based on which stay, stay in any case.
    """

    dry_run: bool = False
    """Only say what would go."""

    keep_mib: Optional[int] = None
    """Stop as soon as what is left takes no more than this on disk; those that were not used for the longest time go
    first.
    """

    named: bool = False
    """Whether those that somebody has named go, too, and not only those named after what they are made of. Needs
    `unused_seconds` or `keep_mib`.
    """

    project: Optional[str] = None
    """Only those of this project. Without it, all those that the caller may remove."""

    unused_seconds: Optional[int] = None
    """Those that were not forked for so long."""


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
    """When it was forked last, or made."""


@dataclass(frozen=True)
class PrunedSnapshots(Model):
    """What was removed, or would be, in this order."""

    freed_bytes: int
    """What the disk has back."""

    snapshots: list[PrunedSnapshot]


@dataclass(frozen=True)
class Publish(Model):
    """Whether every project may use something."""

    public: bool


@dataclass(frozen=True)
class PullImage(Model):
    """Pulls an image from a registry."""

    reference: str
    """As Docker has it: `python:3.12`, `registry.example/team/app@sha256:…`. Plain http is spoken with the daemon's own
    host only.
    """

    credentials: Optional[Credentials] = None
    """Without them, those of the daemon's Docker config file."""

    name: Optional[str] = None
    """The name that the image gets; without one, the reference."""

    size_mib: Optional[int] = None
    """The least size of the file system."""


@dataclass(frozen=True)
class PullSnapshot(Model):
    """Fetches a snapshot from a registry."""

    reference: str
    """Where from: `registry.example/team/app:tag`, or with `@sha256:…`."""

    credentials: Optional[Credentials] = None
    """Without them, those of the daemon's Docker config file."""

    key: Optional[str] = None
    """A public key in PEM (ECDSA P-256) that must have signed it, beside what the daemon's policy demands."""

    reuse: bool = False
    """If this very snapshot is here, under whatever tag, answer with it and fetch nothing. If it is not and no tag is
    given, it is called after the reference and its digest: `app-tag-0123456789ab`.
    """

    tag: Optional[str] = None
    """What it is called here. Without one, what its sender calls it."""


@dataclass(frozen=True)
class PushSnapshot(Model):
    """Sends a snapshot to a registry, with all that it stands on."""

    reference: str
    """Where to: `registry.example/team/app:tag`."""

    credentials: Optional[Credentials] = None
    """Without them, those of the daemon's Docker config file."""

    mount_from: list[str] = field(default_factory=list)
    """Repositories of the same registry that may have some of it already, without the registry's name. Those that the
    snapshot, or one that it is based on, was pushed to or pulled from are known.
    """

    variant: Optional[str] = None
    """Adds it to what the tag names, as the variant with this name (1-63 of a-z, 0-9 and `._-`), in the place of an
    earlier one with that name. Whoever pulls the tag gets the first variant that fits the host. Without it, the tag
    then names this snapshot alone.
    """

    yes: bool = False
    """A snapshot of a sandbox has the memory of whoever used it, and so have those that are based on one. They are pushed
    only with this.
    """


@dataclass(frozen=True)
class PushedSnapshot(Model):
    """What a push has done."""

    present_bytes: int
    """Bytes that the registry had already, or took from another repository."""

    reference: str
    """Where it is, by its digest."""

    sent_bytes: int
    """Bytes that were sent."""


@dataclass(frozen=True)
class ReadyProbe(Model):
    """When the guest is ready. One of `port` and `command`."""

    command: Optional[list[str]] = None
    """This command ends with 0."""

    port: Optional[int] = None
    """Somebody listens on this port."""

    timeout_secs: Optional[int] = None


@dataclass(frozen=True)
class RemovedImage(Model):
    """What was removed."""

    freed_bytes: int
    """What the disk has back."""

    id: str

    names: list[str]
    """The names that are gone."""

    removed: bool
    """Whether the image is gone too: it was removed by its id or its last name."""


@dataclass(frozen=True)
class RemovedSnapshots(Model):
    """What was removed, in this order."""

    removed: list[str]

    names: list[str] = field(default_factory=list)
    """The name that was removed, if what was named is not the tag of a snapshot but another of its names."""


@dataclass(frozen=True)
class RepositoryTag(Model):
    """A tag of a repository, and what it names."""

    digest: str
    """The digest of the manifest: `sha256:…`."""

    snapshot: bool
    """Whether it is a snapshot that can be pulled."""

    tag: str

    created_at_unix: Optional[int] = None
    """When the snapshot was made, if its manifest says it."""

    kind: Optional[str] = None
    """The type of what it is, as a media type."""

    size_bytes: Optional[int] = None
    """Compressed bytes, if the registry says it."""


@dataclass(frozen=True)
class RepositoryTags(Model):
    """The tags of a repository."""

    repository: str

    tags: list[RepositoryTag]
    """In the registry's order, at most 1000."""

    truncated: bool
    """Whether there are more."""


@dataclass(frozen=True)
class ResolveSnapshot(Model):
    """Asks what a reference to a registry names now."""

    reference: str
    """`registry.example/team/app:tag`, or with `@sha256:…`."""

    credentials: Optional[Credentials] = None
    """Without them, those of the daemon's Docker config file."""


@dataclass(frozen=True)
class ResolvedSnapshot(Model):
    """A snapshot in a registry."""

    digest: str
    """The digest to sign and to verify: `sha256:…`."""

    repository: str
    """Registry and repository, as signatures and policies name them."""


@dataclass(frozen=True)
class Rollback(Model):
    """Takes a sandbox back to one of its own branches."""

    tag: str


@dataclass(frozen=True)
class SandboxInfo(SandboxNames, Model):
    """A sandbox."""

    branches: list[str]
    """Its own branches, the oldest first."""

    created_at_unix: int

    disk_mib: int
    """What it may write to its disk."""

    id: str

    memory_mib: int

    metadata: dict[str, str]

    snapshot_tag: str
    """The snapshot that it was forked from."""

    state: SandboxState

    vcpus: int

    egress: Optional[Egress] = None
    """What it may reach. Without a network, nothing is said."""

    ended: Optional[Ended] = None
    """Why it has ended."""

    expires_at_unix: Optional[int] = None
    """When it expires."""

    limits: Optional[Limits] = None
    """What it may use of the host, as it is kept."""

    on_expiry: Optional[OnExpiry] = None

    owner: Optional[str] = None
    """Who asked for it: `token:NAME`, `unix:UID`, or `local`."""

    pid: Optional[int] = None
    """Its VM process on the host."""

    project: Optional[str] = None
    """The project that it belongs to."""

    wake_on_traffic: bool = False
    """Whether a request to it wakes it when it is paused."""


@dataclass(frozen=True)
class SandboxList(Model):
    """Sandboxes, the oldest first."""

    sandboxes: list[SandboxInfo]

    next: Optional[str] = None
    """There are more: ask again with this as `after`."""


@dataclass(frozen=True)
class SandboxStats(Model):
    """What a sandbox uses."""

    cpu_us: int
    """CPU time of the VM process so far."""

    disk_bytes: int
    """What it has written to its disk since its last branch."""

    memory_private_bytes: int
    """Memory that only this sandbox maps."""

    memory_shared_bytes: int
    """Memory that it shares with other processes: with a snapshot's, and through that with other sandboxes."""

    kvm: Optional[KvmStats] = None
    """What KVM has counted of its guest since it was forked or last rolled back. None where the kernel does not count."""

    memory_shared_with: Optional[str] = None
    """The snapshot that it shares this memory with: its latest branch in memory, or the snapshot that it was forked from.
    None if neither is in memory.
    """

    network: Optional[NetworkStats] = None
    """What went through its network, if it has one."""

    process_faults: Optional[int] = None
    """Page faults of the VM process, its guest's aside."""


@dataclass(frozen=True)
class SendSignal(Model):
    """Sends a signal to a program and all that are in its process group."""

    signal: Signal


@dataclass(frozen=True)
class SetBandwidth(Model):
    """Changes how much a sandbox may send and receive."""

    bandwidth_mib: Optional[int] = None
    """MiB a second that it may send, and may receive; `null` for what the daemon gives to those who ask for nothing."""


@dataclass(frozen=True)
class SetTtl(Model):
    """Changes when a sandbox is ended by itself."""

    ttl_secs: Optional[int] = None
    """Seconds from now; `null` for never."""


@dataclass(frozen=True)
class SnapshotInfo(Model):
    """A snapshot."""

    children: list[str]
    """The snapshots that are changes of this one."""

    created_at_unix: int

    disk_mib: int

    loaded: bool
    """Whether a process is there to fork from at once."""

    memory_mib: int

    size: SnapshotSize
    """What it takes on disk, as far as it is there."""

    status: SnapshotStatus

    tag: str

    vcpus: int

    branched_from: Optional[str] = None
    """The sandbox that it is a branch of."""

    build_key: Optional[str] = None
    """Of one that was built: the digest of what it was made of. A build with the same key gets this snapshot."""

    cpu: Optional[Cpu] = None
    """What its sandboxes are shown of the host's CPU."""

    error: Optional[str] = None
    """Why it failed."""

    image: Optional[str] = None
    """The image that it was booted from."""

    names: list[str] = field(default_factory=list)
    """Its other names. Each can be used in the place of the tag."""

    network: bool = False
    """Whether its sandboxes have a network."""

    parent: Optional[str] = None
    """The snapshot that this one is a change of."""

    pause_us: Optional[int] = None
    """How long the sandbox stood still for it."""

    project: Optional[str] = None
    """The project that it belongs to."""

    public: bool = False
    """Whether every project may fork from it."""

    resident: Optional[SnapshotMemory] = None
    """The memory that this process holds."""


@dataclass(frozen=True)
class SnapshotDamage(Model):
    """A file that is not as it was written."""

    problem: str
    """What is wrong with it."""

    file: Optional[str] = None
    """The file, below the daemon's directory."""


@dataclass(frozen=True)
class SnapshotHistory(Model):
    """A snapshot, those it is based on and those that are based on it."""

    snapshots: list[SnapshotHistoryEntry]
    """Its chain from the base up, itself, then its dependents, each directly behind its parent or a sibling's dependents.
    Snapshots that the caller may not see are left out.
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
    """How many snapshots it is based on, directly or not."""

    kind: SnapshotKind

    own_bytes: int
    """Bytes on disk that only it and its dependents use: its memory, its state, and the disk layers that came with it."""

    shared_bytes: int
    """Bytes on disk that it uses of others: the memory of the snapshots it is based on, their disk layers, and the image."""

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
    """The memory of a snapshot's process. Of a branch, this is the memory of the sandbox at that time."""

    private_bytes: int
    """Memory that only this process maps: the host gets it back when the snapshot is removed."""

    shared_bytes: int
    """Memory that it shares with sandboxes and other snapshots."""


@dataclass(frozen=True)
class SnapshotSignature(Model):
    """A signature that is in a registry."""

    added: bool
    """False if this key had signed it before: that signature stays."""

    key: str
    """The first 16 digits of the SHA-256 of the public key's DER form."""

    reference: str
    """What it is of, by its digest."""


@dataclass(frozen=True)
class SnapshotSize(Model):
    """The answer's type SnapshotSize."""

    disk_bytes: int

    memory_bytes: int


@dataclass(frozen=True)
class SnapshotVerification(Model):
    """Every file of a snapshot, and of what it is based on, was read."""

    bytes: int
    """How many bytes were read. Of a disk layer, also its holes."""

    disk_layers: int
    """How many disk layers were read, the image included."""

    intact: bool
    """Whether all files are as they were written."""

    snapshots: int
    """How many snapshots were read: itself and those it is based on."""

    tag: str

    damage: Optional[SnapshotDamage] = None
    """The first damaged file, if there is one. What comes behind it was not read."""


@dataclass(frozen=True)
class StartProcess(Model):
    """Starts a program that nobody waits for."""

    args: list[str]
    """The program and its arguments."""

    cwd: Optional[str] = None

    env: dict[str, str] = field(default_factory=dict)

    stdin: bool = False
    """Whether it can be written to. Without it, the program reads the end of its input at once."""

    timeout_secs: Optional[int] = None
    """It is killed after this time. Without it, it runs as long as it wants."""

    user: Optional[str] = None
    """Without one, the image's."""


@dataclass(frozen=True)
class StartedProcess(Model):
    """A program that was started."""

    pid: int


@dataclass(frozen=True)
class StepTiming(Model):
    """How long sandboxes took for one step."""

    count: int
    """How many took it."""

    max_us: int

    p50_us: int

    p99_us: int

    step: str


@dataclass(frozen=True)
class TerminalSize(Model):
    """The answer's type TerminalSize."""

    cols: int

    rows: int


@dataclass(frozen=True)
class TokenLimits(Model):
    """What there may be at once of a token's, or of a project's, together. What is not said is as much as the host gives."""

    memory_mib: Optional[int] = None
    """Of their guests, and what their branches keep."""

    sandboxes: Optional[int] = None
    """Guests that make snapshots and images count as well."""

    snapshot_mib: Optional[int] = None
    """What their snapshots take on disk, without what they share with those they are based on. The one that is being made
    may go beyond it; the next is refused.
    """

    snapshots: Optional[int] = None
    """Branches are snapshots, too."""

    vcpus: Optional[int] = None


@dataclass(frozen=True)
class Transfer(Model):
    """How far a transfer is."""

    done_bytes: int
    """Bytes that have been transferred, before compression."""

    total_bytes: int
    """Bytes to transfer in all, before compression. A pull does not count what is here already; a push counts what the
    registry has as done.
    """


@dataclass(frozen=True)
class Version(Model):
    """The answer's type Version."""

    api: str
    """The API's."""

    version: str
    """The daemon's."""

    emulated: bool = False
    """Whether its host's CPU is an emulator: everything works, and every time is many times what it would be."""


@dataclass(frozen=True)
class WarmUp(Model):
    """Code for one of the guest's interpreters."""

    code: str

    language: Language
