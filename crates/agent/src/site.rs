//! Another site, as this side sees it: one session to its agent, shared by all disks, made anew when it is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_disk::DiskErrorKind;
use drover_link::{Message, Order, Receiver, Sender, Session};
use drover_log::log;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Refusal, printable};
use crate::host::HostHas;
use crate::machine::{Order as MachineOrder, Told};
use crate::measure::{self, Measured};
use crate::message::DATA_BYTES_MAX;
use crate::opening::{Announced, Answer, Call, Opening, Stat};

/// What a channel begins with is short.
const NAMES_AT_ONCE: usize = 8;
/// How often whoever waits for an order looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(200);

/// Makes sessions to one agent.
pub trait Dial: Send + Sync {
    /// Connects.
    ///
    /// # Errors
    /// When the agent is not there, is another, or wants nothing to do with us.
    fn dial(&self) -> Result<Session, Refusal>;
}

impl<F: Fn() -> Result<Session, Refusal> + Send + Sync> Dial for F {
    fn dial(&self) -> Result<Session, Refusal> {
        self()
    }
}

/// A site.
pub struct Site {
    name: String,
    dial: Box<dyn Dial>,
    current: Mutex<Current>,
    /// Nothing more is wanted of it.
    is_left: AtomicBool,
}

#[derive(Default)]
struct Current {
    number: u64,
    session: Option<Session>,
}

/// A channel that was opened in the session of that number.
pub(crate) struct Way {
    pub sender: Sender,
    pub receiver: Receiver,
    pub session: u64,
}

impl Site {
    /// A site, not connected yet.
    pub fn new(name: &str, dial: impl Dial + 'static) -> Arc<Site> {
        Arc::new(Site {
            name: name.to_string(),
            dial: Box::new(dial),
            current: Mutex::default(),
            is_left: AtomicBool::new(false),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, made if there is none.
    ///
    /// # Errors
    /// See [`Dial::dial`].
    pub fn session(&self) -> Result<Session, Refusal> {
        self.numbered().map(|(session, _)| session)
    }

    fn numbered(&self) -> Result<(Session, u64), Refusal> {
        // Held while dialling: who comes meanwhile wants the same session.
        let mut current = self.current();
        if current.session.as_ref().is_none_or(crate::is_over) {
            if self.is_left.load(Ordering::Relaxed) {
                return Err(Refusal::new(DiskErrorKind::Gone, "nothing more is wanted of this site"));
            }
            let session = self.dial.dial().inspect_err(|refusal| {
                log!("site", "no session with {}: {refusal}", self.name);
            })?;
            log!("site", "session {} with {} begins", current.number + 1, self.name);
            current.session = Some(session);
            current.number += 1;
        }
        let session = current.session.clone().unwrap_or_else(|| unreachable!("made just above"));
        Ok((session, current.number))
    }

    /// The session of that number is of no use any more.
    pub(crate) fn lost(&self, number: u64) {
        let mut current = self.current();
        if current.number == number {
            current.session = None;
        }
    }

    /// Opens a channel; once more in a new session if the one there was is over.
    pub(crate) fn open(&self, opening: &Opening) -> Result<Way, Refusal> {
        let bytes = encode(opening)?;
        let mut tried = false;
        loop {
            let (session, number) = self.numbered()?;
            match session.open(Order::Messages, &bytes) {
                Ok(channel) => {
                    let (sender, receiver) = channel.split();
                    return Ok(Way { sender, receiver, session: number });
                }
                Err(error) => {
                    self.lost(number);
                    if tried {
                        return Err(error.into());
                    }
                    tried = true;
                }
            }
        }
    }

    /// What the agent has.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn info(&self) -> Result<Announced, Refusal> {
        self.call::<Announced>(Call::Info).map(Announced::checked)
    }

    /// What the way back carries in so long a time, after a second in which connections find their pace: the agent sends and
    /// this side throws away, for as long as the session lives, so it had best be one of its own.
    ///
    /// # Errors
    /// `Unsupported` if the agent does not know how; when it cannot be asked, measures for others, or refuses.
    pub fn measure_back(&self, time: Duration) -> Result<Measured, Refusal> {
        self.check_back()?;
        let session = self.session()?;
        // It ends with the session. Without the thread nothing is taken, and the agent gives up.
        let taking = std::thread::Builder::new().name("agent-measure".to_string());
        let taking = taking.spawn(move || measure::take(&session));
        taking
            .map_err(|error| Refusal::new(DiskErrorKind::Transient, format!("starting a thread: {error}")))?;
        self.call(Call::Measure { time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX) })
    }

    /// Whether the agent knows how to measure the way back.
    ///
    /// # Errors
    /// `Unsupported` if it does not; when it cannot be asked.
    pub fn check_back(&self) -> Result<(), Refusal> {
        measure::check(&self.info()?)
    }

    /// What is at a place.
    ///
    /// # Errors
    /// When it cannot be asked, or there can be no disk at this place.
    pub fn stat(&self, disk: &str) -> Result<Stat, Refusal> {
        let stat: Stat = self.call(Call::Stat { disk: disk.to_string() })?;
        Ok(Stat { tag: printable(stat.tag), ..stat })
    }

    /// What the agent's host has beside disks: of these network devices, and of firmware variables of machines with these names.
    /// Only of an agent that says that it takes [`crate::host::HOST`].
    ///
    /// # Errors
    /// When it cannot be asked, or there can be no such names.
    pub fn host(&self, devices: &[String], variables_of: &[String]) -> Result<HostHas, Refusal> {
        let mut has = HostHas::default();
        let ask = |devices: &[String], names: &[String]| {
            let call = Call::Host { devices: devices.to_vec(), variables_of: names.to_vec() };
            self.call::<HostHas>(call)?.checked(devices.len(), names.len())
        };
        for devices in devices.chunks(NAMES_AT_ONCE) {
            has.devices.extend(ask(devices, &[])?.devices);
        }
        for names in variables_of.chunks(NAMES_AT_ONCE) {
            has.variables.extend(ask(&[], names)?.variables);
        }
        Ok(has)
    }

    /// Has the agent do something about a machine.
    ///
    /// # Errors
    /// Transient when no answer came: it may have been done, or may yet be. Otherwise it was refused.
    pub fn order(&self, order: &MachineOrder) -> Result<Told, Refusal> {
        let opened = self.give(order)?;
        self.answer::<Told>(&opened).map(Told::checked)
    }

    /// Sends what an order says that follows it. What is read no more was answered before.
    fn follow(opened: &Way, files: &[Vec<u8>]) {
        // Numbered, since they may arrive in any order.
        let pieces = files.iter().flat_map(|file| file.chunks(DATA_BYTES_MAX as usize)).zip(0u64..);
        let _ = pieces
            .map(|(piece, number)| opened.sender.send(&number.to_le_bytes(), piece))
            .find(Result::is_err);
    }

    fn give(&self, order: &MachineOrder) -> Result<Way, Refusal> {
        let body = encode(order)?;
        let opened = self.open(&Opening::Machine)?;
        opened.sender.send(&[], &body).inspect_err(|_| self.lost(opened.session))?;
        Ok(opened)
    }

    /// The same for an order that takes long: it is given up when `is_unwanted`, which its agent then finds out. `files` are those that
    /// the order tells of.
    ///
    /// # Errors
    /// As [`Site::order`]; transient, too, when it was given up.
    pub fn order_while(
        &self,
        order: &MachineOrder,
        files: &[Vec<u8>],
        is_unwanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Told, Refusal> {
        let opened = self.give(order)?;
        let is_answered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = || {
                while !is_answered.load(Ordering::Relaxed) {
                    if is_unwanted() {
                        return opened.sender.reset();
                    }
                    std::thread::sleep(LOOK);
                }
            };
            let watcher = std::thread::Builder::new().name("agent-order".into()).spawn_scoped(scope, watch);
            let told = match watcher {
                // The channel stays open both ways: its end tells the agent that nobody waits.
                Ok(_) => {
                    Site::follow(&opened, files);
                    self.answer_on::<Told>(&opened).map(Told::checked)
                }
                Err(error) => {
                    Err(Refusal::new(DiskErrorKind::Transient, format!("starting a thread: {error}")))
                }
            };
            is_answered.store(true, Ordering::Relaxed);
            told
        })
    }

    /// Whether there is a connection to the agent at the moment.
    pub fn is_up(&self) -> bool {
        // Whoever dials has none.
        self.current.try_lock().is_ok_and(|current| current.session.as_ref().is_some_and(crate::is_connected))
    }

    /// Ends the session that there is: whoever waits for the agent waits no more. The next one dials again.
    pub fn hang_up(&self) {
        // Not while somebody dials: that ends by itself.
        let session = self.current.try_lock().ok().and_then(|mut current| current.session.take());
        if let Some(session) = session {
            session.close();
        }
    }

    /// Ends the session that there is, since nothing more is wanted of it; none is made any more.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        let session = self.current().session.take();
        if let Some(session) = session {
            session.leave();
        }
    }

    fn call<T: DeserializeOwned>(&self, call: Call) -> Result<T, Refusal> {
        let opened = self.open(&Opening::Rpc(call))?;
        self.answer(&opened)
    }

    /// The one answer on a channel, on which nothing more is said.
    fn answer<T: DeserializeOwned>(&self, opened: &Way) -> Result<T, Refusal> {
        // An agent that has answered by now reads no more: then this fails, and its answer is there.
        let _ = opened.sender.finish();
        self.answer_on(opened)
    }

    /// The next answer on a channel.
    pub(crate) fn answer_on<T: DeserializeOwned>(&self, opened: &Way) -> Result<T, Refusal> {
        let message = opened.receiver.receive().inspect_err(|_| self.lost(opened.session))?;
        read(message)
    }
}

/// The next answer that comes, without a site.
pub(crate) fn answered<T: DeserializeOwned>(receiver: &Receiver) -> Result<T, Refusal> {
    read(receiver.receive()?)
}

fn read<T: DeserializeOwned>(message: Option<Message>) -> Result<T, Refusal> {
    let message = message.ok_or_else(|| senseless("no answer"))?;
    decode::<Answer<T>>(&message.body)?.into_result()
}

impl<T> Answer<T> {
    /// As a result.
    ///
    /// # Errors
    /// When it was refused.
    pub fn into_result(self) -> Result<T, Refusal> {
        match self {
            Answer::Ok(value) => Ok(value),
            Answer::Refused(refused) => Err(refused.into()),
        }
    }
}

impl<T> From<Result<T, Refusal>> for Answer<T> {
    fn from(result: Result<T, Refusal>) -> Answer<T> {
        match result {
            Ok(value) => Answer::Ok(value),
            Err(refusal) => Answer::Refused((&refusal).into()),
        }
    }
}

/// JSON from a peer.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|error| senseless(&error.to_string()))
}

/// JSON for a peer.
pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(value).map_err(|error| Refusal::new(DiskErrorKind::Misuse, error.to_string()))
}

fn senseless(what: &str) -> Refusal {
    Refusal::new(DiskErrorKind::Corrupt, format!("the answer makes no sense: {what}"))
}
