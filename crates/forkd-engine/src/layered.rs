//! The recipe that boots a guest on a disk that earlier guests have written, and its orderly end: what a build does for each
//! step.
//!
//! ```text
//!   base ── layer 1 ── … ── layer n ── top     the guest writes its own top, which is the next guest's layer
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_proto::control::{Boot, Command, Devices, Disk, Event, ExitReason, Vsock};
use serde_json::Value;

use crate::agent::{Agent, AgentError};
use crate::boot::{BootError, BootedVm, CONSOLE, Plan};
use crate::guest::Guest;
use crate::process::VmProcess;

/// The name of the VM's socket there.
pub const VSOCK: &str = "vsock";

/// The most layers below a top: their descriptors travel in one message, beside those of the other devices.
pub const MAX_LAYERS: usize = 240;

const CID: u32 = 3;
const CALL: Duration = Duration::from_secs(30);
const CONSOLE_SHOWN: usize = 2000;

/// A guest did not end as it should, and its disk is of no use.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    #[error("the guest cannot be asked to end")]
    Ask(#[source] AgentError),
    #[error("the guest did not end within {0:?}")]
    Timeout(Duration),
    #[error("the guest ended without being asked: {0}")]
    Unexpected(String),
    #[error("the VM process cannot be waited for")]
    Wait(#[source] io::Error),
}

/// Boots a guest whose disk is the plan's image, these layers (the oldest first) and a new top, in a file that is made. The
/// disk is as large as the image.
pub async fn boot(plan: &Plan, layers: &[PathBuf], top: &Path) -> Result<BootedVm, BootError> {
    let count = match u8::try_from(layers.len()) {
        Ok(count) if layers.len() <= MAX_LAYERS => count,
        _ => return Err(BootError::Ended(format!("its disk would have more than {MAX_LAYERS} layers"))),
    };
    let base = open(&plan.base)?;
    let bytes = base.metadata().map_err(failed(&plan.base))?.len();
    let socket = plan.directory.join(VSOCK);
    let mut descriptors: Vec<OwnedFd> = vec![
        open(&plan.kernel)?.into(),
        open(&plan.initramfs)?.into(),
        create(&plan.directory.join(CONSOLE))?.into(),
        base.into(),
    ];
    for layer in layers {
        descriptors.push(open(layer)?.into());
    }
    descriptors.push(create(top)?.into());
    descriptors.push(UnixListener::bind(&socket).map_err(failed(&socket))?.into());
    descriptors.push(open(Path::new("/dev/urandom"))?.into());

    let mut process = VmProcess::start(&plan.program)?;
    let request = Boot {
        vcpus: plan.vcpus,
        memory_bytes: plan.memory_bytes,
        command_line: plan.command_line.clone(),
        initramfs: true,
        devices: Devices {
            console: true,
            disk: Some(Disk { bytes, limit_bytes: bytes, base: true }),
            disk_layers: count,
            vsock: Some(Vsock { cid: CID }),
            entropy: true,
            ..Devices::default()
        },
    };
    process.control.call(Command::Boot(request), &descriptors).await?;
    drop(descriptors);

    let agent = Agent::new(Guest::new(socket));
    let answer = agent.wait_for_answer(plan.limit);
    tokio::select! {
        answered = answer => answered.map_err(|source| {
            BootError::Agent { console: last_words(&plan.directory), source }
        })?,
        ending = ended(&mut process) => {
            let console = last_words(&plan.directory);
            return Err(BootError::Ended(format!("{ending}; its console says:\n{console}")));
        }
    }
    Ok(BootedVm { process, agent })
}

/// Asks the guest to end, and waits until it has: its processes are gone, and its disk is whole and on the host's.
pub async fn shut_down(vm: BootedVm, limit: Duration) -> Result<(), EndError> {
    match ask_for_end(&vm.agent).await {
        Ok(()) => wait_for_end(vm, limit).await,
        // Its end may have come before its answer.
        Err(error) => wait_for_end(vm, CALL.min(limit)).await.map_err(|_| EndError::Ask(error)),
    }
}

/// Asks the guest to end.
pub async fn ask_for_end(agent: &Agent) -> Result<(), AgentError> {
    agent.post::<Value>("/forkd/shutdown", &Value::Null, CALL).await.map(drop)
}

/// Waits for the end of a guest that was asked to by somebody else.
pub async fn wait_for_end(mut vm: BootedVm, limit: Duration) -> Result<(), EndError> {
    let orderly = async {
        let mut last = None;
        while let Some(event) = vm.process.events.recv().await {
            last = Some(event);
        }
        vm.process.ended().await.map_err(EndError::Wait)?;
        match last {
            Some(Event::Exited { reason: ExitReason::Shutdown, .. }) => Ok(()),
            other => Err(EndError::Unexpected(format!("{other:?}"))),
        }
    };
    tokio::time::timeout(limit, orderly).await.map_err(|_| EndError::Timeout(limit))?
}

/// What a process says when it ends before its time.
async fn ended(process: &mut VmProcess) -> String {
    while let Some(event) = process.events.recv().await {
        // A guest that panics ends soon, and says more then.
        if event != Event::Panicked {
            return format!("{event:?}");
        }
    }
    "its VM process is gone".into()
}

/// The end of the console's log in a VM's directory.
pub fn last_words(directory: &Path) -> String {
    let text = fs::read(directory.join(CONSOLE)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let skipped = text.chars().count().saturating_sub(CONSOLE_SHOWN);
    text.chars().skip(skipped).collect()
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> BootError {
    move |source| BootError::File { path: path.into(), source }
}

fn open(path: &Path) -> Result<File, BootError> {
    File::open(path).map_err(failed(path))
}

fn create(path: &Path) -> Result<File, BootError> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(failed(path))
}
