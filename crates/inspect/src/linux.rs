//! What of a Linux decides whether it boots on other hardware.

use drover_types::guest::{ByPath, FreeSpace, Initramfs, Inside};

use crate::initramfs::Drivers;
use crate::network;
use crate::tree::Tree;

/// Looks into the file systems of a guest.
pub(crate) fn look(trees: &[Tree], inside: &mut Inside) {
    let root = trees.iter().find(|tree| is_root(tree));
    let boot = Boot::find(root, trees);
    if let Some(root) = root {
        inside.system = system(root);
        inside.by_path.extend(root.text("/etc/fstab").map(|text| by_path(&text)).unwrap_or_default());
        inside.vmware_tools = vmware_tools(root);
        inside.vendor_services = vendor_services(root);
        inside.interfaces = network::interfaces(root);
        inside.free.push(FreeSpace { place: "/".into(), bytes: root.free_bytes });
    }
    let Some(boot) = boot else { return };
    if boot.is_apart {
        inside.free.push(FreeSpace { place: "/boot".into(), bytes: boot.tree.free_bytes });
    }
    if boot.tree.has(&boot.path("grub")) || boot.tree.has(&boot.path("grub2")) {
        inside.boot_loader = Some("GRUB".into());
    }
    let entry = boot.entry();
    let words = entry.as_ref().map(|entry| entry.words.as_str()).unwrap_or_default();
    inside.keeps_old_names = words.split_whitespace().any(|word| word == "net.ifnames=0");
    for (key, place) in [("root=", "/, by the kernel's command line"), ("resume=", "resume device")] {
        let device = words.split_whitespace().find_map(|word| word.strip_prefix(key));
        let Some(device) = device.filter(|device| device.len() <= FIELD_BYTES_MAX) else { continue };
        if key == "root=" {
            inside.root = Some(device.to_string());
        }
        if is_path_of_disk(device) {
            inside.by_path.push(ByPath { device: device.into(), place: place.into() });
        }
    }
    let wanted = entry.and_then(|entry| entry.initrd).filter(|name| boot.tree.has(&boot.path(name)));
    let Some(name) = wanted.or_else(|| boot.newest()) else { return };
    match drivers(&boot, root, &name) {
        Ok(found) => {
            inside.initramfs = Some(Initramfs {
                path: format!("/boot/{name}"),
                virtio_blk: found.virtio_blk,
                virtio_scsi: found.virtio_scsi,
                virtio_pci: found.virtio_pci,
                ahci: found.ahci,
            });
        }
        Err(why) => inside.unseen.push(format!("/boot/{name}: {why}")),
    }
}

fn is_root(tree: &Tree) -> bool {
    ["/etc/fstab", "/etc/os-release", "/usr/lib/os-release"].iter().any(|path| tree.has(path))
}

fn system(root: &Tree) -> Option<String> {
    let text = root.text("/etc/os-release").or_else(|| root.text("/usr/lib/os-release"))?;
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim().trim_matches(['"', '\'']).chars().take(FIELD_BYTES_MAX).collect())
}

fn vmware_tools(root: &Tree) -> Option<String> {
    let signs = [
        ("/var/lib/dpkg/info/open-vm-tools.list", "open-vm-tools"),
        ("/usr/bin/vmtoolsd", "open-vm-tools"),
        ("/etc/vmware-tools/locations", "VMware Tools"),
    ];
    signs.iter().find(|(path, _)| root.has(path)).map(|(_, name)| name.to_string())
}

/// Units of VMware's that are enabled.
fn vendor_services(root: &Tree) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for wants in root.names(UNITS).iter().filter(|name| name.ends_with(".wants")).take(FOLDERS_MAX) {
        let names = root.names(&format!("{UNITS}/{wants}"));
        found.extend(names.iter().filter_map(|name| vendor_service(name)).take(SERVICES_MAX));
    }
    found.sort();
    found.dedup();
    found.truncate(SERVICES_MAX);
    found
}

fn vendor_service(unit: &str) -> Option<String> {
    let name = unit.strip_suffix(".service").filter(|name| name.len() <= FIELD_BYTES_MAX)?;
    VENDOR_UNITS.iter().any(|start| name.starts_with(start)).then(|| name.to_string())
}

/// Of the tools; of NSX and its introspection of guests; the agents of Log Insight and of vRealize Operations.
const VENDOR_UNITS: [&str; 8] =
    ["open-vm-tools", "vmtoolsd", "vgauth", "vmware", "nsx", "vsepd", "liagent", "ucp-"];
const UNITS: &str = "/etc/systemd/system";
const FOLDERS_MAX: usize = 64;
const SERVICES_MAX: usize = 16;

/// Lines of an fstab that name a disk by where it was found: on another bus it is found elsewhere.
fn by_path(text: &str) -> Vec<ByPath> {
    let line = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (device, place) = (words.next()?, words.next()?);
        let place = if place == "none" { "swap" } else { place };
        let is_short = device.len() <= FIELD_BYTES_MAX && place.len() <= FIELD_BYTES_MAX;
        (is_short && is_path_of_disk(device)).then(|| ByPath { device: device.into(), place: place.into() })
    };
    text.lines().filter_map(line).take(BY_PATH_MAX).collect()
}

/// Bounds on what a guest's files may make drover keep.
const BY_PATH_MAX: usize = 64;
const FIELD_BYTES_MAX: usize = 200;

/// Names of LVM and of file systems' own (`/dev/mapper`, `/dev/disk/by-uuid`) stay.
fn is_path_of_disk(device: &str) -> bool {
    ["/dev/sd", "/dev/hd", "/dev/nvme", "/dev/disk/by-path/", "/dev/disk/by-id/"]
        .iter()
        .any(|start| device.starts_with(start))
}

/// Where kernels lie.
struct Boot<'a> {
    tree: &'a Tree,
    /// Whether it is a file system of its own.
    is_apart: bool,
}

/// What the boot loader starts.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// The kernel's command line.
    words: String,
    /// Its initramfs, as a name in the folder of kernels.
    initrd: Option<String>,
}

impl<'a> Boot<'a> {
    fn find(root: Option<&'a Tree>, trees: &'a [Tree]) -> Option<Boot<'a>> {
        let here = root.map(|tree| Boot { tree, is_apart: false }).filter(|boot| boot.newest().is_some());
        let apart = trees.iter().filter(|tree| !is_root(tree)).map(|tree| Boot { tree, is_apart: true });
        here.or_else(|| {
            apart.into_iter().find(|boot| {
                boot.newest().is_some() || ["/grub", "/grub2"].iter().any(|it| boot.tree.has(it))
            })
        })
    }

    fn path(&self, name: &str) -> String {
        if self.is_apart { format!("/{name}") } else { format!("/boot/{name}") }
    }

    /// The entry that starts unless somebody chooses another: the first.
    fn entry(&self) -> Option<Entry> {
        let grub = ["grub/grub.cfg", "grub2/grub.cfg"];
        let of_grub = grub.iter().filter_map(|name| self.tree.text(&self.path(name)));
        let entry = of_grub.filter_map(|text| entry_of(&text)).next();
        // Newer systems keep entries in files of their own, which the configuration only includes.
        entry.or_else(|| {
            let folder = self.path("loader/entries");
            let is_meant = |name: &String| name.ends_with(".conf") && !name.contains("rescue");
            let mut names: Vec<String> = self.tree.names(&folder).into_iter().filter(is_meant).collect();
            names.sort_by_key(|name| natural(name));
            entry_of(&self.tree.text(&format!("{folder}/{}", names.last()?))?)
        })
    }

    /// The newest initramfs by its name.
    fn newest(&self) -> Option<String> {
        let is_initramfs = |name: &String| {
            (name.starts_with("initrd") || name.starts_with("initramfs"))
                && !["rescue", "kdump", ".old", ".bak", "-bak"].iter().any(|word| name.contains(word))
        };
        let names = self.tree.names(&self.path("")).into_iter().filter(is_initramfs);
        names.max_by_key(|name| natural(name))
    }
}

/// The first kernel of a configuration of GRUB, or of an entry file.
fn entry_of(text: &str) -> Option<Entry> {
    let mut entry: Option<Entry> = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), &mut entry) {
            (Some("linux" | "linux16" | "linuxefi"), None) => {
                let rest: Vec<&str> = words.skip(1).collect();
                entry = Some(Entry { words: rest.join(" "), initrd: None });
            }
            // The next entry.
            (Some("linux" | "linux16" | "linuxefi" | "menuentry"), Some(_)) => break,
            (Some("options"), Some(entry)) => entry.words = words.collect::<Vec<_>>().join(" "),
            // Microcode comes first, where there is any.
            (Some("initrd" | "initrd16" | "initrdefi"), Some(entry)) => {
                // A variable of GRUB's is none that is known here (`$tuned_initrd`).
                let name = words.rfind(|path| !path.starts_with('$'));
                let name = name.and_then(|path| path.rsplit('/').next());
                entry.initrd = name.map(str::to_string);
            }
            _ => {}
        }
    }
    entry
}

/// Numbers count as numbers: `6.1.0-9` comes before `6.1.0-10`.
fn natural(name: &str) -> Vec<(u64, String)> {
    let mut parts: Vec<(u64, String)> = vec![(0, String::new())];
    for letter in name.chars() {
        let (number, word) = parts.last_mut().expect("there is always one");
        match letter.to_digit(10) {
            Some(digit) if word.is_empty() => {
                *number = number.saturating_mul(10).saturating_add(digit.into())
            }
            Some(digit) => parts.push((digit.into(), String::new())),
            None => word.push(letter),
        }
    }
    parts
}

fn drivers(boot: &Boot<'_>, root: Option<&Tree>, name: &str) -> Result<Drivers, String> {
    let file = boot.tree.open(&boot.path(name))?;
    let mut drivers = Drivers::of_initramfs(file).map_err(|error| error.to_string())?;
    // `initrd.img-6.1.0-56-amd64`, `initramfs-5.14.0-427.el9.x86_64.img`
    let version = name.split_once('-').map(|(_, version)| version.trim_end_matches(".img"));
    if let (Some(root), Some(version)) = (root, version) {
        let list = root.text(&format!("/lib/modules/{version}/modules.builtin"));
        drivers.add_builtin(&list.unwrap_or_default());
    }
    Ok(drivers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_name_a_disk_by_where_it_was_found_are_told() {
        let text = "# /dev/sda9 /x\nUUID=1-2 / ext4 defaults 0 1\n/dev/sdb1\t/data ext4 defaults 0 2 # here\n\
                    /dev/mapper/vg-home /home ext4\n/dev/sda2 none swap sw 0 0\n/dev/sr0 /media iso9660\n\
                    /dev/disk/by-path/pci-0000:03:00.0-scsi-0:0:1:0-part1 /logs xfs\n";
        let found: Vec<String> =
            by_path(text).iter().map(|it| format!("{} {}", it.device, it.place)).collect();
        assert_eq!(
            found,
            [
                "/dev/sdb1 /data",
                "/dev/sda2 swap",
                "/dev/disk/by-path/pci-0000:03:00.0-scsi-0:0:1:0-part1 /logs"
            ]
        );
    }

    #[test]
    fn units_of_vmware_are_known_by_their_names() {
        let units =
            ["vmtoolsd.service", "vgauthd.service", "nsx-agent.service", "vsepd.service", "liagentd.service"];
        assert!(units.iter().all(|unit| vendor_service(unit).is_some()));
        assert_eq!(vendor_service("open-vm-tools.service").as_deref(), Some("open-vm-tools"));
        assert!(
            ["ssh.service", "vmtoolsd.socket", "nsswitch.service"]
                .iter()
                .all(|unit| vendor_service(unit).is_none())
        );
    }

    #[test]
    fn the_first_entry_of_grub_counts() {
        let text = "menuentry 'Debian' {\n\tlinux /boot/vmlinuz-6.1 root=UUID=1 ro quiet\n\tinitrd /boot/early.cpio \
                    /boot/initrd.img-6.1\n}\nmenuentry 'old' {\n\tlinux /boot/vmlinuz-5 root=/dev/sda1\n\tinitrd \
                    /boot/initrd.img-5\n}\n";
        let entry = entry_of(text).unwrap();
        assert_eq!(
            entry,
            Entry { words: "root=UUID=1 ro quiet".into(), initrd: Some("initrd.img-6.1".into()) }
        );
        let text = "title RHEL\nversion 5.14\nlinux /vmlinuz-5.14\ninitrd /initramfs-5.14.img $tuned_initrd\noptions root=/dev/sda2 ro\n";
        let entry = entry_of(text).unwrap();
        assert_eq!(
            (entry.words.as_str(), entry.initrd.as_deref()),
            ("root=/dev/sda2 ro", Some("initramfs-5.14.img"))
        );
        assert_eq!(entry_of("set timeout=5\n"), None);
    }

    #[test]
    fn versions_are_in_their_order() {
        let mut names =
            ["initrd.img-6.1.0-10-amd64", "initrd.img-6.1.0-9-amd64", "initrd.img-5.10.0-30-amd64"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names[2], "initrd.img-6.1.0-10-amd64");
        assert_eq!(names[0], "initrd.img-5.10.0-30-amd64");
    }
}
