//! A small typed client for VMware vSphere: vCenter and single ESXi hosts, 6.0 to 8.0.
//!
//! Speaks vim25 over SOAP (text templates out, a bounded XML tree in) for inventory, power,
//! snapshots, change tracking and changed areas, and reads disks by HTTPS ranges from the datastore.
//!
//! ```text
//! Session ── soap ── http::Client        one login, renewed once when it expires
//!    ├── inventory, vm                   one container view, read in pages
//!    ├── write_rates                     performance counters, 50 VMs in a request
//!    ├── snapshot and power tasks        waited for with a property collector of their own
//!    ├── attach, detach                  disks of one VM at another, which reads them
//!    ├── disk_state                      times of change of a disk's files, by the datastores' browsers
//!    └── open_disk ── http::RangeDisk    extents from QueryChangedDiskAreas
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod areas;
mod collect;
mod device;
mod disk;
mod error;
mod files;
mod guest;
mod hot_add;
mod inventory;
mod login;
mod nfc;
mod operations;
mod outage;
mod performance;
mod power;
mod rights;
mod session;
mod soap;
mod tags;
mod task;
mod ticket;
mod time;
mod tracking;
mod vm;
mod xml;

pub use areas::ChangedAreas;
pub use disk::{OpenDisk, OpenedDisk, Route};
pub use drover_http::{Thumbprint, Timeouts, Trust};
pub use error::{Fault, VsphereError, VsphereErrorKind};
pub use files::{DiskFiles, FrozenDisk};
pub use hot_add::{Attach, AttachError, Proxy, Wanted, serial_of};
pub use nfc::{NfcAccess, NfcTicket};
pub use operations::Whereabouts;
pub use power::PowerMark;
pub use rights::{Entity, MissingPrivileges};
pub use session::{ConnectOptions, Session, StopAsked};
