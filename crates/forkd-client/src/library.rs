//! Long work on the daemon's library, which is told about while it is done.

use forkd_api::library::LibraryProgress;

use crate::error::ClientError;
use crate::exchange::{Client, Request};

impl Client {
    /// Asks for something to be made. What is done is told as it is done; giving up ends it. `last` picks what was made.
    pub(crate) async fn make<T>(
        &self,
        request: Request,
        mut tell: impl FnMut(LibraryProgress),
        last: impl Fn(LibraryProgress) -> Result<T, LibraryProgress>,
    ) -> Result<T, ClientError> {
        let mut lines = self.lines(request).await?;
        while let Some(progress) = lines.next().await? {
            match last(progress) {
                Ok(made) => return Ok(made),
                Err(LibraryProgress::Error(error)) => return Err(error.into()),
                Err(step) => tell(step),
            }
        }
        Err(ClientError::CutOff)
    }
}
