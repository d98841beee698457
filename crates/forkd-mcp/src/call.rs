//! One call: whose it is, which daemon it is for, and what answers it needs.

use std::time::Instant;

use forkd_api::token::{Caller, Scope};
use forkd_client::{Client, ClientError};
use rmcp::model::{ContentBlock, JsonObject};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::{MAX_PICTURES, MAX_SHOWN, ends};
use crate::command::{Picture, Stopped};
use crate::failure::Failure;
use crate::outputs::{Content, MAX_OUTPUT, Outputs};
use crate::progress::Progress;
use crate::sandboxes::Turns;
use crate::{Settings, ToolSet};

/// The caller of a daemon that does not say who that is.
pub(crate) const UNKNOWN: &str = "unknown";

/// What all calls share.
#[derive(Debug, Default)]
pub(crate) struct Common {
    pub settings: Settings,
    pub outputs: Outputs,
    pub turns: Turns,
}

#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub common: &'a Common,
    pub client: Client,
    pub caller: Caller,
    pub progress: Progress,
}

/// Who the daemon takes a client to be.
pub(crate) async fn caller_of(client: &Client, settings: &Settings) -> Result<Caller, Failure> {
    match client.caller().await {
        Ok(caller) => Ok(caller),
        // A daemon that is older than the question. It refuses by itself what the caller may not.
        Err(error) if error.is_not_found() => Ok(Caller {
            name: UNKNOWN.into(),
            scope: Scope::Run,
            project: forkd_api::token::DEFAULT_PROJECT.into(),
            limits: Default::default(),
        }),
        Err(error) => Err(Failure::of("Cannot ask the daemon who is calling", &error, settings.tools)),
    }
}

impl Call<'_> {
    /// A failure of the daemon's, with what was to be done.
    pub(crate) fn failed(&self, what: impl Into<String>, error: &ClientError) -> Failure {
        Failure::of(what, error, self.common.settings.tools)
    }

    /// A failure of something that ran, with what it had printed.
    pub(crate) fn stopped(&self, what: impl Into<String>, stopped: &Stopped) -> Failure {
        self.failed(what, &stopped.error).with_output(&stopped.until_then.text())
    }

    /// Output for the answer: what fits, and a link to the whole if it does not. `most` is what the answer has room for.
    pub(crate) fn output(&self, name: &str, text: &str, most: usize) -> Vec<ContentBlock> {
        let Some((head, left_out, tail)) = ends(text, most.min(MAX_SHOWN)) else {
            return match text.is_empty() {
                true => Vec::new(),
                false => vec![ContentBlock::text(text)],
            };
        };
        let kept = ends(text, MAX_OUTPUT).map(|(head, _, tail)| format!("{head}\n[...]\n{tail}"));
        let content = Content::Text(kept.as_deref().unwrap_or(text).into());
        let now = Instant::now();
        let Some(resource) = self.common.outputs.keep(&self.caller.name, name, content, now) else {
            return vec![ContentBlock::text(format!("{head}\n[... {left_out} bytes left out ...]\n{tail}"))];
        };
        let uri = &resource.uri;
        let in_pieces = match self.common.settings.tools {
            ToolSet::Tasks => format!("; the tool `read` shows it in pieces: path {uri} and an offset"),
            ToolSet::Reference => String::new(),
        };
        let shown = format!(
            "{head}\n[... {left_out} bytes left out; the whole is kept as the resource {uri} for an hour{in_pieces} ...]\n{tail}"
        );
        vec![ContentBlock::text(shown), ContentBlock::resource_link(resource)]
    }

    /// Pictures as such, and links to those that are too large.
    pub(crate) fn pictures(&self, pictures: Vec<Picture>) -> Vec<ContentBlock> {
        let (mut blocks, mut total) = (Vec::new(), 0);
        for (number, Picture { data, mime_type }) in pictures.into_iter().enumerate() {
            if total + data.len() <= MAX_PICTURES {
                total += data.len();
                blocks.push(ContentBlock::image(data, mime_type));
                continue;
            }
            let name = format!("picture-{}", number + 1);
            let content = Content::Blob { data: data.into(), mime_type };
            match self.common.outputs.keep(&self.caller.name, &name, content, Instant::now()) {
                Some(resource) => blocks.push(ContentBlock::resource_link(resource)),
                None => blocks.push(ContentBlock::text(format!("[{name} is too large to be kept]"))),
            }
        }
        blocks
    }
}

/// The arguments of a tool.
pub(crate) fn arguments<T: DeserializeOwned>(tool: &str, given: Option<JsonObject>) -> Result<T, Failure> {
    let given = Value::Object(given.unwrap_or_default());
    serde_json::from_value(given).map_err(|error| wrong(tool, error.to_string()))
}

/// A call whose arguments make no sense.
pub(crate) fn wrong(tool: &str, why: impl Into<String>) -> Failure {
    Failure::new(format!("The arguments of `{tool}` are wrong"), why)
        .next("call it again with arguments that fit its input schema")
}
