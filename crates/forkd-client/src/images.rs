//! Images of the daemon's library.

use forkd_api::library::{Image, ImageList, ImageSummary, LibraryProgress, PullImage, RemovedImage};
use hyper::Method;

use crate::error::ClientError;
use crate::exchange::{Client, Request, part};

impl Client {
    pub async fn images(&self) -> Result<Vec<ImageSummary>, ClientError> {
        let list: ImageList = self.ask(Request::get("/v1/images".into())).await?;
        Ok(list.images)
    }

    /// An image by a name, its id, or the beginning of its id.
    pub async fn image(&self, image: &str) -> Result<Image, ClientError> {
        self.ask(Request::get(format!("/v1/images/{}", part(image)))).await
    }

    /// Pulls an image from a registry. What is done is told as it is done; giving up ends it.
    pub async fn pull_image(
        &self,
        wanted: &PullImage,
        mut tell: impl FnMut(LibraryProgress),
    ) -> Result<Image, ClientError> {
        let mut lines = self.lines(Request::post("/v1/images/pull".into()).json(wanted)).await?;
        while let Some(progress) = lines.next().await? {
            match progress {
                LibraryProgress::Image(image) => return Ok(*image),
                LibraryProgress::Error(error) => return Err(error.into()),
                step => tell(step),
            }
        }
        Err(ClientError::CutOff)
    }

    /// Removes a name, and the image when that was its last; given an id, the image with all its names.
    pub async fn remove_image(&self, image: &str) -> Result<RemovedImage, ClientError> {
        self.ask(Request::new(Method::DELETE, format!("/v1/images/{}", part(image)))).await
    }
}
