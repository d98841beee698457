//! A guest goes back to its branch, again and again: what came after is gone, its console and its control socket stay.

use forkd_proto::control::StateName;
use forkd_tests::check;
use forkd_tests::engine::linux::image::SHELL;
use forkd_tests::engine::linux::{Plan, Setup};
use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};

const ROUNDS: u32 = 3;

pub fn test(vcpus: u8) -> Result<Value, Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let plan = Plan { vcpus, init: SHELL, keyboard: true, ..Plan::default() };
    let setup = Setup::new(directory.path(), &plan)?;
    let (_process, mut guest) = setup.boot(setup.own("guest")?)?;
    guest.wait_for_shell()?;
    guest.run("echo kept >/mnt/kept; round=0")?;
    let (mut zygote, _) = guest.branch(&setup, "guest-0")?;

    for round in 1..=ROUNDS {
        let answer = guest.run("touch /mnt/later; sync; round=$((round + 1)); ls /mnt")?;
        check!(answer.contains("later"), "before rollback {round}: {answer}");
        guest.roll_back(&setup, &mut zygote, &format!("guest-{round}"))?;
        check!(guest.control.stats()?.state == StateName::Running, "after rollback {round}");
        let answer = guest.run("echo $round; cat /mnt/kept; ls /mnt/later 2>/dev/null")?;
        check!(answer == "0\nkept", "after rollback {round}: {answer:?}");
    }
    guest.switch_off(&setup)?;
    Ok(json!({ "guests": 1, "rollbacks": ROUNDS }))
}
