//! Disks to copy, and the places they are copied to.

use std::fs::File;
use std::io::{BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use drover_lab::{Drover, PASSWORD};
use tempfile::TempDir;

use crate::dice::Dice;
use crate::run::{Ended, program};
use crate::secrets::look_below;
use crate::tally::{Kind, Violation};

/// Disks of the same size with different content: whoever's bytes are there is told by them.
pub const DISK_BYTES: usize = (1 << 20) + 512;

/// What all rounds share.
pub struct Pool {
    folder: TempDir,
    pub disks: Vec<Disk>,
    rounds: AtomicU64,
}

pub struct Disk {
    pub content: Vec<u8>,
    pub raw: String,
    pub qcow2: String,
    /// An appliance that holds it.
    pub appliance: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Format {
    Raw,
    Qcow2,
}

/// What stands at the target before anybody copies there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Before {
    Nothing,
    Empty,
    Sparse,
    /// Somebody's bytes.
    Foreign,
    /// An image that was made and never written.
    Made,
}

impl Pool {
    /// `None`, after a printed line, without the program that makes qcow2 images.
    pub fn new() -> Option<Pool> {
        if Command::new("qemu-img").arg("--version").output().is_err() {
            println!("skipped: qemu-img is not installed");
            return None;
        }
        let folder = on_memory();
        let disk = |number: u64| {
            let content = content(number);
            let path =
                |ending: &str| folder.path().join(format!("disk{number}.{ending}")).display().to_string();
            let (raw, qcow2) = (path("raw"), path("qcow2"));
            std::fs::write(&raw, &content).unwrap();
            qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &raw, &qcow2]).unwrap();
            Disk { content, appliance: appliance(folder.path(), number, &raw), raw, qcow2 }
        };
        let disks = (0..4).map(disk).collect();
        Some(Pool { folder, disks, rounds: AtomicU64::new(0) })
    }

    /// A place for one round.
    pub fn place(&self) -> Place {
        let number = self.rounds.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.path().join(format!("round{number}"));
        std::fs::create_dir(&folder).unwrap();
        Place::new(folder)
    }
}

/// Where fsync costs nothing, if there is such a place: rounds are about order, not about disks.
fn on_memory() -> TempDir {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("drover-adversaries-");
    let on_memory = std::env::var_os("DROVER_SOAK_FOLDER").unwrap_or("/dev/shm".into());
    builder.tempdir_in(on_memory).or_else(|_| builder.tempdir()).unwrap()
}

/// Data with holes between, and an end off every boundary.
fn content(number: u64) -> Vec<u8> {
    let mut dice = Dice::new(number + 77);
    let mut content = vec![0; DISK_BYTES];
    for block in content.chunks_mut(64 << 10) {
        // Blocks of zeros at other places in each.
        if !dice.percent(20) {
            block.iter_mut().for_each(|byte| *byte = dice.roll(256) as u8);
        }
    }
    content
}

pub fn qemu_img(args: &[&str]) -> Result<(), String> {
    let output = Command::new("qemu-img").args(args).output().unwrap();
    let said = || format!("qemu-img {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then_some(()).ok_or_else(said)
}

/// An appliance of one disk: the VM `web 01`.
fn appliance(folder: &Path, number: u64, raw: &str) -> String {
    let name = format!("appliance{number}");
    let vmdk = folder.join(format!("{name}.vmdk")).display().to_string();
    qemu_img(&["convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized", raw, &vmdk]).unwrap();
    let text = OVF.replace("FILE", &format!("{name}.vmdk")).replace("CAPACITY", &DISK_BYTES.to_string());
    let path = folder.join(format!("{name}.ovf"));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

const OVF: &str = r#"<?xml version="1.0"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
  xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData">
  <References><File ovf:href="FILE" ovf:id="file1"/></References>
  <DiskSection><Info/><Disk ovf:capacity="CAPACITY" ovf:diskId="d1" ovf:fileRef="file1"/></DiskSection>
  <VirtualSystem ovf:id="web01"><Info/><Name>web 01</Name>
    <OperatingSystemSection ovf:id="96"><Info/><Description>debian12_64Guest</Description></OperatingSystemSection>
    <VirtualHardwareSection><Info/>
      <Item><rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType>
        <rasd:VirtualQuantity>1</rasd:VirtualQuantity></Item>
      <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:InstanceID>2</rasd:InstanceID>
        <rasd:ResourceType>4</rasd:ResourceType><rasd:VirtualQuantity>64</rasd:VirtualQuantity></Item>
      <Item><rasd:Address>0</rasd:Address><rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceType>6</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:ElementName>Hard disk 1</rasd:ElementName>
        <rasd:HostResource>ovf:/disk/d1</rasd:HostResource><rasd:InstanceID>4</rasd:InstanceID>
        <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
    </VirtualHardwareSection>
  </VirtualSystem>
</Envelope>
"#;

/// A folder with a target and a drover; removed when dropped.
pub struct Place {
    pub folder: PathBuf,
    pub drover: Drover,
    /// The target lies where `drover import` puts the image of `web 01`.
    is_imported: bool,
}

impl Place {
    fn new(folder: PathBuf) -> Place {
        let drover = Drover::new(program(), folder.join("state"));
        Place { folder, drover, is_imported: false }
    }

    /// From now on the target is the image of an imported VM.
    pub fn import_there(&mut self) {
        std::fs::create_dir_all(self.folder.join("vms/web-01")).unwrap();
        self.is_imported = true;
    }

    pub fn target(&self, format: Format) -> PathBuf {
        self.folder.join(match format {
            Format::Raw if self.is_imported => "vms/web-01/web-01-0.raw",
            Format::Raw => "target.raw",
            Format::Qcow2 => "target.qcow2",
        })
    }

    pub fn prepare(&self, format: Format, before: Before) {
        let path = self.target(format);
        match (before, format) {
            (Before::Nothing, _) => {}
            (Before::Empty, _) => drop(File::create(&path).unwrap()),
            (Before::Sparse, _) | (Before::Made, Format::Raw) => {
                File::create(&path).unwrap().set_len(DISK_BYTES as u64).unwrap();
            }
            (Before::Foreign, _) => std::fs::write(&path, foreign()).unwrap(),
            (Before::Made, Format::Qcow2) => {
                let (path, size) = (path.display().to_string(), DISK_BYTES.to_string());
                qemu_img(&["create", "-q", "-f", "qcow2", &path, &size]).unwrap();
            }
        }
    }

    /// What a guest would read there; the reason if nobody can.
    pub fn content(&self, format: Format) -> Result<Vec<u8>, String> {
        let path = self.target(format);
        let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        if format == Format::Raw {
            return read(&path);
        }
        let out = self.folder.join("read.raw");
        let text = |path: &Path| path.display().to_string();
        qemu_img(&["convert", "-f", "qcow2", "-O", "raw", &text(&path), &text(&out)])?;
        let mut content = read(&out)?;
        content.truncate(DISK_BYTES);
        Ok(content)
    }

    pub fn holds(&self, format: Format, disk: &Disk) -> Result<(), String> {
        match self.content(format)? {
            found if found == disk.content => Ok(()),
            found => Err(difference(&found, &disk.content)),
        }
    }

    /// Blocks of data that the journal says are on the target.
    pub fn recorded(&self, format: Format) -> u64 {
        let Ok(file) = File::open(drover_mover::journal_path(&self.target(format))) else { return 0 };
        drover_copy::replay(&mut BufReader::new(file)).map_or(0, |replay| replay.leaves.known_blocks())
    }

    pub fn look_for_secrets(&self) -> Result<(), Violation> {
        look_below(&self.folder, &[PASSWORD.to_string()], &["trace"])
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A strace that traced what was killed may still be writing there.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Somebody's bytes, as many as a disk has.
pub fn foreign() -> Vec<u8> {
    b"somebody's own bytes. ".iter().copied().cycle().take(DISK_BYTES).collect()
}

/// Makes a file of somebody's out of a target, whatever there was.
pub fn scribble(path: &Path) {
    let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all_at(&foreign(), 0).unwrap();
    (&file).flush().unwrap();
}

fn difference(found: &[u8], wanted: &[u8]) -> String {
    if found.len() != wanted.len() {
        return format!("{} bytes are there, not {}", found.len(), wanted.len());
    }
    let blocks = found.chunks(64 << 10).zip(wanted.chunks(64 << 10));
    let wrong = blocks.enumerate().filter(|(_, (found, wanted))| found != wanted);
    let wrong: Vec<String> = wrong.map(|(block, _)| block.to_string()).collect();
    format!("blocks {} differ", wrong.join(" "))
}

pub fn differs(ended: &Ended, why: &str, story: &str) -> Violation {
    Violation::new(Kind::Differs, format!("{why}; {story}; code {:?}: {}", ended.code, ended.said))
}
