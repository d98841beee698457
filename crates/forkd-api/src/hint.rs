//! Hints on what to do about a failure, as codes: each client has its own text for them.
//!
//! The daemon sends a code and a text. The text is for people who speak the API; the command line and E2B's protocol have their
//! own words for the codes that need them, and take the text for all others, also for codes that they do not know.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What can be done about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HintCode {
    /// Look at the list of sandboxes.
    ListSandboxes,
    /// Look at the list of snapshots.
    ListSnapshots,
    /// Look at the lists of snapshots and of sandboxes.
    ListSources,
    /// Look at the list of images.
    ListImages,
    /// Look at the list of kernels.
    ListKernels,
    /// Look at the list of the sandbox's branches.
    ListBranches,
    /// Name a snapshot or an image.
    NameTemplate,
    /// Take another tag, or remove the snapshot that has it.
    ChooseTag,
    /// Remove what depends on it, or everything together.
    RemoveDependents,
    /// Remove the other names of the snapshot, or everything together.
    RemoveNames,
    /// Compact or remove what depends on it.
    CompactDependents,
    /// Look for the damaged file.
    VerifySnapshot,
    /// Move the name.
    MoveName,
    /// Confirm that a snapshot of a sandbox is to be pushed.
    ConfirmPush,
    /// Look at the names of the snapshot.
    ListNames,
    /// Remove what uses it.
    RemoveUsers,
    /// Remove some of the sandbox's branches.
    RemoveBranches,
    /// Remove some sandboxes.
    RemoveSandboxes,
    /// Remove some sandboxes, or let the daemon have more.
    RaiseSandboxes,
    /// Remove some of the project's sandboxes or branches, or raise its limits.
    RaiseProjectLimits,
    /// Remove some of the token's sandboxes or branches, or use a token that allows more.
    RaiseTokenLimits,
    /// Remove sandboxes or branches, or let the daemon use more memory.
    FreeMemory,
    /// Remove snapshots or images, or let the daemon keep less disk space free.
    FreeDisk,
    /// Remove images or snapshots.
    RemoveImages,
    /// Remove it and make it again.
    MakeAgain,
    /// Make room on the disk of the daemon's host for layers to be merged.
    MergeLayers,
    /// Ask for a smaller disk, or make the snapshot with a larger one.
    FitDisk,
    /// Make the snapshot without a network, or let the daemon's host give networks.
    NetworkOfHost,
    /// Leave out what needs a network, or make the snapshot with one.
    NetworkOfSnapshot,
    /// Say what may be reached instead of what may not.
    AllowInstead,
    /// Ask for no limits, or give the daemon's host cgroup v2.
    CgroupOfHost,
    /// Ask for no limits of reading and writing, or put the daemon's files on a disk.
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
    /// Ask again.
    TryAgain,
    /// Ask again when other work is done.
    TryLater,
    /// Ask again, or remove what does not answer.
    TryAgainOrRemove,
    /// Look at how the sandbox ended.
    LookAtEnd,
    /// Look at the sandbox's console.
    LookAtConsole,
    /// Resume the sandbox.
    ResumeFirst,
    /// Start what is to listen on the port.
    StartListening,
    /// Ask for an archive.
    AskForArchive,
    /// Look into the daemon's log.
    DaemonLog,
    /// Have a look at the daemon's host.
    ExamineHost,
    /// Do what the text says on the daemon's host.
    OnHost,
    /// Start the daemon as root.
    NeedsRoot,
    /// Send credentials for the registry.
    RegistryCredentials,
    /// Choose another default kernel, or remove it all the same.
    ChooseKernel,
    /// Show a token.
    NeedsToken,
    /// Use a token with a wider scope.
    NeedsScope,
    /// Use a token of the project.
    NeedsProject,
    /// Use a name of the loopback, or show a token.
    NotFromWebPage,
    /// Say that the body is JSON.
    SendJson,
    /// Look at the description of the API.
    ReadApi,
    /// Use a method that the path has.
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
            HintCode::ListSandboxes => "GET /v1/sandboxes lists those there are",
            HintCode::ListSnapshots => "GET /v1/snapshots lists those there are",
            HintCode::ListSources => "GET /v1/snapshots and GET /v1/sandboxes list those there are",
            HintCode::ListImages => "GET /v1/images lists those there are",
            HintCode::ListKernels => "GET /v1/kernels lists those there are",
            HintCode::ListBranches => "`branches` of a sandbox has those it can go back to",
            HintCode::NameTemplate => "name a snapshot (forkd snapshot ls) or an image (forkd image ls)",
            HintCode::ChooseTag => "choose another tag, or remove the snapshot first",
            HintCode::RemoveDependents => "remove them first, or all with ?cascade=true",
            HintCode::RemoveNames => "remove those names first, or all with ?all_names=true",
            HintCode::CompactDependents => "compact or remove them first",
            HintCode::VerifySnapshot => "POST /v1/snapshots/{tag}/verify names the damaged file",
            HintCode::MoveName => "choose another name, or move it with ?force=true",
            HintCode::ConfirmPush => {
                "push it with \"yes\": true if everybody who can pull it may see that memory"
            }
            HintCode::ListNames => "`names` of a snapshot has its other names",
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
                "branch it again when the daemon's host can merge layers: they need room on its disk"
            }
            HintCode::FitDisk => {
                "ask for less in limits.disk_mib, or make the snapshot with a larger disk_mib"
            }
            HintCode::NetworkOfHost => {
                "make the snapshot with \"network\": false, or have the daemon's host give networks: `forkd doctor` says what is missing"
            }
            HintCode::NetworkOfSnapshot => {
                "leave out egress and limits.bandwidth_mib, or make the snapshot with \"network\": true"
            }
            HintCode::AllowInstead => "deny 0.0.0.0/0, and name in allowOut what may be reached",
            HintCode::CgroupOfHost => {
                "ask for no limits but disk_mib, or have the daemon's host give it cgroup v2: `forkd doctor` says what is missing"
            }
            HintCode::DiskOfHost => {
                "put the daemon's --root on a disk, or ask for no limits of reading and writing"
            }
            HintCode::TryCode => "the code runs in the image as it is; try it in a sandbox first",
            HintCode::ImageWithLanguage => "make the snapshot of an image that has the language",
            HintCode::BuildOnImage => "build on an image, or make a sandbox of it and snapshot that",
            HintCode::PullFirst => "pull the image first: forkd image pull",
            HintCode::SetUpTemplate => "make it on the daemon's host: forkd e2b setup",
            HintCode::TryAgain => {
                "ask again; if it goes on, the daemon's log has more, under this answer's x-request-id"
            }
            HintCode::TryLater => "ask again when that is done",
            HintCode::TryAgainOrRemove => {
                "ask again; one whose process does not answer at all can still be removed"
            }
            HintCode::LookAtEnd => "look at its `ended`",
            HintCode::LookAtConsole => "its console may say why: GET /v1/sandboxes/{id}/console",
            HintCode::ResumeFirst => "connect to it first",
            HintCode::StartListening => {
                "start what is to listen there, or look whether it listens on localhost"
            }
            HintCode::AskForArchive => "directories are sent as archives: accept: application/x-tar",
            HintCode::DaemonLog => "the daemon's log has the reason, under this answer's x-request-id",
            HintCode::ExamineHost => "`forkd doctor` on the daemon's host says what it cannot read",
            HintCode::OnHost => "this is to be done on the daemon's host",
            HintCode::NeedsRoot => "start the daemon as root",
            HintCode::RegistryCredentials => {
                "send credentials with the request, or mend the daemon's Docker config file"
            }
            HintCode::ChooseKernel => {
                "choose another first (PUT /v1/kernels/default), or remove it with ?force=true"
            }
            HintCode::NeedsToken => {
                "send authorization: Bearer TOKEN; make a token on the daemon's host: forkd token create NAME --scope run"
            }
            HintCode::NeedsScope => "make one on the daemon's host: forkd token create NAME --scope SCOPE",
            HintCode::NeedsProject => {
                "it is public, so it can be used; to change it needs a token of its project, or one with the scope admin"
            }
            HintCode::NotFromWebPage => {
                "ask for 127.0.0.1 or localhost, without an origin header, or make a token and send it: forkd token create NAME"
            }
            HintCode::SendJson => "send it with content-type: application/json",
            HintCode::ReadApi => "the API is described at /openapi.json",
            HintCode::UseMethod => "the header allow says which it has",
            HintCode::UsePost => "POST runs a program without one",
            HintCode::NewKey => "use a new key for each thing that is to be made",
        }
    }
}
