//! Images of the daemon's library.

use forkd_api::file::TAR;
use forkd_api::library::{
    BuildImage, DebianImage, Image, ImageList, ImageSummary, ImportImage, LibraryProgress, PruneImages,
    PrunedImages, Publish, PullImage, RemovedImage,
};
use hyper::Method;

use crate::body::{Body, Upload};
use crate::error::ClientError;
use crate::exchange::{Client, Request, part, query};
use crate::files::BYTES;

impl Client {
    pub async fn images(&self) -> Result<Vec<ImageSummary>, ClientError> {
        let list: ImageList = self.ask(Request::get("/v1/images".into())).await?;
        Ok(list.images)
    }

    /// An image by a name, its id, or the beginning of its id.
    pub async fn image(&self, image: &str) -> Result<Image, ClientError> {
        self.ask(Request::get(format!("/v1/images/{}", part(image)))).await
    }

    /// Lets every project make snapshots of an image, or only those that have made it.
    pub async fn publish_image(&self, image: &str, public: bool) -> Result<Image, ClientError> {
        let path = format!("/v1/images/{}/public", part(image));
        self.ask(Request::new(Method::PUT, path).json(&Publish { public })).await
    }

    /// Pulls an image from a registry. What is done is told as it is done; giving up ends it.
    pub async fn pull_image(
        &self,
        wanted: &PullImage,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<Image, ClientError> {
        self.make(Request::post("/v1/images/pull".into()).json(wanted), tell, image).await
    }

    /// Makes a Debian image, as [`Client::pull_image`] does it.
    pub async fn debian_image(
        &self,
        wanted: &DebianImage,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<Image, ClientError> {
        self.make(Request::post("/v1/images/debian".into()).json(wanted), tell, image).await
    }

    /// Sends an archive that becomes an image. Where its size is known, the daemon can say at once that it has no room.
    pub async fn import_image(
        &self,
        wanted: &ImportImage,
        archive: Upload,
        size: Option<u64>,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<Image, ClientError> {
        let query = query([
            ("name", Some(wanted.name.clone())),
            ("size_mib", wanted.size_mib.map(|mib| mib.to_string())),
        ]);
        let request = Request::post(format!("/v1/images/import{query}"));
        self.make(request.body(BYTES, Body::stream(archive, size)), tell, image).await
    }

    /// Sends a build context, a tar archive, and builds the Dockerfile in it.
    pub async fn build_image(
        &self,
        wanted: &BuildImage,
        context: Upload,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<Image, ClientError> {
        let query = query(wanted.pairs().into_iter().map(|(name, value)| (name, Some(value))));
        let request = Request::post(format!("/v1/images/build{query}"));
        self.make(request.body(TAR, Body::stream(context, None)), tell, image).await
    }

    /// Removes a name, and the image when that was its last; given an id, the image with all its names.
    pub async fn remove_image(&self, image: &str) -> Result<RemovedImage, ClientError> {
        self.ask(Request::new(Method::DELETE, format!("/v1/images/{}", part(image)))).await
    }

    /// Removes what builds have kept and, if asked for, images without a name.
    pub async fn prune_images(&self, wanted: &PruneImages) -> Result<PrunedImages, ClientError> {
        self.ask(Request::post("/v1/images/prune".into()).json(wanted)).await
    }
}

fn image(progress: LibraryProgress) -> Result<Image, LibraryProgress> {
    match progress {
        LibraryProgress::Image(image) => Ok(*image),
        other => Err(other),
    }
}
