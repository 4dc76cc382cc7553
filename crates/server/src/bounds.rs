//! What strangers may take of the daemon.

use std::time::Duration;

/// Bounds of the server. Each is what it takes before somebody is refused or cut off.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Connections of one address at once; further ones are closed.
    pub address_connections: usize,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Bytes of a request's body: a plan file may have 16 MiB, and JSON escapes some of it.
    pub body_bytes: usize,
    /// Bytes of the body of an order about a plan.
    pub order_bytes: usize,
    /// From the connection or the answer before until the head of a request has come.
    pub head_time: Duration,
    /// From the head until the answer is ready, with the body.
    pub request_time: Duration,
    /// The same for a check, which asks the source.
    pub check_time: Duration,
    /// A client that takes nothing of an answer for so long is cut off.
    pub stall_time: Duration,
    /// Requests that look at once; further ones wait for their turn, and no longer than `request_time`.
    pub operations: usize,
    /// Orders at once. Nobody who looks or checks keeps them waiting.
    pub order_operations: usize,
    /// Plans that are being handed in at once, with their bodies.
    pub submissions: usize,
    /// Checks at once, with their bodies: each may ask a source that does not answer.
    pub checks: usize,
    /// Clients of the event stream at once.
    pub event_clients: usize,
    /// Events that are kept for clients that are slow; one that is further behind is told to start anew.
    pub event_queue: usize,
    /// A stream of events ends after so long, and the client comes again with its token.
    pub event_time: Duration,
    /// Idempotency keys that are remembered, and for how long.
    pub keys: usize,
    /// Bytes of all answers that are remembered with them.
    pub key_bytes: usize,
    /// See `keys`.
    pub key_time: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 1_024,
            address_connections: 512,
            head_bytes: 32 << 10,
            body_bytes: 20 << 20,
            order_bytes: 16 << 10,
            head_time: Duration::from_secs(15),
            request_time: Duration::from_secs(60),
            check_time: Duration::from_secs(300),
            stall_time: Duration::from_secs(30),
            operations: 16,
            order_operations: 4,
            submissions: 4,
            checks: 4,
            event_clients: 200,
            event_queue: 1_024,
            event_time: Duration::from_secs(15 * 60),
            keys: 10_000,
            key_bytes: 16 << 20,
            key_time: Duration::from_secs(24 * 3600),
        }
    }
}
