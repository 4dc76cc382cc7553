//! A connection of which one side is a channel of a link: at the near end the target's, at the far end the client's.
//! Where both ends know how, its bytes go over the link in pieces, packed where that pays.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_link::{Channel, DATA_BYTES_MAX, LinkError, Receiver, Sender};
use drover_pack::pieces::{HEAD_BYTES, Next, PieceError, Reader};
use drover_tcp as tcp;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::answer::{Read, Reading, Word};
use crate::bucket::Grant;
use crate::connection::{Meta, Wants, age_us};
use crate::direction::Tools;
use crate::flow::{Broken, Flow, Moved, Pause, Way};
use crate::hop::Limit;
use crate::packing::{Packing, Press};
use crate::ports::Place;
use crate::stats::{ConnectionStats, Refusal, SocketStats, Stage, Totals, Waiting, Watch, WayStats};
use crate::turns::Heard;
use crate::uplink::Asking;
use crate::worker::{Inbox, Job};

/// What a flow may move before others have their turn.
const TURN_BYTES: u64 = 2 << 20;
/// The same while its bytes are packed: some milliseconds by the slowest codec.
const PACKING_TURN_BYTES: u64 = 512 << 10;
/// Taken from a socket at a time: the largest frame of a link.
const PIECE_BYTES: usize = DATA_BYTES_MAX;
/// How long the agent may take to answer: its own time for a target, and time for a line that is cut.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// A flow that moves so much in a second has a share of its worker's time for packing.
const BUSY_BYTES: u64 = 1 << 20;
/// After the link's side was given up, what had come before may go on to the socket for so long.
const ENDING_MAX: Duration = Duration::from_secs(1);
/// How often to look whether it has arrived.
const ENDING_LOOK: Duration = Duration::from_millis(5);

/// Which end of a link this is.
pub(crate) enum End {
    /// A client is here; the agent was asked for its target.
    Near(Asking),
    /// A target is here; the client is at the other end.
    Far(Place),
}

/// How bytes go over the link, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are.
    Plain,
    /// In pieces, each packed if that pays ([`drover_pack::pieces`]).
    Pieces,
}

/// How a connection stands after it was served.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Served {
    Lives(Wants),
    /// Both sides have said their last byte.
    Closed,
    /// To be reset on both sides.
    Reset,
    /// The agent did not connect it.
    Refused(Refusal, String),
}

/// The near end until the agent has answered.
struct Question {
    reading: Reading,
    until: Instant,
    asking: Asking,
}

/// What is between taking and giving.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    at: usize,
}

impl Held {
    fn left(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// So many bytes have gone. With the last one the buffer has done its work.
    fn give(&mut self, bytes: usize) -> Option<Vec<u8>> {
        self.at += bytes;
        (self.at == self.bytes.len()).then(|| std::mem::take(self).bytes)
    }
}

/// Takes apart what comes in pieces.
#[derive(Default)]
struct Apart {
    reader: Reader,
    /// What came and was not taken apart.
    wire: Held,
    /// So many bytes at its front are the stream's own.
    plain: usize,
    saved: u64,
}

impl Apart {
    /// Goes on to the next bytes of the stream: how many they are, with those that had to be unpacked in `unpacked`.
    fn go_on(&mut self, receiver: &Receiver, unpacked: &mut Held) -> Result<Option<usize>, PieceError> {
        while !self.wire.left().is_empty() {
            let (taken, next) = self.reader.next(self.wire.left())?;
            if let Some(buffer) = self.wire.give(taken) {
                receiver.give_back(buffer);
            }
            match next {
                Next::More => {}
                Next::Plain(bytes) => {
                    self.plain = bytes;
                    return Ok(Some(bytes));
                }
                Next::Unpacked(bytes, stood_in) => {
                    self.saved += bytes.len().saturating_sub(stood_in + HEAD_BYTES) as u64;
                    *unpacked = Held { bytes, at: 0 };
                    return Ok(Some(unpacked.left().len()));
                }
            }
        }
        Ok(None)
    }
}

/// One direction.
struct Lane {
    flow: Flow,
    watch: Watch,
    limit: Option<Arc<Limit>>,
    held: Held,
    swept: u64,
    rate: u64,
}

impl Lane {
    fn new(limit: Option<Arc<Limit>>, now: Instant) -> Lane {
        let flow = Flow::new();
        let (held, watch) = (Held::default(), Watch::new(now));
        Lane { flow, watch, limit, held, swept: 0, rate: 0 }
    }

    fn sweep(&mut self) {
        self.rate = self.flow.given() - self.swept;
        self.swept = self.flow.given();
    }

    fn stats(&mut self, now: Instant) -> WayStats {
        let (waits, waiting) = self.watch.read(now);
        let held_bytes = self.flow.held() as u64;
        WayStats { bytes: self.flow.given(), bytes_per_second: self.rate, held_bytes, waiting, waits }
    }

    fn want_time(&self, pause: Pause, wants: &mut Wants) {
        match pause {
            Pause::Turn => wants.turn = true,
            Pause::Rate(time) => {
                let at = self.limit.as_ref().map(|limit| limit.instant(time));
                wants.at = [wants.at, at].into_iter().flatten().min();
            }
            Pause::Source | Pause::Target | Pause::Finished => {}
        }
    }
}

pub(crate) struct Linked {
    meta: Meta,
    socket: OwnedFd,
    channel: Option<Channel>,
    halves: Option<(Sender, Receiver)>,
    is_near: bool,
    question: Option<Question>,
    /// From the socket into the channel.
    out: Lane,
    /// From the channel to the socket.
    back: Lane,
    /// The channel's waker was called, and the worker knows.
    called: Arc<AtomicBool>,
    /// Packs what goes out, where it goes in pieces.
    packing: Option<Box<Packing>>,
    /// And takes apart what comes back.
    apart: Option<Box<Apart>>,
    /// What was wrong with what came.
    fault: Option<PieceError>,
    ending: Option<Instant>,
    /// Whether the worker has it among those to be served again.
    pub(crate) is_queued: bool,
    /// At the far end.
    place: Option<Place>,
}

impl Linked {
    /// `limits` are those towards the target and back.
    pub(crate) fn new(
        meta: Meta,
        socket: OwnedFd,
        channel: Channel,
        limits: Option<(Arc<Limit>, Arc<Limit>)>,
        (end, form): (End, Form),
    ) -> Linked {
        let now = Instant::now();
        let (up, down) = limits.map_or((None, None), |(up, down)| (Some(up), Some(down)));
        let (is_near, question, place) = match end {
            End::Near(asking) => {
                let (reading, until) = (Reading::default(), now + ANSWER_WITHIN);
                (true, Some(Question { reading, until, asking }), None)
            }
            End::Far(place) => (false, None, Some(place)),
        };
        let (out, back) = if is_near { (up, down) } else { (down, up) };
        let in_pieces = form == Form::Pieces;
        Linked {
            meta,
            socket,
            channel: Some(channel),
            halves: None,
            is_near,
            question,
            out: Lane::new(out, now),
            back: Lane::new(back, now),
            called: Arc::default(),
            packing: in_pieces.then(|| Box::new(Packing::new(now))),
            apart: in_pieces.then(Box::default),
            fault: None,
            ending: None,
            is_queued: false,
            place,
        }
    }

    /// From now on `inbox` is told when the channel has something.
    pub(crate) fn begin(&mut self, inbox: &Arc<Inbox>, key: crate::slab::Key) {
        let Some(channel) = self.channel.take() else { return };
        let (inbox, called) = (inbox.clone(), self.called.clone());
        channel.wake_by(Box::new(move || {
            if !called.swap(true, Ordering::AcqRel) {
                inbox.put(Job::Called(key));
            }
        }));
        self.halves = Some(channel.split());
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// When the agent must have answered, if it is still to.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.question.as_ref().map(|question| question.until)
    }

    /// Whether the agent is still to answer.
    pub(crate) fn is_asking(&self) -> bool {
        self.question.is_some()
    }

    pub(crate) fn is_near(&self) -> bool {
        self.is_near
    }

    /// Takes in what the kernel says of the socket.
    pub(crate) fn ready(&mut self, flags: EventFlags) {
        let is_over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        if is_over || flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::PRI) {
            self.out.flow.source_is_ready();
        }
        if is_over || flags.contains(EventFlags::OUT) {
            self.back.flow.target_is_ready();
        }
    }

    /// The channel may have something, or room.
    pub(crate) fn called(&mut self) {
        // Before anything is looked at: what comes after that calls again.
        self.called.store(false, Ordering::Release);
        self.out.flow.source_is_ready();
        self.out.flow.target_is_ready();
        self.back.flow.source_is_ready();
    }

    /// Moves what can be moved. `has_failed` says that the kernel has told an error of the socket.
    pub(crate) fn serve(&mut self, has_failed: bool, tools: &mut Tools, now: Instant) -> Served {
        if self.ending.is_some() {
            return self.end(now);
        }
        let mut wants = Wants::default();
        if let Some(served) = self.pump_back(now, &mut wants) {
            return served;
        }
        if let Some(served) = self.pump_out(tools, now, &mut wants) {
            return served;
        }
        if has_failed && !matches!(socket_error(&self.socket), Ok(Ok(()))) {
            return Served::Reset;
        }
        if self.out.flow.is_finished() && self.back.flow.is_finished() {
            return Served::Closed;
        }
        // One whose client is silent would find out only when it has something to send.
        if self.question.is_none() && !self.out.flow.is_finished() && self.is_given_up() {
            return self.break_up(now);
        }
        if self.question.as_ref().is_some_and(|question| now >= question.until) {
            return Served::Refused(Refusal::TargetSilent, "no answer came over the link".to_string());
        }
        Served::Lives(wants)
    }

    fn is_given_up(&self) -> bool {
        self.halves.as_ref().is_none_or(|(sender, _)| sender.is_given_up())
    }

    /// What the other end sent, to the socket. Something only if that is the end.
    fn pump_back(&mut self, now: Instant, wants: &mut Wants) -> Option<Served> {
        if !self.back.flow.can_go() {
            return None;
        }
        self.back.watch.turn(Waiting::Moving, now);
        let (result, told) = self.back_way(|flow, way| flow.pump(way, TURN_BYTES))?;
        let waiting = result.as_ref().map_or(Waiting::Done, |pause| Waiting::of(*pause));
        self.back.watch.turn(waiting, Instant::now());
        if let Some((reason, why)) = told.refused {
            return Some(Served::Refused(reason, why));
        }
        self.fault = self.fault.or(told.fault);
        match result {
            Ok(pause) => {
                self.back.want_time(pause, wants);
                None
            }
            Err(Broken { end: crate::flow::End::Target, .. }) => Some(Served::Reset),
            Err(Broken { error, .. }) if self.question.is_some() => {
                Some(Served::Refused(Refusal::Link, format!("the link gave the connection up: {error}")))
            }
            Err(_) => Some(self.break_up(now)),
        }
    }

    /// What the socket has, into the channel.
    fn pump_out(&mut self, tools: &mut Tools, now: Instant, wants: &mut Wants) -> Option<Served> {
        if !self.out.flow.can_go() {
            return None;
        }
        self.out.watch.turn(Waiting::Moving, now);
        let (sender, _) = self.halves.as_ref()?;
        let Lane { flow, limit, held, .. } = &mut self.out;
        let press = &mut tools.press;
        let (limit, packing) = (limit.as_deref(), self.packing.as_deref_mut());
        let is_packing = packing.as_ref().is_some_and(|packing| packing.is_on());
        let turn_bytes = if is_packing { PACKING_TURN_BYTES } else { TURN_BYTES };
        let pieces = packing.map(|packing| Pieces { packing, press });
        let socket = &self.socket;
        let mut way =
            Out { socket, sender, held, limit, buffer: Vec::new(), fresh: 0..0, is_full: false, pieces };
        let result = flow.pump(&mut way, turn_bytes);
        way.keep();
        let is_full = way.is_full;
        let waiting = match &result {
            Ok(Pause::Source | Pause::Target) if is_full && sender.lacks_credit() => Waiting::Target,
            Ok(Pause::Source | Pause::Target) if is_full => Waiting::Line,
            Ok(pause) => Waiting::of(*pause),
            Err(_) => Waiting::Done,
        };
        let after = Instant::now();
        self.out.watch.turn(waiting, after);
        if let Some(packing) = &mut self.packing {
            if waiting == Waiting::Line { packing.is_full(after) } else { packing.went_on(after) }
        }
        match result {
            Ok(pause) => {
                self.out.want_time(pause, wants);
                None
            }
            Err(Broken { end: crate::flow::End::Source, .. }) => Some(Served::Reset),
            // The answer that says why comes by itself.
            Err(_) if self.question.is_some() => None,
            Err(_) => Some(self.break_up(now)),
        }
    }

    fn back_way<T>(&mut self, act: impl FnOnce(&mut Flow, &mut BackWay<'_>) -> T) -> Option<(T, Told)> {
        let (_, receiver) = self.halves.as_ref()?;
        let Lane { flow, limit, held, .. } = &mut self.back;
        let (limit, question, apart) = (limit.as_deref(), &mut self.question, self.apart.as_deref_mut());
        let (socket, told) = (&self.socket, Told::default());
        let mut way = BackWay { socket, receiver, held, limit, question, apart, told };
        let result = act(flow, &mut way);
        let told = way.told;
        Some((result, told))
    }

    /// The other end was reset, or is gone. The socket gets what had come before, then a reset, too.
    fn break_up(&mut self, now: Instant) -> Served {
        self.ending = Some(now + ENDING_MAX);
        self.end(now)
    }

    /// Goes on with the end, until what came has arrived at the socket's peer or time is up.
    fn end(&mut self, now: Instant) -> Served {
        let Some(until) = self.ending else { return Served::Reset };
        self.back.flow.target_is_ready();
        let Some((result, told)) = self.back_way(|flow, way| flow.empty(way)) else { return Served::Reset };
        let gave_all = told.is_over && self.back.flow.held() == 0;
        let arrived = gave_all && tcp::unacknowledged(&self.socket).unwrap_or(0) == 0;
        if result.is_err() || arrived || now >= until {
            return Served::Reset;
        }
        Served::Lives(Wants { at: Some(now + ENDING_LOOK), ..Wants::default() })
    }

    /// What was wrong with what came over the link, if that ended it.
    pub(crate) fn fault(&self) -> Option<PieceError> {
        self.fault
    }

    /// Bytes that did not have to go over the link because they were packed, both ways.
    pub(crate) fn saved(&self) -> u64 {
        self.packing.as_ref().map_or(0, |it| it.saved()) + self.apart.as_ref().map_or(0, |it| it.saved)
    }

    /// Closes the socket after both ends are through. Dropped without this, its peer gets a reset.
    pub(crate) fn close(self) {
        // On a socket that broke in this moment; then its peer knows.
        let _ = tcp::end_on_close(&self.socket);
    }

    /// A second has passed.
    pub(crate) fn sweep(&mut self) {
        self.out.sweep();
        self.back.sweep();
    }

    fn ways(&mut self, now: Instant) -> (WayStats, WayStats) {
        let (out, back) = (self.out.stats(now), self.back.stats(now));
        if self.is_near { (out, back) } else { (back, out) }
    }

    /// Adds what it has done to sums.
    pub(crate) fn add_to(&mut self, totals: &mut Totals, now: Instant) {
        let (up, down) = self.ways(now);
        totals.up_bytes += up.bytes;
        totals.down_bytes += down.bytes;
        totals.up_waits.sum(&up.waits);
        totals.down_waits.sum(&down.waits);
        totals.saved_bytes += self.saved();
        totals.segments_again += tcp::info(&self.socket).map_or(0, |info| info.segments_again.into());
    }

    /// Whether much goes from here over the link.
    pub(crate) fn is_busy(&self) -> bool {
        self.out.rate >= BUSY_BYTES
    }

    /// Bytes in the last second, both ways.
    pub(crate) fn rate(&self) -> u64 {
        self.out.rate + self.back.rate
    }

    pub(crate) fn stats(&mut self, now: Instant) -> ConnectionStats {
        let (up, down) = self.ways(now);
        let stage = match (&self.question, self.ending) {
            (Some(_), _) => Stage::Connecting,
            (None, Some(_)) => Stage::Ending,
            (None, None) => Stage::Open,
        };
        let socket = tcp::info(&self.socket)
            .and_then(|info| Ok(SocketStats::new(tcp::congestion(&self.socket)?, &info)))
            .ok();
        let (client_socket, target_socket) = if self.is_near { (socket, None) } else { (None, socket) };
        ConnectionStats {
            id: self.meta.id,
            client: self.meta.client,
            peer: self.place.as_ref().map(|place| place.peer().to_string()),
            target: self.meta.target.clone(),
            is_linked: true,
            stage,
            age_us: age_us(&self.meta, now),
            rule: self.meta.rule,
            up,
            down,
            client_socket,
            target_socket,
        }
    }
}

fn over(error: LinkError) -> io::Error {
    io::Error::other(error)
}

/// What a call that may not block came to. Nothing is [`Moved::End`] when reading.
fn moved(result: Result<usize, Errno>) -> io::Result<Moved> {
    match result {
        Ok(0) => Ok(Moved::End),
        Ok(bytes) => Ok(Moved::Bytes(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Blocked),
        Err(error) => Err(error.into()),
    }
}

/// From the socket into the channel. What is taken lies in `buffer`, which goes into the channel itself where that
/// pays, and only what the channel then has no room for (because other channels took it) is kept.
struct Out<'a> {
    socket: &'a OwnedFd,
    sender: &'a Sender,
    held: &'a mut Held,
    limit: Option<&'a Limit>,
    buffer: Vec<u8>,
    /// Where in `buffer` what was taken and not given lies; empty while something is held.
    fresh: std::ops::Range<usize>,
    is_full: bool,
    pieces: Option<Pieces<'a>>,
}

/// What makes pieces of what is taken.
struct Pieces<'a> {
    packing: &'a mut Packing,
    press: &'a mut Press,
}

impl Out<'_> {
    /// Keeps what is left; the buffer goes back.
    fn keep(&mut self) {
        if !self.fresh.is_empty() {
            *self.held = Held { bytes: self.buffer[self.fresh.clone()].to_vec(), at: 0 };
            self.fresh = 0..0;
        }
        self.sender.give_back(std::mem::take(&mut self.buffer));
    }

    fn take_in(&mut self, bytes_max: usize) -> io::Result<Moved> {
        let from = if self.pieces.is_some() { HEAD_BYTES } else { 0 };
        if self.buffer.len() < from + bytes_max {
            self.sender.give_back(std::mem::take(&mut self.buffer));
            self.buffer = self.sender.buffer(from + bytes_max);
        }
        let part = &mut self.buffer[from..from + bytes_max];
        let result = moved(recv(self.socket, &mut *part, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes))?;
        if let Moved::Bytes(bytes) = result {
            self.fresh = match &mut self.pieces {
                None => 0..bytes,
                Some(Pieces { packing, press }) => {
                    0..packing.pack(&mut self.buffer, bytes, press, Instant::now())
                }
            };
        }
        Ok(result)
    }

    /// Gives what is left to the channel: how much it took.
    fn give(&mut self) -> io::Result<usize> {
        let fresh = self.fresh.clone();
        if fresh.is_empty() {
            let left = self.held.left();
            let given = self.sender.try_write(left).map_err(over)?;
            self.is_full |= given < left.len();
            drop(self.held.give(given));
            return Ok(given);
        }
        let given = if fresh.start == 0 {
            self.sender.try_give(&mut self.buffer, fresh.end)
        } else {
            self.sender.try_write(&self.buffer[fresh.clone()])
        }
        .map_err(over)?;
        self.is_full |= given < fresh.len();
        self.fresh.start += given;
        Ok(given)
    }
}

impl Way for Out<'_> {
    fn fill(&mut self, bytes_max: usize) -> io::Result<Moved> {
        if !self.fresh.is_empty() || !self.held.left().is_empty() {
            return Ok(Moved::Blocked);
        }
        // An error of the channel is found by giving, and told as the channel's.
        let room = self.sender.try_room(bytes_max.min(PIECE_BYTES)).unwrap_or(1);
        self.is_full = room == 0;
        if self.is_full {
            return Ok(Moved::Blocked);
        }
        let room = self.pieces.as_ref().map_or(room, |pieces| pieces.packing.wanted(room).min(bytes_max));
        let Some(limit) = self.limit else { return self.take_in(room) };
        let granted = match limit.take(room as u64) {
            Grant::Bytes(bytes) => bytes,
            Grant::Wait(time) => return Ok(Moved::Later(time)),
        };
        let result = self.take_in(granted as usize);
        let taken = if let Ok(Moved::Bytes(bytes)) = result { bytes as u64 } else { 0 };
        limit.give_back(granted - taken);
        result
    }

    fn drain(&mut self, bytes: usize) -> io::Result<Moved> {
        let given = self.give()?;
        let Some(Pieces { packing, .. }) = &mut self.pieces else {
            self.is_full |= given == 0;
            return Ok(if given == 0 { Moved::Blocked } else { Moved::Bytes(given) });
        };
        if !self.fresh.is_empty() || !self.held.left().is_empty() {
            return Ok(Moved::Blocked);
        }
        // What is held of a flow is one piece, and its bytes count once all of it has gone.
        packing.sent(Instant::now());
        Ok(Moved::Bytes(bytes))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.sender.finish().map_err(over)
    }
}

/// What came to light on the way back.
#[derive(Default)]
struct Told {
    /// Nothing more comes.
    is_over: bool,
    fault: Option<PieceError>,
    refused: Option<(Refusal, String)>,
}

/// From the channel to the socket.
struct BackWay<'a> {
    socket: &'a OwnedFd,
    receiver: &'a Receiver,
    held: &'a mut Held,
    limit: Option<&'a Limit>,
    question: &'a mut Option<Question>,
    apart: Option<&'a mut Apart>,
    told: Told,
}

impl BackWay<'_> {
    /// Takes the agent's answer off the front of what came; gives where the target's bytes begin.
    fn read_answer(&mut self, piece: &[u8]) -> io::Result<usize> {
        let Some(question) = &mut *self.question else { return Ok(0) };
        let refused = match question.reading.take(piece) {
            Read::More => return Ok(piece.len()),
            Read::Done(used, Word::Connected, _) => {
                question.asking.hear(Heard::Answer);
                *self.question = None;
                return Ok(used);
            }
            Read::Done(_, word, why) => {
                question.asking.hear(heard(word));
                (refusal(word), why)
            }
            Read::Nonsense => (Refusal::Link, "the agent's answer makes no sense".to_string()),
        };
        self.told.refused = Some(refused);
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    /// What came is no stream of pieces: nothing behind it is believed.
    fn broken(&mut self, error: PieceError) -> io::Error {
        (self.told.is_over, self.told.fault) = (true, Some(error));
        io::Error::other(error)
    }
}

/// What an answer says of the target.
fn heard(word: Word) -> Heard {
    match word {
        Word::Connected | Word::Refused | Word::Denied => Heard::Answer,
        Word::Silent | Word::Unreachable => Heard::Silence,
        Word::TooMany | Word::Unreadable => Heard::Nothing,
    }
}

pub(crate) fn refusal(word: Word) -> Refusal {
    match word {
        Word::Denied => Refusal::SitePolicy,
        Word::Refused => Refusal::TargetRefused,
        Word::Silent => Refusal::TargetSilent,
        Word::TooMany => Refusal::Limit,
        Word::Unreadable => Refusal::Unreadable,
        Word::Connected | Word::Unreachable => Refusal::TargetUnreachable,
    }
}

impl Way for BackWay<'_> {
    fn fill(&mut self, _bytes_max: usize) -> io::Result<Moved> {
        if !self.held.left().is_empty() || self.apart.as_ref().is_some_and(|apart| apart.plain > 0) {
            return Ok(Moved::Blocked);
        }
        loop {
            if let Some(apart) = &mut self.apart {
                match apart.go_on(self.receiver, self.held) {
                    Ok(Some(bytes)) => return Ok(Moved::Bytes(bytes)),
                    Ok(None) => {}
                    Err(error) => return Err(self.broken(error)),
                }
            }
            let piece = match self.receiver.try_piece() {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(Moved::Blocked),
                Err(error) => {
                    self.told.is_over = true;
                    return Err(over(error));
                }
            };
            if piece.is_empty() {
                self.told.is_over = true;
                // An end before the answer is none.
                if self.question.is_some() {
                    return Err(io::Error::other("it ended without an answer"));
                }
                let end = self.apart.as_ref().map_or(Ok(()), |apart| apart.reader.end());
                return end.map(|()| Moved::End).map_err(|error| self.broken(error));
            }
            let at = self.read_answer(&piece)?;
            let bytes = piece.len() - at;
            let came = Held { bytes: piece, at };
            match &mut self.apart {
                _ if bytes == 0 => {}
                Some(apart) => apart.wire = came,
                None => {
                    *self.held = came;
                    return Ok(Moved::Bytes(bytes));
                }
            }
        }
    }

    fn drain(&mut self, bytes: usize) -> io::Result<Moved> {
        let left = match &self.apart {
            Some(apart) if apart.plain > 0 => &apart.wire.left()[..apart.plain],
            _ => self.held.left(),
        };
        let wanted = left.len().min(bytes);
        let granted = match self.limit.map(|limit| limit.take(wanted as u64)) {
            None => wanted,
            Some(Grant::Bytes(bytes)) => bytes as usize,
            Some(Grant::Wait(time)) => return Ok(Moved::Later(time)),
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let given = moved(send(self.socket, &left[..granted], flags));
        let sent = if let Ok(Moved::Bytes(sent)) = given { sent } else { 0 };
        if let Some(limit) = self.limit {
            limit.give_back((granted - sent) as u64);
        }
        let used = match &mut self.apart {
            Some(apart) if apart.plain > 0 => {
                apart.plain -= sent;
                apart.wire.give(sent)
            }
            _ => self.held.give(sent),
        };
        if let Some(buffer) = used {
            self.receiver.give_back(buffer);
        }
        match given? {
            Moved::End => Err(io::Error::other("bytes that were held have gone")),
            moved => Ok(moved),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match shutdown(self.socket, Shutdown::Write) {
            // It has gone by itself: whoever waits for its bytes will notice.
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
