//! From the text of a Dockerfile to typed instructions, with the lines they are on.

use parse_dockerfile as grammar;

use super::{Argument, Command, Copy, Dockerfile, Instruction, Line, Stage};

/// More text than a person writes.
const MAX_TEXT: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("the Dockerfile is larger than {} KiB", MAX_TEXT >> 10)]
    TooLarge,
    #[error("cannot parse the Dockerfile: {0}")]
    Syntax(String),
    #[error("line {line}: {what} is not supported")]
    Unsupported { line: usize, what: String },
    #[error("line {line}: {problem}")]
    Wrong { line: usize, problem: String },
    #[error("the Dockerfile has no FROM")]
    NoStage,
}

/// Parses a Dockerfile.
pub fn parse(text: &str) -> Result<Dockerfile, ParseError> {
    if text.len() > MAX_TEXT {
        return Err(ParseError::TooLarge);
    }
    let parsed = grammar::parse(text).map_err(|error| ParseError::Syntax(error.to_string()))?;
    let escape = parsed.parser_directives.escape.as_ref().map_or('\\', |directive| directive.value.value);
    let reader = Reader { text, escape };
    let mut dockerfile = Dockerfile { arguments: Vec::new(), stages: Vec::new(), escape };
    for instruction in &parsed.instructions {
        if let grammar::Instruction::From(from) = instruction {
            let stage = reader.stage(from)?;
            let taken = |other: &Stage| other.name.is_some() && other.name == stage.name;
            if dockerfile.stages.iter().any(taken) {
                return Err(wrong(stage.line, "duplicate stage name"));
            }
            dockerfile.stages.push(stage);
            continue;
        }
        let line = reader.instruction(instruction)?;
        match (dockerfile.stages.last_mut(), line.instruction) {
            (Some(stage), instruction) => stage.instructions.push(Line { line: line.line, instruction }),
            (None, Instruction::Arg(text)) => dockerfile.arguments.push(Argument { line: line.line, text }),
            (None, _) => return Err(wrong(line.line, "only ARG may come before the first FROM")),
        }
    }
    if dockerfile.stages.is_empty() { Err(ParseError::NoStage) } else { Ok(dockerfile) }
}

fn wrong(line: usize, problem: &str) -> ParseError {
    ParseError::Wrong { line, problem: problem.into() }
}

fn unsupported(line: usize, what: impl Into<String>) -> ParseError {
    ParseError::Unsupported { line, what: what.into() }
}

struct Reader<'a> {
    text: &'a str,
    escape: char,
}

impl Reader<'_> {
    fn line(&self, span: &grammar::Span) -> usize {
        1 + self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count()
    }

    fn stage(&self, from: &grammar::FromInstruction<'_>) -> Result<Stage, ParseError> {
        let line = self.line(&from.from.span);
        for flag in &from.options {
            let value = flag.value.as_ref().map_or("", |value| &value.value);
            // Other platforms cannot run here; the one that can need not be named.
            if flag.name.value != "platform" || value != "linux/amd64" {
                return Err(unsupported(line, format!("FROM --{}={value}", flag.name.value)));
            }
        }
        let name = from.as_.as_ref().map(|(_, name)| name.value.to_ascii_lowercase());
        Ok(Stage { line, name, from: from.image.value.clone().into_owned(), instructions: Vec::new() })
    }

    fn instruction(&self, instruction: &grammar::Instruction<'_>) -> Result<Line, ParseError> {
        use grammar::Instruction as Grammar;
        let refuse = |span: &grammar::Span, what: &str| Err(unsupported(self.line(span), what));
        let (span, instruction) = match instruction {
            Grammar::Run(run) => {
                let line = self.line(&run.run.span);
                if let Some(flag) = run.options.first() {
                    return Err(unsupported(line, format!("RUN --{}", flag.name.value)));
                }
                if !run.here_docs.is_empty() {
                    return Err(unsupported(line, "a here-document"));
                }
                (&run.run.span, Instruction::Run(self.command(&run.arguments)))
            }
            Grammar::Copy(copy) => {
                let parts = (&copy.options[..], &copy.src[..], &copy.dest);
                (&copy.copy.span, Instruction::Copy(self.copy("COPY", &copy.copy.span, parts)?))
            }
            Grammar::Add(add) => {
                let parts = (&add.options[..], &add.src[..], &add.dest);
                (&add.add.span, Instruction::Copy(self.copy("ADD", &add.add.span, parts)?))
            }
            Grammar::Env(env) => (&env.env.span, Instruction::Env(env.arguments.value.clone().into_owned())),
            Grammar::Arg(arg) => (&arg.arg.span, Instruction::Arg(arg.arguments.value.clone().into_owned())),
            Grammar::Workdir(it) => {
                (&it.workdir.span, Instruction::Workdir(it.arguments.value.clone().into_owned()))
            }
            Grammar::User(user) => {
                (&user.user.span, Instruction::User(user.arguments.value.clone().into_owned()))
            }
            Grammar::Shell(shell) => (&shell.shell.span, Instruction::Shell(owned(&shell.arguments))),
            Grammar::Entrypoint(it) => {
                (&it.entrypoint.span, Instruction::Entrypoint(self.command(&it.arguments)))
            }
            Grammar::Cmd(cmd) => (&cmd.cmd.span, Instruction::Cmd(self.command(&cmd.arguments))),
            Grammar::Label(it) => {
                (&it.label.span, Instruction::Label(it.arguments.value.clone().into_owned()))
            }
            Grammar::Expose(it) => return refuse(&it.expose.span, "EXPOSE"),
            Grammar::Healthcheck(it) => return refuse(&it.healthcheck.span, "HEALTHCHECK"),
            Grammar::Maintainer(it) => return refuse(&it.maintainer.span, "MAINTAINER"),
            Grammar::Onbuild(it) => return refuse(&it.onbuild.span, "ONBUILD"),
            Grammar::Stopsignal(it) => return refuse(&it.stopsignal.span, "STOPSIGNAL"),
            Grammar::Volume(it) => return refuse(&it.volume.span, "VOLUME"),
            Grammar::From(it) => return refuse(&it.from.span, "FROM here"),
            _ => return Err(ParseError::Syntax("unknown instruction".into())),
        };
        Ok(Line { line: self.line(span), instruction })
    }

    fn command(&self, command: &grammar::Command<'_>) -> Command {
        match command {
            grammar::Command::Exec(words) => Command::Exec(owned(&words.value)),
            grammar::Command::Shell(text) => Command::Shell(join_lines(text.value, self.escape)),
            _ => Command::Exec(Vec::new()),
        }
    }

    fn copy(
        &self,
        keyword: &str,
        span: &grammar::Span,
        parts: (&[grammar::Flag<'_>], &[grammar::Source<'_>], &grammar::UnescapedString<'_>),
    ) -> Result<Copy, ParseError> {
        let line = self.line(span);
        let (options, from_sources, destination) = parts;
        let mut sources = Vec::new();
        for source in from_sources {
            match source {
                grammar::Source::Path(path) => sources.push(path.value.clone().into_owned()),
                _ => return Err(unsupported(line, "a here-document")),
            }
        }
        let is_address = |source: &&String| source.contains("://") || source.starts_with("git@");
        if let Some(address) = sources.iter().find(is_address) {
            return Err(unsupported(line, format!("{keyword} of {address}")));
        }
        let mut copy = Copy {
            unpacks: keyword == "ADD",
            from: None,
            chown: None,
            chmod: None,
            sources,
            destination: destination.value.clone().into_owned(),
        };
        for flag in options {
            let value = flag.value.as_ref().map(|value| value.value.clone().into_owned());
            match (&*flag.name.value, keyword, value) {
                ("from", "COPY", Some(value)) => copy.from = Some(value),
                ("chown", _, Some(value)) => copy.chown = Some(value),
                ("chmod", _, Some(value)) => copy.chmod = Some(value),
                (name, ..) => return Err(unsupported(line, format!("{keyword} --{name}"))),
            }
        }
        Ok(copy)
    }
}

fn owned(words: &[grammar::UnescapedString<'_>]) -> Vec<String> {
    words.iter().map(|word| word.value.clone().into_owned()).collect()
}

/// Makes one line of a command: a line that ends with the escape is continued, and comments and empty lines between are not
/// part of it, although a shell would see them.
fn join_lines(text: &str, escape: char) -> String {
    let mut joined = String::new();
    let mut goes_on = false;
    for line in text.lines() {
        if goes_on && (line.trim().is_empty() || line.trim_start().starts_with('#')) {
            continue;
        }
        let body = line.trim_end();
        match body.strip_suffix(escape) {
            Some(body) => {
                joined.push_str(body);
                goes_on = true;
            }
            None => {
                joined.push_str(line);
                goes_on = false;
            }
        }
    }
    joined.trim().to_owned()
}
