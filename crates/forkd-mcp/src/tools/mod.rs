//! forkd's own tools: one for each task, one file for each kind.

mod branches;
mod end;
pub(crate) mod files;
mod fork;
mod list;
mod port;
mod run;

use std::sync::LazyLock;

use forkd_api::token::Scope;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;

use crate::answer::Answer;
use crate::call::{Call, arguments};
use crate::failure::Failure;
use crate::schema::portable;

/// A tool, and the scope that a token needs for it.
#[derive(Debug, Clone)]
pub(crate) struct Definition {
    pub tool: Tool,
    pub scope: Scope,
}

impl Definition {
    /// Of a tool that only looks.
    pub(crate) fn reading<A: JsonSchema + 'static>(
        name: &'static str,
        title: &str,
        description: &'static str,
    ) -> Definition {
        let hints = ToolAnnotations::with_title(title).read_only(true).idempotent(true).open_world(false);
        Definition { tool: tool::<A>(name, title, description, hints), scope: Scope::Read }
    }

    /// Of a tool that changes something.
    pub(crate) fn changing<A: JsonSchema + 'static>(
        name: &'static str,
        title: &str,
        description: &'static str,
        effect: Effect,
    ) -> Definition {
        let Effect { destructive, idempotent, open_world } = effect;
        let hints = ToolAnnotations::with_title(title)
            .read_only(false)
            .destructive(destructive)
            .idempotent(idempotent)
            .open_world(open_world);
        Definition { tool: tool::<A>(name, title, description, hints), scope: Scope::Run }
    }

    /// With a schema of its structured answer.
    pub(crate) fn answers<T: JsonSchema + 'static>(mut self) -> Definition {
        self.tool = portable(self.tool.with_output_schema::<T>());
        self
    }

    fn needs(mut self, scope: Scope) -> Definition {
        self.scope = scope;
        self
    }
}

/// What a tool does to what is there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Effect {
    /// It may take something away.
    pub destructive: bool,
    /// Doing it again changes nothing more.
    pub idempotent: bool,
    /// It may reach what is outside of the sandboxes.
    pub open_world: bool,
}

fn tool<A: JsonSchema + 'static>(
    name: &'static str,
    title: &str,
    description: &'static str,
    hints: ToolAnnotations,
) -> Tool {
    let tool = Tool::new(name, description, JsonObject::new()).with_input_schema::<A>();
    portable(tool.with_title(title).with_annotations(hints))
}

/// All of them.
pub(crate) fn definitions() -> &'static [Definition] {
    static ALL: LazyLock<Vec<Definition>> = LazyLock::new(|| {
        let code = Effect { destructive: true, open_world: true, ..Effect::default() };
        vec![
            Definition::changing::<run::Run>(
                "run",
                "Run code or a command",
                "Run code (Python, JavaScript, TypeScript, Bash, or R and Java where the image has them, in an interpreter that \
                 keeps its variables between calls) or a shell command in a sandbox, and return its output, pictures and the sandbox's id. Without `sandbox`, a new \
                 sandbox is made; pass the returned id to continue in it.",
                code,
            ),
            Definition::reading::<files::Read>(
                "read",
                "Read a file",
                "Read a text file or a picture of a sandbox, at most 16 KiB at once; `offset` is where to start. Also reads the rest of \
                 long outputs: path forkd://output/...",
            ),
            Definition::changing::<files::Write>(
                "write",
                "Write a file",
                "Write a file of a sandbox, with its directories; one that is there is replaced. Without `sandbox`, a new \
                 sandbox is made.",
                Effect { destructive: true, idempotent: true, open_world: false },
            )
            .answers::<files::Written>(),
            Definition::reading::<files::ListFiles>(
                "list_files",
                "List files",
                "List the files of a directory of a sandbox.",
            )
            .answers::<files::Listing>(),
            Definition::changing::<fork::Fork>(
                "fork",
                "Fork sandboxes and run a command in each",
                "Make copies of a sandbox or of a snapshot, with all of its memory, files and running programs, and run a \
                 command or code in each at the same time, for example to try several solutions. FORK_INDEX is 0, 1, 2... in \
                 the environment of the copies. Returns a table of the results; the original keeps running unchanged.",
                Effect { open_world: true, ..Effect::default() },
            )
            .answers::<fork::Forked>(),
            Definition::changing::<branches::Branch>(
                "branch",
                "Save a sandbox's state",
                "Save the state of a sandbox (memory, files, programs) as a snapshot, which takes milliseconds. `rollback` goes \
                 back to it, `fork` makes copies of it. The sandbox keeps running.",
                Effect::default(),
            )
            .answers::<branches::Branched>(),
            Definition::changing::<branches::Rollback>(
                "rollback",
                "Go back to a saved state",
                "Take a sandbox back to the state of one of its own branches. What happened since then is lost.",
                Effect { destructive: true, idempotent: true, open_world: false },
            )
            .answers::<branches::RolledBack>(),
            Definition::reading::<list::ListSandboxes>(
                "sandboxes",
                "List sandboxes",
                "List the sandboxes, or show one: its state, the snapshot it was made of, its branches, when it expires, \
                 why it ended.",
            )
            .answers::<list::SandboxTable>(),
            Definition::reading::<list::ListSnapshots>(
                "snapshots",
                "List snapshots",
                "List the snapshots that sandboxes can be made of with `run` and `fork`.",
            )
            .answers::<list::SnapshotTable>(),
            Definition::reading::<port::ExposePort>(
                "expose_port",
                "Get the URL of a port",
                "Return the URL at which HTTP and WebSocket requests reach a port of a sandbox, through the daemon.",
            )
            // The URL is of no use to others.
            .needs(Scope::Run)
            .answers::<port::Exposed>(),
            Definition::changing::<end::End>(
                "end",
                "End sandboxes",
                "End sandboxes, and remove branches, that are no longer needed. Their memory and files are lost.",
                Effect { destructive: true, idempotent: true, open_world: false },
            )
            .answers::<end::Ended>(),
        ]
    });
    &ALL
}

/// Does what a tool does.
pub(crate) async fn call(call: &Call<'_>, name: &str, given: Option<JsonObject>) -> Result<Answer, Failure> {
    match name {
        "run" => run::run(call, arguments(name, given)?).await,
        "read" => files::read(call, arguments(name, given)?).await,
        "write" => files::write(call, arguments(name, given)?).await,
        "list_files" => files::list_files(call, arguments(name, given)?).await,
        "fork" => fork::fork(call, arguments(name, given)?).await,
        "branch" => branches::branch(call, arguments(name, given)?).await,
        "rollback" => branches::rollback(call, arguments(name, given)?).await,
        "sandboxes" => list::sandboxes(call, arguments(name, given)?).await,
        "snapshots" => list::snapshots(call, arguments(name, given)?).await,
        "expose_port" => port::expose_port(call, arguments(name, given)?).await,
        "end" => end::end(call, arguments(name, given)?).await,
        _ => Err(Failure::new(format!("Cannot call `{name}`"), "there is no such tool")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_described() {
        for Definition { tool, scope } in definitions() {
            let hints = tool.annotations.as_ref().unwrap();
            assert!(tool.description.as_ref().is_some_and(|text| text.len() > 20), "{}", tool.name);
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.name);
            let properties = tool.input_schema.get("properties").and_then(|it| it.as_object());
            for (name, schema) in properties.into_iter().flatten() {
                assert!(schema.get("description").is_some(), "{} {name} is not described", tool.name);
            }
            if *scope == Scope::Read {
                assert_eq!(hints.read_only_hint, Some(true), "{}", tool.name);
            }
        }
        let names: Vec<_> = definitions().iter().map(|it| it.tool.name.as_ref()).collect();
        assert_eq!(names.len(), 11);
        let reading: Vec<_> = definitions()
            .iter()
            .filter(|it| it.scope == Scope::Read)
            .map(|it| it.tool.name.as_ref())
            .collect();
        assert_eq!(reading, ["read", "list_files", "sandboxes", "snapshots"]);
    }
}
