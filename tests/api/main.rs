//! Sandboxes with real guests through the daemon's API, as users of the command line have them: on a KVM host, native or
//! machine. `make e2e-agent` runs them.

mod bench;
mod branches;
mod build;
mod busy;
mod derived;
mod docs;
mod files;
mod identity;
mod life;
mod programs;
mod recipes;
mod sdk;

use std::process::ExitCode;

use forkd_tests::suite::{Test, in_soak};

/// Part of `make test`.
const CORE: &[Test] = &[
    ("life::of_a_snapshot_and_its_sandboxes", life::of_a_snapshot_and_its_sandboxes),
    ("busy::a_busy_sandbox_is_branched", busy::a_busy_sandbox_is_branched),
    ("bench::of_the_main_job", bench::of_the_main_job),
];

/// Part of `make test-all`.
const REST: &[Test] = &[
    ("files::go_in_and_come_out", files::go_in_and_come_out),
    ("derived::a_snapshot_has_what_a_command_left", derived::a_snapshot_has_what_a_command_left),
    ("identity::a_server_sees_nothing_of_its_parent", identity::a_server_sees_nothing_of_its_parent),
    ("sdk::the_python_client_has_real_guests", sdk::the_python_client_has_real_guests),
    ("sdk::both_clients_carry_out_the_scenarios", sdk::both_clients_carry_out_the_scenarios),
    ("sdk::official_mcp_clients_have_real_guests", sdk::official_mcp_clients_have_real_guests),
    (
        "docs::the_readme_and_the_quickstart_fork_and_branch",
        docs::the_readme_and_the_quickstart_fork_and_branch,
    ),
    ("recipes::python_numpy", recipes::python_numpy),
];

/// Part of `make soak`. That images are built through the daemon is also shown by E2B's clients, which build templates; what the
/// benchmark of the API does with few children, that of the main job does too; the examples use what the client's tests do; that
/// many branches of a disk can be loaded, and that sandboxes outlive the daemon, `make test` shows with a tiny guest.
const SOAK: &[Test] = &[
    ("sdk::the_examples_run", sdk::the_examples_run),
    ("sdk::the_typescript_examples_run", sdk::the_typescript_examples_run),
    ("bench::of_the_api", bench::of_the_api),
    ("build::of_an_image_and_its_sandboxes", build::of_an_image_and_its_sandboxes),
    ("programs::start_by_the_thousand", programs::start_by_the_thousand),
    ("branches::many_of_one_disk_are_loaded_again", branches::many_of_one_disk_are_loaded_again),
    ("life::goes_on_when_the_daemon_is_killed", life::goes_on_when_the_daemon_is_killed),
];

/// Part of `make soak` and of `make recipes`: each makes an image of its own.
const RECIPES: &[Test] = &[
    ("recipes::code_interpreter", recipes::code_interpreter),
    ("recipes::coding_agent", recipes::coding_agent),
    ("recipes::jupyter_kernel", recipes::jupyter_kernel),
    ("recipes::nodejs", recipes::nodejs),
    ("recipes::postgres_fixture", recipes::postgres_fixture),
];
/// Set by `make recipes`.
const RECIPES_VARIABLE: &str = "FORKD_RECIPES";

fn main() -> ExitCode {
    let recipes = if std::env::var_os(RECIPES_VARIABLE).is_some() { RECIPES } else { in_soak(RECIPES) };
    forkd_tests::suite::main(CORE, &[REST, in_soak(SOAK), recipes].concat())
}
