//! `forkd eval ID CODE`.

use std::io::{self, Read, Write};

use forkd_api::code::{Eval, Evaluated};

use super::{print, print_json, say, with_daemon};
use crate::arguments::EvalOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &EvalOptions) -> Result<Exit, CliError> {
    let mut code = options.code.clone();
    if code == "-" {
        code.clear();
        io::stdin().read_to_string(&mut code).map_err(|error| CliError::Io("read the code", error))?;
    }
    let wanted = Eval {
        code,
        language: options.language.into(),
        context: options.context.clone(),
        env: options.env.iter().cloned().collect(),
        timeout_secs: options.timeout,
    };
    let evaluated =
        with_daemon(&options.daemon, async |client| Ok(client.eval(&options.sandbox, &wanted).await?))?;
    if options.output.json {
        print_json(&evaluated)?;
    } else {
        show(&evaluated)?;
    }
    Ok(if evaluated.error.is_some() { Exit::Failure } else { Exit::Success })
}

/// What the code has printed, then its value on a line of its own, then what it failed with.
fn show(evaluated: &Evaluated) -> Result<(), CliError> {
    print(&evaluated.stdout)?;
    // Nobody is left to tell when stderr itself is gone.
    let _ = io::stderr().write_all(evaluated.stderr.as_bytes());
    if let Some(result) = &evaluated.result {
        print(&format!("{result}\n"))?;
    }
    if let Some(error) = &evaluated.error {
        match error.traceback.trim_end() {
            "" => say(&format!("{}: {}", error.name, error.value)),
            traceback => say(traceback),
        }
    }
    if evaluated.truncated {
        say("forkd: warning: there was more output than an answer holds");
    }
    Ok(())
}
