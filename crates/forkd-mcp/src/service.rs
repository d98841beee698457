//! The protocol's requests, answered with tools and outputs.

use std::sync::Arc;
use std::time::Instant;

use forkd_api::token::Scope;
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Extensions,
    Implementation, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
    ResourceTemplate, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};

use crate::answer::Answer;
use crate::call::{Call, Common, caller_of};
use crate::failure::Failure;
use crate::outputs::{GONE, PREFIX};
use crate::progress::Progress;
use crate::tools::Definition;
use crate::tools::files::{self, FILE_PREFIX};
use crate::{FindDaemon, Settings, ToolSet, reference, tools};

const INSTRUCTIONS: &str = "forkd gives you sandboxes: virtual machines that fork in milliseconds, with all of their memory, files and \
    running programs. `run` runs code or a command and makes a sandbox if none is named: keep the id that it returns and pass it on. \
    Before something risky, `branch` saves the state, and `rollback` goes back to it. To try several things from one prepared state, \
    `fork` it and run a command in each copy. `end` what is no longer needed: there is a cap on sandboxes, and those that are not used \
    expire.";

/// A server of the protocol. Clones are the same one.
#[derive(Debug, Clone)]
pub struct McpService {
    common: Arc<Common>,
    daemon: Arc<dyn FindDaemon>,
}

impl McpService {
    pub fn new(settings: Settings, daemon: Arc<dyn FindDaemon>) -> McpService {
        McpService { common: Arc::new(Common { settings, ..Default::default() }), daemon }
    }

    fn definitions(&self) -> &'static [Definition] {
        match self.common.settings.tools {
            ToolSet::Tasks => tools::definitions(),
            ToolSet::Reference => reference::definitions(),
        }
    }

    /// Finds out whose request it is.
    async fn begin(&self, request: &Extensions, progress: Progress) -> Result<Call<'_>, Failure> {
        let client = self.daemon.find(request).await?;
        let caller = caller_of(&client, &self.common.settings).await?;
        Ok(Call { common: &self.common, client, caller, progress, kept: Default::default() })
    }

    async fn work(
        &self,
        definition: &Definition,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<Answer, Failure> {
        let progress = Progress::new(context.peer.clone(), context.meta.get_progress_token());
        let call = self.begin(&context.extensions, progress).await?;
        if call.caller.scope < definition.scope {
            return Err(out_of_scope(definition, call.caller.scope));
        }
        let (name, given) = (&request.name, request.arguments);
        match self.common.settings.tools {
            ToolSet::Tasks => tools::call(&call, name, given).await,
            ToolSet::Reference => reference::call(&call, name, given).await,
        }
    }
}

fn out_of_scope(definition: &Definition, has: Scope) -> Failure {
    let needs = definition.scope.name();
    Failure::new(
        format!("Cannot call `{}`", definition.tool.name),
        format!("it needs a token with the scope {needs}, and this one has the scope {}", has.name()),
    )
    .next(format!(
        "use the tools that are listed, or ask the user for a token: forkd token create NAME --scope {needs}"
    ))
}

/// Failures of requests that have no other way to say so.
fn protocol_error(failure: &Failure) -> ErrorData {
    ErrorData::internal_error(failure.to_string(), None)
}

impl ServerHandler for McpService {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let server = Implementation::new("forkd", env!("CARGO_PKG_VERSION")).with_title("forkd sandboxes");
        let config = ServerConfig::new(capabilities).with_server_info(server);
        match self.common.settings.tools {
            ToolSet::Tasks => config.with_instructions(INSTRUCTIONS),
            ToolSet::Reference => config,
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let progress = Progress::new(context.peer.clone(), None);
        let scope = match self.begin(&context.extensions, progress).await {
            Ok(call) => call.caller.scope,
            // Clients ask for tools once, when they start. A daemon that starts later is found by their calls.
            Err(error) => {
                tracing::warn!(%error, "tools are listed without a daemon");
                Scope::Run
            }
        };
        let tools = self.definitions().iter().filter(|it| it.scope <= scope).map(|it| it.tool.clone());
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.definitions().iter().find(|it| it.tool.name == name).map(|it| it.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(definition) = self.definitions().iter().find(|it| it.tool.name == request.name) else {
            let text = format!("there is no tool {:?}; tools/list has those there are", request.name);
            return Err(ErrorData::invalid_params(text, None));
        };
        let given_up = context.ct.clone();
        let worked = tokio::select! {
            worked = self.work(definition, request, context) => worked,
            () = given_up.cancelled() => Err(Failure::new("The call was given up", "the client asked for it")),
        };
        let result = match worked {
            Ok(answer) => answer.into(),
            Err(failure) => {
                tracing::debug!(tool = %definition.tool.name, %failure, "a call failed");
                CallToolResult::error(vec![ContentBlock::text(failure.to_string())])
            }
        };
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let progress = Progress::new(context.peer.clone(), None);
        let call = self.begin(&context.extensions, progress).await.map_err(|it| protocol_error(&it))?;
        let outputs = self.common.outputs.list(&call.caller.name, Instant::now());
        Ok(ListResourcesResult::with_all_items(outputs))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let output = ResourceTemplate::new(format!("{PREFIX}{{id}}"), "output")
            .with_description("Output that was too long for an answer, for up to an hour");
        let file = ResourceTemplate::new(format!("{FILE_PREFIX}{{sandbox}}/file{{+path}}"), "file")
            .with_description("A file of a sandbox, by its absolute path, up to 8 MiB");
        Ok(ListResourceTemplatesResult::with_all_items(vec![output, file]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri;
        let progress = Progress::new(context.peer.clone(), None);
        let call = self.begin(&context.extensions, progress).await.map_err(|it| protocol_error(&it))?;
        let content = match self.common.outputs.get(&call.caller.name, &uri, Instant::now()) {
            Some(content) => content,
            None => match files::resource(&call, &uri).await {
                Some(Ok(content)) => content,
                Some(Err(failure)) => return Err(ErrorData::resource_not_found(failure.to_string(), None)),
                None => {
                    let text = format!("there is no resource {uri}: {GONE}");
                    return Err(ErrorData::resource_not_found(text, None));
                }
            },
        };
        Ok(ReadResourceResult::new(vec![content.to_resource(&uri)]).into())
    }
}
