//! `forkd build-guest`: the machine's side of a build. One guest, which ends with the other side's connection.

use std::fs::{self, File};
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::thread;

use forkd_build::{BuildVm, LIMIT, Machinery};
use forkd_engine::boot::DiskPlan;
use forkd_engine::shutdown::wait_for_end;
use forkd_host::home;
use tokio::sync::mpsc;

use crate::arguments::BuildGuestOptions;
use crate::build::{END, GuestRequest, READY, cgroups, write_sparse};
use crate::error::CliError;
use crate::exit::Exit;

/// A directory that is removed with this value.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn run(options: &BuildGuestOptions) -> Result<Exit, CliError> {
    fs::create_dir(&options.directory).map_err(|error| CliError::Io("make the guest's directory", error))?;
    let directory = Directory(options.directory.clone());
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|error| CliError::Io("read the request", error))?;
    let request: GuestRequest =
        serde_json::from_str(&line).map_err(|error| CliError::Io("read the request", error.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::Io("start", error))?;
    let top = directory.0.join("top");
    let orders = orders();
    if !runtime.block_on(keep(&request, &directory.0, &top, orders))? {
        return Ok(Exit::Failure);
    }
    let send = || write_sparse(&File::open(&top)?, &mut io::stdout().lock());
    send().map_err(|error| CliError::Io("send the disk", error))?;
    Ok(Exit::Success)
}

/// Boots the guest and waits for the order to wait for its end. `false` if the other side is gone.
async fn keep(
    request: &GuestRequest,
    directory: &Path,
    top: &Path,
    mut orders: mpsc::Receiver<String>,
) -> Result<bool, CliError> {
    let binaries = home::binaries().map_err(CliError::Binaries)?;
    let machinery = Machinery {
        program: binaries.join("forkd-vmm"),
        kernel: request.kernel.clone(),
        initramfs: request.initramfs.clone(),
        directory: directory.into(),
        vcpus: request.vcpus,
        memory_bytes: request.memory_bytes,
        network: request.network,
        cgroups: cgroups(directory, super::say),
    };
    let disk = DiskPlan {
        base: request.base.clone(),
        layers: request.layers.clone(),
        top: Some(top.into()),
        bytes: request.disk_bytes,
    };
    // The machine is forkd's own: its changes need no report.
    let vm = tokio::select! {
        vm = machinery.boot(&disk, directory, |_| ()) => vm.map_err(CliError::of_verb)?,
        _ = orders.recv() => return Ok(false),
    };
    super::print(&format!("{READY}\n"))?;
    // A guest that ends before its time breaks the other side's connections, and so its build.
    match orders.recv().await {
        Some(order) if order == END => {}
        _ => return Ok(false),
    }
    let BuildVm { vm, network: _network } = vm;
    wait_for_end(vm, LIMIT).await.map_err(CliError::of_verb)?;
    Ok(true)
}

/// Lines from stdin; at its end there are no more.
fn orders() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
