//! A real daemon on a socket and a port, and clients of every kind.

mod audit;
mod auth;
mod client;
mod daemon;
mod errors;
mod idempotency;
mod library;
mod resources;
mod slow;
mod stop;
mod tls;
