//! The service over stdin and stdout.

use rmcp::ServiceExt;
use rmcp::transport::stdio;

use crate::McpService;

/// The conversation broke.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    #[error("the client's first message is not one of the Model Context Protocol")]
    Begin(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the service ended")]
    Ended(#[source] tokio::task::JoinError),
}

/// Serves the client at stdin and stdout until it closes stdin. Nothing else may write to stdout.
pub async fn serve_stdio(service: McpService) -> Result<(), StdioError> {
    let serving = match service.serve(stdio()).await {
        Ok(serving) => serving,
        // A client that goes away without a word is no failure.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(StdioError::Begin(Box::new(error))),
    };
    serving.waiting().await.map(drop).map_err(StdioError::Ended)
}
