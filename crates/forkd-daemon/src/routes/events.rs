//! What happens, as it happens, and what has happened a while ago.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forkd_api::error::ErrorBody;
use forkd_api::event::{Event, EventQuery, What};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::Query;
use crate::ndjson;
use crate::routes::checks::malformed;

/// What a filter may name.
const MAX_NAMES: usize = 100;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Streams events of the caller's sandboxes and snapshots, one line each.
///
/// The stream does not end until the client disconnects. The daemon keeps the latest events, some thousands for all projects: a
/// client that reconnects with the cursor of the last event it has read misses none of them. A client that reads too slowly or
/// reconnects too late gets `missed` first.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "events",
    operation_id = "events",
    params(EventQuery),
    responses(
        (status = 200, description = "Lines of JSON", body = Event, content_type = "application/x-ndjson"),
        (status = 400, description = "Unknown cursor or kind of event", body = ErrorBody),
    )
)]
async fn events(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(wanted): Query<EventQuery>,
) -> Answer<Response> {
    let filter = Filter::new(&wanted)?;
    // From before the answer, so that a client that has its head misses nothing.
    let mut position = app.events.now();
    let mut of_another = false;
    if let Some(cursor) = &wanted.after {
        position = app
            .events
            .position(cursor)
            .map_err(|_| malformed(format!("{cursor:?} is not a cursor of an event")))?;
        of_another = !app.events.is_own(cursor);
    }
    Ok(ndjson::answer(move |lines| async move {
        let missed = |position, count| app.events.event(position, What::Missed { count });
        if of_another && lines.write(&missed(position, None)).await.is_err() {
            return;
        }
        let mut position = position;
        loop {
            let next = tokio::select! {
                next = app.events.next(&mut position) => next,
                () = app.stopping() => return,
            };
            let written = match &next {
                Ok(entry) if entry.project.as_ref().is_some_and(|project| !caller.owns(project)) => continue,
                Ok(entry) if !filter.passes(&entry.event.what) => continue,
                Ok(entry) => lines.write(&entry.event).await,
                Err(count) => lines.write(&missed(position, Some(*count))).await,
            };
            if written.is_err() {
                return;
            }
        }
    }))
}

/// Which events a caller wants.
#[derive(Debug, Default)]
struct Filter {
    sandboxes: Vec<String>,
    snapshots: Vec<String>,
    kinds: Vec<String>,
}

impl Filter {
    fn new(wanted: &EventQuery) -> Answer<Filter> {
        let names = |text: &Option<String>| -> Answer<Vec<String>> {
            let names: Vec<String> =
                text.iter().flat_map(|text| text.split(',')).map(str::to_owned).collect();
            match names.len() > MAX_NAMES || names.iter().any(String::is_empty) {
                true => Err(malformed(format!("a filter takes 1 to {MAX_NAMES} names, separated by commas"))),
                false => Ok(names),
            }
        };
        let kinds = names(&wanted.event)?;
        if let Some(unknown) = kinds.iter().find(|kind| !What::KINDS.contains(&kind.as_str())) {
            let known = What::KINDS.join(", ");
            return Err(malformed(format!("unknown kind of event {unknown:?}, expected one of {known}")));
        }
        Ok(Filter { sandboxes: names(&wanted.sandbox)?, snapshots: names(&wanted.snapshot)?, kinds })
    }

    fn passes(&self, what: &What) -> bool {
        if matches!(what, What::Missed { .. }) {
            return true;
        }
        let named = |names: &[String], name: Option<&str>| {
            name.is_some_and(|name| names.iter().any(|one| one == name))
        };
        let things = self.sandboxes.is_empty() && self.snapshots.is_empty();
        let kinds = self.kinds.is_empty() || named(&self.kinds, Some(what.kind()));
        kinds && (things || named(&self.sandboxes, what.sandbox()) || named(&self.snapshots, what.snapshot()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_choose_by_kind_and_by_thing() {
        let filter = |text: &str| Filter::new(&serde_json::from_str(text).unwrap());
        let removed = What::SandboxRemoved { id: "i1".into() };
        let back = What::RolledBack { id: "i2".into(), tag: "t".into() };
        let missed = What::Missed { count: None };
        for (text, passes) in [
            ("{}", [true, true, true]),
            (r#"{"sandbox": "i1,i3"}"#, [true, false, true]),
            (r#"{"snapshot": "t"}"#, [false, true, true]),
            (r#"{"sandbox": "i1", "snapshot": "t"}"#, [true, true, true]),
            (r#"{"event": "sandbox_removed"}"#, [true, false, true]),
            (r#"{"event": "rolled_back,busy", "sandbox": "i1"}"#, [false, false, true]),
        ] {
            let filter = filter(text).unwrap();
            assert_eq!([&removed, &back, &missed].map(|what| filter.passes(what)), passes, "{text}");
        }
        for wrong in [r#"{"event": "removed"}"#, r#"{"sandbox": "a,,b"}"#, r#"{"sandbox": ""}"#] {
            assert!(filter(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_kind_is_listed_as_it_is_written() {
        let shown = serde_json::to_value(What::OutOfDisk { id: "i".into(), limit_bytes: 1 }).unwrap();
        assert_eq!(shown["event"], "out_of_disk");
        assert!(What::KINDS.contains(&What::Missed { count: None }.kind()));
    }
}
