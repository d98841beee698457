//! A full snapshot of a branch of a running guest, a diff of a later branch, and guests forked from both after everything
//! else is gone.

use std::fs::File;
use std::time::Instant;

use forkd_store::Store;
use forkd_tests::check;
use forkd_tests::engine::linux::image::SHELL;
use forkd_tests::engine::linux::{LinuxZygote, Plan, Setup};
use forkd_tests::engine::process::Failure;
use serde_json::{Value, json};

const VERIFY: &str = "cd /mnt && md5sum -c *.sum; cd /";

pub fn test(vcpus: u8) -> Result<Value, Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let plan = Plan { vcpus, init: SHELL, keyboard: true, ..Plan::default() };
    let setup = Setup::new(directory.path(), &plan)?;
    let store = Store::new(directory.path().join("store"));
    std::fs::create_dir(directory.path().join("store"))?;

    let (process, mut source) = setup.boot(setup.own("source")?)?;
    source.wait_for_shell()?;
    let mut layers: Vec<Vec<File>> = Vec::new();
    let mut parent = None;
    let begun = Instant::now();
    for tag in ["first", "second"] {
        source.run(&format!("remembered=$remembered-{tag}"))?;
        source.run(&format!(
            "cd /mnt; dd if=/dev/urandom of={tag} bs=4096 count=50 2>/dev/null; md5sum {tag} >{tag}.sum; cd /"
        ))?;
        let (mut zygote, _) = source.branch(&setup, &format!("after-{tag}"))?;
        parent = Some(zygote.persist(&setup, &store, tag, parent.as_ref())?);
        layers.push(zygote.layers().iter().map(File::try_clone).collect::<Result<_, _>>()?);
    }
    let pages = parent.map_or(0, |diff| diff.manifest().memory.size / 4096);
    let persist = begun.elapsed();
    source.switch_off(&setup)?;
    drop(process);

    let expected = [("first", "-first", "first: OK"), ("second", "-first-second", "first: OK\nsecond: OK")];
    for ((tag, remembered, files), layers) in expected.into_iter().zip(&layers) {
        let (_process, mut zygote) = LinuxZygote::load(&setup, &store, tag, layers)?;
        let mut guests = [1, 2]
            .map(|number| setup.own(&format!("{tag}-{number}")).and_then(|own| setup.fork(&mut zygote, own)));
        for guest in &mut guests {
            let guest = guest.as_mut().map_err(|error| error.to_string())?;
            let answer = guest.run("echo $remembered")?;
            check!(answer == remembered, "{tag}: the shell remembers {answer:?}");
            let answer = guest.run(VERIFY)?;
            check!(answer == files, "{tag}: {answer}");
            guest.run("dd if=/dev/urandom of=/mnt/more bs=4096 count=50")?;
            guest.switch_off(&setup)?;
        }
    }
    Ok(json!({ "guests": 5, "diff_pages": pages, "persist_ms": persist.as_secs_f64() * 1e3 }))
}
