//! Responses that operations of one kind have in common, for the OpenAPI document.
//!
//! A handler names such a group among its `responses`. A status that it lists after the name replaces the one of the group: that is
//! how a handler says more than the others. What any operation can answer is not here, because `openapi.rs` adds it. Answers of
//! success stay with their handlers: utoipa looks for the schemas of bodies there, and not in groups.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{RefOr, Response};

use crate::openapi::failure;

type Responses = BTreeMap<String, RefOr<Response>>;

fn failures<const N: usize>(of: [(&str, &str); N]) -> Responses {
    of.into_iter().map(|(status, text)| (status.to_owned(), RefOr::T(failure(text)))).collect()
}

/// Errors of operations that need a sandbox which has not ended.
pub(super) enum SandboxErrors {}

impl IntoResponses for SandboxErrors {
    fn responses() -> Responses {
        failures([("404", "No sandbox has this id"), ("409", "The sandbox has ended")])
    }
}

/// Errors of operations that change the network of a sandbox.
pub(super) enum NetworkErrors {}

impl IntoResponses for NetworkErrors {
    fn responses() -> Responses {
        let mut responses = SandboxErrors::responses();
        responses.append(&mut failures([
            ("400", "Invalid request, or the sandbox has no network"),
            ("503", "This daemon has no network for sandboxes"),
        ]));
        responses
    }
}

/// Errors of operations that need a sandbox whose agent can be reached.
pub(super) enum AgentErrors {}

impl IntoResponses for AgentErrors {
    fn responses() -> Responses {
        failures([("404", "No sandbox has this id"), ("409", "The sandbox is not running, or has no agent")])
    }
}

/// Errors of operations that wait for an answer of the guest.
pub(super) enum GuestErrors {}

impl IntoResponses for GuestErrors {
    fn responses() -> Responses {
        failures([("502", "Invalid response from the guest"), ("504", "The guest did not answer in time")])
    }
}

/// Errors of operations that make a snapshot.
pub(super) enum MakeErrors {}

impl IntoResponses for MakeErrors {
    fn responses() -> Responses {
        failures([
            ("404", "Image, snapshot or kernel not found"),
            ("422", "A command failed; the error has its exit code and its last lines of output"),
            ("429", "The project or the token has too many snapshots, or too little room for the guest"),
            ("502", "The guest did not start, or its warm-up failed"),
            ("503", "This daemon has no network for guests"),
            ("504", "The guest was not ready in time"),
            ("507", "This host has too little memory or disk space"),
        ])
    }
}

/// Errors of operations on files, which the guest carries out.
pub(super) enum FileErrors {}

impl IntoResponses for FileErrors {
    fn responses() -> Responses {
        let mut responses = failures([
            ("400", "Invalid request, or refused by the guest"),
            ("403", "The guest denied access"),
            ("404", "Sandbox or file not found"),
            ("409", "The sandbox is not running"),
        ]);
        responses.append(&mut GuestErrors::responses());
        responses
    }
}

/// Errors of operations that make images and kernels.
pub(super) enum LibraryErrors {}

impl IntoResponses for LibraryErrors {
    fn responses() -> Responses {
        failures([
            ("429", "Too many images and kernels are being made"),
            ("507", "This host has too little disk space"),
        ])
    }
}
