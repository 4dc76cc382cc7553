//! The daemon's HTTP side: routes, tokens and roles, the audit of orders, server-sent events, metrics and the page; and what the operator
//! tells of itself ([`Figures`]).
//!
//! It knows no provider and no engine. [`Operations`] is what it needs of the program, all of it blocking; the server calls it
//! from a bounded number of threads. `openapi.json` describes the API, and the tests hold the server against it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod auth;
mod bounds;
mod events;
mod figures;
mod jwt;
mod keys;
mod listen;
mod metrics;
mod oidc;
mod operations;
mod orders;
mod page;
mod patient;
mod problem;
mod routes;
mod states;
mod turns;

pub use auth::{Caller, Denied, Gate, Grant, Role, TokenFile, TokenFileError, TokenRow, random_hex};
pub use bounds::Bounds;
pub use drover_tls::KeyPair;
pub use events::{EventHub, Message};
pub use figures::Figures;
pub use listen::{Server, ServerError, ServerOptions};
pub use metrics::Text as MetricsText;
pub use oidc::{IssuerDocuments, LoginClient, OidcOptions};
pub use operations::*;
pub use problem::{Kind, Problem};
pub use routes::routes;
pub use states::VM_STATES;

/// The description of the API, OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("../openapi.json");
