//! One side of a move: a monitor, and the commands of migration in it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use drover_live::{Difference, Happened, Moment, Settings, Side, Told, differences, stopped_by_somebody};
use serde_json::{Value, json};

use crate::error::{QemuError, QemuErrorKind};
use crate::qmp::Qmp;

/// A QEMU that a guest leaves or comes to.
#[derive(Debug)]
pub struct Guest {
    pub(super) qmp: Qmp,
    pub(super) side: Side,
    socket: PathBuf,
    seen: Seen,
    /// Since when it is measured how fast the guest writes, until what came of it is taken.
    pub(super) measures: Option<Instant>,
}

/// What a side was set to before a move set it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Before {
    /// Of all that was set, as far as that was answered.
    pub settings: Settings,
    /// It was told what to set, and its answers broke off: that may be set or not.
    pub is_cut: bool,
}

/// What events told that no question tells later.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// When the guest was stopped last, in microseconds since 1970 by its host's clock.
    pub stopped_us: Option<i64>,
    /// When it was started last.
    pub resumed_us: Option<i64>,
    /// It was stopped or started since that was asked last, or stands still to be handed over.
    turned: bool,
    /// Which jobs are at work on its disks was asked since one of them changed last.
    are_jobs_known: bool,
    /// Jobs that ended with an error, by name.
    pub failed_jobs: Vec<(String, String)>,
    /// What happened to the guest and its move, the latest last.
    moments: VecDeque<Moment>,
}

impl Seen {
    fn job(&mut self, data: &Value) {
        let (Some(job), Some(error)) = (data["device"].as_str(), data["error"].as_str()) else { return };
        if self.failed_jobs.len() < FAILED_JOBS_MAX {
            self.failed_jobs.push((job.to_string(), error.to_string()));
        }
    }

    fn moment(&mut self, what: Happened, at_us: Option<i64>) {
        let Some(at_us) = at_us else { return };
        if self.moments.len() == MOMENTS_MAX {
            self.moments.pop_front();
        }
        self.moments.push_back(Moment { what, at_us });
    }
}

/// A move has a dozen; the latest are those that count.
const MOMENTS_MAX: usize = 256;

/// Jobs of one move; more is not drover's.
const FAILED_JOBS_MAX: usize = 256;

/// A monitor answers at once; while QEMU stops the guest and sends what is left, it may take the whole downtime.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// It greets whom it serves at once, even on a busy host.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);

impl Guest {
    /// Connects to a monitor that serves nobody else.
    ///
    /// # Errors
    /// As [`Qmp::connect`].
    pub fn connect(socket: &Path, side: Side) -> Result<Guest, QemuError> {
        let qmp = Qmp::connect(socket, ANSWER_TIME_MAX)?;
        Ok(Guest { qmp, side, socket: socket.to_path_buf(), seen: Seen::default(), measures: None })
    }

    /// The same on this host, where a monitor that is silent serves somebody else, or is none.
    ///
    /// # Errors
    /// As [`Qmp::connect`].
    pub fn connect_here(socket: &Path, side: Side) -> Result<Guest, QemuError> {
        let qmp = Qmp::connect_greeted(socket, GREETING_TIME_MAX, ANSWER_TIME_MAX)?;
        Ok(Guest { qmp, side, socket: socket.to_path_buf(), seen: Seen::default(), measures: None })
    }

    /// Connects to the same monitor again, after the connection broke. What happened meanwhile is not told.
    ///
    /// # Errors
    /// As [`Qmp::connect`].
    pub(super) fn connect_again(&mut self) -> Result<(), QemuError> {
        self.qmp.hang_up();
        self.qmp = Qmp::connect(&self.socket, ANSWER_TIME_MAX)?;
        Ok(())
    }

    /// The same, if it can be had within so long.
    pub(super) fn connect_again_within(&mut self, time_max: Duration) -> Result<(), QemuError> {
        self.qmp.hang_up();
        self.qmp = Qmp::connect(&self.socket, time_max)?;
        self.qmp.set_answer_time_max(ANSWER_TIME_MAX);
        Ok(())
    }

    /// Whether it answers within so long.
    pub(super) fn answers_within(&mut self, time_max: Duration) -> Result<(), QemuError> {
        self.qmp.execute_within("query-status", Value::Null, time_max).map(drop)
    }

    /// Whether it is a QEMU of this host.
    pub fn is_of_this_host(&self) -> bool {
        self.qmp.is_of_this_host()
    }

    /// Which side it is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The machine's state in QEMU's word.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn status(&mut self) -> Result<String, QemuError> {
        self.qmp.status()
    }

    /// Sets capabilities and parameters, and reads them back.
    ///
    /// # Errors
    /// As [`Qmp::execute`]; [`QemuErrorKind::Failed`] with what is not as it was set.
    pub fn set(&mut self, settings: &Settings) -> Result<(), QemuError> {
        self.set_from(settings, &mut Before::default())
    }

    /// The same, with what was set `before`; that is told also where something is refused or does not come to its end.
    pub(super) fn set_from(&mut self, settings: &Settings, before: &mut Before) -> Result<(), QemuError> {
        let asked = [("query-migrate-capabilities", Value::Null), ("query-migrate-parameters", Value::Null)];
        let told = [
            ("migrate-set-capabilities", settings.capabilities_json(self.side)),
            ("migrate-set-parameters", Value::Object(settings.parameters_of(self.side))),
        ];
        let mut answers: Vec<Result<Value, QemuError>> = Vec::new();
        let done = match self.side {
            // It is near: what was set is known before anything is.
            Side::Source => {
                answers.extend(self.qmp.execute_in_turn(asked.clone())?.map(Ok::<Value, QemuError>));
                self.qmp.execute_into(&[&told[..], &asked].concat(), &mut answers)
            }
            // Over a long line each wait takes a round trip.
            Side::Target => self.qmp.execute_into(&[&asked[..], &told, &asked].concat(), &mut answers),
        };
        let found = match answers.as_slice() {
            [Ok(capabilities), Ok(parameters), ..] => {
                Some(settings.as_found(self.side, capabilities, parameters))
            }
            _ => None,
        };
        before.is_cut |= done.is_err() || found.is_none();
        // What is found when it is set once more is what was set first.
        if before.settings.is_empty() {
            before.settings = found.unwrap_or_default();
        }
        done?;
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Null));
        for _ in asked.iter().chain(&told) {
            next()?;
        }
        match differences(settings, self.side, &next()?, &next()?).first() {
            None => Ok(()),
            Some(difference) => Err(self.not_as_set(difference)),
        }
    }

    fn not_as_set(&self, difference: &Difference) -> QemuError {
        let what = format!("settings of the {}'s QEMU", self.side);
        QemuError::new(QemuErrorKind::Failed, what).because(difference.to_string())
    }

    /// Waits for a guest at `uri` (`tcp:HOST:0` lets the system choose a port), which is not to run when it has come; gives
    /// where it really waits.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn wait_for_guest(&mut self, uri: &str, time_max: Duration) -> Result<String, QemuError> {
        self.qmp.execute_in_turn([("stop", Value::Null), ("migrate-incoming", json!({ "uri": uri }))])?;
        self.address(uri, time_max)
    }

    /// Where it listens, for a URI whose port the system chose.
    pub(super) fn address(&mut self, uri: &str, time_max: Duration) -> Result<String, QemuError> {
        if !uri.ends_with(":0") {
            return Ok(uri.to_string());
        }
        let until = Instant::now() + time_max;
        loop {
            let told = self.qmp.execute("query-migrate", Value::Null)?;
            let port = told["socket-address"][0]["port"].as_str().map(str::to_string);
            match port {
                Some(port) => return Ok(format!("{}{port}", uri.trim_end_matches('0'))),
                None if Instant::now() >= until => {
                    return Err(QemuError::new(
                        QemuErrorKind::Timeout,
                        format!("port of {uri} at the target"),
                    ));
                }
                None => std::thread::sleep(POLL),
            }
        }
    }

    /// Begins to send the guest.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn send_to(&mut self, uri: &str) -> Result<(), QemuError> {
        self.qmp.execute("migrate", json!({ "uri": uri })).map(drop)
    }

    /// Waits at `uri` for another line, after that of post-copy broke; gives where it really waits. A place at which it
    /// waited before is given up.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(super) fn wait_for_line(&mut self, uri: &str, time_max: Duration) -> Result<String, QemuError> {
        // Its main loop may be stuck in a device of the guest that wants a page.
        self.qmp.execute_oob("migrate-recover", json!({ "uri": uri }))?;
        self.address(uri, time_max)
    }

    /// Goes on over another line, after that of post-copy broke.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(super) fn resume_to(&mut self, uri: &str) -> Result<(), QemuError> {
        self.qmp.execute("migrate", json!({ "uri": uri, "resume": true })).map(drop)
    }

    /// Takes the line of post-copy for broken.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(super) fn pause_line(&mut self) -> Result<(), QemuError> {
        self.qmp.execute_oob("migrate-pause", Value::Null).map(drop)
    }

    /// Where the move is, and QEMU's own words about a failure.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn sample(&mut self, began: Instant) -> Result<Told, QemuError> {
        let answer = self.qmp.execute("query-migrate", Value::Null)?;
        let at_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Told::of(&answer, at_ms))
    }

    /// Takes in the events that have come.
    pub(super) fn seen(&mut self) -> Result<&Seen, QemuError> {
        while self.wait_for_news(Duration::ZERO)? {}
        Ok(&self.seen)
    }

    /// Whether the guest was stopped or started since this was asked last.
    pub(super) fn has_turned(&mut self) -> Result<bool, QemuError> {
        self.seen()?;
        Ok(std::mem::take(&mut self.seen.turned))
    }

    /// Whether somebody stopped the guest, and not QEMU to hand it over.
    pub(super) fn is_stopped_by_somebody(&self) -> bool {
        stopped_by_somebody(self.seen.moments.iter())
    }

    /// Whether a job on its disks began or ended since this was asked last, or may have.
    pub(super) fn have_jobs_changed(&mut self) -> Result<bool, QemuError> {
        self.seen()?;
        Ok(!std::mem::replace(&mut self.seen.are_jobs_known, true))
    }

    /// Forgets how a job of this name ended.
    pub(super) fn forget_job(&mut self, name: &str) -> Result<(), QemuError> {
        self.seen()?;
        self.seen.failed_jobs.retain(|(job, _)| job != name);
        Ok(())
    }

    /// Waits for an event and takes it in; whether one came.
    pub(super) fn wait_for_news(&mut self, time_max: Duration) -> Result<bool, QemuError> {
        let Some(event) = self.qmp.next_event(time_max)? else { return Ok(false) };
        match event["event"].as_str() {
            Some("STOP") => {
                self.seen.stopped_us = moment_us(&event);
                self.seen.turned = true;
                self.seen.moment(Happened::Stopped, self.seen.stopped_us);
            }
            Some("RESUME") => {
                self.seen.resumed_us = moment_us(&event);
                self.seen.turned = true;
                self.seen.moment(Happened::Started, self.seen.resumed_us);
            }
            Some("MIGRATION") => {
                let word = event["data"]["status"].as_str().unwrap_or_default();
                self.seen.turned |= matches!(word, "pre-switchover" | "device");
                self.seen.moment(Happened::Status(word.to_string()), moment_us(&event));
            }
            Some("MIGRATION_PASS") => self.seen.moment(Happened::Pass, moment_us(&event)),
            Some("JOB_STATUS_CHANGE") => self.seen.are_jobs_known = false,
            Some("BLOCK_JOB_COMPLETED" | "BLOCK_JOB_ERROR" | "BLOCK_JOB_CANCELLED") => {
                self.seen.job(&event["data"])
            }
            _ => {}
        }
        Ok(true)
    }

    /// What happened to the guest and its move since this was connected, in order; the latest 256. What a monitor that is
    /// gone told last may be missing.
    pub fn moments(&mut self) -> Vec<Moment> {
        // Events that cannot be had any more are told by their absence.
        let _ = self.seen();
        self.seen.moments.iter().cloned().collect()
    }

    /// Lets the guest run, after its disks are offered to nobody any more where they were.
    pub(super) fn give_leave(&mut self, withdraws: bool) -> Result<(), QemuError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.seen.moment(Happened::LeaveGiven, i64::try_from(now.as_micros()).ok());
        let orders = [("nbd-server-stop", Value::Null), ("cont", Value::Null)];
        // They go at once. An offer that is withdrawn already is none.
        let answers = self.qmp.execute_all(&orders[usize::from(!withdraws)..])?;
        answers.into_iter().next_back().unwrap_or(Ok(Value::Null)).map(drop)
    }

    /// Runs a command that takes nothing.
    pub(super) fn order(&mut self, command: &str) -> Result<(), QemuError> {
        self.qmp.execute(command, Value::Null).map(drop)
    }
}

/// When an event happened, by QEMU's clock.
fn moment_us(event: &Value) -> Option<i64> {
    let at = &event["timestamp"];
    at["seconds"].as_i64()?.checked_mul(1_000_000)?.checked_add(at["microseconds"].as_i64()?)
}

/// Between two looks at something that has to happen.
pub(super) const POLL: Duration = Duration::from_millis(20);
