//! Sessions over TCP and TLS on loopback, with lines that fail.
#![allow(clippy::unwrap_used)]

mod bounds;
mod faults;
mod proxy;
mod stage;
mod trust;
mod work;
