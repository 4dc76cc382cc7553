//! What tells one state of a disk from another: sizes and times of change of the files that hold its data.
//!
//! They are asked of the datastores' browsers, which open no file: a file that a vanished NFC client still has locked is listed
//! as any other, while the datastore's server refuses to serve it for half an hour.

use std::collections::BTreeMap;
use std::time::Duration;

use drover_http::told_identity;
use drover_types::inventory::{Vm, VmDisk};

use crate::collect::Object;
use crate::device::split_path;
use crate::disk::{DISK_PROPERTIES, disks_of, identity};
use crate::error::{VsphereError, VsphereErrorKind};
use crate::operations::vm_ref;
use crate::session::{Call, Inner, Session};
use crate::soap::{Moref, tag};
use crate::time::{http_text_of, seconds_of};
use crate::vm::decode_name;
use crate::xml::Element;

/// A listing of one folder of a datastore.
const LISTING_TIME_MAX: Duration = Duration::from_secs(120);
/// How the files are called that hold the data of `NAME.vmdk`: a base, and deltas of either form. What else there is (vSAN and
/// vVol objects, raw mappings) tells no time of its writes.
const DATA_SUFFIXES: [&str; 3] = ["-flat.vmdk", "-delta.vmdk", "-sesparse.vmdk"];

/// A file as a browser lists it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    size: u64,
    modified_s: u64,
}

/// A disk as a snapshot froze it.
#[derive(Clone, Debug)]
pub struct FrozenDisk {
    /// The disk.
    pub disk: VmDisk,
    /// Where its data lies.
    pub files: DiskFiles,
}

/// The files that a disk is a chain of, and who lists them.
#[derive(Clone, Debug)]
pub struct DiskFiles {
    /// From its own down to the base.
    chain: Vec<String>,
    /// Of the datastores that its VM has files in, by their names.
    browsers: BTreeMap<String, Moref>,
}

impl Session {
    /// A disk as a snapshot froze it, with its files: in one call, since it is asked for each disk of a fleet. `None` if the disk is not
    /// in the snapshot.
    ///
    /// # Errors
    /// Also when the snapshot is not there (any more).
    pub fn frozen_disk(&self, snapshot: &str, key: i32) -> Result<Option<FrozenDisk>, VsphereError> {
        let op = format!("look at snapshot {snapshot}");
        let object = Moref::new("VirtualMachineSnapshot", snapshot);
        let (object, files) = self.inner.with_files(&op, &object, key)?;
        let disk = disks_of(&object).into_iter().find(|disk| disk.key == key);
        Ok(disk.map(|disk| FrozenDisk { disk, files }))
    }

    /// The files of a disk of a VM as it is now.
    ///
    /// # Errors
    /// Also when the VM is not there (any more).
    pub fn disk_files(&self, vm: &Vm, disk: &VmDisk) -> Result<DiskFiles, VsphereError> {
        let op = format!("look at the files of {} of {}", disk.label, vm.name);
        self.inner.with_files(&op, &vm_ref(&vm.id), disk.key).map(|(_, files)| files)
    }

    /// What tells the state of a disk from its others, as a snapshot froze it, or of a VM that is off: all files
    /// of its chain with their sizes and times of change. Whoever wrote to the disk meanwhile has changed one of the times, a
    /// snapshot that was gone back to brings a new file, and a disk that was moved another name; another host or another
    /// snapshot of the same content changes nothing. Of a disk that HTTPS can read it is the very identity that it has there.
    ///
    /// # Errors
    /// [`VsphereErrorKind::Unsupported`] for disks whose data is in no file that tells its time: objects of vSAN and vVols, raw
    /// mappings; [`VsphereErrorKind::PermissionDenied`] without the privilege `Datastore.Browse`.
    pub fn disk_state(&self, vm: &Vm, disk: &VmDisk, files: &DiskFiles) -> Result<String, VsphereError> {
        let op = format!("look at the files of {} of {}", disk.label, vm.name);
        let untold = |why: String| VsphereError::new(VsphereErrorKind::Unsupported, &op, why);
        if disk.rdm.is_some() {
            return Err(untold(format!("{} is a raw device mapping", disk.path)));
        }
        let DiskFiles { chain, browsers } = files;
        if chain.first() != Some(&disk.path) {
            return Err(untold(format!("{} is not the disk's file any more", disk.path)));
        }
        let mut files = Vec::new();
        for path in chain {
            let found = self.inner.data_files(&op, browsers, path)?;
            if found.is_empty() {
                return Err(untold(format!("no file with the data of {path} is listed in its datastore")));
            }
            files.extend(found);
        }
        Ok(told(vm, disk, chain, &files))
    }
}

/// The files of a disk, from its own down to the base.
fn chain(hardware: &Element, key: i32) -> Vec<String> {
    let is_it = |device: &&Element| device.kind == "VirtualDisk" && device.number_at("key") == Some(key);
    let backing = hardware.all("device").find(is_it).and_then(|device| device.child("backing"));
    let files = std::iter::successors(backing, |backing| backing.child("parent"));
    files.map(|backing| backing.string_at("fileName")).collect()
}

/// A VM, or a snapshot and from there its VM, and the VM's datastores.
fn with_datastores(object: &Moref) -> String {
    let stores = "<selectSet xsi:type=\"TraversalSpec\"><name>datastores</name><type>VirtualMachine</type><path>datastore</path>\
                  <skip>false</skip></selectSet>";
    let way = match object.kind.as_str() {
        "VirtualMachine" => stores.to_string(),
        kind => format!(
            "<selectSet xsi:type=\"TraversalSpec\"><name>vm</name><type>{kind}</type><path>vm</path><skip>true</skip>{stores}</selectSet>"
        ),
    };
    format!("<objectSet>{}<skip>false</skip>{way}</objectSet>", object.tag("obj"))
}

fn told(vm: &Vm, disk: &VmDisk, chain: &[String], files: &[Listed]) -> String {
    let object = identity(vm, disk);
    if let ([_], [file]) = (chain, files)
        && file.name.ends_with(DATA_SUFFIXES[0])
    {
        // By the disk's size: a browser may tell of a thin file what it takes up.
        let state = told_identity(disk.capacity_bytes, "-", &http_text_of(file.modified_s));
        return format!("{object} {state}");
    }
    let files = files.iter().map(|it| format!("{} size={} modified={}", it.name, it.size, it.modified_s));
    format!("{object} chain={} files={}", chain.join(" < "), files.collect::<Vec<_>>().join(", "))
}

impl Inner {
    /// A VM or a snapshot of one with its hardware, and the files of one of its disks.
    fn with_files(&self, op: &str, object: &Moref, key: i32) -> Result<(Object, DiskFiles), VsphereError> {
        let paths: &[(&str, &[&str])] =
            &[(&object.kind, DISK_PROPERTIES), ("Datastore", &["name", "browser"])];
        let mut found = self.retrieve(op, paths, &with_datastores(object))?;
        let browser = |it: &Object| Some((decode_name(&it.string("name")), Moref::of(it.get("browser")?)));
        let browsers = found.iter().filter_map(browser).collect();
        let at = found.iter().position(|it| it.moref == *object).ok_or_else(|| {
            VsphereError::new(VsphereErrorKind::NotFound, op, format!("{} is not there", object.id))
        })?;
        let object = found.swap_remove(at);
        let chain = object.get("config.hardware").map(|hardware| chain(hardware, key)).unwrap_or_default();
        Ok((object, DiskFiles { chain, browsers }))
    }

    /// The files that hold the data of a disk's file.
    fn data_files(
        &self,
        op: &str,
        browsers: &BTreeMap<String, Moref>,
        path: &str,
    ) -> Result<Vec<Listed>, VsphereError> {
        let untold = |why: String| VsphereError::new(VsphereErrorKind::Unsupported, op, why);
        let parts = split_path(path).and_then(|(store, file)| {
            let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
            Some((store, folder, name.strip_suffix(".vmdk")?))
        });
        let Some((store, folder, stem)) = parts else {
            return Err(untold(format!("'{path}' is no path of a disk file")));
        };
        let Some(browser) = browsers.get(store) else {
            return Err(untold(format!("the VM's datastore {store} is not shown to this user")));
        };
        let names = DATA_SUFFIXES.map(|suffix| format!("{stem}{suffix}"));
        let wanted: String = names.iter().map(|name| tag("matchPattern", name)).collect();
        // In the order of the schema.
        let arguments = format!(
            "{}<searchSpec><details><fileType>false</fileType><fileSize>true</fileSize>\
             <modification>true</modification><fileOwner>false</fileOwner></details>{wanted}</searchSpec>",
            tag("datastorePath", format!("[{store}] {folder}").trim_end()),
        );
        let (this, arguments) = (browser, arguments.as_str());
        let call = Call { op, method: "SearchDatastore_Task", this, arguments, is_read: true };
        let result = self.run_task(&call, LISTING_TIME_MAX)?.unwrap_or_default();
        // A name may hold what means something in a pattern, and then others match, too.
        let own =
            |file: &&Element| file.text_at("path").is_some_and(|path| names.iter().any(|it| it == path));
        let listed = |file: &Element| {
            let listed = listed(file);
            listed.ok_or_else(|| untold(format!("size and time of {} are not told", file.string_at("path"))))
        };
        result.all("file").filter(own).map(listed).collect()
    }
}

fn listed(file: &Element) -> Option<Listed> {
    Some(Listed {
        name: file.string_at("path"),
        size: file.number_at("fileSize")?,
        modified_s: seconds_of(file.text_at("modification")?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    #[test]
    fn the_files_of_a_disk_are_those_of_its_whole_chain() {
        let device = |key: i32, files: &[&str]| {
            let backing = files.iter().rev().fold(String::new(), |below, file| match below.is_empty() {
                true => format!("<fileName>{file}</fileName>"),
                false => format!("<fileName>{file}</fileName><parent>{below}</parent>"),
            });
            format!(
                "<device xmlns:x=\"http://www.w3.org/2001/XMLSchema-instance\" x:type=\"VirtualDisk\"><key>{key}</key>\
                 <backing>{backing}</backing></device>"
            )
        };
        let two = device(2001, &["[a] b/c-2.vmdk", "[a] b/c-1.vmdk", "[d] e/f.vmdk"]);
        let text = format!("<hardware>{}{two}</hardware>", device(2000, &["[a] x.vmdk"]));
        let hardware = xml::parse(&text).unwrap();
        assert_eq!(chain(&hardware, 2000), ["[a] x.vmdk"]);
        assert_eq!(chain(&hardware, 2001), ["[a] b/c-2.vmdk", "[a] b/c-1.vmdk", "[d] e/f.vmdk"]);
        assert!(chain(&hardware, 2002).is_empty());
    }

    #[test]
    fn every_file_and_every_name_counts() {
        let vm = Vm { instance_uuid: "52".into(), ..Vm::default() };
        let disk = VmDisk { key: 2000, path: "[a] b/c-1.vmdk".into(), ..VmDisk::default() };
        let file = |name: &str, size, modified_s| Listed { name: name.into(), size, modified_s };
        let state =
            |parent: &str, files: &[Listed]| told(&vm, &disk, &[disk.path.clone(), parent.into()], files);
        let is = state("[a] b/c.vmdk", &[file("c-1-delta.vmdk", 5, 7), file("c-flat.vmdk", 9, 8)]);
        for other in [
            state("[a] d/c.vmdk", &[file("c-1-delta.vmdk", 5, 7), file("c-flat.vmdk", 9, 8)]),
            state("[a] b/c.vmdk", &[file("c-1-delta.vmdk", 5, 7), file("c-flat.vmdk", 9, 9)]),
            state("[a] b/c.vmdk", &[file("c-1-delta.vmdk", 6, 7), file("c-flat.vmdk", 9, 8)]),
            state("[a] b/c.vmdk", &[file("c-1-sesparse.vmdk", 5, 7), file("c-flat.vmdk", 9, 8)]),
        ] {
            assert_ne!(is, other);
        }
    }

    #[test]
    fn a_file_without_time_or_size_is_none() {
        let file = |text: &str| listed(&xml::parse(&format!("<file><path>a</path>{text}</file>")).unwrap());
        let (size, time) = ("<fileSize>5</fileSize>", "<modification>1970-01-01T00:01:00.5Z</modification>");
        assert_eq!(
            file(&format!("{size}{time}")),
            Some(Listed { name: "a".into(), size: 5, modified_s: 60 })
        );
        assert!(file(size).is_none() && file(time).is_none());
        assert!(file(&format!("{size}<modification>today</modification>")).is_none());
    }
}
