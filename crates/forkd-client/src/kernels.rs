//! Kernels of the daemon's library.

use forkd_api::file::TAR;
use forkd_api::library::{
    AddKernel, ChooseKernel, ImportKernel, Kernel, KernelList, LibraryProgress, RemoveKernel,
};
use hyper::Method;

use crate::body::{Body, Upload};
use crate::error::ClientError;
use crate::exchange::{Client, Request, part, query};

impl Client {
    pub async fn kernels(&self) -> Result<Vec<Kernel>, ClientError> {
        let list: KernelList = self.ask(Request::get("/v1/kernels".into())).await?;
        Ok(list.kernels)
    }

    /// Adds a kernel that the daemon's host can get. What is done is told as it is done; giving up ends it.
    pub async fn add_kernel(
        &self,
        wanted: &AddKernel,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<Kernel, ClientError> {
        self.make(Request::post("/v1/kernels".into()).json(wanted), tell, kernel).await
    }

    /// Sends a kernel, a tar archive of `kernel` and `modules`.
    pub async fn import_kernel(
        &self,
        wanted: ImportKernel,
        archive: Upload,
        tell: impl FnMut(LibraryProgress),
    ) -> Result<Kernel, ClientError> {
        let query = query([("default", wanted.default.then(|| "true".into()))]);
        let request = Request::post(format!("/v1/kernels/import{query}"));
        self.make(request.body(TAR, Body::stream(archive, None)), tell, kernel).await
    }

    /// Chooses the kernel that is used when none is named.
    pub async fn choose_kernel(&self, wanted: &ChooseKernel) -> Result<Kernel, ClientError> {
        self.ask(Request::new(Method::PUT, "/v1/kernels/default".into()).json(wanted)).await
    }

    pub async fn remove_kernel(&self, kernel: &str, wanted: RemoveKernel) -> Result<Kernel, ClientError> {
        let query = query([("force", wanted.force.then(|| "true".into()))]);
        self.ask(Request::new(Method::DELETE, format!("/v1/kernels/{}{query}", part(kernel)))).await
    }
}

fn kernel(progress: LibraryProgress) -> Result<Kernel, LibraryProgress> {
    match progress {
        LibraryProgress::Kernel(kernel) => Ok(*kernel),
        other => Err(other),
    }
}
