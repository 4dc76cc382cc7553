//! A peer that sends what it likes, for fuzz targets.

use std::time::Duration;

use drover_wire::{Frame, Header, Kind, check};

use crate::core::{Core, Limits, Moment, Order, Pull, Side, Taken};
use crate::payload::Payload;

const KINDS: [Kind; 12] = [
    Kind::Open,
    Kind::Data,
    Kind::Message,
    Kind::Finish,
    Kind::Reset,
    Kind::Stop,
    Kind::Credit,
    Kind::Ack,
    Kind::Ping,
    Kind::Pong,
    Kind::Retire,
    Kind::Bye,
];

/// Channels that the program of the session opens.
const OPENED: u32 = 4;

/// Runs a session against a peer whose frames, all with right checks, come from `bytes`. Whatever they are,
/// memory stays within its bounds.
///
/// # Panics
/// At a finding.
pub fn peer(bytes: &[u8]) {
    let mut limits = Limits {
        channel_credit_max: 1 << 17,
        held_bytes_max: 1 << 17,
        channels_max: 16,
        ..Limits::default()
    };
    (limits.credits.stream, limits.credits.messages, limits.credits.session) = (1 << 14, 1 << 16, 1 << 18);
    let mut session = Hosted {
        core: Core::new(Side::Listener, limits, limits.credits),
        now: Moment::ZERO,
        ids: Vec::new(),
        sequence: 1,
    };
    session.core.stripe_up(1, Moment::ZERO);
    for number in 0..OPENED {
        let order = if number % 2 == 0 { Order::Stream } else { Order::Messages };
        session.ids.extend(session.core.open(order, b"opening"));
    }
    let mut rest = bytes;
    while let Some((op, after)) = rest.split_first() {
        rest = session.act(*op, after);
        let (held, unread) = session.core.memory();
        assert!(unread <= limits.credits.session, "{unread} unread");
        assert!(held <= limits.held_bytes_max + (2 << 10), "{held} held");
        assert!(session.core.channels() <= 2 * limits.channels_max);
    }
}

struct Hosted {
    core: Core,
    now: Moment,
    ids: Vec<u32>,
    /// Next to what an honest peer would use now.
    sequence: u64,
}

impl Hosted {
    fn act<'a>(&mut self, op: u8, rest: &'a [u8]) -> &'a [u8] {
        let id = rest
            .first()
            .and_then(|at| self.ids.get(usize::from(*at) % self.ids.len().max(1)))
            .copied()
            .unwrap_or(1);
        match op % 20 {
            kind @ 0..12 => return self.frame(KINDS[usize::from(kind)], rest),
            12 => drop(self.core.gather(id, b"a few bytes")),
            13 => self.send(id),
            14 => while matches!(self.core.message(id), Ok(Taken::Some(_))) {},
            15 => while matches!(self.core.piece(id), Ok(Taken::Some(_))) {},
            16 => {
                self.core.drop_receiver(id);
                self.core.drop_sender(id);
            }
            17 => {
                self.core.stripe_down(1, self.now);
                self.core.stripe_up(1, self.now);
            }
            18 => {
                while let Ok(Some((id, ..))) = self.core.accept() {
                    self.ids.push(id);
                }
            }
            _ => self.pass_time(),
        }
        rest.get(1..).unwrap_or_default()
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_millis(300);
        self.core.tick(1, self.now);
        let mut frames = Vec::new();
        while self.core.pull(1, 1 << 16, self.now, &mut frames) == Pull::Frames {}
        self.core.take_wakes();
    }

    fn send(&mut self, id: u32) {
        if let Ok(Some(_)) = self.core.reserve_message(id, 100) {
            let payload = vec![1; 100];
            let header = Header::new(Kind::Message, id, 0).with_payload(&payload);
            self.core.push(id, header, Payload::from(payload));
        }
    }

    /// Six bytes say what the frame is; most often it is one that an honest peer could have sent.
    fn frame<'a>(&mut self, kind: Kind, rest: &'a [u8]) -> &'a [u8] {
        let Some((fields, rest)) = rest.split_first_chunk::<6>() else { return &[] };
        let [channel, sequence, low, high, length, head] = *fields;
        let length = (usize::from(length) * 37).min(kind.payload_bytes_max());
        let head = usize::from(head).min(if kind == Kind::Message { length } else { 0 });
        let body = vec![low; length];
        self.sequence += u64::from(kind.is_sequenced());
        let header = Header {
            head_bytes: head as u16,
            payload_bytes: length as u32,
            payload_check: check(&body),
            sequence: match (kind.is_sequenced(), sequence) {
                (true, 0..250) => self.sequence - 1,
                (true, _) => u64::from(sequence) * u64::from(low),
                (false, _) => 0,
            },
            ..Header::new(kind, channel.into(), u64::from(low) | u64::from(high) << 8)
        };
        let Ok(header) = Header::decode(&header.encode()) else { return rest };
        self.core.heard(1, header.frame_bytes(), self.now);
        let frame = Frame { header, head: body[..head].to_vec(), body: body[head..].to_vec() };
        self.core.arrive(1, frame, self.now);
        rest
    }
}
