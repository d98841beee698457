//! Snapshots are built: made, unless there is one of the same contents, and given a name.
//!
//! A caller that disconnects early ends nothing: others may be waiting for the same build.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use forkd_api::error::ErrorBody;
use forkd_api::snapshot::{BuildOutcome, BuildSnapshot, BuiltSnapshot, Progress};
use forkd_api::token::Scope;
use forkd_engine::library::Recipe;
use forkd_engine::{Built, EngineError, Owner, PlannedBuild, Step, Steps};
use forkd_store::Tag;
use tokio::sync::mpsc;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::{Answer, ApiError};
use crate::extract::Json;
use crate::routes::checks::malformed;
use crate::routes::responses::MakeErrors;
use crate::routes::snapshots::create::{self, How, ProgressSender, WRITE, tell_steps, with_image};
use crate::routes::snapshots::derive::{self, Derivation};
use crate::routes::snapshots::describe;
use crate::trace::RequestTrace;

/// Builds a snapshot: makes it unless one with the same contents exists, and gives it a name.
///
/// Concurrent builds of the same contents make one snapshot. A snapshot that was built under this name before loses the name and
/// keeps its tag. With `Accept: application/x-ndjson`, the response is a stream of Progress, whose last line is the result or the
/// error.
#[utoipa::path(
    post,
    path = "/v1/snapshots/build",
    tag = "snapshots",
    operation_id = "build_snapshot",
    params(("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer")),
    request_body = BuildSnapshot,
    responses(
        (status = 200, description = "The outcome, or with `dry_run` the expected outcome; lines of JSON if requested", content(
            (BuiltSnapshot = "application/json"),
            (Progress = "application/x-ndjson"),
        )),
        MakeErrors,
        (status = 409, description = "The name belongs to a snapshot that no build made", body = ErrorBody),
    )
)]
pub(super) async fn build(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(wanted): Json<BuildSnapshot>,
) -> Answer<Response> {
    if wanted.contents.host_certs {
        caller.require(Scope::Admin)?;
    }
    let dry_run = wanted.dry_run;
    let order = Order::convert(&app, &caller, wanted)?;
    let work = app.clone();
    let building = move |told| async move {
        match dry_run {
            true => plan(&work, &caller, order).await,
            false => carry_out(&work, &caller, order, told).await,
        }
    };
    create::answer(app, &headers, building, StatusCode::OK, |built| Progress::Built(Box::new(built))).await
}

/// A build that is asked for.
struct Order {
    name: Tag,
    contents: Contents,
    fresh: bool,
    wait: bool,
}

enum Contents {
    Booted(Box<Recipe>),
    Derived(Box<Derivation>),
}

impl Order {
    fn convert(app: &Shared, caller: &Caller, wanted: BuildSnapshot) -> Answer<Order> {
        let BuildSnapshot { name, mut contents, no_cache, dry_run: _ } = wanted;
        if contents.tag.is_some() {
            return Err(malformed("contents.tag cannot be given: the build's name is used instead"));
        }
        let tag: Tag = name.parse().map_err(EngineError::Tag)?;
        app.check_built_name(caller, &tag)?;
        contents.tag = Some(name);
        let wait = contents.wait;
        let contents = match contents.snapshot {
            Some(_) => Contents::Derived(Box::new(derive::convert(app, caller, contents)?)),
            None => Contents::Booted(Box::new(create::convert(contents)?)),
        };
        Ok(Order { name: tag, contents, fresh: no_cache, wait })
    }
}

/// What a build would do.
async fn plan(app: &Shared, caller: &Caller, order: Order) -> Answer<BuiltSnapshot> {
    // The caller has disconnected.
    let steps = mpsc::channel(1).0;
    let (planned, owner) = planned(app, caller, order.contents, &steps).await?;
    let found = app.engine.find_built(&planned.key, &owner.project).filter(|_| !order.fresh);
    let before = named(app, &order.name);
    let tag = found.as_ref().map(forkd_engine::SnapshotHandle::tag);
    let snapshot = match found {
        Some(found) => Some(describe(app, caller, found.view()).await?),
        None => None,
    };
    Ok(BuiltSnapshot {
        name: order.name.to_string(),
        outcome: outcome(tag.is_none(), tag.as_ref(), before.as_ref()),
        key: Some(planned.key.to_string()),
        snapshot,
        replaced: before.filter(|before| tag.as_ref() != Some(before)).map(|before| before.to_string()),
    })
}

async fn carry_out(
    app: &Shared,
    caller: &Caller,
    order: Order,
    told: ProgressSender,
) -> Answer<BuiltSnapshot> {
    let (work, asked) = (app.clone(), caller.clone());
    let (built, phases) = tell_steps(&told, async move |steps| {
        app.to_its_end(async move { build_and_name(&work, &asked, order, &steps).await }).await?
    })
    .await;
    RequestTrace::current().made(phases);
    built
}

async fn build_and_name(app: &Shared, caller: &Caller, order: Order, steps: &Steps) -> Answer<BuiltSnapshot> {
    let Order { name, contents, fresh, wait } = order;
    let (mut planned, owner) = planned(app, caller, contents, steps).await?;
    let key = planned.key;
    planned.set_tag(app.engine.tag_for_build(&name, &key)?);
    let Built { snapshot, is_new } = build_planned(app, planned, &owner, fresh, wait, steps).await?;
    let (tag, before) = (snapshot.tag(), named(app, &name));
    let replaced = before.clone().filter(|before| *before != tag).map(|before| before.to_string());
    if before.as_ref() != Some(&tag) {
        app.add_built_name(caller, &snapshot, name.clone()).await?;
    }
    Ok(BuiltSnapshot {
        name: name.to_string(),
        outcome: outcome(is_new, Some(&tag), before.as_ref()),
        key: Some(key.to_string()),
        snapshot: Some(describe(app, caller, snapshot.view()).await?),
        replaced,
    })
}

async fn planned(
    app: &Shared,
    caller: &Caller,
    contents: Contents,
    steps: &Steps,
) -> Answer<(PlannedBuild, Owner)> {
    match contents {
        Contents::Booted(recipe) => plan_boot(app, caller, *recipe, steps).await,
        Contents::Derived(derivation) => {
            let Derivation { new, owner } = *derivation;
            Ok((app.engine.plan_derived(new, &owner.project).await?, owner))
        }
    }
}

/// The snapshot that a recipe describes, on disk: one of the same contents, or else a new one with the recipe's tag. With `fresh`, a new
/// one in any case.
pub async fn build_recipe(
    app: &Shared,
    caller: &Caller,
    recipe: Recipe,
    fresh: bool,
    told: ProgressSender,
) -> Answer<Built> {
    let (work, asked) = (app.clone(), caller.clone());
    let (built, phases) = tell_steps(&told, async move |steps| {
        let build = async move {
            let (planned, owner) = plan_boot(&work, &asked, recipe, &steps).await?;
            build_planned(&work, planned, &owner, fresh, true, &steps).await
        };
        app.to_its_end(build).await?
    })
    .await;
    RequestTrace::current().made(phases);
    built
}

/// What is to be booted, and for whom.
async fn plan_boot(
    app: &Shared,
    caller: &Caller,
    recipe: Recipe,
    steps: &Steps,
) -> Answer<(PlannedBuild, Owner)> {
    let recipe = with_image(app, caller, recipe, How::New).await?;
    let owner = app.own(caller);
    let planned = app.engine.plan_boot(&app.library, recipe, &owner.project, steps).await?;
    Ok((planned, owner))
}

/// Builds what is planned; with `wait`, until it is on disk.
async fn build_planned(
    app: &Shared,
    planned: PlannedBuild,
    owner: &Owner,
    fresh: bool,
    wait: bool,
    steps: &Steps,
) -> Answer<Built> {
    let built = app.engine.build(planned, owner, fresh, steps).await;
    let built = built.map_err(|error| ApiError::from(&*error))?;
    if wait {
        if built.is_new {
            let _ = steps.send(Step::Begins(WRITE.to_owned())).await;
        }
        built.snapshot.durable().await?;
    }
    Ok(built)
}

/// The snapshot that has a name beside its tag.
fn named(app: &Shared, name: &Tag) -> Option<Tag> {
    let snapshot = app.engine.snapshot(name.as_str()).ok()?;
    app.engine.is_name(name.as_str()).then(|| snapshot.tag())
}

fn outcome(is_new: bool, tag: Option<&Tag>, before: Option<&Tag>) -> BuildOutcome {
    match is_new {
        true => BuildOutcome::Made,
        false if tag == before => BuildOutcome::Unchanged,
        false => BuildOutcome::Reused,
    }
}
