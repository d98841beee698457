//! A vCPU's thread.
//!
//! ```text
//!            order: run                     exit that ends the VM
//!   parked ─────────────▶ running ───────────────────────────────▶ ended
//!      ▲                     │
//!      └─────────────────────┘
//!        order: pause, kick; pending I/O is completed first
//! ```
//!
//! The thread has the vCPU only while it runs. Parked, it has put it back into its slot and waits on a condition variable,
//! holding no lock: that is the known point at which the process may fork.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use forkd_jail::Role;
use forkd_proto::causes::with_causes;
use forkd_proto::control::{Event, ExitReason, KvmCounts, Stage};
use kvm_ioctls::{VcpuExit, VcpuFd};
use rustix::event::EventfdFlags;

use super::bus::{Bus, Outcome};
use super::counts::Counts;
use super::devices::worker::Worker;
use super::devices::{DeviceError, Devices};
use super::kick::{Kickable, Kicker};
use super::notices::Notices;
use super::thread::Thread;

/// What the threads are told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Run,
    Pause,
    Quit,
}

/// Why the VM ended.
struct Ending {
    reason: ExitReason,
    detail: String,
}

struct Shared {
    order: Order,
    /// Threads that are not running.
    parked: usize,
    /// The guest has ended the VM.
    ended: bool,
}

/// What all vCPU threads of a VM share with the thread that commands them.
pub struct Crew {
    shared: Mutex<Shared>,
    changed: Condvar,
    exits: AtomicU64,
    /// In a lock so that it can be taken out: after a fork the threads that refer to this are gone without having let go.
    wiring: RwLock<Option<Wiring>>,
}

/// Everything of a VM that has a descriptor of the host, beside KVM's own.
struct Wiring {
    /// Readable while the order is not to run.
    stop: OwnedFd,
    notices: Notices,
    bus: Bus,
}

impl Crew {
    pub fn new(bus: Bus) -> Result<Arc<Crew>, DeviceError> {
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wiring = Wiring { stop: stop.map_err(std::io::Error::from)?, notices: Notices::new()?, bus };
        wiring.bus.devices.register_stop(wiring.stop.as_fd())?;
        Ok(Arc::new(Crew {
            shared: Mutex::new(Shared { order: Order::Pause, parked: 0, ended: false }),
            changed: Condvar::new(),
            exits: AtomicU64::new(0),
            wiring: RwLock::new(Some(wiring)),
        }))
    }

    pub fn exits(&self) -> u64 {
        self.exits.load(Ordering::Relaxed)
    }

    /// Whether the guest has ended the VM.
    pub fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// A descriptor of its own that is readable while there are notices.
    pub fn ready(&self) -> std::io::Result<OwnedFd> {
        match &*self.wiring() {
            Some(wiring) => wiring.notices.ready(),
            None => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    /// What has happened since the last call.
    pub fn take_notices(&self) -> Vec<Event> {
        self.wiring().as_ref().map(|wiring| wiring.notices.take()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic while holding the lock leaves plain data in order.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wiring(&self) -> RwLockReadGuard<'_, Option<Wiring>> {
        self.wiring.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls with the devices, while they are there.
    pub fn with_devices<T>(&self, call: impl FnOnce(&Devices) -> T) -> Option<T> {
        self.wiring().as_ref().map(|wiring| call(&wiring.bus.devices))
    }

    /// Makes the eventfd say what holds. Its counter does not overflow, so nothing can fail.
    fn set_stop(&self, stop: bool) {
        if let Some(wiring) = &*self.wiring() {
            let _ = match stop {
                true => rustix::io::write(&wiring.stop, &1u64.to_ne_bytes()),
                false => rustix::io::read(&wiring.stop, &mut [0; 8]),
            };
        }
    }

    fn end(&self, ending: Ending) {
        let ended_before = std::mem::replace(&mut self.lock().ended, true);
        if let Some(wiring) = &*self.wiring()
            && !ended_before
        {
            let Ending { reason, detail } = ending;
            wiring.notices.add(Event::Exited { stage: Stage::Run, reason, detail });
        }
    }
}

/// A vCPU and the thread that runs it.
pub struct Vcpu {
    slot: Arc<Mutex<Option<VcpuFd>>>,
    counts: Option<Counts>,
    thread: Thread,
    /// There before the thread runs the vCPU.
    kicker: Arc<OnceLock<Kicker>>,
}

impl Vcpu {
    /// Starts the thread, parked.
    pub fn start(vcpu: VcpuFd, index: usize, crew: Arc<Crew>) -> std::io::Result<Vcpu> {
        forkd_proto::passes!();
        let counts = Counts::of(&vcpu);
        let slot = Arc::new(Mutex::new(Some(vcpu)));
        let kicker = Arc::new(OnceLock::new());
        let thread = Thread::start(format!("vcpu{index}"), {
            let (slot, kicker) = (Arc::clone(&slot), Arc::clone(&kicker));
            move || {
                match Kicker::of_this_thread() {
                    Ok(own) => drop(kicker.set(own)),
                    // A vCPU that cannot be stopped must not run.
                    Err(error) => panic!("cannot make a timer: {error}"),
                }
                jail(Role::Vcpu);
                work(&slot, &crew);
            }
        })?;
        Ok(Vcpu { slot, counts, thread, kicker })
    }

    /// What KVM has counted of it.
    pub fn counts(&self) -> Option<KvmCounts> {
        self.counts.as_ref()?.read().ok()
    }

    /// The vCPU, which is there while the thread is parked.
    pub fn parked(&self) -> MutexGuard<'_, Option<VcpuFd>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread that serves the devices, parked.
pub fn start_device_thread(crew: Arc<Crew>) -> std::io::Result<Thread> {
    Thread::start("devices".into(), move || {
        jail(Role::Devices);
        let mut worker = Worker::default();
        while park(&crew) != Order::Quit {
            let fault = match &*crew.wiring() {
                Some(wiring) => wiring.bus.devices.serve(&mut worker, &wiring.notices),
                None => None,
            };
            if let Some(detail) = fault {
                crew.end(Ending { reason: ExitReason::Error, detail });
            }
        }
    })
}

/// A thread without its filter does nothing: the process ends, and says why.
fn jail(role: Role) {
    if let Err(error) = forkd_jail::enforce(role) {
        panic!("{}", with_causes(&error));
    }
}

/// Lets all threads run.
pub fn run(crew: &Crew) {
    // Before the order changes: a thread that has seen the order must not see an old stop.
    crew.set_stop(false);
    crew.lock().order = Order::Run;
    crew.changed.notify_all();
}

/// Parks all threads and returns when the last one is. The device thread sees the order without a signal.
pub fn pause(crew: &Crew, vcpus: &[Vcpu], threads: usize) {
    crew.lock().order = Order::Pause;
    crew.set_stop(true);
    // A thread without one has not run yet, and sees the order before it does.
    for kicker in vcpus.iter().filter_map(|vcpu| vcpu.kicker.get()) {
        kicker.kick();
    }
    let mut shared = crew.lock();
    while shared.parked < threads {
        shared = crew.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Ends all threads and closes everything that belongs to the VM. They are parked.
pub fn quit(crew: &Crew, vcpus: Vec<Vcpu>, devices: Thread) {
    crew.lock().order = Order::Quit;
    crew.changed.notify_all();
    for kicker in vcpus.iter().filter_map(|vcpu| vcpu.kicker.get()) {
        kicker.remove();
    }
    vcpus.into_iter().map(|vcpu| vcpu.thread).chain([devices]).for_each(Thread::join);
}

/// Lets go of vCPUs whose threads did not come along when the process forked, and of all descriptors.
pub fn forget(crew: &Crew, vcpus: Vec<Vcpu>, devices: Thread) {
    devices.forget();
    drop(crew.wiring.write().unwrap_or_else(PoisonError::into_inner).take());
    for vcpu in vcpus {
        drop(vcpu.parked().take());
        vcpu.thread.forget();
    }
}

/// The life of a vCPU's thread.
fn work(slot: &Mutex<Option<VcpuFd>>, crew: &Crew) {
    loop {
        if park(crew) == Order::Quit {
            return;
        }
        let Some(mut vcpu) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        let ending = run_until_told(&mut Kickable::new(&mut vcpu), crew);
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(vcpu);
        if let Some(ending) = ending {
            crew.end(ending);
        }
    }
}

/// Waits, parked, for an order other than to pause. A VM that has ended stays parked.
fn park(crew: &Crew) -> Order {
    let mut shared = crew.lock();
    shared.parked += 1;
    crew.changed.notify_all();
    while shared.order == Order::Pause || (shared.order == Order::Run && shared.ended) {
        shared = crew.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
    }
    shared.parked -= 1;
    shared.order
}

/// Runs guest code until there is an order to stop or the VM ends.
///
/// The order is looked at when kicks have come to work, and after each: one that came too early to work was given for an
/// order that is seen here, and one that comes after the look makes the next KVM_RUN return.
fn run_until_told(kickable: &mut Kickable<'_>, crew: &Crew) -> Option<Ending> {
    while crew.lock().order == Order::Run {
        loop {
            match run_once(kickable.vcpu(), crew) {
                Step::Again => {}
                Step::Kicked => break,
                Step::Ended(ending) => return Some(ending),
            }
        }
    }
    finish_pending(kickable.vcpu(), crew)
}

/// An access that was handled is completed by the next KVM_RUN; with `immediate_exit` that is all it does. A guest whose
/// state is taken without it would repeat or lose the access.
fn finish_pending(vcpu: &mut VcpuFd, crew: &Crew) -> Option<Ending> {
    vcpu.set_kvm_immediate_exit(1);
    let ending = loop {
        match run_once(vcpu, crew) {
            // One instruction may need several exits.
            Step::Again => vcpu.set_kvm_immediate_exit(1),
            Step::Kicked => break None,
            Step::Ended(ending) => break Some(ending),
        }
    };
    vcpu.set_kvm_immediate_exit(0);
    ending
}

enum Step {
    Again,
    Kicked,
    Ended(Ending),
}

fn run_once(vcpu: &mut VcpuFd, crew: &Crew) -> Step {
    let ended = |reason, detail: String| Step::Ended(Ending { reason, detail });
    let exit = vcpu.run();
    crew.exits.fetch_add(1, Ordering::Relaxed);
    let wiring = crew.wiring();
    let Some(wiring) = &*wiring else {
        return ended(ExitReason::Error, "the VM's devices are gone".into());
    };
    match exit {
        Ok(VcpuExit::IoIn(port, data)) => {
            wiring.bus.port_read(port, data, &wiring.stop);
            Step::Again
        }
        Ok(VcpuExit::IoOut(port, data)) => match wiring.bus.port_write(port, data) {
            Outcome::Continue => Step::Again,
            Outcome::Panicked => {
                wiring.notices.add_panic();
                Step::Again
            }
            Outcome::PowerOff => ended(ExitReason::Shutdown, "the guest switched itself off".into()),
            Outcome::Reset => ended(ExitReason::Reset, "the guest asked for a reset".into()),
        },
        Ok(VcpuExit::MmioRead(address, data)) => {
            wiring.bus.memory_read(address, data);
            Step::Again
        }
        Ok(VcpuExit::MmioWrite(address, data)) => {
            wiring.bus.memory_write(address, data);
            Step::Again
        }
        Ok(VcpuExit::Shutdown) => ended(ExitReason::Reset, "a triple fault".into()),
        Ok(exit) => ended(ExitReason::Error, format!("KVM_RUN ended with {exit:?}")),
        Err(error) if error.errno() == libc::EINTR => {
            vcpu.set_kvm_immediate_exit(0);
            Step::Kicked
        }
        // A vCPU that waits to be started was woken for something else.
        Err(error) if error.errno() == libc::EAGAIN => Step::Again,
        Err(error) => ended(ExitReason::Error, format!("KVM_RUN: {error}")),
    }
}
