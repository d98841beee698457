//! What images are made of, as a caller has it: what the command line sends, and what the daemon, registries and guests send back.
//! No image is made here.
//!
//! | module | what |
//! |---|---|
//! | [`archive`] | tar archives, read with suspicion |
//! | [`context`], [`ignore`] | the directory beside a Dockerfile, without what `.dockerignore` names |
//! | [`recipe`], [`image_table`], [`chain`] | `forkd.toml`: what a parent needs beyond its image; images to be made; chains of snapshots |
//! | [`name`] | names of images |
//! | [`credentials`], [`credential_helper`] | what this user's Docker config file has for a registry, or the programs that it names |
//! | [`registry_client`] | how a registry is reached |
//! | [`digest`], [`progress`] | what both sides have in common |

pub mod archive;
pub mod chain;
pub mod context;
pub mod credential_helper;
pub mod credentials;
pub mod digest;
pub mod ignore;
pub mod image_table;
pub mod name;
pub mod progress;
pub mod recipe;
pub mod registry_client;
