//! The OpenAPI document: made of the routes and the types of `forkd-api`, completed with what holds for all of them.
//!
//! It is checked in as `docs/openapi.json`, and clients are made of that file. After a change of the API, write it anew with
//! `FORKD_UPDATE=1 cargo test -p forkd-daemon openapi`; without the variable, the same test says whether it is current.

use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::exec::{ExecInput, ExecStart, Signal, TerminalSize};
use forkd_api::hint::HintCode;
use utoipa::PartialSchema;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, OpenApi, OpenApiBuilder, RefOr, Response, ResponseBuilder,
};
use utoipa::openapi::{ContentBuilder, Ref, SecurityRequirement};

const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";

/// What the document begins with, before there are routes.
pub(crate) fn beginning() -> OpenApi {
    let info = InfoBuilder::new().title("forkd").version(env!("CARGO_PKG_VERSION")).description(Some(
        "Sandboxes that fork like processes.\n\nRequests need a token, except over the daemon's Unix socket, and over the \
         loopback while no tokens exist. Every response with a status of 400 or more has the body ErrorBody. Every response has the \
         header x-request-id: that of the request, if it has 1 to 64 letters, digits, dots, dashes and underscores, or a new one. \
         A request with a W3C traceparent header belongs to that trace: the commands and the code that it runs get their position in \
         the trace in the environment variable TRACEPARENT, unless env sets it.",
    ));
    let bearer =
        Http::builder().scheme(HttpAuthScheme::Bearer).bearer_format("e2b_ and 40 hexadecimal digits");
    let components = ComponentsBuilder::new()
        .security_scheme(BEARER, SecurityScheme::Http(bearer.build()))
        .security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key"))))
        .schema("ErrorBody", ErrorBody::schema())
        .schema("ErrorCode", ErrorCode::schema())
        .schema("HintCode", HintCode::schema())
        // Messages of WebSockets, which no operation of the document has as a body.
        .schema("ExecStart", ExecStart::schema())
        .schema("ExecInput", ExecInput::schema())
        .schema("TerminalSize", TerminalSize::schema())
        .schema("Signal", Signal::schema());
    let none: [&str; 0] = [];
    OpenApiBuilder::new()
        .info(info.build())
        .components(Some(components.build()))
        .security(Some([SecurityRequirement::new(BEARER, none), SecurityRequirement::new(API_KEY, none)]))
        .build()
}

/// Gives every operation the answers that any of them can have.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    // The router's way to write that a parameter is all that is left of the path.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for item in document.paths.paths.values_mut() {
        let reading = [&mut item.get, &mut item.head, &mut item.options, &mut item.trace];
        reading.into_iter().flatten().for_each(|operation| add_errors(operation, false));
        let writing = [&mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        writing.into_iter().flatten().for_each(|operation| add_errors(operation, true));
    }
    document
}

fn add_errors(operation: &mut Operation, writes: bool) {
    let parameters = operation.parameters.as_deref().unwrap_or_default();
    let (has_parameters, has_body) = (!parameters.is_empty(), operation.request_body.is_some());
    let has_key = parameters
        .iter()
        .any(|parameter| matches!(parameter, RefOr::T(parameter) if parameter.name == "Idempotency-Key"));
    let public =
        operation.security.as_ref().is_some_and(|security| *security == [SecurityRequirement::default()]);
    let mut add = |status: &str, text: &str| {
        operation.responses.responses.entry(status.to_owned()).or_insert_with(|| RefOr::T(failure(text)));
    };
    if !public {
        add("401", "Missing or unknown token");
    }
    if !public && writes {
        add("403", "The token's scope does not allow this request");
    }
    if has_parameters || has_body {
        add("400", "Invalid request");
    }
    if has_body {
        add("408", "Timed out reading the request body");
        add("413", "The body is too large");
        add("415", "Content-Type is not application/json");
    }
    if has_key {
        add("409", "The idempotency key was used for another request");
        add("429", "Too many requests with idempotency keys are running");
    }
    add("500", "Internal error of the daemon");
    add("503", "The daemon is stopping, or has too many connections");
    add("default", "The request failed");
}

/// An answer of 400 and above.
pub(crate) fn failure(text: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
    ResponseBuilder::new().description(text).content("application/json", content).build()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    fn document() -> String {
        let mut text = crate::routes::document().to_pretty_json().unwrap();
        text.push('\n');
        text
    }

    #[test]
    fn the_checked_in_openapi_document_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        if std::env::var_os("FORKD_UPDATE").is_some() {
            std::fs::write(&path, document()).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            checked_in == document(),
            "docs/openapi.json is not what the routes say: FORKD_UPDATE=1 cargo test -p forkd-daemon openapi"
        );
    }

    #[test]
    fn every_operation_of_the_openapi_document_says_how_it_fails() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut count = 0;
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let body =
                    &operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"];
                assert_eq!(body, "#/components/schemas/ErrorBody", "{method} {path}");
                assert!(operation["operationId"].is_string(), "{method} {path}");
                count += 1;
            }
        }
        assert!(count >= 4);
        // Every reference leads somewhere.
        let text = document.to_string();
        for reference in text.split("\"#/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document.pointer(&format!("/{reference}")).is_some(), "{reference}");
        }
    }
}
