//! Snapshots are made of other snapshots: a fork of one, in which commands and code have run.

use forkd_api::snapshot::{CreateSnapshot, Snapshot};
use forkd_engine::{EngineError, NewDerived, Owner};

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::routes::checks::{self, malformed};
use crate::routes::snapshots::create::{ProgressSender, check_run, convert_warm_up, make_telling};

/// What is asked for, and for whom.
pub(super) struct Derivation {
    pub new: NewDerived,
    pub owner: Owner,
}

/// What a guest is booted with cannot be changed any more, so it is refused.
pub(super) fn convert(app: &Shared, caller: &Caller, wanted: CreateSnapshot) -> Answer<Derivation> {
    if let Some(field) = of_images(&wanted) {
        return Err(malformed(format!("{field} can only be given with an image, not with a snapshot")));
    }
    let CreateSnapshot { tag, snapshot, env, run, warm_up, .. } = wanted;
    let tag = tag.ok_or_else(|| malformed("a snapshot based on another needs a tag"))?;
    checks::env(&env)?;
    check_run(&run)?;
    let source = app.snapshot(caller, &snapshot.unwrap_or_default())?;
    let owner = app.owner(caller, app.project_for(caller, &source.view()));
    let new = NewDerived {
        tag: tag.parse().map_err(EngineError::Tag)?,
        source,
        env,
        run,
        warm_up: convert_warm_up(warm_up)?,
        build_key: None,
    };
    Ok(Derivation { new, owner })
}

/// A field that is given, and means something for images only.
fn of_images(wanted: &CreateSnapshot) -> Option<&'static str> {
    let given = [
        ("image", wanted.image.is_some()),
        ("kernel", wanted.kernel.is_some()),
        ("vcpus", wanted.vcpus.is_some()),
        ("memory_mib", wanted.memory_mib.is_some()),
        ("disk_mib", wanted.disk_mib.is_some()),
        ("cpu", wanted.cpu != Default::default()),
        ("start", wanted.start.is_some()),
        ("ready", wanted.ready.is_some()),
        ("host_certs", wanted.host_certs),
        ("e2b", wanted.e2b),
        ("network", !wanted.network),
    ];
    given.into_iter().find_map(|(field, is_given)| is_given.then_some(field))
}

pub(super) async fn make(
    app: &Shared,
    caller: &Caller,
    wanted: Derivation,
    wait: bool,
    told: ProgressSender,
) -> Answer<Snapshot> {
    let Derivation { new, owner } = wanted;
    make_telling(app, caller, wait, told, async move |steps| {
        Ok(app.engine.derive(new, Some(&owner), &steps).await?)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_images_is_named() {
        let field = |json: &str| {
            let text = format!(r#"{{"tag": "t", "snapshot": "base", "run": ["true"]{json}}}"#);
            of_images(&serde_json::from_str(&text).unwrap())
        };
        assert_eq!(field(""), None);
        assert_eq!(field(r#", "env": {"A": "1"}"#), None);
        assert_eq!(field(r#", "warm_up": [{"language": "python", "code": "1"}], "wait": false"#), None);
        for (json, expected) in [
            (r#", "image": "i""#, "image"),
            (r#", "vcpus": 2"#, "vcpus"),
            (r#", "cpu": "x86-64-v2""#, "cpu"),
            (r#", "network": false"#, "network"),
        ] {
            assert_eq!(field(json), Some(expected));
        }
    }
}
