//! Guests by their files: disks that are made without mounting anything, and a stand-in for what converts them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::MIB;

/// A Debian that knows only VMware's controllers; `more` are files of its initramfs.
pub fn debian(folder: &Path, name: &str, more: &[&str]) -> PathBuf {
    let tree = folder.join(format!("{name}.tree"));
    let put = |path: &str, text: &str| {
        let path = tree.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
    put("etc/fstab", "UUID=1-2 / ext4 defaults 0 1\n/dev/sdb1 /data ext4 defaults 0 2\n");
    put("etc/network/interfaces", "auto ens192\niface ens192 inet static\n  address 192.0.2.7/24\n");
    put("var/lib/dpkg/info/open-vm-tools.list", "/usr/bin/vmtoolsd\n");
    put("etc/systemd/system/multi-user.target.wants/nsx-agent.service", "");
    put(
        "boot/grub/grub.cfg",
        "menuentry 'Debian' {\n linux /boot/vmlinuz-6.1.0 root=UUID=1-2 ro\n initrd /boot/initrd.img-6.1.0\n}\n",
    );
    let drivers = folder.join(format!("{name}.initramfs"));
    for file in ["init", "usr/lib/modules/6.1.0/kernel/drivers/scsi/vmw_pvscsi.ko"].iter().chain(more) {
        let path = drivers.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    let packed = format!("cd '{}' && find . | cpio -o -H newc --quiet | gzip", drivers.display());
    let packed = Command::new("sh").args(["-c", &packed]).output().unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    std::fs::write(tree.join("boot/initrd.img-6.1.0"), packed.stdout).unwrap();
    disk_of(folder, name, &tree)
}

/// The folder of the guest that `lab/guests/make-vmware-guest` makes, and what it says of itself once it is converted; `None`, after a
/// printed line, where it is not made.
pub fn guest_of_vmware() -> Option<(PathBuf, String)> {
    let folder = drover_lab::lab_folder().join("vmware");
    match std::fs::read_to_string(folder.join("expect")) {
        Ok(expect) => Some((folder, expect)),
        Err(_) => {
            let is_needed = std::env::var_os("DROVER_NEEDS_V2V").is_some();
            assert!(!is_needed, "DROVER_NEEDS_V2V is set, and there is no guest");
            println!("skipped: no guest (`lab/guests/make-vmware-guest target/lab/vmware`, as root)");
            None
        }
    }
}

/// Bytes of a disk of `disk_of`; the last MiB belongs to no partition.
pub const DISK_BYTES: u64 = 32 * MIB;

/// A disk with one partition, an ext4 that holds the tree.
pub fn disk_of(folder: &Path, name: &str, tree: &Path) -> PathBuf {
    let (part, disk) = (folder.join(format!("{name}.part")), folder.join(name));
    let part_file = std::fs::File::create(&part).unwrap();
    part_file.set_len(30 * MIB).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-d"]).arg(tree).arg(&part);
    assert!(mke2fs.status().unwrap().success());
    let script = "label: dos\nstart=1MiB size=30MiB type=83 bootable\n";
    partition(&disk, DISK_BYTES, script);
    let mut bytes = std::fs::read(&disk).unwrap();
    bytes[MIB as usize..31 * MIB as usize].copy_from_slice(&std::fs::read(&part).unwrap());
    std::fs::write(&disk, bytes).unwrap();
    disk
}

/// A Debian that boots from virtio by UEFI, and whose EFI system partition has its loader in a folder of its own alone. Gives the disk, and
/// a file with that partition as it is with a loader for firmware without boot entries; `None`, after a printed line, without mtools.
pub fn uefi_debian(folder: &Path, name: &str) -> Option<(PathBuf, PathBuf)> {
    debian(folder, name, &VIRTIO);
    let (disk, esp, root) =
        (folder.join(name), folder.join(format!("{name}.esp")), folder.join(format!("{name}.root")));
    let tree = folder.join(format!("{name}.tree"));
    std::fs::write(tree.join("etc/fstab"), "UUID=1-2 / ext4 defaults 0 1\n").unwrap();
    std::fs::remove_file(&disk).unwrap();
    let make = "command -v mkfs.vfat mcopy mmd >&2 || exit 77\nexport MTOOLS_SKIP_CHECK=1\n\
                truncate -s 20M \"$3\"\nmke2fs -q -F -t ext4 -d \"$4\" \"$3\"\ntruncate -s 8M \"$1\"\nmkfs.vfat \"$1\" >&2\n\
                { printf MZ; head -c 98 /dev/zero; } >\"$1.pe\"\nmmd -i \"$1\" ::/EFI ::/EFI/debian\n\
                mcopy -i \"$1\" \"$1.pe\" ::/EFI/debian/shimx64.efi\ncp \"$1\" \"$2\"\n\
                mmd -i \"$1\" ::/EFI/BOOT\nmcopy -i \"$1\" \"$1.pe\" ::/EFI/BOOT/BOOTX64.EFI";
    let without = folder.join(format!("{name}.without"));
    let made = Command::new("sh")
        .args(["-ec", make, "sh"])
        .args([&esp, &without, &root, &tree])
        .env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()))
        .output()
        .unwrap();
    if made.status.code() == Some(77) {
        println!("skipped: no mkfs.vfat or mtools");
        return None;
    }
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    partition(&disk, DISK_BYTES, "label: gpt\nstart=1MiB size=8MiB type=U\nstart=9MiB size=20MiB type=L\n");
    let mut bytes = std::fs::read(&disk).unwrap();
    for (part, at) in [(&without, MIB as usize), (&root, 9 * MIB as usize)] {
        let part = std::fs::read(part).unwrap();
        bytes[at..][..part.len()].copy_from_slice(&part);
    }
    std::fs::write(&disk, bytes).unwrap();
    Some((disk, esp))
}

/// What a stand-in of [`put_converter`] does that is to put this partition, as [`uefi_debian`] gives it, into its guest's disk.
pub fn puts_loader(esp: &Path) -> String {
    format!(
        "[ \"$1\" != --help ] || {{ echo --write; exit; }}\n[ \"$3\" ] || exit 0\n\
         case \"$1 $2\" in --run-command*BOOTX64.EFI*) ;; *) echo \"told $*\"; exit 1;; esac\n\
         file=$(sed -n \"s/.*<source file='\\([^']*\\)'.*/\\1/p\" \"$5\")\n\
         qemu-io -f qcow2 -c 'write -q -s {} 1M 8M' \"$file\" || exit 1\n{HAS_DRIVERS}",
        esp.display()
    )
}

/// A disk with one partition that begins as one of NTFS does.
pub fn windows(folder: &Path, name: &str) -> PathBuf {
    let disk = folder.join(name);
    partition(&disk, DISK_BYTES, "label: dos\nstart=1MiB size=30MiB type=7 bootable\n");
    let mut bytes = std::fs::read(&disk).unwrap();
    bytes[MIB as usize..][..11].copy_from_slice(b"\xeb\x52\x90NTFS    ");
    std::fs::write(&disk, bytes).unwrap();
    disk
}

/// A disk with one partition that holds what drover reads of a Windows; `None`, after a printed line, without what puts files into it.
pub fn windows_of(folder: &Path, name: &str, windows: &drover_lab::windows::Windows) -> Option<PathBuf> {
    let part = windows.part(folder).unwrap()?;
    let disk = folder.join(name);
    partition(&disk, DISK_BYTES, "label: dos\nstart=1MiB size=30MiB type=7 bootable\n");
    let mut bytes = std::fs::read(&disk).unwrap();
    bytes[MIB as usize..][..part.len()].copy_from_slice(&part);
    std::fs::write(&disk, bytes).unwrap();
    Some(disk)
}

/// What the conversion of Windows wants beside the converter, in its folder, as variables of drover's.
pub fn put_windows_tools(folder: &Path) -> [(&'static str, PathBuf); 2] {
    let drivers = folder.join("virtio-win/viostor/2k19/amd64");
    std::fs::create_dir_all(&drivers).unwrap();
    std::fs::write(drivers.join("viostor.inf"), "").unwrap();
    std::fs::write(folder.join("rhsrvany.exe"), "").unwrap();
    [("VIRT_TOOLS_DATA_DIR", folder.to_path_buf()), ("VIRTIO_WIN", folder.join("virtio-win"))]
}

/// An empty disk that sfdisk partitions so.
pub fn partition(disk: &Path, bytes: u64, script: &str) {
    std::fs::File::create(disk).unwrap().set_len(bytes).unwrap();
    let mut sfdisk = Command::new("sfdisk");
    sfdisk.args(["-q", "--no-reread", "--no-tell-kernel"]).arg(disk).stdin(Stdio::piped());
    let mut child = sfdisk.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Drivers that let it boot from virtio.
pub const VIRTIO: [&str; 2] = [
    "usr/lib/modules/6.1.0/kernel/drivers/block/virtio_blk.ko",
    "usr/lib/modules/6.1.0/kernel/drivers/virtio/virtio_pci.ko",
];

/// A stand-in for virt-v2v-in-place in this folder, which does this; gives the PATH by which drover finds it. The script is called as
/// the converter is: its third argument is the machine. Its appliance works: on an empty disk it finds no system.
pub fn put_converter(folder: &Path, script: &str) -> String {
    let finds_nothing =
        "echo 'virt-v2v-in-place: error: inspection could not detect the source guest' >&2; exit 1";
    put_converter_tried(folder, finds_nothing, script)
}

/// The same, which does that where its appliance is tried.
pub fn put_converter_tried(folder: &Path, trial: &str, script: &str) -> String {
    std::fs::create_dir_all(folder).unwrap();
    let script = format!(
        "if [ \"$1\" = --version ]; then echo virt-v2v-in-place 2.6.0; exit; fi\n\
         if [ \"$3\" ] && grep -qs '<name>drover-trial</name>' \"$3\"; then\n{trial}\nfi\n{script}"
    );
    drover_lab::put_script(&folder.join("virt-v2v-in-place"), &script).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

/// Where the stand-in of [`put_marking_converter`] writes: in the last MiB, which belongs to no partition.
const MARK_AT: u64 = DISK_BYTES - MIB / 2;
const MARK_BYTES: usize = 65536;
const MARK: u8 = 0x5a;

/// A stand-in that notes its process in the file `runs` of its folder, writes a mark into each disk, and then does this.
pub fn put_marking_converter(folder: &Path, then: &str) {
    let script = format!(
        "cd \"$(dirname \"$0\")\"\n[ \"$3\" ] || exit 0\necho $$ >>runs\n\
         for file in $(sed -n \"s/.*<source file='\\([^']*\\)'.*/\\1/p\" \"$3\"); do\n\
         qemu-io -f qcow2 -c 'write -q -P {MARK} {MARK_AT} {MARK_BYTES}' \"$file\" || exit 1\ndone\n{then}\n{HAS_DRIVERS}"
    );
    put_converter(folder, &script);
}

/// What that makes of a disk of [`DISK_BYTES`].
pub fn marked(mut disk: Vec<u8>) -> Vec<u8> {
    disk[MARK_AT as usize..][..MARK_BYTES].fill(MARK);
    disk
}

/// What a converter says of a guest that can boot from virtio now.
pub const HAS_DRIVERS: &str = "echo This guest has virtio drivers installed.";
