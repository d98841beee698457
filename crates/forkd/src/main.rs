//! The `forkd` command: arguments in, one verb out.

mod arguments;
mod build;
mod commands;
mod completion;
mod copy;
mod daemon;
mod error;
mod exit;
mod hint;
mod library;
mod logging;
mod moment;
mod private;
mod progress;
mod recipes;
#[cfg(test)]
mod reference;
mod session;
mod signals;
mod size;
mod table;
mod temporary_daemon;
mod terminal;

use std::process::ExitCode;

use arguments::{
    Arguments, BenchCommand, Command, E2bCommand, ImageCommand, KernelCommand, MachineCommand, McpCommand,
    ProjectCommand, RecipeCommand, SnapshotCommand, SnapshotKeyCommand, TokenCommand,
};
use clap::FromArgMatches;
use clap_complete::CompleteEnv;
use error::CliError;
use exit::Exit;

fn main() -> ExitCode {
    // A shell that completes a line calls the program with a variable, as `forkd completions` tells it to.
    CompleteEnv::with_factory(arguments::command).complete();
    let matches = arguments::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(arguments) {
        Ok(exit) => exit.into(),
        Err(error) => {
            error::print(&error);
            error.exit().into()
        }
    }
}

fn run(arguments: Arguments) -> Result<Exit, CliError> {
    match arguments.command {
        Command::Run(options) => commands::run::run(&options),
        Command::Snapshot(options) => match &options.command {
            None => commands::snapshot::make::run(&options.create),
            Some(SnapshotCommand::Make(options)) => commands::snapshot::make::run(options),
            Some(SnapshotCommand::Build(options)) => commands::snapshot::build::run(options),
            Some(SnapshotCommand::Ls(options)) => commands::snapshot::ls::run(options),
            Some(SnapshotCommand::Inspect(options)) => commands::snapshot::inspect::run(options),
            Some(SnapshotCommand::History(options)) => commands::snapshot::history::run(options),
            Some(SnapshotCommand::Verify(options)) => commands::snapshot::verify::run(options),
            Some(SnapshotCommand::Save(options)) => commands::snapshot::save::run(options),
            Some(SnapshotCommand::Load(options)) => commands::snapshot::load::run(options),
            Some(SnapshotCommand::Push(options)) => commands::snapshot::push::run(options),
            Some(SnapshotCommand::Pull(options)) => commands::snapshot::pull::run(options),
            Some(SnapshotCommand::Sign(options)) => commands::snapshot::sign::run(options),
            Some(SnapshotCommand::Key(SnapshotKeyCommand::New(options))) => {
                commands::snapshot::key::new(options)
            }
            Some(SnapshotCommand::Compact(options)) => commands::snapshot::compact::run(options),
            Some(SnapshotCommand::Prune(options)) => commands::snapshot::prune::run(options),
            Some(SnapshotCommand::Tag(options)) => commands::snapshot::tag::run(options),
            Some(SnapshotCommand::Share(options)) => commands::snapshot::share::run(options),
            Some(SnapshotCommand::Rm(options)) => commands::snapshot::rm::run(options),
        },
        Command::Fork(options) => commands::fork::run(&options),
        Command::Branch(options) => commands::branch::run(&options),
        Command::Ls(options) => commands::ls::run(&options),
        Command::Inspect(options) => commands::inspect::run(&options),
        Command::Exec(options) => commands::exec::run(&options),
        Command::Eval(options) => commands::eval::run(&options),
        Command::Shell(options) => commands::shell::run(&options),
        Command::Cp(options) => commands::cp::run(&options),
        Command::Logs(options) => commands::logs::run(&options),
        Command::Stats(options) => commands::stats::run(&options),
        Command::Events(options) => commands::events::run(&options),
        Command::Kill(options) => commands::kill::run(&options),
        Command::Wait(options) => commands::wait::run(&options),
        Command::Ttl(options) => commands::ttl::run(&options),
        Command::PortForward(options) => commands::port_forward::run(&options),
        Command::Pause(options) => commands::pause::run(&options),
        Command::Resume(options) => commands::resume::run(&options),
        Command::Rollback(options) => commands::rollback::run(&options),
        Command::Context { command } => commands::context::run(&command),
        Command::Process { command } => commands::process::run(&command),
        Command::Egress(options) => commands::egress::run(&options),
        Command::Bandwidth(options) => commands::bandwidth::run(&options),
        Command::Images(options) => commands::image::ls::short(&options),
        Command::Rmi(options) => commands::image::rm::short(&options),
        Command::Ping(options) => commands::ping::run(&options),
        Command::Cleanup(options) => commands::cleanup::run(&options),
        Command::Bench { command: BenchCommand::Api(options) } => commands::bench::api::run(&options),
        Command::Bench { command: BenchCommand::Demo(options) } => commands::bench::demo::run(&options),
        Command::Completions(options) => commands::completions::run(&options),
        Command::Man(options) => commands::man::run(&options),
        Command::Dev(options) => commands::dev::run(&options),
        Command::Doctor(options) => commands::doctor::run(&options),
        Command::Serve(options) => commands::serve::run(&options),
        Command::Hold(options) => commands::hold::run(&options),
        Command::E2b { command } => match command {
            E2bCommand::Setup(options) => commands::e2b::setup::run(&options),
            E2bCommand::Env(options) => commands::e2b::env::run(&options),
        },
        Command::Mcp(options) => match &options.command {
            None => commands::mcp::run(*options),
            Some(McpCommand::Install(options)) => commands::mcp::install::run(options),
        },
        Command::Token { command } => match command {
            TokenCommand::Create(options) => commands::token::create::run(&options),
            TokenCommand::Ls(options) => commands::token::ls::run(&options),
            TokenCommand::Rm(options) => commands::token::rm::run(&options),
        },
        Command::Project { command } => match command {
            ProjectCommand::Ls(options) => commands::project::ls::run(&options),
            ProjectCommand::Limit(options) => commands::project::limit::run(&options),
        },
        Command::Machine { command } => match command {
            MachineCommand::Init(options) => commands::machine::init::run(&options),
            MachineCommand::Start(options) => commands::machine::start::run(&options),
            MachineCommand::Serve(options) => commands::machine::serve::run(&options),
            MachineCommand::Stop(options) => commands::machine::stop::run(&options),
            MachineCommand::Status(options) => commands::machine::status::run(&options),
            MachineCommand::Exec(options) => commands::machine::exec::run(&options),
            MachineCommand::Shell(options) => commands::machine::shell::run(&options),
            MachineCommand::Logs(options) => commands::machine::logs::run(&options),
            MachineCommand::Ls(options) => commands::machine::ls::run(&options),
            MachineCommand::Rm(options) => commands::machine::rm::run(&options),
        },
        Command::Kernel { command } => match command {
            KernelCommand::Add(options) => commands::kernel::add::run(&options),
            KernelCommand::Ls(options) => commands::kernel::ls::run(&options),
            KernelCommand::Rm(options) => commands::kernel::rm::run(&options),
            KernelCommand::Default(options) => commands::kernel::default::run(&options),
        },
        Command::Image { command } => match command {
            ImageCommand::Pull(options) => commands::image::pull::run(&options),
            ImageCommand::Debian(options) => commands::image::debian::run(&options),
            ImageCommand::Import(options) => commands::image::import::run(&options),
            ImageCommand::Build(options) => commands::image::build::run(&options),
            ImageCommand::Ls(options) => commands::image::ls::run(&options),
            ImageCommand::Inspect(options) => commands::image::inspect::run(&options),
            ImageCommand::Rm(options) => commands::image::rm::run(&options),
            ImageCommand::Share(options) => commands::image::share::run(&options),
            ImageCommand::Prune(options) => commands::image::prune::run(&options),
        },
        Command::Recipe { command } => match command {
            RecipeCommand::Ls(options) => commands::recipe::ls::run(&options),
            RecipeCommand::Show(options) => commands::recipe::show::run(&options),
            RecipeCommand::Build(options) => commands::recipe::build::run(&options),
        },
        Command::BuildGuest(options) => commands::build_guest::run(&options),
    }
}
