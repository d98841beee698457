//! Connections to ports of a guest, whatever is spoken there.

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, UPGRADE};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::error::ClientError;
use crate::exchange::{Answer, Client, QUICK};
use crate::sandboxes::path;

impl Client {
    /// Connects to a TCP port of a sandbox.
    pub async fn connect_port(
        &self,
        id: &str,
        port: u16,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static + use<>, ClientError> {
        let opened = timeout(QUICK, self.open_port(path(id, &format!("/ports/{port}")))).await;
        opened.map_err(|_| ClientError::TimedOut(QUICK))?
    }

    async fn open_port(&self, path: String) -> Result<TokioIo<hyper::upgrade::Upgraded>, ClientError> {
        let stream = TokioIo::new(self.connect().await?);
        let (mut sender, connection) = http1::handshake(stream).await.map_err(ClientError::broken)?;
        // Ends when the connection is handed over, or with the answer.
        tokio::spawn(connection.with_upgrades());
        let mut request = Request::get(path).header(CONNECTION, "upgrade").header(UPGRADE, "tcp");
        for (name, value) in self.headers() {
            request = request.header(name, value);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(ClientError::broken)?;
        let response = sender.send_request(request).await.map_err(ClientError::broken)?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => {
                Ok(TokioIo::new(hyper::upgrade::on(response).await.map_err(ClientError::broken)?))
            }
            _ => Err(Answer::new(response, self).refusal().await),
        }
    }
}
