//! A guest with a shell on its console is branched, and children are forked from the branch. Each of them is told
//! something else, does it, and knows nothing of the others. One more panics, and says so.

use forkd_proto::control::{Event, ExitReason};
use forkd_tests::check;
use forkd_tests::engine::linux::image::SHELL;
use forkd_tests::engine::linux::{LinuxVm, LinuxZygote, Plan, Setup};
use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};

pub fn test(vcpus: u8, children: u32) -> Result<Value, Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let plan = Plan { vcpus, init: SHELL, modules: &["pvpanic-mmio"], keyboard: true, ..Plan::default() };
    let setup = Setup::new(directory.path(), &plan)?;
    let (_process, mut source) = setup.boot(setup.own("source")?)?;
    source.wait_for_shell()?;
    check_answer(&mut source, "echo $((6 * 7))", "42")?;
    check_answer(&mut source, "nproc", &vcpus.to_string())?;
    check_answer(&mut source, "echo of all >/mnt/common; cat /mnt/common", "of all")?;

    let (mut zygote, _) = source.branch(&setup, "source-1")?;
    check_answer(&mut source, "echo mine >/mnt/later; ls /mnt/later", "/mnt/later")?;
    let mut guests = (1..=children)
        .map(|number| setup.fork(&mut zygote, setup.own(&format!("child-{number}"))?))
        .collect::<Result<Vec<_>, _>>()?;
    // All of them at the same time.
    for (number, guest) in (1..).zip(&mut guests) {
        guest.enter(&format!("echo child-$((1000 + {number})) | tee /mnt/own"))?;
    }
    for (number, guest) in (1..).zip(&mut guests) {
        guest.wait_for(&format!("child-{}\r\n", 1000 + number))?;
    }
    for (number, guest) in (1..).zip(&mut guests) {
        let own = format!("child-{}", 1000 + number);
        check_answer(guest, "cat /mnt/common /mnt/own", &format!("of all\n{own}"))?;
        check_answer(guest, "ls /mnt/later 2>/dev/null", "")?;
        let console = guest.console()?;
        let strangers = console.matches("child-1").count() - console.matches(&own).count();
        check!(strangers == 0, "child {number} has other children's answers on its console:\n{console}");
    }
    panic(&setup, &mut zygote)?;

    guests.push(source);
    for guest in &mut guests {
        guest.enter("exit")?;
    }
    for guest in &mut guests {
        guest.finish(&setup)?;
    }
    Ok(json!({ "guests": guests.len() }))
}

fn check_answer(guest: &mut LinuxVm, command: &str, expected: &str) -> Result<(), Failure> {
    let answer = guest.run(command)?;
    check!(answer == expected, "{command}: {answer:?} instead of {expected:?}");
    Ok(())
}

/// The kernel tells its panic, and then resets the VM, as its command line says.
fn panic(setup: &Setup, zygote: &mut LinuxZygote) -> Result<(), Failure> {
    let mut guest = setup.fork(zygote, setup.own("panics")?)?;
    guest.enter("echo c >/proc/sysrq-trigger")?;
    let first = guest.event()?;
    check!(first == Event::Panicked, "the guest's panic is {first:?}:\n{}", guest.console()?);
    let second = guest.event()?;
    let is_reset = matches!(second, Event::Exited { reason: ExitReason::Reset, .. });
    check!(is_reset, "after the panic: {second:?}:\n{}", guest.console()?);
    Ok(())
}
