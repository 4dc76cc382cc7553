//! Opening a disk at an agent, the first time and again.

use drover_disk::DiskErrorKind;
use drover_link::{Receiver, Sender};

use crate::error::Refusal;
use crate::message::{Head, Kind};
use crate::opening::{Access, Answer, DISK_VERSION, How, OpenDisk, Opened, Opening, Writer};
use crate::site::{Site, decode};

/// A disk to be overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Bytes that it will have.
    pub size: u64,
    /// What may be there.
    pub how: How,
    /// The epoch of this run: from 1, and higher than those of all runs before it.
    pub epoch: u64,
    /// Of a logical volume, its tag: no other of its name is opened.
    pub volume: Option<String>,
}

/// What is to be opened, and how often it was.
pub(super) struct Door {
    pub disk: String,
    pub writer: Option<Writer>,
    /// By what answers may be packed.
    pub takes: Vec<String>,
}

/// A channel to an open disk.
pub(super) struct Way {
    pub sender: Sender,
    pub receiver: Receiver,
    pub session: u64,
    pub opened: Opened,
}

impl Door {
    /// Knocks once. What another run or the last attempt of this one still holds is a transient refusal.
    pub(super) fn open(&mut self, site: &Site) -> Result<Way, Refusal> {
        let access = self.writer.clone().map_or(Access::Read, Access::Write);
        let opening =
            OpenDisk { version: DISK_VERSION, disk: self.disk.clone(), access, takes: self.takes.clone() };
        let way = site.open(&Opening::Disk(opening))?;
        if let Some(writer) = &mut self.writer {
            // Counted even if no answer comes: the agent may have seen it.
            writer.attempt += 1;
        }
        let opened = match way.receiver.receive() {
            Ok(Some(message)) => answer(&message.head, &message.body)?,
            Ok(None) => return Err(Refusal::new(DiskErrorKind::Transient, "the agent said nothing")),
            Err(error) => {
                site.lost(way.session);
                return Err(error.into());
            }
        };
        Ok(Way { sender: way.sender, receiver: way.receiver, session: way.session, opened })
    }

    /// From now on it is gone on with, whatever it was opened as.
    pub(super) fn was_opened(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.how = How::Resume;
        }
    }
}

fn answer(head: &[u8], body: &[u8]) -> Result<Opened, Refusal> {
    let is_it = Head::decode(head).is_ok_and(|head| head.kind == Kind::Opened);
    if !is_it {
        return Err(Refusal::new(DiskErrorKind::Corrupt, "the agent's first message makes no sense"));
    }
    decode::<Answer<Opened>>(body)?.into_result()?.checked()
}
