//! A program on one side: it opens channels, sends what can be told from their numbers, and checks what it
//! gets.

use std::collections::{BTreeMap, BTreeSet};

use drover_wire::{DATA_BYTES_MAX, Header, Kind};

use super::{Chance, MESSAGE_BYTES_MAX};
use crate::core::{ChannelId, Core, Order, Taken};
use crate::error::{LinkError, LinkErrorKind};
use crate::payload::Payload;

/// What is sent on a channel, in either direction.
#[derive(Debug)]
struct Talk {
    order: Order,
    /// Messages, or bytes of the stream, that were sent, and are to be.
    sent: u64,
    total: u64,
    is_finished: bool,
    got: BTreeSet<u64>,
    got_bytes: u64,
    is_ended: bool,
    /// Either side may give it up.
    may_end_early: bool,
    /// Reads only now and then, in so many of 100 steps.
    eagerness: u64,
}

pub struct Program {
    chance: Chance,
    to_open: u64,
    total: u64,
    expects: u64,
    accepted: u64,
    talks: BTreeMap<ChannelId, Talk>,
    done: u64,
    /// In so many of a million steps a channel is given up, in one way or another.
    pub quits: u64,
    pub quit: u64,
}

/// Byte of a stream at a place. Both ends can tell it.
fn byte(id: ChannelId, sender: u32, at: u64) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ u64::from(id) ^ u64::from(sender) << 4) as u8
}

impl Program {
    pub fn new(seed: u64) -> Program {
        Program {
            chance: Chance::new(seed),
            to_open: 0,
            total: 0,
            expects: 0,
            accepted: 0,
            talks: BTreeMap::new(),
            done: 0,
            quits: 0,
            quit: 0,
        }
    }

    /// It is to open so many channels of about so much, and the other one that many.
    pub fn plan(&mut self, opens: u64, total: u64, expects: u64) {
        (self.to_open, self.total, self.expects) = (opens, total, expects);
    }

    pub fn is_complete(&self) -> bool {
        self.to_open == 0 && self.accepted == self.expects && self.talks.is_empty()
    }

    pub fn describe(&self) -> String {
        format!(
            "{} to open, {} of {} accepted, {} done, {:?}",
            self.to_open, self.accepted, self.expects, self.done, self.talks
        )
    }

    pub fn act(&mut self, core: &mut Core, seed: u64) {
        let is_dialler = u32::from(core.side == crate::core::Side::Dialler);
        if self.to_open > 0 && self.chance.below(5) == 0 {
            let order = if self.chance.below(2) == 0 { Order::Stream } else { Order::Messages };
            let opening = self.to_open.to_le_bytes();
            let id = core.open(order, &opening).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            self.begin(id, order);
            self.to_open -= 1;
        }
        while let Some((id, order, opening)) =
            core.accept().unwrap_or_else(|error| panic!("seed {seed}: {error}"))
        {
            assert_eq!(opening.len(), 8, "seed {seed}");
            self.begin(id, order);
            self.accepted += 1;
        }
        for (id, talk) in &mut self.talks {
            talk.send(*id, core, is_dialler, &mut self.chance);
            if self.chance.below(100) < talk.eagerness {
                talk.receive(*id, core, 1 - is_dialler, seed);
            }
            if self.chance.millionths(self.quits) {
                talk.quit(*id, core, self.chance.below(3));
                self.quit += 1;
            }
        }
        let over: Vec<ChannelId> =
            self.talks.iter().filter(|(_, it)| it.is_finished && it.is_ended).map(|(id, _)| *id).collect();
        for id in over {
            self.talks.remove(&id);
            self.done += 1;
            core.drop_sender(id);
            core.drop_receiver(id);
        }
    }

    fn begin(&mut self, id: ChannelId, order: Order) {
        let total = match order {
            Order::Stream => self.chance.below(self.total + 1),
            Order::Messages => self.chance.below(self.total / (MESSAGE_BYTES_MAX / 4) + 1),
        };
        let talk = Talk {
            order,
            sent: 0,
            total,
            is_finished: false,
            got: BTreeSet::new(),
            got_bytes: 0,
            is_ended: false,
            may_end_early: self.quits > 0,
            eagerness: 1 + self.chance.below(100),
        };
        assert!(self.talks.insert(id, talk).is_none());
    }
}

impl Talk {
    fn send(&mut self, id: ChannelId, core: &mut Core, me: u32, chance: &mut Chance) {
        for _ in 0..4 {
            if self.is_finished {
                return;
            }
            if self.sent == self.total {
                let result = core.finish(id);
                Talk::allowed(result, self.may_end_early, &mut self.is_finished);
                self.is_finished = true;
            } else if self.order == Order::Messages {
                self.send_message(id, core, chance);
            } else {
                self.write(id, core, me, chance);
            }
        }
    }

    /// Gives up both directions, or one of them.
    fn quit(&mut self, id: ChannelId, core: &mut Core, how: u64) {
        if how == 0 {
            core.reset(id);
        }
        if how < 2 {
            core.drop_sender(id);
            self.is_finished = true;
        }
        if how != 1 {
            core.drop_receiver(id);
            self.is_ended = true;
        }
    }

    /// What a call gave; `None` if the channel was given up, which ends one direction of it.
    fn allowed<T>(result: Result<T, LinkError>, may_end_early: bool, is_over: &mut bool) -> Option<T> {
        match result {
            Err(error) if may_end_early && error.kind == LinkErrorKind::Reset => {
                *is_over = true;
                None
            }
            result => Some(result.unwrap()),
        }
    }

    /// The first eight bytes of the body say which message it is; the length of the head too.
    fn send_message(&mut self, id: ChannelId, core: &mut Core, chance: &mut Chance) {
        let head_bytes = (self.sent % 50) as usize;
        let length = head_bytes + 8 + chance.below(MESSAGE_BYTES_MAX / 2) as usize;
        let reserved = core.reserve_message(id, length);
        let Some(Some(_)) = Talk::allowed(reserved, self.may_end_early, &mut self.is_finished) else {
            return;
        };
        let mut payload = vec![self.sent as u8; head_bytes];
        payload.extend(self.sent.to_le_bytes().into_iter().cycle().take(length - head_bytes));
        let header = Header {
            head_bytes: head_bytes as u16,
            ..Header::new(Kind::Message, id, 0).with_payload(&payload)
        };
        core.push(id, header, Payload::from(payload));
        self.sent += 1;
    }

    fn write(&mut self, id: ChannelId, core: &mut Core, me: u32, chance: &mut Chance) {
        let wanted = (1 + chance.below(30_000)).min(self.total - self.sent).min(DATA_BYTES_MAX as u64);
        let bytes =
            |from: u64, length: u64| (from..from + length).map(|at| byte(id, me, at)).collect::<Vec<u8>>();
        if wanted < 2000 {
            let taken = core.gather(id, &bytes(self.sent, wanted));
            let taken = Talk::allowed(taken, self.may_end_early, &mut self.is_finished);
            self.sent += if taken == Some(true) { wanted } else { 0 };
            return;
        }
        let reserved = core.reserve_piece(id, wanted as usize);
        let reserved = Talk::allowed(reserved, self.may_end_early, &mut self.is_finished);
        if let Some(Some((at, length))) = reserved {
            assert_eq!(at, self.sent);
            let piece = bytes(at, length as u64);
            let header = Header::new(Kind::Data, id, at).with_payload(&piece);
            core.push(id, header, Payload::from(piece));
            self.sent += length as u64;
        }
    }

    fn receive(&mut self, id: ChannelId, core: &mut Core, sender: u32, seed: u64) {
        while !self.is_ended {
            let more = match self.order {
                Order::Messages => match self.allowed_to_receive(core.message(id)) {
                    Taken::Some(message) => {
                        let number = u64::from_le_bytes(message.body[..8].try_into().unwrap());
                        let is_right = message
                            .body
                            .iter()
                            .enumerate()
                            .all(|(at, it)| *it == number.to_le_bytes()[at % 8]);
                        assert!(
                            is_right && message.head == vec![number as u8; (number % 50) as usize],
                            "seed {seed}"
                        );
                        assert!(self.got.insert(number), "seed {seed}: message {number} twice");
                        true
                    }
                    end => self.ended(&end, seed),
                },
                Order::Stream => match self.allowed_to_receive(core.piece(id)) {
                    Taken::Some(piece) => {
                        let right = piece
                            .iter()
                            .enumerate()
                            .all(|(at, it)| *it == byte(id, sender, self.got_bytes + at as u64));
                        assert!(right, "seed {seed}: channel {id} at {}", self.got_bytes);
                        self.got_bytes += piece.len() as u64;
                        true
                    }
                    end => self.ended(&end, seed),
                },
            };
            if !more {
                return;
            }
        }
    }

    fn allowed_to_receive<T>(&mut self, taken: Result<Taken<T>, LinkError>) -> Taken<T> {
        Talk::allowed(taken, self.may_end_early, &mut self.is_ended).unwrap_or(Taken::Wait)
    }

    fn ended<T>(&mut self, taken: &Taken<T>, seed: u64) -> bool {
        if matches!(taken, Taken::End) {
            let is_whole = self.got.iter().enumerate().all(|(at, number)| at as u64 == *number);
            assert!(is_whole, "seed {seed}: a message is missing");
            self.is_ended = true;
        }
        false
    }
}
