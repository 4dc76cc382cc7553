//! The target: machines for QEMU/KVM and libvirt, their images, and running them.
//!
//! ```text
//! MachineSpec ──> libvirt_xml, qemu_command, shell_script      pure text
//!             ──> write_definition, undo_definition            files in the machine's folder
//!             ──> start ──> Running ──> Qmp                     a detached QEMU
//! domain_xml  ──> daemon::Daemon::define, start                 a daemon of libvirt, asked by virsh
//! images      ──> create_qcow2, image_info, ImageServer         qemu-img, and qemu-nbd as a guarded child; images of Ceph, too
//! ```
//!
//! QEMU's programs run as children; none is linked. Each is bounded in time, and what serves drover dies with it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accel;
mod child;
mod command;
mod convert;
pub mod daemon;
mod definition;
mod error;
mod folder;
mod image;
mod libvirt;
pub mod live;
mod machine;
mod need;
mod ovmf;
mod process;
mod qmp;
mod rehearse;
mod script;
mod serial;
mod server;
mod spec;
mod validate;
mod virsh;
mod xml;

pub use accel::Detected;
pub use command::{RunOptions, Serial, qemu_command};
pub use convert::{
    ConvertOptions, ConvertOutcome, FirstBoot, GuestKind, Lack, NicName, Remote, SourceBus, SourceGuest,
    TrialOptions, Trials, WindowsVersion, can_convert, can_customize, check_conversion, convert,
    forget_conversion, has_converted, is_converted,
};
pub use definition::{Definition, undo_definition, write_definition};
pub use error::{QemuError, QemuErrorKind};
pub use folder::VmFolder;
pub use image::{ImageInfo, Preallocation, Qcow2Options, create_qcow2, format_of, image_info};
pub use libvirt::{DomainOptions, domain_xml, libvirt_xml};
pub use machine::{Running, find_running, start};
pub use need::{Need, needs_conversion, windows_needs_conversion};
pub use ovmf::Ovmf;
pub use process::is_running;
pub use qmp::Qmp;
pub use rehearse::{Forward, Prepared, Rehearsal, forget_rehearsal, prepare_rehearsal};
pub use script::shell_script;
pub use server::{Access, ImageServer, RbdImage, lack_for_rbd};
pub use spec::{
    Accelerator, Cache, Clock, DiskBus, DiskSpec, ImageFormat, MachineFirmware, MachineSpec, NicAttach,
    NicSpec,
};
pub use validate::{Validation, validate_xml};
pub use virsh::Virsh;
