//! The server against a daemon made of tables: routes and their description, tokens and roles, orders once, abuse.
#![allow(clippy::unwrap_used)]

mod abuse;
mod described;
mod fake;
mod issuer;
mod login;
mod orders;
mod page;
mod roles;
