//! `forkd token …`: the file of tokens, which a daemon notices the changes of.

pub mod create;
pub mod ls;
pub mod rm;

use forkd_daemon::auth::TokenFile;
use forkd_host::home;

use crate::error::CliError;

fn tokens() -> Result<TokenFile, CliError> {
    Ok(TokenFile::new(&home::directory()?))
}
