//! One call: whose it is, which daemon it is for, and what answers it needs.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use forkd_api::token::{Caller, Scope};
use forkd_client::{Client, ClientError};
use rmcp::model::{ContentBlock, JsonObject, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::{MAX_LINE, MAX_PICTURES, MAX_SHOWN, ends, shortened};
use crate::command::{Picture, Stopped};
use crate::failure::Failure;
use crate::outputs::{Content, MAX_CALLER_BYTES, MAX_OUTPUT, Outputs, Share};
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
    /// What this call has kept.
    pub kept: Mutex<Share>,
}

/// How much of an output an answer shows, and how much is kept if that is not all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub shown: usize,
    pub kept: usize,
}

impl Room {
    pub(crate) const ALL: Room = Room { shown: MAX_SHOWN, kept: MAX_OUTPUT };

    /// The room of each of so many outputs.
    pub(crate) fn of_each(count: usize) -> Room {
        let count = count.max(1);
        Room { shown: MAX_SHOWN / count, kept: MAX_OUTPUT.min(MAX_CALLER_BYTES / count) }
    }
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
    pub(crate) fn stopped(&self, what: impl Into<String>, mut stopped: Stopped) -> Failure {
        let lost = stopped.until_then.left_out();
        let text = stopped.until_then.take_text();
        let (shown, _) = self.shown("output", &text, lost, Room::ALL);
        self.failed(what, &stopped.error).with_output(shown)
    }

    /// Output for the answer: what fits, and a link to the whole if it does not. `lost` is how many bytes of it are not in the text.
    pub(crate) fn output(&self, name: &str, text: &str, lost: usize, room: Room) -> Vec<ContentBlock> {
        if text.is_empty() {
            return Vec::new();
        }
        let (shown, resource) = self.shown(name, text, lost, room);
        let link = resource.map(ContentBlock::resource_link);
        [ContentBlock::text(shown)].into_iter().chain(link).collect()
    }

    /// The text of an output in an answer, which says where the rest is, and the resource that has it.
    fn shown(&self, name: &str, text: &str, lost: usize, room: Room) -> (String, Option<Resource>) {
        let Some((head, not_shown, tail)) = ends(text, room.shown) else {
            return (text.to_owned(), None);
        };
        // A bit less than the ends of streams, so that it is cut where they were.
        let most = if text.len() > room.kept { room.kept.saturating_sub(4 * MAX_LINE) } else { room.kept };
        let (kept, not_kept) = match ends(text, most) {
            Some((_, cut, _)) => (shortened(text, most, lost).into(), cut + lost),
            None => (text.into(), lost),
        };
        let left_out = not_shown + lost;
        let Some(resource) = self.keep(name, Content::Text(kept)) else {
            return (shortened(text, room.shown, lost), None);
        };
        let what = match not_kept {
            0 => "the whole".to_owned(),
            bytes => format!("all but {bytes} bytes in the middle"),
        };
        let uri = &resource.uri;
        let in_pieces = match self.common.settings.tools {
            ToolSet::Tasks => format!("; the tool `read` shows it in pieces: path {uri} and an offset"),
            ToolSet::Reference => String::new(),
        };
        let shown = format!(
            "{head}\n[... {left_out} bytes left out; {what} is kept as the resource {uri} for up to an hour{in_pieces} ...]\n{tail}"
        );
        (shown, Some(resource))
    }

    /// Keeps an output, unless that would take away what this call has kept before: its answer links to all of it.
    fn keep(&self, name: &str, content: Content) -> Option<Resource> {
        // Nothing is half done when a thread panics.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let more = kept.with(&content)?;
        let resource = self.common.outputs.keep(&self.caller.name, name, content, Instant::now())?;
        *kept = more;
        Some(resource)
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
            match self.keep(&name, content) {
                Some(resource) => blocks.push(ContentBlock::resource_link(resource)),
                None => blocks.push(ContentBlock::text(format!(
                    "[{name} is left out: the outputs of this call are more than is kept]"
                ))),
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

#[cfg(test)]
pub(crate) mod tests {
    use forkd_client::Address;

    use super::*;

    /// A call that reaches no daemon.
    pub(crate) fn call(common: &Common) -> Call<'_> {
        let caller = Caller {
            name: "token:a".into(),
            scope: Scope::Run,
            project: forkd_api::token::DEFAULT_PROJECT.into(),
            limits: Default::default(),
        };
        let client = Client::new(Address::Unix("/nowhere".into()), None).unwrap();
        Call { common, client, caller, progress: Progress::unheard(), kept: Default::default() }
    }

    fn links(blocks: &[ContentBlock]) -> Vec<&str> {
        blocks.iter().filter_map(|block| Some(block.as_resource_link()?.uri.as_str())).collect()
    }

    fn kept(common: &Common, uri: &str) -> Option<String> {
        match common.outputs.get("token:a", uri, Instant::now())? {
            Content::Text(text) => Some(text.as_ref().to_owned()),
            Content::Blob { data, .. } => Some(data.as_ref().to_owned()),
        }
    }

    #[test]
    fn long_output_says_what_is_left_out_and_where_it_is() {
        let common = Common::default();
        let call = call(&common);
        assert!(call.output("x", "", 0, Room::ALL).is_empty());
        assert_eq!(call.output("x", "short", 0, Room::ALL), [ContentBlock::text("short")]);
        let long = format!("begin{}error", "x".repeat(MAX_SHOWN));
        for (lost, left_out, what) in
            [(0, 10, "the whole is kept"), (7, 17, "all but 7 bytes in the middle is kept")]
        {
            let blocks = call.output("x", &long, lost, Room::ALL);
            let [uri] = links(&blocks)[..] else { panic!("{blocks:?}") };
            let shown = &blocks[0].as_text().unwrap().text;
            assert!(shown.starts_with("beginx") && shown.ends_with("xerror"));
            let line =
                format!("[... {left_out} bytes left out; {what} as the resource {uri} for up to an hour;");
            assert!(shown.contains(&line), "{shown}");
            assert_eq!(kept(&common, uri).as_deref(), Some(long.as_str()));
        }
    }

    #[test]
    fn what_is_longer_than_an_output_keeps_its_ends() {
        let common = Common::default();
        let long = format!("begin{}error", "x".repeat(2 * MAX_OUTPUT));
        let blocks = call(&common).output("x", &long, 5, Room::ALL);
        let whole = kept(&common, links(&blocks)[0]).unwrap();
        assert!(whole.starts_with("beginx") && whole.ends_with("xerror") && whole.len() <= MAX_OUTPUT);
        let left_out = long.len() - (MAX_OUTPUT - 4 * MAX_LINE) + 5;
        assert!(whole.contains(&format!("x\n[... {left_out} bytes left out ...]\nx")));
        assert!(blocks[0].as_text().unwrap().text.contains(&format!("all but {left_out} bytes")));
    }

    #[test]
    fn all_links_of_an_answer_lead_somewhere() {
        let common = Common::default();
        let long = "x".repeat(MAX_OUTPUT);
        for count in [1, 2, 16, 64, 100] {
            let call = call(&common);
            let each = Room::of_each(count);
            let blocks: Vec<_> = (0..count).flat_map(|_| call.output("x", &long, 0, each)).collect();
            let links = links(&blocks);
            assert_eq!(links.len(), count.min(64));
            assert!(links.iter().all(|uri| kept(&common, uri).is_some()), "{count}");
        }
        let call = call(&common);
        let picture = || Picture { data: "a".repeat(5 << 20), mime_type: "image/png".into() };
        let blocks = call.pictures((0..4).map(|_| picture()).collect());
        let links = links(&blocks);
        assert_eq!(links.len(), 3);
        assert!(links.iter().all(|uri| kept(&common, uri).is_some()));
        assert!(blocks[3].as_text().unwrap().text.starts_with("[picture-4 is left out"));
    }

    #[test]
    fn what_failed_says_where_its_output_is() {
        let common = Common::default();
        let until_then = crate::command::Outcome { stdout: "x".repeat(2 * MAX_SHOWN), ..Default::default() };
        let failure = call(&common).stopped("What", Stopped { error: ClientError::CutOff, until_then });
        let text = failure.to_string();
        let uri = &common.outputs.list("token:a", Instant::now())[0].uri;
        assert!(text.contains(uri.as_str()) && text.len() < MAX_SHOWN + 1000, "{text}");
    }
}
