//! A mark on both QEMUs of a move, that lives as long as they do: an object that nobody uses, named by chance. So a later run
//! knows that two monitors are the ends of one move, which QEMU itself does not tell.

use std::fs::File;
use std::io::Read;

use drover_live::{Side, Stand};
use serde_json::{Value, json};

use super::disks::MIRROR;
use super::guest::Guest;
use crate::error::{QemuError, QemuErrorKind};

/// What the names of marks begin with.
const MARK: &str = "drover-move-";

/// On a source whose guest drover stopped, to send it ahead.
const STOPPED: &str = "drover-move-stopped";

/// On a source whose guest stood when it was sent, as somebody wanted: it is not started at the target.
const PAUSED: &str = "drover-move-paused";

/// A name that no other move has.
pub(super) fn new_mark() -> Result<String, QemuError> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| QemuError::io("a mark for the move", error))?;
    Ok(format!("{MARK}{:032x}", u128::from_be_bytes(bytes)))
}

impl Guest {
    /// Puts a mark on it, instead of those of earlier moves, which are these.
    pub(super) fn mark(&mut self, mark: &str, earlier: &[String]) -> Result<(), QemuError> {
        let mut orders: Vec<(&str, Value)> =
            earlier.iter().map(|old| ("object-del", json!({ "id": old }))).collect();
        orders.push(("object-add", object(mark)));
        self.qmp.execute_all(&orders)?.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Says on it whether the guest that is sent stands because somebody wants it to, for a run that sees to the end of another's move.
    pub(super) fn mark_paused(&mut self, is_paused: bool) -> Result<(), QemuError> {
        match (is_paused, self.is_marked_paused()?) {
            (true, false) => self.put_mark(PAUSED),
            (false, true) => self.qmp.execute("object-del", json!({ "id": PAUSED })).map(drop),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// Whether [`Guest::mark_paused`] was said of it.
    pub(super) fn is_marked_paused(&mut self) -> Result<bool, QemuError> {
        Ok(self.marks()?.iter().any(|mark| mark == PAUSED))
    }

    fn put_mark(&mut self, mark: &str) -> Result<(), QemuError> {
        self.qmp.execute("object-add", object(mark)).map(drop)
    }

    /// Ends what earlier runs left on it for moves that are over; gives the marks of those.
    pub(super) fn clear(&mut self) -> Result<Vec<String>, QemuError> {
        let [objects, exports, parameters] = self.qmp.execute_in_turn([
            objects(),
            ("query-block-exports", Value::Null),
            ("query-migrate-parameters", Value::Null),
        ])?;
        if self.side == Side::Target && has_offers(&exports) {
            self.withdraw()?;
        }
        self.drop_credentials_of(&parameters, &objects)?;
        Ok(marks(&objects))
    }

    /// Says on it that it ran and was stopped by drover; QEMU does not tell who stopped a guest.
    pub(super) fn mark_stopped(&mut self) -> Result<(), QemuError> {
        if self.is_marked_stopped()? { Ok(()) } else { self.put_mark(STOPPED) }
    }

    /// Whether [`Guest::mark_stopped`] was said of it.
    pub(super) fn is_marked_stopped(&mut self) -> Result<bool, QemuError> {
        Ok(self.marks()?.iter().any(|mark| mark == STOPPED))
    }

    /// It runs again.
    pub(super) fn unmark_stopped(&mut self) -> Result<(), QemuError> {
        match self.is_marked_stopped()? {
            true => self.qmp.execute("object-del", json!({ "id": STOPPED })).map(drop),
            false => Ok(()),
        }
    }

    /// The marks on it.
    pub(super) fn marks(&mut self) -> Result<Vec<String>, QemuError> {
        let (command, arguments) = objects();
        Ok(marks(&self.qmp.execute(command, arguments)?))
    }

    /// How it stands.
    pub(super) fn stand(&mut self) -> Result<Stand, QemuError> {
        Ok(self.stand_and_marks()?.0)
    }

    /// How it stands, and the marks on it.
    pub(super) fn stand_and_marks(&mut self) -> Result<(Stand, Vec<String>), QemuError> {
        // The move before the machine: what has ended by then shows in the machine's status.
        let [objects, told, status] = self.qmp.execute_in_turn([
            objects(),
            ("query-migrate", Value::Null),
            ("query-status", Value::Null),
        ])?;
        let migration = told["status"].as_str().unwrap_or("none").to_string();
        let status = status["status"].as_str().unwrap_or_default().to_string();
        Ok((Stand { status, migration }, marks(&objects)))
    }

    /// Whether it was started with `-incoming defer` and was not told yet where to listen.
    ///
    /// # Errors
    /// As [`crate::Qmp::execute`].
    pub fn waits_deferred(&mut self) -> Result<bool, QemuError> {
        let stand = self.stand()?;
        Ok(stand.status == "inmigrate" && stand.migration == "none")
    }

    /// Whether disks are offered here by drover.
    pub(super) fn offers_disks(&mut self) -> Result<bool, QemuError> {
        Ok(has_offers(&self.qmp.execute("query-block-exports", Value::Null)?))
    }

    /// Whether drover's mirrors are at work here.
    pub(super) fn has_mirrors(&mut self) -> Result<bool, QemuError> {
        let jobs = self.qmp.execute("query-block-jobs", Value::Null)?;
        let mut names = jobs.as_array().into_iter().flatten().filter_map(|job| job["device"].as_str());
        Ok(names.any(|name| name.starts_with(MIRROR)))
    }
}

fn has_offers(exports: &Value) -> bool {
    let mut offered = exports.as_array().into_iter().flatten().filter_map(|export| export["id"].as_str());
    offered.any(|name| name.starts_with("drover-"))
}

/// Asks for what was made on it.
pub(super) fn objects() -> (&'static str, Value) {
    ("qom-list", json!({"path": "/objects"}))
}

/// Names among what was made on it.
pub(super) fn names(objects: &Value) -> impl Iterator<Item = &str> {
    objects.as_array().into_iter().flatten().filter_map(|object| object["name"].as_str())
}

fn marks(objects: &Value) -> Vec<String> {
    names(objects).filter(|name| name.starts_with(MARK)).map(str::to_string).collect()
}

/// What a mark is.
fn object(mark: &str) -> Value {
    json!({"qom-type": "secret", "id": mark, "data": "drover"})
}

/// Whether marks of both sides have one of a move among them. A guest that moves on is marked as stopped at one side only.
pub(super) fn are_ends(here: &[String], there: &[String]) -> bool {
    here.iter().any(|mark| mark != STOPPED && mark != PAUSED && there.contains(mark))
}

/// The kind of a state of affairs that is no failure of any command.
pub(super) fn unclear(what: &str) -> QemuError {
    QemuError::new(QemuErrorKind::Failed, what.to_string())
}
