//! Templates are built: an image by forkd's own builder, each step in a guest, and a snapshot of it, warm, under the template's
//! name.
//!
//! ```text
//!   POST /v3/templates ──▶ GET …/files/{hash} ──▶ PUT (a tar archive) ──▶ POST /v2/templates/{id}/builds/{build}
//!                                                                            │ steps ─▶ image ─▶ boot, start, ready ─▶ snapshot
//!   GET …/status?logsOffset= ◀── waiting, building, ready or error ──────────┘
//! ```
//!
//! As with images, only a key with the scope admin may.

mod files;
mod record;
mod steps;
mod tags;

use std::collections::BTreeMap;
use std::fs::File;

use axum::Extension;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::routing::{get, post, put};
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_api::token::Scope;
use forkd_build::{Build as ImageBuild, CONTEXT_LIMITS};
use forkd_engine::EngineError;
use forkd_engine::library::{DefaultAccount, Recipe};
use forkd_engine::project::Project;
use forkd_image::archive::unpack;
use forkd_image::builds::BuildCache;
use forkd_image::dockerfile::Context;
use forkd_image::host_environment::HostEnvironment;
use forkd_image::images::Name;
use forkd_proto::agent::account::Account;
use forkd_proto::agent::startup::Ready;
use forkd_proto::control::CpuModel;
use forkd_store::Tag;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::record::{Build, PAGE, Saying, Status};
use self::steps::{Begins, Start, Step};
use super::error::message;
use super::models::{Body, date};
use super::names::Making;
use super::templates;
use crate::App;
use forkd_daemon::auth::{self, Caller, random};
use forkd_daemon::build_guests::GuestShape;
use forkd_daemon::error::{Answer, ApiError};
use forkd_daemon::extract::{Json, Path, Query};
use forkd_daemon::operations::Place;
use forkd_daemon::operations::carry_out;
use forkd_daemon::operations::checks::{malformed, within};

pub(crate) use self::files::caller as upload_caller;
pub(super) use self::record::Builds;

/// Images of the SDKs that only E2B has; the usual template's stands for them.
const E2B_IMAGES: &str = "e2bdev/";
/// What the names of images that are built here begin with.
const BUILT: &str = "e2b-template/";
/// How long a template's server may take, in milliseconds.
const READY_MS: u64 = 600_000;
const MEMORY_MIB: u64 = 1024;
const MAX_MIB: u64 = 1 << 20;
const MAX_VCPUS: u8 = 32;
/// How often a build begins anew because what it would use is removed.
const TRIES: usize = 3;

pub(super) fn routes() -> Router<App> {
    let building = Router::new()
        .route("/v3/templates", post(request))
        .route("/v2/templates/{id}/builds/{build}", post(start))
        .route("/templates/{id}/files/{hash}", get(files::link))
        .route("/templates/tags", post(tags::assign).delete(tags::remove))
        .route_layer(from_fn(auth::require(Scope::Admin)));
    Router::new()
        .route("/templates", get(list))
        .route("/v2/templates", get(list))
        .route("/templates/aliases/{alias}", get(alias))
        .route("/templates/{id}/tags", get(tags::list))
        .route("/templates/{id}/builds/{build}/status", get(status))
        .route("/templates/uploads/{hash}", put(files::upload))
        .merge(building)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NewTemplate {
    name: String,
    alias: Option<String>,
    tags: Option<Vec<String>>,
    cpu_count: Option<u8>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u64>,
}

/// A build is wanted. It begins when its steps come.
async fn request(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<NewTemplate>,
) -> Answer<(StatusCode, Json<Value>)> {
    let name = if wanted.name.is_empty() { wanted.alias.unwrap_or_default() } else { wanted.name };
    let tags = wanted.tags.unwrap_or_default();
    let named = tags::names(&name, &tags)?;
    let mut tagged = named.iter().map(|name| templates::tag_of(name)).collect::<Answer<Vec<Tag>>>()?;
    let template = tagged.remove(0);
    for name in &tagged {
        tags::check_free(&app, &caller, name)?;
    }
    let id = new_id()?;
    let snapshot = build_tag(&template, &id)?;
    let project = project_of(&app, &caller, &template);
    let build = Build {
        template: template.clone(),
        also: tagged,
        snapshot,
        project,
        vcpus: wanted.cpu_count.map(|count| within("cpuCount", count, 1..=MAX_VCPUS)).transpose()?,
        memory_mib: wanted.memory_mb.map(|mib| within("memoryMB", mib, 64..=MAX_MIB)).transpose()?,
        status: Status::Waiting,
        lines: Vec::new(),
        reason: None,
    };
    app.e2b.builds.add(&id, build);
    let answer = json!({
        "templateID": template, "buildID": id, "public": false, "names": named, "tags": tags, "aliases": [template]
    });
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

/// Whose a template's builds are: what a name means stays its project's.
fn project_of(app: &App, caller: &Caller, template: &Tag) -> Project {
    let before = templates::named(app, caller, template.as_str());
    before.map_or_else(|| caller.project.clone(), |before| before.view().record.project)
}

/// The snapshot of a build.
fn build_tag(template: &Tag, id: &str) -> Answer<Tag> {
    let digits: String = id.chars().take(8).collect();
    Ok(format!("{template}-{digits}").parse().map_err(EngineError::Tag)?)
}

/// In the form of a UUID, which clients expect.
fn new_id() -> Answer<String> {
    let bytes = random().map_err(|error| ApiError::internal(&error))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
}

fn unknown(id: &str) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("there is no build {:?}", id.chars().take(80).collect::<String>()),
    )
}

async fn start(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((template, id)): Path<(String, String)>,
    Body(wanted): Body<Start>,
) -> Answer<StatusCode> {
    let build = find(&app, &caller, &template, &id)?;
    let (from, begins) = base(&app, &caller, &wanted)?;
    let dockerfile = steps::dockerfile(&from, &begins, &wanted.steps)?;
    if let Some(Value::Object(_)) = &wanted.from_image_registry {
        return Err(malformed("fromImageRegistry is not supported by forkd").hint(HintCode::PullFirst));
    }
    let place = Place::take(&app).await?;
    let owner = app.owner(&caller, build.project.clone());
    let room = app.engine.admit_guest(&owner, 1, MEMORY_MIB << 20).await?;
    if !app.e2b.builds.begin(&id) {
        return Err(ApiError::new(ErrorCode::WrongState, "the build has already started"));
    }
    tokio::spawn(async move {
        let (work, told) = (app.clone(), Saying { app: app.clone(), id: id.clone() });
        // One of its steps that is not to be taken from an earlier build is a step of a build that is made anew.
        let force = wanted.force || wanted.steps.iter().any(|step| step.force == Some(true));
        let (steps, of) = (wanted.steps, build.clone());
        let image = tokio::task::spawn_blocking(move || {
            let (_place, _room) = (place, room);
            image(&work, &of, dockerfile, &steps, force, &told)
        });
        let image = image.await.unwrap_or_else(|error| Err(ApiError::internal(&error)));
        let made = match image {
            Ok(image) => {
                let caller = Caller { project: build.project.clone(), ..caller };
                let starts = (wanted.start_cmd, wanted.ready_cmd);
                let told = Saying { app: app.clone(), id: id.clone() };
                snapshot(&app, &caller, &build, &image, starts, force, &told).await
            }
            Err(error) => Err(error),
        };
        let result = made.map_err(|error| {
            let body = error.logged();
            message(&body.error, body.hint_code, body.hint.as_deref())
        });
        app.e2b.builds.end(&id, result);
    });
    Ok(StatusCode::ACCEPTED)
}

/// The build of this id, if it is one of this template's, and the caller's.
fn find(app: &App, caller: &Caller, template: &str, id: &str) -> Answer<Build> {
    let build = app.e2b.builds.get(template, id).filter(|build| caller.owns(&build.project));
    build.ok_or_else(|| unknown(id))
}

/// The image that the steps stand on, and as whom they begin.
fn base(app: &App, caller: &Caller, wanted: &Start) -> Answer<(String, Begins)> {
    let of_template = |template: &str| -> Answer<(String, Begins)> {
        let tag = templates::tag_of(template)?;
        let found = templates::named(app, caller, template);
        let record = found.ok_or_else(|| EngineError::NoSnapshot(tag.to_string()))?.view().record;
        let refused = |what: &str| {
            let text = format!("template {tag} is a snapshot of {what}, which cannot be built on");
            Err(malformed(text).hint(HintCode::BuildOnImage))
        };
        // Its disk has more than its image: what was below it when it was made.
        let is_derived =
            record.parent.is_some() || record.disks.first().is_some_and(|layers| layers.len() > 1);
        match record.shape.image {
            Some(image) if record.branched_from.is_none() && !is_derived => {
                Ok((image.to_string(), begins(app, &image.to_string())))
            }
            Some(_) if record.branched_from.is_none() => refused("another snapshot"),
            _ => refused("a sandbox"),
        }
    };
    let from_template = wanted.from_template.as_deref().filter(|name| !name.is_empty());
    match (wanted.from_image.as_deref().filter(|name| !name.is_empty()), from_template) {
        (Some(image), None) if image.starts_with(E2B_IMAGES) => of_template(templates::USUAL[1]),
        (Some(image), None) => Ok((image.to_owned(), Begins::Anew)),
        (None, Some(template)) => {
            of_template(template).or_else(|error| match templates::USUAL.contains(&template) {
                true => of_template(templates::USUAL[1]),
                false => Err(error),
            })
        }
        _ => Err(malformed("expected one of fromImage and fromTemplate")),
    }
}

/// A template that was built keeps the user that its last step had. The image of another one says nothing of E2B's.
fn begins(app: &App, image: &str) -> Begins {
    let found = app.library.images.find(image).ok();
    let built = found.filter(|image| image.names.iter().any(|name| name.to_string().starts_with(BUILT)));
    match built.and_then(|image| image.metadata.config.user) {
        Some(user) => Begins::With(user),
        None => Begins::Anew,
    }
}

/// Builds the image. Blocks.
fn image(
    app: &App,
    build: &Build,
    dockerfile: forkd_image::dockerfile::Dockerfile,
    steps: &[Step],
    force: bool,
    told: &Saying,
) -> Answer<String> {
    app.admit_image()?;
    let (template, project) = (&build.template, &build.project);
    let cache = BuildCache::new(&app.library.directory());
    let draft = cache.draft().map_err(|error| ApiError::internal(&error))?;
    let directory = draft.path().join("context");
    std::fs::create_dir(&directory).map_err(|error| ApiError::internal(&error))?;
    let mut hashes: Vec<&str> = steps.iter().filter_map(|step| step.files_hash.as_deref()).collect();
    hashes.sort_unstable();
    hashes.dedup();
    for hash in hashes {
        let file = File::open(files::needed(app, project, hash))
            .map_err(|_| ApiError::new(ErrorCode::NotFound, format!("the files {hash} were not uploaded")))?;
        unpack(&directory.join(hash), file, &CONTEXT_LIMITS, told)
            .map_err(|error| malformed(format!("the files {hash}: {error}")))?;
    }
    let context = Context::open(&directory).map_err(|error| ApiError::internal(&error))?;
    let name: Name =
        format!("{BUILT}{template}:latest").parse().map_err(|error| ApiError::internal(&error))?;
    let build = ImageBuild {
        path: template.as_str().into(),
        dockerfile,
        recipe: steps::no_recipe(),
        context,
        arguments: Default::default(),
        target: None,
        name: Some(name),
        uses_cache: !force,
        // Clients cannot ask for it, and who may build may see it. Without a bundle on this host, there is nothing to add.
        host: HostEnvironment::collect().ok(),
        account: Some(Account::e2b()),
    };
    let network = app.engine.networks().is_ok();
    let shape = GuestShape { vcpus: 1, memory_bytes: MEMORY_MIB << 20, network };
    let built = carry_out(app, project, build, shape, told)?;
    Ok(built.id().to_string())
}

/// Boots the image and freezes it, unless there is a snapshot of the same contents. When it is on disk, the template's name means it;
/// what the name meant before goes if no other name means it, and its sandboxes go on.
async fn snapshot(
    app: &App,
    caller: &Caller,
    build: &Build,
    image: &str,
    (start, ready): (Option<String>, Option<String>),
    force: bool,
    told: &Saying,
) -> Answer<()> {
    let names = &app.e2b.names;
    let (template, tag) = (&build.template, &build.snapshot);
    let making = tokio::task::block_in_place(|| names.begin(template, tag))?;
    let filled = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let recipe = Recipe {
        tag: tag.clone(),
        image: image.to_owned(),
        kernel: None,
        vcpus: build.vcpus,
        memory_mib: build.memory_mib,
        disk_mib: None,
        cpu: CpuModel::Host,
        env: Default::default(),
        start: filled(start).map(|command| steps::shell(&command)),
        ready: filled(ready).map(|command| Ready { probe: steps::probe(&command), timeout_ms: READY_MS }),
        run: Vec::new(),
        warm_up: Vec::new(),
        account: Some(DefaultAccount { account: Account::e2b(), keeps_image_user: true }),
        host_certs: false,
        network: app.engine.networks().is_ok(),
    };
    let say = |line: &str| told.say("info", line);
    let mut swapped =
        Err(ApiError::new(ErrorCode::WrongState, "the snapshot was removed while it was built"));
    for _ in 0..TRIES {
        let built = match templates::build(app, caller, recipe.clone(), force, say).await {
            Ok(built) => built.tag(),
            Err(error) => {
                swapped = Err(error);
                break;
            }
        };
        let _turn = names.turn().await;
        // What another build has made may be gone with the last of its names.
        if app.engine.snapshot(built.as_str()).is_ok() {
            swapped = tokio::task::block_in_place(|| swap(app, caller, build, &making, &built));
            break;
        }
    }
    drop(making);
    for template in build.names() {
        templates::remove_others(app, template).await;
    }
    swapped
}

/// The template's names mean a snapshot from now on. It is public if what the first of them meant before was.
fn swap(app: &App, caller: &Caller, build: &Build, making: &Making<'_>, built: &Tag) -> Answer<()> {
    let template = &build.template;
    let before = templates::named(app, caller, template.as_str());
    if before.is_some_and(|before| app.sharing.is_public(&before.view().record)) {
        app.sharing.set_snapshot(&app.engine.snapshot(built.as_str())?.view().record, true)?;
    }
    making.swap(built, plain(app, template))?;
    for tagged in &build.also {
        app.e2b.names.point(tagged, built)?;
    }
    Ok(())
}

/// A snapshot that has the name of a template as its tag.
fn plain(app: &App, template: &Tag) -> Option<Tag> {
    let exact = app.engine.snapshot(template.as_str()).ok()?;
    (exact.tag() == *template).then(|| template.clone())
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Offset {
    logs_offset: Option<usize>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    status: Status,
    logs: Vec<String>,
    log_entries: Vec<record::LogEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Value>,
}

async fn status(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((template, id)): Path<(String, String)>,
    Query(wanted): Query<Offset>,
) -> Answer<Json<Shown>> {
    let build = find(&app, &caller, &template, &id)?;
    let log_entries: Vec<_> =
        build.lines.into_iter().skip(wanted.logs_offset.unwrap_or(0)).take(PAGE).collect();
    Ok(Json(Shown {
        template_id: template,
        build_id: id,
        status: build.status,
        logs: log_entries.iter().map(|entry| entry.message.clone()).collect(),
        log_entries,
        reason: build.reason.map(|message| json!({ "message": message })),
    }))
}

/// The snapshots of images.
async fn list(State(app): State<App>, Extension(caller): Extension<Caller>) -> Answer<Json<Vec<Value>>> {
    let mut names: BTreeMap<Tag, Vec<Tag>> = BTreeMap::new();
    for (template, snapshot) in app.e2b.names.all() {
        names.entry(snapshot).or_default().push(template);
    }
    let own = app.snapshots(&caller).into_iter().filter(|view| view.record.branched_from.is_none());
    let named = own.filter(|view| !app.e2b.names.is_other(&view.record.tag)).flat_map(|view| {
        // Each name is a template of its own.
        let templates = names.remove(&view.record.tag).unwrap_or_else(|| vec![view.record.tag.clone()]);
        templates.into_iter().map(move |template| (template, view.clone()))
    });
    let shown = named.map(|(tag, view)| {
        let (record, created) = (&view.record, date(view.record.created_unix_ms));
        let build = &record.tag;
        let public = app.sharing.is_public(record);
        json!({
            "templateID": tag, "buildID": build, "cpuCount": record.shape.vcpus,
            "memoryMB": record.shape.memory_bytes >> 20,
            "diskSizeMB": record.shape.devices.root_disk().map_or(0, |disk| disk.limit_bytes >> 20),
            "public": public, "aliases": [tag], "names": [tag], "createdAt": created, "updatedAt": created,
            "createdBy": null, "lastSpawnedAt": null, "spawnCount": 0, "buildCount": 1,
            "envdVersion": forkd_envd::VERSION, "buildStatus": "ready",
        })
    });
    Ok(Json(shown.collect()))
}

async fn alias(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(alias): Path<String>,
) -> Answer<Json<Value>> {
    let tag = templates::tag_of(&alias)?;
    let found = templates::named(&app, &caller, &alias);
    let found = found.ok_or_else(|| EngineError::NoSnapshot(tag.to_string()))?;
    Ok(Json(json!({ "templateID": tag, "public": app.sharing.is_public(&found.view().record) })))
}
