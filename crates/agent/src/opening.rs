//! How channels begin: one JSON object that says what they are for. Bounded by the link to
//! [`drover_link::OPENING_BYTES_MAX`]; fields that this side does not know are passed over.

use drover_disk::DiskErrorKind;
use drover_pack::Codec;
use serde::{Deserialize, Serialize};

use crate::error::{Refusal, printable};
use crate::load::HostLoad;

/// The version of the disk service that this side speaks. A side that is told a higher one answers with its own.
pub const DISK_VERSION: u32 = 1;

/// What a channel is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "service", rename_all = "snake_case")]
pub enum Opening {
    /// Blocks of a disk ([`crate::message`]).
    Disk(OpenDisk),
    /// A question with one answer, both JSON.
    Rpc(Call),
    /// A stream that is read and thrown away; to measure.
    Sink,
    /// A stream of so many bytes without meaning; to measure.
    Source {
        /// How many.
        bytes: u64,
    },
    /// A stream that comes back as it went; to measure.
    Echo,
    /// A stream to a TCP port behind the agent.
    Connect {
        /// `HOST:PORT`.
        to: String,
        /// Whether both ways go in pieces, which may be packed.
        #[serde(default)]
        pieces: bool,
        /// Whether what another session of the same peer left connected there makes way.
        #[serde(default)]
        takes_over: bool,
    },
    /// A port that is listened at for a time, and what comes there is thrown away; to measure the way past the link. Answered by
    /// [`Listening`], and after the peer's last word by [`Listened`].
    Listen(Listen),
    /// An order about a machine ([`crate::machine::Order`]), which is the first message, and its answer.
    Machine,
    /// Becoming a peer by a one-time token, which is the first message.
    Pair {
        /// What the other side calls itself.
        name: String,
    },
}

/// A port to be listened at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// An address or name of the agent's host.
    pub host: String,
    /// The first and the last port of which a free one is taken; 0 and 0: any.
    pub ports: [u16; 2],
    /// So many connections come.
    pub connections: u16,
}

/// A port that is listened at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    /// Which one.
    pub port: u16,
    /// What each connection begins with, so that strangers send nothing.
    pub token: String,
}

/// Who came while it was listened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listened {
    /// Connections that began with the token.
    pub connections: u16,
}

/// A disk to be opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenDisk {
    /// Of the disk service.
    pub version: u32,
    /// `POOL/FILE` or the name of a device or export.
    pub disk: String,
    /// To read it or to write it.
    pub access: Access,
    /// By what the answers to reads may be packed: `lz4`, `zstd`. A side of before says nothing.
    #[serde(default)]
    pub takes: Vec<String>,
}

/// The codecs that a side names which unpacks these.
pub fn codecs_of(takes: &[String]) -> Vec<Codec> {
    let packed = [(Codec::Lz4, LZ4), (Codec::Zstd1, ZSTD), (Codec::Zstd3, ZSTD)];
    packed.into_iter().filter(|(_, name)| takes.iter().any(|it| it == name)).map(|(codec, _)| codec).collect()
}

/// What this side unpacks.
pub fn codec_names() -> Vec<String> {
    vec![LZ4.to_string(), ZSTD.to_string()]
}

const LZ4: &str = "lz4";
const ZSTD: &str = "zstd";

/// What is to be done with a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read it.
    Read,
    /// Overwrite it.
    Write(Writer),
}

/// Who writes, and what was there before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// Bytes that the disk will have.
    pub size: u64,
    /// What may be there.
    pub how: How,
    /// What tells this run from every other: random.
    pub run: String,
    /// The run's epoch: higher than those of all runs before it, from 1.
    pub epoch: u64,
    /// How often this run has opened the disk before.
    pub attempt: u32,
    /// Of a logical volume, its tag: no other of its name is written to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// What may be at the place of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Nothing: it is made, or holds nothing.
    New,
    /// A disk of this size, to go on with it.
    Resume,
    /// Anything that is not in use; a file is emptied first.
    Force,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// What the agent has ([`Announced`]).
    Info,
    /// What is at a place ([`Stat`]).
    Stat {
        /// As in [`OpenDisk::disk`].
        disk: String,
    },
    /// What the host has beside disks ([`crate::host::HostHas`]).
    Host {
        /// Names of network devices.
        #[serde(default)]
        devices: Vec<String>,
        /// Names of machines whose firmware variables may be there.
        #[serde(default)]
        variables_of: Vec<String>,
    },
    /// What the way to the asker carries ([`crate::Measured`]): the agent sends to its `sink`.
    Measure {
        /// For how long it is measured, after a second in which connections find their pace.
        time_ms: u64,
    },
}

/// What an agent has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// Version of drover.
    pub version: String,
    /// Pools, with the bytes that are free.
    pub pools: Vec<Pool>,
    /// Names of devices and exports.
    pub devices: Vec<String>,
    /// What it does beside disks: `machine` (builds machines of them), `start` (starts those, too), `measure`
    /// ([`Call::Measure`]), `listen` ([`Opening::Listen`]), `hot-add` (serves disks that were attached for a peer),
    /// `host` ([`Call::Host`]).
    #[serde(default)]
    pub takes: Vec<String>,
    /// How busy its host is. An agent of before does not say.
    #[serde(default)]
    pub load: Option<HostLoad>,
}

impl Announced {
    /// Whether it says that it takes this.
    pub fn has(&self, what: &str) -> bool {
        self.takes.iter().any(|it| it == what)
    }

    /// What an agent said, as it may be shown to people.
    pub(crate) fn checked(self) -> Announced {
        let pool = |pool: Pool| Pool {
            name: printable(pool.name),
            folders: pool.folders.into_iter().take(FOLDERS_MAX).map(printable).collect(),
            unwritable: pool.unwritable.map(printable),
            free_bytes: pool.free_bytes,
            has_volumes: pool.has_volumes,
        };
        Announced {
            version: printable(self.version),
            pools: self.pools.into_iter().map(pool).collect(),
            devices: self.devices.into_iter().map(printable).collect(),
            takes: self.takes.into_iter().map(printable).collect(),
            load: self.load,
        }
    }
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Bytes that files in it may still take, if that can be told.
    pub free_bytes: Option<u64>,
    /// Its folder, as the agent was told it and without links. An agent of before does not say.
    #[serde(default)]
    pub folders: Vec<String>,
    /// Why nothing can be written to it.
    #[serde(default)]
    pub unwritable: Option<String>,
    /// Whether it is a volume group, whose disks are logical volumes that libvirt makes. An agent of before has none.
    #[serde(default)]
    pub has_volumes: bool,
}

/// What is at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Bytes, if something is there.
    pub size: Option<u64>,
    /// What tells it from another that has its name later; empty if nothing is there.
    pub tag: String,
    /// Whether it may be taken as [`How::New`].
    pub holds_nothing: bool,
    /// Bytes that it takes of its file system, if that is known.
    #[serde(default)]
    pub allocated: Option<u64>,
    /// The highest epoch that wrote it: a new run has a higher one, whatever its clock says.
    #[serde(default)]
    pub epoch: u64,
}

/// A disk that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Of the disk service, as the agent speaks it.
    pub version: u32,
    /// Bytes.
    pub size: u64,
    /// Requests start and end on multiples of this, but for the disk's own tail.
    pub bytes_min: u64,
    /// What tells the disk and its state from another.
    pub identity: String,
    /// What tells the disk from another that has its name later.
    pub tag: String,
    /// Changes whenever writes that were answered and not flushed may be lost: with the host's boot, with another
    /// file of that name.
    pub generation: String,
    /// Zeroing is cheaper than writing zeros.
    pub fast_zero: bool,
    /// Extents are told.
    pub extents: bool,
    /// The disk is known to read as zeros.
    pub zeroed: bool,
    /// It was made, or emptied, by this opening.
    pub is_new: bool,
    /// Bytes that space had best be set aside for at a time; 0 for not at all.
    pub reserve_bytes: u64,
    /// What this agent takes beyond version 1's requests without packing: `lz4`, `zstd`, `offer`, `hash`.
    pub takes: Vec<String>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Names of a pool's folder that are listened to.
const FOLDERS_MAX: usize = 4;

/// No disk is larger: 1 PiB.
pub const DISK_BYTES_MAX: u64 = 1 << 50;

/// The coarsest disk that a message of 1 MiB still serves well.
const BYTES_MIN_MAX: u64 = 64 << 10;

/// Space is set aside in parts of this size at least.
const RESERVE_BYTES_MIN: u64 = 1 << 20;

/// Notes of an agent that are shown.
const NOTES_MAX: usize = 16;

impl Opened {
    /// What an agent said, if a disk can be used by it. What is shown or kept of it is cleaned and bounded.
    ///
    /// # Errors
    /// When its version, size or requests are not such as this side can deal with.
    pub(crate) fn checked(self) -> Result<Opened, Refusal> {
        let unsupported = |why: String| Err(Refusal::new(DiskErrorKind::Unsupported, why));
        if self.version != DISK_VERSION {
            return unsupported(format!("the agent speaks version {} of the disk service", self.version));
        }
        if !self.bytes_min.is_power_of_two() || self.bytes_min > BYTES_MIN_MAX {
            return unsupported("the disk takes requests of a strange size only".to_string());
        }
        if self.size > DISK_BYTES_MAX {
            return unsupported(format!("a disk of {} bytes: none has more than 1 PiB", self.size));
        }
        let reserve_bytes = match self.reserve_bytes {
            0 => 0,
            bytes => bytes.clamp(RESERVE_BYTES_MIN, DISK_BYTES_MAX),
        };
        Ok(Opened {
            identity: printable(self.identity),
            tag: printable(self.tag),
            generation: printable(self.generation),
            reserve_bytes,
            notes: self.notes.into_iter().take(NOTES_MAX).map(printable).collect(),
            ..self
        })
    }
}

/// Something was refused: an answer in place of the expected one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// As [`crate::message::status_of`] numbers them.
    pub status: u8,
    /// Why.
    pub why: String,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    /// It is so.
    Ok(T),
    /// It is not.
    Refused(Refused),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_are_what_the_documents_say() {
        let opening = |text: &str| serde_json::from_str::<Opening>(text).unwrap();
        assert_eq!(opening(r#"{"service":"sink"}"#), Opening::Sink);
        assert_eq!(opening(r#"{"service":"source","bytes":7,"later":1}"#), Opening::Source { bytes: 7 });
        assert_eq!(
            opening(r#"{"service":"connect","to":"h:1"}"#),
            Opening::Connect { to: "h:1".into(), pieces: false, takes_over: false }
        );
        assert_eq!(opening(r#"{"service":"rpc","call":"info"}"#), Opening::Rpc(Call::Info));
        let listen = opening(r#"{"service":"listen","host":"h","ports":[0,0],"connections":4}"#);
        assert_eq!(listen, Opening::Listen(Listen { host: "h".into(), ports: [0, 0], connections: 4 }));
        let measure = opening(r#"{"service":"rpc","call":"measure","time_ms":3000}"#);
        assert_eq!(measure, Opening::Rpc(Call::Measure { time_ms: 3000 }));
        let disk = r#"{"service":"disk","version":1,"disk":"vms/a.raw","access":{"write":
            {"size":9,"how":"resume","run":"r","epoch":3,"attempt":1}}}"#;
        let writer =
            Writer { size: 9, how: How::Resume, run: "r".into(), epoch: 3, attempt: 1, volume: None };
        let expected = OpenDisk {
            version: 1,
            disk: "vms/a.raw".into(),
            access: Access::Write(writer),
            takes: Vec::new(),
        };
        assert_eq!(opening(disk), Opening::Disk(expected));
        let read = r#"{"service":"disk","version":1,"disk":"vms/a.raw","access":"read","takes":["zstd"]}"#;
        let takes = vec!["zstd".to_string()];
        let expected = OpenDisk { version: 1, disk: "vms/a.raw".into(), access: Access::Read, takes };
        assert_eq!(opening(read), Opening::Disk(expected));
        assert!(serde_json::from_str::<Opening>(r#"{"service":"shell"}"#).is_err());
    }
}
