//! How a token makes two hosts peers of each other.
//!
//! ```text
//! new peer                                             agent, while a token is open
//!   TLS: the key that the token names, or no further     TLS: any key; only pairing is served to strangers
//!   channel {"service":"pair","name":"..."}  ──────────>
//!   message: the token's secret  ──────────────────────> redeem: once, in its time; keep the new peer's key
//!   keep the agent's key  <────────────────────────────  how the agent calls the new peer, or why not
//! ```

use drover_disk::DiskErrorKind;
use drover_link::{Channel, LinkError, Order, Session};
use serde::{Deserialize, Serialize};

use super::folder::FolderError;
use super::identity::Fingerprint;
use super::peers::{NameError, Peer, Peers};
use super::token::{Token, Tokens, Verdict};
use crate::error::Refusal;
use crate::opening::{Answer, Opening};
use crate::site::{decode, encode};

/// A secret that is shown is not longer.
const SHOWN_BYTES_MAX: usize = 64;

/// What the agent says to a new peer.
#[derive(Debug, Serialize, Deserialize)]
struct Welcome {
    /// How the agent calls the new peer.
    you: String,
    /// What the agent calls itself.
    agent: String,
}

/// Pairing that did not come about.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The link failed.
    #[error("the link to the agent")]
    Link(#[from] LinkError),
    /// The agent refused.
    #[error("the agent refuses: {0}")]
    Refused(#[from] Refusal),
    /// The state of this host.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The name for the other side.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paired {
    /// How this host calls the other.
    pub name: String,
    /// The other's key.
    pub key: Fingerprint,
    /// How the other calls this host.
    pub called: String,
}

/// Shows a token to the agent at the other end of the session, and keeps its key under `name`, or else under what it
/// calls itself. The session's key must have been checked against the token's.
///
/// # Errors
/// When the agent refuses, or its name cannot be taken.
pub fn pair_with(
    session: &Session,
    token: &Token,
    own_name: &str,
    name: Option<&str>,
    peers: &Peers,
    peer: impl FnOnce(String) -> Peer,
) -> Result<Paired, PairError> {
    if let Some(name) = name {
        super::peers::check_name(name)?;
    }
    let opening = encode(&Opening::Pair { name: own_name.to_string() })?;
    let (sender, receiver) = session.open(Order::Messages, &opening)?.split();
    // An agent that has answered by now reads no more: then these fail, and its answer is there. A session that is lost
    // fails the next line as well.
    let _ = sender.send(&[], token.secret()).and_then(|()| sender.finish());
    let silent = || Refusal::new(DiskErrorKind::Corrupt, "it says nothing");
    let message = receiver.receive()?.ok_or_else(silent)?;
    let welcome = decode::<Answer<Welcome>>(&message.body)?.into_result()?;
    super::peers::check_name(&welcome.you)?;
    let peer = peer(name.map_or(welcome.agent, str::to_string));
    let paired = Paired { name: peer.name.clone(), key: peer.key, called: welcome.you };
    peers.add(peer)??;
    Ok(paired)
}

/// Serves a channel for pairing to a stranger with this key; gives the new peer, if it became one.
///
/// # Errors
/// When the state cannot be read or kept.
pub fn pair_as_agent(
    channel: Channel,
    key: Fingerprint,
    suggested: &str,
    own_name: &str,
    stores: (&Tokens, &Peers),
    now: u64,
) -> Result<Option<Peer>, FolderError> {
    let (sender, receiver) = channel.split();
    let Ok(Some(shown)) = receiver.receive() else { return Ok(None) };
    let judged = judge(&shown.body, key, suggested, stores, now);
    let welcome = |peer: &Peer| Welcome { you: peer.name.clone(), agent: own_name.to_string() };
    let answer = match &judged {
        Ok(Ok(peer)) => Answer::Ok(welcome(peer)),
        Ok(Err(refusal)) => Answer::Refused(refusal.into()),
        Err(_) => Answer::Refused((&Refusal::new(DiskErrorKind::Failed, "its state cannot be used")).into()),
    };
    if let Ok(body) = encode(&answer) {
        // A stranger that is gone is none of ours.
        let _ = sender.send(&[], &body).and_then(|()| sender.finish());
    }
    Ok(judged?.ok())
}

fn judge(
    shown: &[u8],
    key: Fingerprint,
    suggested: &str,
    (tokens, peers): (&Tokens, &Peers),
    now: u64,
) -> Result<Result<Peer, Refusal>, FolderError> {
    let denied = |why: &str| Refusal::new(DiskErrorKind::Denied, why);
    if shown.len() > SHOWN_BYTES_MAX {
        return Ok(Err(denied("there is no such token")));
    }
    let kept = tokens.redeem(shown, key, now, |name| {
        let peer = Peer::new(name.unwrap_or_else(|| suggested.to_string()), key, Vec::new(), now);
        Ok((peers.add(peer.clone())?, peer))
    })?;
    Ok(match kept {
        Ok((Ok(()), peer)) => Ok(peer),
        Ok((Err(error), _)) => Err(denied(&format!("{error} (the token is used up)"))),
        Err(Verdict::Used) => Err(denied("the token was used before; a token counts once")),
        Err(Verdict::Expired) => Err(denied("the token has expired")),
        Err(Verdict::Withdrawn) => {
            Err(denied("the token was withdrawn after too many wrong ones were shown"))
        }
        Err(Verdict::Wrong) => Err(denied("there is no such token")),
    })
}

#[cfg(test)]
#[path = "pairing_tests.rs"]
mod tests;
