//! A small blocking HTTP/1.1 client over TCP or TLS, and [`RangeDisk`], which reads a disk by
//! byte ranges with several requests in flight on each connection.
//!
//! Blocking on purpose: a lane is one thread's way to a disk, and a few threads with pipelined
//! requests fill a link without an async runtime. Everything a peer sends is bounded, in bytes and in time.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod connection;
mod endpoint;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod peer;
mod range;
mod range_lane;
mod stream;

pub use client::{Client, Response};
pub use connection::{Connection, Request};
pub use drover_tls::{Presented, Refusal, Thumbprint, ThumbprintError, Trust, Why};
pub use endpoint::{Endpoint, Url};
pub use error::{HttpError, HttpErrorKind, HttpOp};
pub use head::{BodyLength, Head};
pub use peer::thumbprint_of;
pub use range::{Authorise, Credentials, ExtentSource, RANGE_LIMITS, RangeDisk, RangeOptions, told_identity};
pub use stream::Timeouts;
