//! `forkd serve`: the daemon.

mod otlp;
mod private;
mod temporary;

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forkd_daemon::build_guests::EngineGuests;
use forkd_daemon::config::{Config, Limits, Socket, Tcp, Tls, TlsFiles};
use forkd_daemon::snapshot_policy::PolicyFile;
use forkd_daemon::{App, Server, housekeeping, routes, signals};
use forkd_e2b::E2b;
use forkd_engine::library::Library;
use forkd_engine::{self as engine, Engine, EngineError, Networking, NetworksFound, Recovered, Settings};
use forkd_host::home;
use forkd_image::images::ImageStore;
use forkd_image::kernels::KernelStore;
use forkd_net::{PoolSettings, Upstream};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::arguments::{Cgroup, Listen, NetworkArgument, ServeOptions};
use crate::daemon::SOCKET;
use crate::error::{CGROUP_HINT, CliError};
use crate::exit::Exit;
use crate::logging;
use private::PrivateKeeper;

/// The engine's directory among forkd's files.
const ROOT: &str = "engine";
/// Enough for every sandbox that the plan of addresses has.
const DESCRIPTORS: u64 = 1 << 20;
/// What a daemon holds as long as it lives, among the engine's files.
const LOCK: &str = "lock";
/// The cgroup of all VM processes, below the root.
const CGROUP: &str = "forkd";
/// What part of the host's memory snapshots have that are kept ready to be forked, if nothing else is said.
const ZYGOTE_SHARE: u64 = 4;
/// What is being made when the daemon is to stop is made, or given up, within this time.
const SETTLING: Duration = Duration::from_secs(90);
/// Networks that are kept ready: more than most ask for at once, and as many as an emulated CPU makes in a second or two.
const NETWORKS_READY: u16 = 128;
const NETWORKS_READY_EMULATED: u16 = 16;
/// A private daemon has few sandboxes, and is to start and end at once.
const NETWORKS_READY_PRIVATE: u16 = 8;
/// The port of servers that are asked for names.
const DNS: u16 = 53;
/// Threads that wait for the disk get this much more.
const THREADS: Duration = Duration::from_secs(2);

pub fn run(options: &ServeOptions) -> Result<Exit, CliError> {
    if options.detached {
        // It leads a session already if its starter saw to that.
        let _ = rustix::process::setsid();
    }
    logging::start(&options.log)?;
    allow_descriptors();
    if let Some(directory) = &options.temporary {
        return to_its_end(temporary::serve(options, directory));
    }
    let config = config(options)?;
    let library = library(options)?;
    let settings = settings(options, &config, &library)?;
    let _lock = lock(&settings.root)?;
    let keeper = match options.private {
        true => Some(PrivateKeeper::take(&config.home, &settings)?),
        false => private::take_over(&config.home, &settings.root).map(|()| None)?,
    };
    let required = options.network == NetworkArgument::Required;
    to_its_end(serve(config, settings, library, required, keeper))
}

fn to_its_end(serving: impl Future<Output = Result<Exit, CliError>>) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::Io("start", error))?;
    let served = runtime.block_on(serving);
    // A thread that makes an image may not have noticed yet. What it leaves is swept by the next one.
    runtime.shutdown_timeout(THREADS);
    served
}

/// As many descriptors as there can be: each sandbox is a dozen, with those of its network. The limit that programs begin with
/// is low for the sake of those that use select(2).
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map(|most| most.max(DESCRIPTORS));
    // Only root can raise the upper one.
    if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

async fn serve(
    mut config: Config,
    settings: Settings,
    library: Library,
    network_required: bool,
    mut keeper: Option<PrivateKeeper>,
) -> Result<Exit, CliError> {
    if !settings.program.is_file() {
        tracing::warn!(program = %settings.program.display(), "forkd-vmm is missing; sandboxes cannot be created");
    }
    let (engine, recovered) = Engine::start(settings).await.map_err(of_engine)?;
    report(&recovered);
    if let Some(keeper) = &mut keeper {
        keeper.begin(&engine, &recovered).await?;
    }
    if !engine.checks_layers().map_err(of_engine)? {
        tracing::warn!(
            root = %engine.root().display(),
            "the file system has no leases: cannot check that VM processes close frozen disk layers"
        );
    }
    match engine.has_disk_quotas() {
        true => {
            tracing::info!("the file system enforces project quotas: the kernel limits each sandbox's disk")
        }
        false => {
            tracing::info!("the file system has no project quotas: VM processes limit their disks themselves")
        }
    }
    if network_required && let Some(reason) = recovered.networks.unavailable {
        return Err(CliError::NoNetwork(reason));
    }
    let sending = otlp::start();
    config.spans = sending.as_ref().map(|sending| Arc::clone(&sending.sink));
    let networks = engine.clone();
    let guests = EngineGuests { engine: engine.clone(), library: library.clone() };
    let e2b = E2b::open(&config.home).map_err(CliError::of_verb)?;
    let app = App::new(&config, engine, library, Box::new(guests), e2b).map_err(CliError::of_verb)?;
    let server = Server::bind(&config, app.clone()).await.map_err(CliError::of_verb)?;
    report_policy(&app.snapshot_policy);
    housekeeping::start(&app);
    let signals =
        signals::listen(server.handle()).map_err(|error| CliError::Io("listen to signals", error))?;
    if let Some(socket) = server.socket() {
        tracing::info!(socket = %socket.display(), "listening");
    }
    if let Some(address) = server.address() {
        let tls = match config.tcp.as_ref().and_then(|tcp| tcp.tls.as_ref()) {
            None => "no",
            Some(Tls::Files(_)) => "only",
            Some(Tls::Own(_)) => "own CA",
        };
        tracing::info!(%address, tls, "listening");
        if !app.tokens.needed() {
            tracing::warn!("no tokens exist: every user of this host can use {address}");
        }
    }
    if let Some(keeper) = &keeper {
        keeper.stop_when_left(server.handle(), networks.clone());
    }
    tokio::select! {
        () = server.serve(routes::router(&app)) => {
            if tokio::time::timeout(SETTLING, app.settled()).await.is_err() {
                tracing::warn!("shutdown timed out; cancelled unfinished operations");
            }
            if let Some(sending) = sending {
                sending.finish.await;
            }
            tracing::info!("stopped");
            if let Some(keeper) = &mut keeper {
                keeper.end_everything(&networks).await;
            }
        }
        () = signals => tracing::warn!("second signal: stopping immediately"),
    }
    // The next daemon removes the rest.
    let clear = async {
        networks.cleared().await;
        networks.stop_networks().await
    };
    match tokio::time::timeout(SETTLING, clear).await {
        Ok(Err(error)) => tracing::warn!(
            error = &error as &dyn std::error::Error,
            "could not remove all networks; the next daemon removes them"
        ),
        Err(_) => tracing::warn!("could not remove all networks; the next daemon removes them"),
        Ok(Ok(())) => {}
    }
    keeper.map_or(Ok(()), PrivateKeeper::end)?;
    Ok(Exit::Success)
}

fn of_engine(error: EngineError) -> CliError {
    let hint = matches!(error, EngineError::Cgroup(_)).then_some(CGROUP_HINT);
    CliError::of_verb_with(error, hint)
}

/// Says which snapshots may be pulled. It is read anew for each pull, so one that is damaged now can be repaired.
fn report_policy(policy: &PolicyFile) {
    match policy.read() {
        Ok(None) => {}
        Ok(Some(_)) => {
            tracing::info!(policy = %policy.path().display(), "using snapshot policy")
        }
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "invalid snapshot policy: pulls are refused"
            )
        }
    }
}

/// Says what the daemon before this one has left.
fn report(recovered: &Recovered) {
    let Recovered { sandboxes, zygotes, stored, mute, unreadable, removed, networks } = recovered;
    tracing::info!(
        sandboxes = sandboxes.len(),
        zygotes = zygotes.len(),
        stored = stored.len(),
        removed,
        "adopted running VMs"
    );
    for id in sandboxes {
        tracing::info!(%id, "adopted a sandbox");
    }
    for tag in zygotes {
        tracing::info!(%tag, "adopted a zygote");
    }
    for directory in mute {
        tracing::warn!(directory = %directory.display(), "VM process does not respond; not adopted");
    }
    for error in unreadable {
        tracing::warn!(%error, "{}", housekeeping::LEFT_ALONE);
    }
    let NetworksFound { changes, lost, removed, unavailable } = networks;
    if let Some(reason) = unavailable {
        tracing::warn!(reason, "sandboxes with a network are refused");
    }
    if *removed > 0 {
        tracing::info!(removed, "removed unused networks");
    }
    for change in changes {
        tracing::info!(change, "changed host network settings");
    }
    for id in lost {
        tracing::warn!(%id, "the sandbox has lost its network");
    }
}

fn settings(options: &ServeOptions, config: &Config, library: &Library) -> Result<Settings, CliError> {
    Ok(Settings {
        program: program()?,
        root: options.root.clone().unwrap_or_else(|| config.home.join(ROOT)),
        images: library.images.clone(),
        limits: limits(options),
        networking: networking(options),
        cgroup: cgroup(options)?,
        users: options.uid_range.unwrap_or_default(),
        prefault: options.prefault,
    })
}

fn program() -> Result<PathBuf, CliError> {
    Ok(home::binaries().map_err(CliError::Binaries)?.join("forkd-vmm"))
}

fn limits(options: &ServeOptions) -> engine::Limits {
    engine::Limits {
        sandboxes: options.max_sandboxes,
        memory_bytes: options.max_memory.map_or_else(host_memory, |mib| mib << 20),
        zygote_bytes: options.zygote_memory.map_or_else(|| host_memory() / ZYGOTE_SHARE, |mib| mib << 20),
        free_disk_bytes: options.free_disk << 20,
    }
}

fn networking(options: &ServeOptions) -> Networking {
    if options.network == NetworkArgument::None {
        return Networking::None;
    }
    let upstream = match options.dns.as_slice() {
        [] => Upstream::default(),
        servers => Upstream::Servers(servers.iter().map(|server| (*server, DNS).into()).collect()),
    };
    let ready = options.networks_ready.unwrap_or(match forkd_host::is_emulated() {
        _ if options.private => NETWORKS_READY_PRIVATE,
        true => NETWORKS_READY_EMULATED,
        false => NETWORKS_READY,
    });
    Networking::Pooled {
        host: forkd_net::Settings::default(),
        pool: PoolSettings { ready: ready.into(), upstream, notices: None },
        bandwidth: options.bandwidth.map(|mib| mib << 20),
    }
}

/// The cgroup of sandboxes. A host without cgroups is accepted only with `--cgroup none`.
fn cgroup(options: &ServeOptions) -> Result<Option<PathBuf>, CliError> {
    match &options.cgroup {
        Some(Cgroup::Nowhere) => {
            tracing::warn!("no cgroups: CPU and memory of sandboxes are not limited");
            Ok(None)
        }
        Some(Cgroup::At(path)) => Ok(Some(path.clone())),
        None => {
            let mount = forkd_host::cgroup::mount_point().ok_or(CliError::NoCgroups)?;
            Ok(Some(mount.join(CGROUP)))
        }
    }
}

/// All memory of this host. Where the kernel does not tell, what is available decides alone.
fn host_memory() -> u64 {
    forkd_host::memory::total().unwrap_or(u64::MAX)
}

fn library(options: &ServeOptions) -> Result<Library, CliError> {
    let directory = home::library()?;
    let agent = match &options.agent {
        Some(agent) => agent.clone(),
        None => home::binaries().map_err(CliError::Binaries)?.join("forkd-agent"),
    };
    let (mut images, mut kernels) = (ImageStore::new(&directory), KernelStore::new(&directory));
    if let Some(shared) = &options.shared_library {
        (images, kernels) = (images.with_shared(shared), kernels.with_shared(shared));
    }
    Ok(Library { images, kernels, agent, emulated: forkd_host::is_emulated() })
}

/// Takes the engine's directory for this daemon. Each of two would consider the other's VMs unused.
fn lock(root: &Path) -> Result<File, CliError> {
    let failed = |error| CliError::Io("make the engine's directory", error);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed)?;
    let lock = File::options().create(true).append(true).open(root.join(LOCK)).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(CliError::RootInUse(root.into())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn config(options: &ServeOptions) -> Result<Config, CliError> {
    let home = home::directory()?;
    let tls = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => {
            Tls::Files(TlsFiles { certificate: certificate.clone(), key: key.clone() })
        }
        _ => Tls::Own(options.domain.clone()),
    };
    let tcp = match options.listen {
        Listen::Nowhere => None,
        Listen::At(address) => Some(Tcp { address, tls: Some(tls) }),
    };
    let group = options.socket_group.as_deref().map(group).transpose()?;
    let path: PathBuf = options.socket.clone().unwrap_or_else(|| home.join(SOCKET));
    Ok(Config {
        socket: Some(Socket { path, group }),
        tcp,
        audit: options.audit_log.clone(),
        snapshot_policy: options.snapshot_policy.clone(),
        limits: Limits::default(),
        mcp: options.mcp.settings(),
        spans: None,
        home,
    })
}

/// The number of a group: given as such, or looked up among the groups of this host.
fn group(name: &str) -> Result<u32, CliError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups =
        std::fs::read_to_string("/etc/group").map_err(|error| CliError::Io("read /etc/group", error))?;
    find_group(&groups, name).ok_or_else(|| CliError::NoGroup(name.to_owned()))
}

fn find_group(groups: &str, name: &str) -> Option<u32> {
    // name:password:number:members
    let line = groups.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name() {
        let groups = "root:x:0:\nkvm:x:104:a,b\nbroken:x\n";
        assert_eq!(find_group(groups, "kvm"), Some(104));
        assert_eq!(find_group(groups, "kv"), None);
        assert_eq!(find_group(groups, "broken"), None);
        assert!(matches!(group("7"), Ok(7)));
    }
}
