//! The command line as a whole: exit status, stdout and stderr of real commands, in homes of their own.
//!
//! What a test expects stands in it, with `[..]` where a line may have anything. `SNAPSHOTS=overwrite` writes down what comes
//! instead; times and paths must then be replaced by hand.
//!
//! Against `forkd serve` with the guest that halts, everything is tested that needs no agent in the guest. The rest is tested
//! against a stand-in (`stand_in.rs`) that answers as the API says.

mod bench;
mod chains;
mod completion;
mod copy;
mod doctor;
mod errors;
mod images;
mod kernels;
mod machine;
mod mcp;
mod outcome;
mod programs;
mod recipes;
mod sandboxes;
mod snapshots;
mod stand_in;
mod start;
mod terminal;
mod tokens;
mod usage;
mod world;
