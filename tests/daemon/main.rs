//! `forkd serve` on this host's own /dev/kvm, asked through its API, with a guest that halts. A snapshot of such a guest is not
//! to be had through the API: an engine in the test makes it, and the daemon finds it.

mod bench;
mod chains;
mod client;
mod documented;
mod e2b;
mod ending;
mod events;
mod files;
mod guest;
mod held_up;
mod hostile;
mod images;
mod interact;
mod library;
mod lifecycle;
mod memory;
mod network;
mod packaging;
mod paths;
mod prefault;
mod projects;
mod proxy;
mod recovery;
mod refusals;
mod running;
mod schema;
mod sdk;
mod snapshots;
mod soak;
mod templates;
mod traces;
mod travel;
mod trust;
mod unreadable;
mod world;
