//! Messages between forkd's processes, and the socket that carries them.

pub mod agent;
pub mod causes;
pub mod channel;
pub mod checked;
pub mod control;
pub mod host_cpu;
pub mod one_or_many;
pub mod page_runs;
pub mod passes;
pub mod probe;
