//! Hints on what to do about a failure, as codes: each client has its own text for them.
//!
//! The daemon sends a code and a text. The text is for people who speak the API; the command line and E2B's protocol have their
//! own words for the codes that need them, and take the text for all others, also for codes that they do not know.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HintCode {
    /// List the sandboxes.
    ListSandboxes,
    /// List the snapshots.
    ListSnapshots,
    /// List the snapshots and sandboxes.
    ListSources,
    /// List the images.
    ListImages,
    /// List the kernels.
    ListKernels,
    /// List the sandbox's branches.
    ListBranches,
    /// Name a snapshot or an image.
    NameTemplate,
    /// Choose another tag, or remove the snapshot that has it.
    ChooseTag,
    /// Remove what depends on it first, or remove everything with one request.
    RemoveDependents,
    /// Remove the other names of the snapshot first, or with the snapshot.
    RemoveNames,
    /// Compact or remove what depends on it.
    CompactDependents,
    /// Verify the snapshot to find the damaged file.
    VerifySnapshot,
    /// Move the name.
    MoveName,
    /// Confirm that a snapshot of a sandbox is to be pushed.
    ConfirmPush,
    /// List the names of the snapshot.
    ListNames,
    /// Remove what uses it.
    RemoveUsers,
    /// Remove some of the sandbox's branches.
    RemoveBranches,
    /// Remove some sandboxes.
    RemoveSandboxes,
    /// Remove some sandboxes, or raise the daemon's limit.
    RaiseSandboxes,
    /// Remove some of the project's sandboxes or branches, or raise its limits.
    RaiseProjectLimits,
    /// Remove some of the token's sandboxes or branches, or use a token that allows more.
    RaiseTokenLimits,
    /// Remove sandboxes or branches, or raise the daemon's memory limit.
    FreeMemory,
    /// Remove snapshots or images, or lower the disk space that the daemon keeps free.
    FreeDisk,
    /// Remove images or snapshots.
    RemoveImages,
    /// Remove it and make it again.
    MakeAgain,
    /// Free disk space on the daemon's host, so that layers can be merged.
    MergeLayers,
    /// Ask for a smaller disk, or make the snapshot with a larger one.
    FitDisk,
    /// Make the snapshot without a network, or set up networking on the daemon's host.
    NetworkOfHost,
    /// Omit what needs a network, or make the snapshot with one.
    NetworkOfSnapshot,
    /// List allowed destinations instead of denied ones.
    AllowInstead,
    /// Set no limits, or set up cgroup v2 on the daemon's host.
    CgroupOfHost,
    /// Set no disk I/O limits, or put the daemon's files on a disk.
    DiskOfHost,
    /// Try the code in a sandbox.
    TryCode,
    /// Make the snapshot of an image that has the language.
    ImageWithLanguage,
    /// Build on an image.
    BuildOnImage,
    /// Pull the image first.
    PullFirst,
    /// Make the usual template.
    SetUpTemplate,
    /// Try again.
    TryAgain,
    /// Try again later.
    TryLater,
    /// Try again, or remove what does not answer.
    TryAgainOrRemove,
    /// Look up why the sandbox ended.
    LookAtEnd,
    /// Look at the sandbox's console.
    LookAtConsole,
    /// Resume the sandbox.
    ResumeFirst,
    /// Start the server that should listen on the port.
    StartListening,
    /// Request an archive.
    AskForArchive,
    /// Look in the daemon's log.
    DaemonLog,
    /// Examine the daemon's host.
    ExamineHost,
    /// Do what the text says on the daemon's host.
    OnHost,
    /// Start the daemon as root.
    NeedsRoot,
    /// Send credentials for the registry.
    RegistryCredentials,
    /// Choose another default kernel, or force the removal.
    ChooseKernel,
    /// Send a token.
    NeedsToken,
    /// Use a token with a wider scope.
    NeedsScope,
    /// Use a token of the project.
    NeedsProject,
    /// Use a loopback name, or send a token.
    NotFromWebPage,
    /// Send the body with Content-Type: application/json.
    SendJson,
    /// See the API description.
    ReadApi,
    /// Use a method that the path supports.
    UseMethod,
    /// Use a request without WebSockets.
    UsePost,
    /// Use another idempotency key.
    NewKey,
}

impl HintCode {
    /// In words of the API.
    pub fn text(self) -> &'static str {
        match self {
            HintCode::ListSandboxes => "list sandboxes: GET /v1/sandboxes",
            HintCode::ListSnapshots => "list snapshots: GET /v1/snapshots",
            HintCode::ListSources => "list snapshots or sandboxes: GET /v1/snapshots, GET /v1/sandboxes",
            HintCode::ListImages => "list images: GET /v1/images",
            HintCode::ListKernels => "list kernels: GET /v1/kernels",
            HintCode::ListBranches => "a sandbox can be rolled back to its `branches`",
            HintCode::NameTemplate => "name a snapshot (forkd snapshot ls) or an image (forkd image ls)",
            HintCode::ChooseTag => "choose another tag, or remove the snapshot first",
            HintCode::RemoveDependents => "remove them first, or all with ?cascade=true",
            HintCode::RemoveNames => "remove those names first, or all with ?all_names=true",
            HintCode::CompactDependents => "compact or remove them first",
            HintCode::VerifySnapshot => "POST /v1/snapshots/{tag}/verify names the damaged file",
            HintCode::MoveName => "choose another name, or move it with ?force=true",
            HintCode::ConfirmPush => {
                "push it with \"yes\": true if everyone who can pull it may see that memory"
            }
            HintCode::ListNames => "the other names of a snapshot are in its `names`",
            HintCode::RemoveUsers => "remove them first",
            HintCode::RemoveBranches => "remove some of its branches first",
            HintCode::RemoveSandboxes => "remove some sandboxes first",
            HintCode::RaiseSandboxes => {
                "remove some first, or start the daemon with a higher --max-sandboxes"
            }
            HintCode::RaiseProjectLimits => {
                "remove some of its sandboxes or branches first, or raise its limits on the daemon's host: forkd project limit"
            }
            HintCode::RaiseTokenLimits => {
                "remove some of its sandboxes or branches first, or use a token that allows more"
            }
            HintCode::FreeMemory => {
                "remove sandboxes or branches first, or start the daemon with a higher --max-memory"
            }
            HintCode::FreeDisk => {
                "remove snapshots or images first, or start the daemon with a lower --free-disk"
            }
            HintCode::RemoveImages => "remove images or snapshots first",
            HintCode::MakeAgain => "remove it and make it again",
            HintCode::MergeLayers => {
                "free disk space on the daemon's host, so that it can merge the layers, then branch again"
            }
            HintCode::FitDisk => {
                "ask for less in limits.disk_mib, or make the snapshot with a larger disk_mib"
            }
            HintCode::NetworkOfHost => {
                "make the snapshot with \"network\": false, or set up networking on the daemon's host: `forkd doctor` shows what is missing"
            }
            HintCode::NetworkOfSnapshot => {
                "leave out egress and limits.bandwidth_mib, or make the snapshot with \"network\": true"
            }
            HintCode::AllowInstead => "deny 0.0.0.0/0, and list the allowed destinations in allowOut",
            HintCode::CgroupOfHost => {
                "set no limits except disk_mib, or set up cgroup v2 on the daemon's host: `forkd doctor` shows what is missing"
            }
            HintCode::DiskOfHost => "put the daemon's --root on a disk, or set no disk I/O limits",
            HintCode::TryCode => "the code runs in the image as it is; try it in a sandbox first",
            HintCode::ImageWithLanguage => "make the snapshot of an image that has the language",
            HintCode::BuildOnImage => "build on an image, or make a sandbox of it and snapshot that",
            HintCode::PullFirst => "pull the image first: forkd image pull",
            HintCode::SetUpTemplate => "make it on the daemon's host: forkd e2b setup",
            HintCode::TryAgain => {
                "try again; if it fails again, look in the daemon's log for this answer's x-request-id"
            }
            HintCode::TryLater => "try again when that is done",
            HintCode::TryAgainOrRemove => {
                "try again; a sandbox whose process does not answer can still be removed"
            }
            HintCode::LookAtEnd => "the sandbox's `ended` says why",
            HintCode::LookAtConsole => "its console may say why: GET /v1/sandboxes/{id}/console",
            HintCode::ResumeFirst => "connect to it first",
            HintCode::StartListening => "start the server, or check that it listens on localhost",
            HintCode::AskForArchive => "read a directory as an archive, with accept: application/x-tar",
            HintCode::DaemonLog => "look in the daemon's log for this answer's x-request-id",
            HintCode::ExamineHost => "`forkd doctor` on the daemon's host shows what it cannot read",
            HintCode::OnHost => "do this on the daemon's host",
            HintCode::NeedsRoot => "start the daemon as root",
            HintCode::RegistryCredentials => {
                "send credentials with the request, or fix the daemon's Docker config file"
            }
            HintCode::ChooseKernel => {
                "choose another first (PUT /v1/kernels/default), or remove it with ?force=true"
            }
            HintCode::NeedsToken => {
                "send authorization: Bearer TOKEN; make a token on the daemon's host: forkd token create NAME --scope run"
            }
            HintCode::NeedsScope => "make one on the daemon's host: forkd token create NAME --scope SCOPE",
            HintCode::NeedsProject => {
                "it is public: every project can use it, but only a token of its own project or one with the scope admin can change it"
            }
            HintCode::NotFromWebPage => {
                "use the host 127.0.0.1 or localhost and no origin header, or make a token and send it: forkd token create NAME"
            }
            HintCode::SendJson => "send it with content-type: application/json",
            HintCode::ReadApi => "the API is described at /openapi.json",
            HintCode::UseMethod => "the allow header lists the supported methods",
            HintCode::UsePost => "use POST to run a program without a WebSocket",
            HintCode::NewKey => "use a new key for each request",
        }
    }
}
