//! Sandboxes are listed: the oldest first, by pages.
//!
//! A page continues after the last sandbox of the one before, by its time and its id. So nothing is listed twice or left out
//! when sandboxes come and go between two pages.

use axum::Extension;
use axum::extract::State;
use forkd_api::sandbox::{ListSandboxes, SandboxList};
use forkd_engine::SandboxView;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Query};
use crate::routes::checks::{malformed, within};
use crate::views;

const PAGE: u32 = 100;
const MOST: u32 = 1000;

/// When it was made, and its id.
type Place = (u64, String);

/// Lists the sandboxes, oldest first. Sandboxes that have ended stay listed for a while.
#[utoipa::path(
    get,
    path = "/v1/sandboxes",
    tag = "sandboxes",
    operation_id = "list_sandboxes",
    params(ListSandboxes),
    responses((status = 200, description = "A page of sandboxes", body = SandboxList))
)]
pub(super) async fn list(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<ListSandboxes>,
) -> Answer<Json<SandboxList>> {
    Ok(Json(page(app.sandboxes(&caller), &wanted)?))
}

fn page(mut views: Vec<SandboxView>, wanted: &ListSandboxes) -> Answer<SandboxList> {
    let limit = within("limit", wanted.limit.unwrap_or(PAGE), 1..=MOST)?;
    let after = wanted.after.as_deref().map(parse).transpose()?;
    let metadata = match &wanted.metadata {
        Some(text) => {
            Some(text.split_once('=').ok_or_else(|| malformed("invalid metadata: expected key=value"))?)
        }
        None => None,
    };
    views.retain(|view| {
        wanted.state.is_none_or(|state| views::sandbox_state(view.state) == state)
            && wanted.snapshot_tag.as_ref().is_none_or(|tag| view.record.snapshot.as_str() == tag)
            && metadata.is_none_or(|(key, value)| view.record.metadata.get(key).is_some_and(|is| is == value))
            && after.as_ref().is_none_or(|after| place(view) > *after)
    });
    views.sort_by_cached_key(place);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = views.len() > limit;
    views.truncate(limit);
    let next = views.last().filter(|_| more).map(|last| {
        let (created, id) = place(last);
        format!("{created}-{id}")
    });
    Ok(SandboxList { sandboxes: views.iter().map(views::sandbox).collect(), next })
}

fn place(view: &SandboxView) -> Place {
    (view.record.created_unix_ms, view.record.id.to_string())
}

fn parse(text: &str) -> Answer<Place> {
    let place = text.split_once('-').and_then(|(created, id)| Some((created.parse().ok()?, id.to_owned())));
    place.ok_or_else(|| malformed("invalid after: expected `next` of an earlier answer"))
}

#[cfg(test)]
mod tests {
    use forkd_api::sandbox as api;
    use forkd_engine::SandboxState;
    use forkd_engine::record::{SandboxRecord, Shape};
    use forkd_proto::control::{CpuModel, Devices};

    use super::*;

    fn view(
        id: &str,
        created_unix_ms: u64,
        snapshot: &str,
        colour: &str,
        state: SandboxState,
    ) -> SandboxView {
        let shape = Shape {
            vcpus: 1,
            memory_bytes: 64 << 20,
            cpu: CpuModel::Host,
            devices: Devices::default(),
            image: None,
            agent_version: 1,
        };
        let record = SandboxRecord {
            id: id.parse().unwrap(),
            snapshot: snapshot.parse().unwrap(),
            created_unix_ms,
            expires_unix_ms: None,
            metadata: [("colour".to_owned(), colour.to_owned())].into(),
            about: serde_json::Map::new(),
            pauses_at_expiry: false,
            wake: None,
            shape,
            disks: Vec::new(),
            user: None,
            network: None,
            quota: None,
            cgroup: None,
            cpu_us_before: 0,
            owner: None,
            project: Default::default(),
            branches: vec![],
            branches_made: 0,
            generation: 2,
            promised: true,
            group: None,
            rolling_back: None,
            changing: None,
        };
        SandboxView { record, state, pid: 7, end: None }
    }

    fn views() -> Vec<SandboxView> {
        vec![
            view("ia", 30, "base", "red", SandboxState::Running),
            view("ib", 10, "base", "blue", SandboxState::Paused),
            view("ic", 20, "other", "red", SandboxState::Running),
            view("id", 20, "base", "red", SandboxState::Running),
        ]
    }

    fn ids(wanted: ListSandboxes) -> Vec<String> {
        page(views(), &wanted).unwrap().sandboxes.into_iter().map(|sandbox| sandbox.id).collect()
    }

    #[test]
    fn filters_hold_together() {
        let all = ListSandboxes::default;
        assert_eq!(ids(all()), ["ib", "ic", "id", "ia"]);
        assert_eq!(ids(ListSandboxes { state: Some(api::SandboxState::Paused), ..all() }), ["ib"]);
        assert_eq!(ids(ListSandboxes { snapshot_tag: Some("base".into()), ..all() }), ["ib", "id", "ia"]);
        let red = || ListSandboxes { metadata: Some("colour=red".into()), ..all() };
        assert_eq!(ids(red()), ["ic", "id", "ia"]);
        assert_eq!(ids(ListSandboxes { snapshot_tag: Some("other".into()), ..red() }), ["ic"]);
        assert_eq!(ids(ListSandboxes { metadata: Some("shape=red".into()), ..all() }), [""; 0]);
    }

    #[test]
    fn pages_are_the_list_in_pieces_also_when_a_sandbox_goes_between_them() {
        for limit in 1..=5 {
            let mut wanted = ListSandboxes { limit: Some(limit), ..ListSandboxes::default() };
            let (mut there, mut seen) = (views(), Vec::new());
            loop {
                let page = page(there.clone(), &wanted).unwrap();
                seen.extend(page.sandboxes.iter().map(|sandbox| sandbox.id.clone()));
                there.retain(|view| !seen.contains(&view.record.id.to_string()));
                match page.next {
                    Some(next) => wanted.after = Some(next),
                    None => break,
                }
            }
            assert_eq!(seen, ["ib", "ic", "id", "ia"], "{limit}");
        }
    }

    #[test]
    fn queries_without_sense_are_refused() {
        let all = ListSandboxes::default;
        for wrong in [
            ListSandboxes { limit: Some(0), ..all() },
            ListSandboxes { limit: Some(1001), ..all() },
            ListSandboxes { metadata: Some("colour".into()), ..all() },
            ListSandboxes { after: Some("ia".into()), ..all() },
        ] {
            assert_eq!(page(views(), &wrong).unwrap_err().code().status(), 400, "{wrong:?}");
        }
    }
}
