//! What a relay over a link says while it runs: how the link stands, and what was refused.

use std::time::{Duration, Instant};

use drover_relay::{Refused, Relay};
use serde_json::json;

use crate::out::Throttle;

/// How often to look how the link stands.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub struct Log {
    json: bool,
    throttle: Throttle,
    looked: Option<Instant>,
    state: String,
}

impl Log {
    pub fn new(json: bool) -> Log {
        Log { json, throttle: Throttle::new(), looked: None, state: String::new() }
    }

    /// Says what is new.
    pub fn look(&mut self, relay: &Relay) {
        relay.take_refused().iter().for_each(|refused| self.refused(refused));
        if self.looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.looked = Some(Instant::now());
            self.link(relay);
        }
    }

    fn refused(&self, refused: &Refused) {
        let (passes, left_out) = self.throttle.pass();
        if left_out > 0 && !self.json {
            crate::out::say(format_args!("and {left_out} more refused in a second"));
        }
        if !passes {
            return;
        }
        let Refused { client, target, reason, why } = refused;
        if self.json {
            crate::out::json(json!({
                "event": "refused", "client": client, "target": target, "reason": reason.word(), "why": why,
            }));
        } else {
            crate::out::say(format_args!("refused: {client} to {target}: {why}"));
        }
    }

    fn link(&mut self, relay: &Relay) {
        let Some(link) = relay.link() else { return };
        if link.state == self.state {
            return;
        }
        self.state.clone_from(&link.state);
        if self.json {
            let connections = link.connections;
            crate::out::json(json!({
                "event": "link", "site": link.site, "state": link.state, "why": link.why, "connections": connections,
            }));
            return;
        }
        let why = if link.why.is_empty() { String::new() } else { format!(": {}", link.why) };
        crate::out::say(format_args!("link to {}: {}{why}", link.site, link.state));
    }
}
