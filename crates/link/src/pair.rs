//! Two ends of a session in one process, for tests: the same frames over sockets that no network sees.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use drover_wire::VERSION_MAX;

use crate::core::{Core, Limits, Side};
use crate::peer::Peer;
use crate::rate::RateLimit;
use crate::session::Session;
use crate::shared::Shared;
use crate::stats::StripeStats;
use crate::stripe::Line;
use crate::{keeper, plain, stripe};

/// Connections of a pair: more than one, so that frames overtake each other as they do in earnest.
const STRIPES: usize = 2;

struct Pipe(UnixStream);

impl Line for Pipe {
    fn kill(&self) {
        // It may have ended already.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    fn fill(&self, _: &mut StripeStats) {}
}

impl Session {
    /// Two ends in this process, no network: for tests.
    ///
    /// # Panics
    /// If this process can open no more files or threads.
    pub fn pair() -> (Session, Session) {
        Session::pair_with(Limits::default())
    }

    /// The same with other bounds, on both sides.
    ///
    /// # Panics
    /// As [`Session::pair`].
    pub fn pair_with(limits: Limits) -> (Session, Session) {
        Session::pair_of(limits, b"", None)
    }

    /// The same, whose first end is known to the second by this key.
    ///
    /// # Panics
    /// As [`Session::pair`].
    pub fn pair_by(key: [u8; 32]) -> (Session, Session) {
        Session::pair_whole(Limits::default(), b"", None, key)
    }

    /// The same; the second end has announced something, and both send no faster than so.
    ///
    /// # Panics
    /// As [`Session::pair`].
    pub fn pair_of(limits: Limits, announced: &[u8], rate: Option<Arc<RateLimit>>) -> (Session, Session) {
        Session::pair_whole(limits, announced, rate, [0; 32])
    }

    #[allow(clippy::expect_used)]
    fn pair_whole(
        limits: Limits,
        announced: &[u8],
        rate: Option<Arc<RateLimit>>,
        key: [u8; 32],
    ) -> (Session, Session) {
        let one = end(Side::Dialler, limits, ("pair-b", announced, [0; 32]), rate.clone());
        let two = end(Side::Listener, limits, ("pair-a", b"", key), rate);
        for _ in 0..STRIPES {
            let (here, there) = UnixStream::pair().expect("a pair of sockets");
            attach(&one, here).and_then(|()| attach(&two, there)).expect("threads for a pair of sockets");
        }
        for shared in [&one, &two] {
            keeper::start(shared, None, None).expect("a thread for a session");
        }
        (Session::new(one), Session::new(two))
    }
}

fn end(
    side: Side,
    limits: Limits,
    (peer, announced, fingerprint): (&str, &[u8], [u8; 32]),
    rate: Option<Arc<RateLimit>>,
) -> Arc<Shared> {
    let core = Core::new(side, limits, limits.credits);
    let peer = Peer { name: peer.into(), fingerprint, version: VERSION_MAX, announced: announced.into() };
    Shared::new(core, peer, rate, STRIPES)
}

fn attach(shared: &Arc<Shared>, socket: UnixStream) -> std::io::Result<()> {
    let line = Pipe(socket.try_clone()?);
    let (reader, writer) = plain::halves(socket)?;
    stripe::start(shared, Box::new(line), reader, writer)
}
