//! The guest as its source had it, told to the converter.
//!
//! The converter takes the bus of a disk for that at the source: it renames the devices of that bus in the guest's fstab,
//! boot loader and resume device to those of virtio-blk. Told the target's bus, it renames nothing, and a guest with
//! `/dev/sdb1` in its fstab ends in emergency mode.
//!
//! Source: virt-v2v, `remap_block_devices`; tried with 2.2 and 2.6.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use drover_types::guest::CardSettings;

use super::addresses;
use crate::libvirt::device_name;
use crate::spec::{DiskBus, DiskSpec, MachineFirmware, MachineSpec};
use crate::xml::Xml;

/// Bus of a disk at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceBus {
    /// Any SCSI controller.
    Scsi,
    /// AHCI.
    Sata,
    /// IDE.
    Ide,
    /// NVMe.
    Nvme,
}

/// What the converter is told of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceGuest {
    /// Whether it is Windows.
    pub is_windows: bool,
    /// Bus of each disk at the source, in the order of the machine's disks.
    pub buses: Vec<SourceBus>,
    /// Network interfaces of a Linux that are to keep their names.
    pub names: Vec<NicName>,
    /// Names that its cards may have: each is kept if its network settings name it.
    pub names_maybe: Vec<NicName>,
    /// Whether a Linux gets its boot loader where a firmware without boot entries starts one.
    pub fallback: bool,
    /// What is done when it boots for the first time.
    pub first_boot: FirstBoot,
}

/// What is put into a guest for its first boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstBoot {
    /// Files that run once, in this order.
    pub scripts: Vec<PathBuf>,
    /// A package (`.deb`, `.rpm`) that a Linux installs before.
    pub package: Option<PathBuf>,
    /// What cards of Windows are given, before those files run.
    pub cards: Vec<CardSettings>,
}

impl FirstBoot {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == FirstBoot::default()
    }

    /// What is wrong with its files.
    ///
    /// # Errors
    /// The first thing.
    pub fn check(&self) -> Result<(), String> {
        for file in self.scripts.iter().chain(&self.package) {
            let failed = |why: &str| Err(format!("{} is for the first boot, and {why}", file.display()));
            match File::open(file).and_then(|file| file.metadata()) {
                Err(error) => return failed(&format!("cannot be read: {error}")),
                Ok(about) if !about.is_file() => return failed("is no file"),
                Ok(_) => {}
            }
        }
        match &self.package {
            Some(package) if install(package).is_none() => {
                Err(format!("{} is neither a .deb nor a .rpm", package.display()))
            }
            Some(package) if package.to_string_lossy().contains(':') => {
                Err(format!("{} has a colon in its path, which virt-v2v does not take", package.display()))
            }
            _ => Ok(()),
        }
    }

    /// A script of drover's own that gives cards their addresses; for no card none.
    pub fn cards_script(&self) -> Option<String> {
        (!self.cards.is_empty()).then(|| addresses::script(&self.cards))
    }

    /// What the converter is told, with that script in this file. Source: virt-customize(1).
    pub(super) fn words(&self, cards_script: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if !self.cards.is_empty() {
            words.extend(["--firstboot".into(), cards_script.into()]);
        }
        if let Some(package) = &self.package
            && let Some((name, command)) = install(package)
        {
            let mut upload = package.clone().into_os_string();
            upload.push(format!(":{FOLDER}/{name}"));
            let command = format!("{command} {FOLDER}/{name}; systemctl start qemu-guest-agent 2>/dev/null");
            words.extend(["--mkdir".into(), FOLDER.into(), "--upload".into(), upload]);
            words.extend(["--firstboot-command".into(), command.into()]);
        }
        for script in &self.scripts {
            words.extend(["--firstboot".into(), script.into()]);
        }
        words
    }
}

/// The name that a package has in the guest, and what installs it.
fn install(package: &Path) -> Option<(&'static str, &'static str)> {
    match package.extension()?.to_str()? {
        "deb" => Some(("guest-agent.deb", "dpkg -i")),
        "rpm" => Some(("guest-agent.rpm", "rpm -U --replacepkgs")),
        _ => None,
    }
}

/// Where it lies in the guest.
const FOLDER: &str = "/var/lib/drover";

/// A network interface by the MAC address that its card keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicName {
    /// MAC address, lower case with colons.
    pub mac: String,
    /// The name that the guest's configuration has for it.
    pub name: String,
}

impl NicName {
    /// What the converter is told to write: a path, a colon, a file for systemd's udev.
    ///
    /// Source: systemd.link(5); virt-customize(1), `--write`.
    pub(super) fn written(&self) -> String {
        let NicName { mac, name } = self;
        format!(
            "/etc/systemd/network/10-drover-{name}.link:[Match]\nMACAddress={mac}\n\n[Link]\nName={name}\n"
        )
    }

    /// Whether both are what they should be: they come out of a guest's files.
    pub fn is_sane(&self) -> bool {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        (1..=NAME_CHARS_MAX).contains(&self.name.len()) && self.name.chars().all(is_name) && is_mac(&self.mac)
    }
}

/// Whether a text has the letters of a MAC address, and as many.
pub(super) fn is_mac(text: &str) -> bool {
    text.len() == 17 && text.chars().all(|letter| letter.is_ascii_hexdigit() || letter == ':')
}

/// What the converter runs in a guest whose files nobody else can read: a file for each name that its network settings name and
/// that it does not give by itself. It never fails.
pub(super) fn names_script(names: &[NicName]) -> String {
    let cards: Vec<String> = names.iter().map(|NicName { name, mac }| format!("{name}/{mac}")).collect();
    NAMES_SCRIPT.replace("CARDS", &cards.join(" "))
}

const NAMES_SCRIPT: &str = r#"cd /
for card in CARDS; do
    name=${card%/*} mac=${card#*/}
    grep -qsw "$name" etc/systemd/network/*.link etc/udev/rules.d/* && continue
    [ -e "etc/sysconfig/network/ifcfg-$name" ] || grep -rqsw "$name" etc/network etc/netplan etc/systemd/network         etc/NetworkManager/system-connections etc/sysconfig/network-scripts || continue
    mkdir -p etc/systemd/network
    printf '[Match]
MACAddress=%s

[Link]
Name=%s
' "$mac" "$name" >"etc/systemd/network/10-drover-$name.link"
done
exit 0
"#;

/// What the converter runs in a Linux whose EFI system partition has no `\EFI\BOOT\BOOTX64.EFI`: the programs of the first folder
/// with a known loader are copied there, and the loader under that name too. Nothing is overwritten, and a loader that lacks some of them is not begun with. It never fails.
///
/// `fbx64.efi` is left out: shim starts it from there in place of the boot loader, and it wants to write boot entries first.
pub(super) const FALLBACK_SCRIPT: &str = r#"cd /
for folder in boot/efi/EFI/*/ efi/EFI/*/ boot/EFI/*/; do
    boot=${folder%/*/}/BOOT
    case $folder in */[bB][oO][oO][tT]/) continue ;; esac
    for loader in shimx64.efi grubx64.efi systemd-bootx64.efi; do
        [ -s "$folder$loader" ] || continue
        [ ! -e "$boot/BOOTX64.EFI" ] || exit 0
        mkdir -p "$boot"
        for file in "$folder"*.[eE][fF][iI]; do
            name=${file##*/}
            case $name in [fF][bB][xX]64.*) continue ;; esac
            [ -e "$boot/$name" ] || cp "$file" "$boot/$name" || { rm -f "$boot/$name"; exit 0; }
        done
        cp "$folder$loader" "$boot/BOOTX64.new" && mv "$boot/BOOTX64.new" "$boot/BOOTX64.EFI" || rm -f "$boot/BOOTX64.new"
        exit 0
    done
done
exit 0
"#;

/// Linux allows no more.
const NAME_CHARS_MAX: usize = 15;

/// The domain XML for the converter: a machine on these overlays, with the source's buses.
pub(super) fn converter_xml(spec: &MachineSpec, guest: &SourceGuest) -> String {
    let mut xml = Xml::new();
    xml.open("domain", &[("type", "kvm")]);
    xml.text("name", &[], &spec.name);
    // The converter reads the number alone, and takes it for KiB.
    xml.text("memory", &[("unit", "KiB")], &spec.memory_mib.saturating_mul(1024).to_string());
    xml.text("vcpu", &[], &spec.cpus.to_string());
    match spec.firmware {
        MachineFirmware::Bios => xml.open("os", &[]),
        MachineFirmware::Uefi { .. } => xml.open("os", &[("firmware", "efi")]),
    }
    xml.text("type", &[("arch", "x86_64")], "hvm");
    xml.close();
    xml.open("features", &[]);
    xml.leaf("acpi", &[]);
    xml.leaf("apic", &[]);
    xml.close();
    xml.open("devices", &[]);
    let mut placed = Placed::default();
    for (index, disk) in spec.disks.iter().enumerate() {
        let source = guest.buses.get(index).copied().unwrap_or(SourceBus::Scsi);
        write_disk(&mut xml, disk, source, &mut placed);
    }
    xml.close();
    xml.close();
    xml.finish()
}

/// How many disks of each kind of name there are.
#[derive(Default)]
struct Placed {
    sd: usize,
    hd: usize,
    vd: usize,
    nvme: usize,
}

fn write_disk(xml: &mut Xml, disk: &DiskSpec, source: SourceBus, placed: &mut Placed) {
    xml.open("disk", &[("type", "file"), ("device", "disk")]);
    xml.leaf("driver", &[("name", "qemu"), ("type", disk.format.as_str())]);
    xml.leaf("source", &[("file", &disk.path.to_string_lossy())]);
    let (bus, name) = told_bus(disk.bus, source, placed);
    xml.leaf("target", &[("dev", &name), ("bus", bus)]);
    xml.close();
}

/// The converter knows no target but virtio-blk for Linux. Where the disk keeps its name (`sda` on virtio-scsi and on
/// SATA), it is told a virtio disk, so that nothing is renamed.
fn told_bus(target: DiskBus, source: SourceBus, placed: &mut Placed) -> (&'static str, String) {
    let next = |count: &mut usize| {
        *count += 1;
        *count - 1
    };
    match (target, source) {
        (DiskBus::Scsi | DiskBus::Sata, SourceBus::Scsi | SourceBus::Sata | SourceBus::Ide) => {
            ("virtio", device_name("vd", next(&mut placed.vd)))
        }
        (_, SourceBus::Scsi) => ("scsi", device_name("sd", next(&mut placed.sd))),
        (_, SourceBus::Sata) => ("sata", device_name("sd", next(&mut placed.sd))),
        (_, SourceBus::Ide) => ("ide", device_name("hd", next(&mut placed.hd))),
        (_, SourceBus::Nvme) => ("nvme", format!("nvme{}n1", next(&mut placed.nvme))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::spec::tests::{disk, machine};

    fn targets(bus: DiskBus, sources: &[SourceBus]) -> Vec<String> {
        let mut spec = machine(Path::new("/vm"));
        spec.disks = (0..sources.len()).map(|index| disk(Path::new(&format!("/vm/{index}")), bus)).collect();
        let guest = SourceGuest { buses: sources.to_vec(), ..SourceGuest::default() };
        let xml = converter_xml(&spec, &guest);
        xml.lines().filter(|line| line.contains("<target")).map(|line| line.trim().to_string()).collect()
    }

    #[test]
    fn a_disk_that_goes_to_virtio_has_the_bus_of_its_source() {
        use SourceBus as S;
        assert_eq!(
            targets(DiskBus::Virtio, &[S::Scsi, S::Sata, S::Ide, S::Nvme]),
            [
                "<target dev='sda' bus='scsi'/>",
                "<target dev='sdb' bus='sata'/>",
                "<target dev='hda' bus='ide'/>",
                "<target dev='nvme0n1' bus='nvme'/>",
            ]
        );
    }

    #[test]
    fn a_disk_that_keeps_its_name_is_told_so_that_nothing_is_renamed() {
        for bus in [DiskBus::Scsi, DiskBus::Sata] {
            assert_eq!(
                targets(bus, &[SourceBus::Scsi, SourceBus::Scsi]),
                ["<target dev='vda' bus='virtio'/>", "<target dev='vdb' bus='virtio'/>"]
            );
        }
    }

    #[test]
    fn a_name_from_a_guests_files_is_looked_at_before_it_becomes_a_path() {
        let nic = |name: &str| NicName { mac: "00:50:56:aa:bb:cc".into(), name: name.into() };
        assert!(nic("ens192").is_sane());
        assert_eq!(
            nic("ens192").written(),
            "/etc/systemd/network/10-drover-ens192.link:[Match]\nMACAddress=00:50:56:aa:bb:cc\n\n[Link]\nName=ens192\n"
        );
        for name in ["", "../../x", "a:b", "a\nName=x", "sixteen-letters-"] {
            assert!(!nic(name).is_sane(), "{name:?}");
        }
        assert!(!NicName { mac: "00:50:56:aa:bb\n:cc".into(), name: "ens192".into() }.is_sane());
    }

    #[test]
    fn a_guest_that_nobody_can_read_keeps_the_names_that_its_settings_name() {
        let nic = |name: &str, mac: &str| NicName { mac: mac.into(), name: name.into() };
        let names = [
            nic("ens160", "00:50:56:aa:00:01"),
            nic("ens192", "00:50:56:aa:00:02"),
            nic("ens224", "00:50:56:aa:00:03"),
        ];
        let links = |files: &[(&str, &str)]| -> Vec<String> {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let script = names_script(&names).replacen("cd /", &format!("cd {}", root.path().display()), 1);
            assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
            let folder = root.path().join("etc/systemd/network");
            let written = |nic: &NicName| {
                let text =
                    std::fs::read_to_string(folder.join(format!("10-drover-{}.link", nic.name))).ok()?;
                assert!(nic.written().ends_with(&text), "{text}");
                Some(nic.name.clone())
            };
            names.iter().filter_map(written).collect()
        };
        for (file, text) in [
            ("etc/network/interfaces", "iface ens192 inet static\n"),
            ("etc/netplan/50.yaml", "    ens192:\n      dhcp4: true\n"),
            ("etc/sysconfig/network-scripts/ifcfg-lan", "DEVICE=\"ens192\"\n"),
            ("etc/sysconfig/network/ifcfg-ens192", "BOOTPROTO=static\n"),
            ("etc/NetworkManager/system-connections/a.nmconnection", "interface-name=ens192\n"),
            ("etc/systemd/network/a.network", "[Match]\nName=ens192\n"),
        ] {
            assert_eq!(links(&[(file, text)]), ["ens192"], "{file}");
            let rule =
                ("etc/udev/rules.d/70-persistent-net.rules", "ATTR{address}==\"x\", NAME=\"ens192\"\n");
            assert_eq!(links(&[(file, text), rule]), Vec::<String>::new(), "the guest names it itself");
        }
        assert_eq!(links(&[]), Vec::<String>::new());
        assert_eq!(links(&[("etc/network/interfaces", "iface ens1920 inet dhcp\n")]), Vec::<String>::new());
    }

    #[test]
    fn work_at_the_first_boot_is_told_in_its_order_and_its_files_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            std::fs::write(folder.path().join(name), "x").unwrap();
            folder.path().join(name)
        };
        let (script, package) = (put("a.sh"), put("ga.deb"));
        let mac = "00:50:56:aa:00:01".into();
        let work = FirstBoot {
            scripts: vec![script.clone()],
            package: Some(package.clone()),
            cards: vec![CardSettings { mac, ..CardSettings::default() }],
        };
        assert_eq!(work.check(), Ok(()));
        let words = work.words(Path::new("/own.bat"));
        let words: Vec<String> = words.iter().map(|it| it.to_string_lossy().into_owned()).collect();
        let upload = format!("{}:/var/lib/drover/guest-agent.deb", package.display());
        assert_eq!(
            words[..6],
            ["--firstboot", "/own.bat", "--mkdir", "/var/lib/drover", "--upload", &upload]
        );
        assert!(
            words[6] == "--firstboot-command"
                && words[7].starts_with("dpkg -i /var/lib/drover/guest-agent.deb")
        );
        assert_eq!(words[8..], ["--firstboot", &script.display().to_string()]);
        let wrong = |scripts: &[PathBuf], package: Option<PathBuf>| {
            FirstBoot { scripts: scripts.to_vec(), package, ..FirstBoot::default() }.check().unwrap_err()
        };
        assert!(wrong(&[folder.path().join("gone")], None).contains("cannot be read"));
        assert!(wrong(&[folder.path().into()], None).contains("is no file"));
        assert!(wrong(&[], Some(script)).contains("neither a .deb nor a .rpm"));
        assert!(wrong(&[], Some(put("a:b.rpm"))).contains("colon"));
    }

    #[test]
    fn a_loader_is_copied_to_where_a_firmware_without_boot_entries_looks() {
        let root = tempfile::tempdir().unwrap();
        let run = |files: &[(&str, &str)]| -> Vec<String> {
            let root = tempfile::tempdir_in(root.path()).unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let script = FALLBACK_SCRIPT.replacen("cd /", &format!("cd {}", root.path().display()), 1);
            for _ in 0..2 {
                assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
            }
            let mut found = Vec::new();
            for esp in ["boot/efi", "efi", "boot"] {
                let Ok(entries) = std::fs::read_dir(root.path().join(esp).join("EFI/BOOT")) else { continue };
                for path in entries.map(|entry| entry.unwrap().path()) {
                    let name = path.file_name().unwrap().to_string_lossy().into_owned();
                    found.push(format!("{esp} {name}={}", std::fs::read_to_string(path).unwrap()));
                }
            }
            found.sort();
            found
        };
        let debian = [
            ("boot/efi/EFI/debian/shimx64.efi", "shim"),
            ("boot/efi/EFI/debian/grubx64.efi", "grub"),
            ("boot/efi/EFI/debian/mmx64.efi", "mm"),
            ("boot/efi/EFI/debian/fbx64.efi", "fb"),
            ("boot/efi/EFI/debian/BOOTX64.CSV", "csv"),
        ];
        let whole = ["BOOTX64.EFI=shim", "grubx64.efi=grub", "mmx64.efi=mm", "shimx64.efi=shim"];
        assert_eq!(run(&debian), whole.map(|it| format!("boot/efi {it}")));
        let had = [
            &debian[..],
            &[("boot/efi/EFI/BOOT/BOOTX64.EFI", "own"), ("boot/efi/EFI/BOOT/grubx64.efi", "own")],
        ];
        let kept = ["BOOTX64.EFI=own", "grubx64.efi=own"];
        assert_eq!(run(&had.concat()), kept.map(|it| format!("boot/efi {it}")), "nothing is overwritten");
        let part = [&debian[..], &[("boot/efi/EFI/BOOT/grubx64.efi", "own")]];
        let beside = ["BOOTX64.EFI=shim", "grubx64.efi=own", "mmx64.efi=mm", "shimx64.efi=shim"];
        assert_eq!(run(&part.concat()), beside.map(|it| format!("boot/efi {it}")));
        let systemd = [("efi/EFI/systemd/systemd-bootx64.efi", "sd"), ("efi/EFI/Linux/a.efi", "kernel")];
        assert_eq!(run(&systemd), ["efi BOOTX64.EFI=sd", "efi systemd-bootx64.efi=sd"]);
        assert_eq!(run(&[("boot/EFI/alma/grubx64.efi", "grub")]).len(), 2);
        let others =
            [("boot/efi/EFI/Microsoft/bootmgfw.efi", "win"), ("boot/efi/EFI/debian/shimx64.efi", "")];
        assert_eq!(run(&others), Vec::<String>::new());
        assert_eq!(run(&[]), Vec::<String>::new());
    }

    #[test]
    fn firmware_is_told_without_its_files() {
        let mut spec = machine(Path::new("/vm"));
        assert!(converter_xml(&spec, &SourceGuest::default()).contains("<os>"));
        spec.firmware = MachineFirmware::Uefi { secure_boot: true, files: None };
        assert!(converter_xml(&spec, &SourceGuest::default()).contains("<os firmware='efi'>"));
    }
}
