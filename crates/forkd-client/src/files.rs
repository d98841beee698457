//! Files in and out of a sandbox: bytes as they are, or trees as tar archives.

use bytes::Bytes;
use forkd_api::file::{FileInfo, FileList, ListFiles, TAR};
use hyper::Method;

use crate::body::{Body, Upload};
use crate::error::ClientError;
use crate::exchange::{Client, Request, Streamed, query};
use crate::sandboxes::path;

pub(crate) const BYTES: &str = "application/octet-stream";

/// A file or an archive as it comes.
#[derive(Debug)]
pub struct Download(pub(crate) Streamed);

impl Download {
    /// The next piece; nothing at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.0.next().await
    }
}

fn files(id: &str, guest_path: &str) -> String {
    path(id, &format!("/files{}", query([("path", Some(guest_path.to_owned()))])))
}

impl Client {
    /// The content of a file.
    pub async fn read_file(&self, id: &str, guest_path: &str) -> Result<Download, ClientError> {
        self.download(id, guest_path, BYTES).await
    }

    /// A file or a directory as a tar archive, whose entries begin with its name.
    pub async fn read_archive(&self, id: &str, guest_path: &str) -> Result<Download, ClientError> {
        self.download(id, guest_path, TAR).await
    }

    async fn download(
        &self,
        id: &str,
        guest_path: &str,
        accept: &'static str,
    ) -> Result<Download, ClientError> {
        let answer = self.exchange(Request::get(files(id, guest_path)).accept(accept)).await?;
        Ok(Download(answer.streamed()))
    }

    /// Makes a file of what comes.
    pub async fn write_file(&self, id: &str, guest_path: &str, content: Upload) -> Result<(), ClientError> {
        self.upload(id, guest_path, None, BYTES, content).await
    }

    /// Unpacks a tar archive into a directory. With a user, everything is that user's; without one, it is whose the archive says.
    pub async fn write_archive(
        &self,
        id: &str,
        guest_path: &str,
        user: Option<&str>,
        archive: Upload,
    ) -> Result<(), ClientError> {
        self.upload(id, guest_path, user, TAR, archive).await
    }

    async fn upload(
        &self,
        id: &str,
        guest_path: &str,
        user: Option<&str>,
        kind: &'static str,
        content: Upload,
    ) -> Result<(), ClientError> {
        let query = query([("path", Some(guest_path.to_owned())), ("user", user.map(Into::into))]);
        let body = Body::stream(content, None);
        let request = Request::new(Method::PUT, path(id, &format!("/files{query}"))).body(kind, body);
        self.tell(request).await
    }

    /// What is known of a file, or of what a link leads to.
    pub async fn file_info(&self, id: &str, guest_path: &str) -> Result<FileInfo, ClientError> {
        let query = query([("path", Some(guest_path.to_owned()))]);
        self.ask(Request::get(path(id, &format!("/files/info{query}")))).await
    }

    /// What is in a directory, as much of it as one answer holds; `next` of the answer gives the rest.
    pub async fn list_files(&self, id: &str, wanted: &ListFiles) -> Result<FileList, ClientError> {
        let ListFiles { path: guest_path, user, after, limit } = wanted.clone();
        let limit = limit.map(|limit| limit.to_string());
        let query = query([("path", Some(guest_path)), ("user", user), ("after", after), ("limit", limit)]);
        self.ask(Request::get(path(id, &format!("/files/list{query}")))).await
    }

    pub async fn remove_file(&self, id: &str, guest_path: &str) -> Result<(), ClientError> {
        self.tell(Request::new(Method::DELETE, files(id, guest_path))).await
    }
}
