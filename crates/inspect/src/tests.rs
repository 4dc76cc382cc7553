//! Whole disks, as installers make them.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use crate::lvm::tests::{EXTENT, FIRST, disks};
use crate::lvm::{Piece, Volume};
use made::{Image, XFS_BYTES, xfs};

pub(crate) mod made;

const MIB: u64 = 1 << 20;

fn put(tree: &Path, path: &str, content: impl AsRef<[u8]>) {
    let path = tree.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// An initramfs with the driver of virtio-blk and none of virtio-scsi.
fn initramfs() -> Vec<u8> {
    let tree = tempfile::tempdir().unwrap();
    for driver in ["block/virtio_blk.ko.xz", "virtio/virtio_pci.ko.xz"] {
        put(tree.path(), &format!("usr/lib/modules/5.14.0-427.el9.x86_64/kernel/drivers/{driver}"), "x");
    }
    let script = "find . | cpio -o -H newc --quiet | gzip";
    let packed = Command::new("sh").args(["-c", script]).current_dir(tree.path()).output().unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    packed.stdout
}

fn zeros(bytes: u64) -> Piece {
    piece(Arc::new(vec![0; bytes as usize]), bytes)
}

fn piece(disk: Arc<dyn ReadAt>, length: u64) -> Piece {
    Piece { part: Part::new(disk, 0, length), at: 0, length }
}

/// The first MiB of a disk of so many bytes that sfdisk partitions so; `None` without it.
fn table(bytes: u64, script: &str) -> Option<Piece> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(bytes).unwrap();
    let mut sfdisk = Command::new("sfdisk");
    sfdisk.args(["-q", "--no-reread", "--no-tell-kernel"]).arg(file.path()).stdin(Stdio::piped());
    let Ok(mut child) = sfdisk.spawn() else {
        println!("skipped: no sfdisk");
        return None;
    };
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let mut head = std::fs::read(file.path()).unwrap();
    head.truncate(MIB as usize);
    Some(piece(Arc::new(head), MIB))
}

#[test]
fn a_rhel_as_its_installer_makes_it_is_seen_through_lvm_and_xfs() {
    let (boot, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (boot, root) = (boot.path(), root.path());
    put(root, "usr/lib/os-release", "PRETTY_NAME=\"Red Hat Enterprise Linux 9.4 (Plow)\"\n");
    std::fs::create_dir(root.join("etc")).unwrap();
    std::os::unix::fs::symlink("../usr/lib/os-release", root.join("etc/os-release")).unwrap();
    put(root, "etc/fstab", "/dev/mapper/rhel-root / xfs defaults 0 0\n/dev/sdb1 /data xfs defaults 0 0\n");
    put(root, "usr/bin/vmtoolsd", "x");
    let keyfile = "[connection]\nid=ens192\ntype=ethernet\ninterface-name=ens192\n[ipv4]\nmethod=manual\naddress1=192.0.2.7/24\n";
    put(root, "etc/NetworkManager/system-connections/ens192.nmconnection", keyfile);
    let kernel = "5.14.0-427.el9.x86_64";
    let entry = format!(
        "title RHEL\nversion {kernel}\nlinux /vmlinuz-{kernel}\ninitrd /initramfs-{kernel}.img $tuned_initrd\n\
         options root=/dev/mapper/rhel-root ro resume=/dev/mapper/rhel-swap\n"
    );
    put(boot, &format!("loader/entries/0123-{kernel}.conf"), entry);
    put(boot, &format!("initramfs-{kernel}.img"), initramfs());
    put(boot, "grub2/grub.cfg", "set timeout=5\nblscfg\n");
    let (Some(boot), Some(root)) = (xfs(boot, ""), xfs(root, "")) else { return };
    let image = |file| -> Arc<dyn ReadAt> { Arc::new(Image { file, damage: BTreeMap::new() }) };
    let mut physical = Vec::new();
    let fixture = &include_bytes!("../fixtures/lvm-rhel.gz")[..];
    flate2::read::GzDecoder::new(fixture).read_to_end(&mut physical).unwrap();
    // Of 360 MiB: extents of 4 MiB, of which the first two are the swap, and the next 80 the root.
    let (swap, rest) = (8 * MIB, 31 * MIB);
    let script = format!("label: dos\nstart=1MiB size={}MiB type=83\nsize=360MiB type=8e\n", XFS_BYTES / MIB);
    let whole = MIB + XFS_BYTES + 360 * MIB;
    let Some(table) = table(whole, &script) else { return };
    let disk = Volume::of(vec![
        table,
        piece(image(boot), XFS_BYTES),
        piece(Arc::new(physical), MIB),
        zeros(swap),
        piece(image(root), XFS_BYTES),
        zeros(rest),
    ]);
    assert_eq!(disk.size(), whole);
    let inside = inspect(&[Arc::new(disk)]);
    assert_eq!(inside.unseen, Vec::<String>::new());
    assert_eq!(inside.system.as_deref(), Some("Red Hat Enterprise Linux 9.4 (Plow)"));
    assert_eq!(inside.root.as_deref(), Some("/dev/mapper/rhel-root"));
    assert_eq!(inside.boot_loader.as_deref(), Some("GRUB"));
    assert_eq!(inside.vmware_tools.as_deref(), Some("open-vm-tools"));
    let by_path: Vec<&str> = inside.by_path.iter().map(|it| it.device.as_str()).collect();
    assert_eq!(by_path, ["/dev/sdb1"], "names of LVM stay");
    let found = inside.initramfs.unwrap();
    assert_eq!(found.path, format!("/boot/initramfs-{kernel}.img"));
    assert!(found.virtio_blk && found.virtio_pci && !found.virtio_scsi);
    assert_eq!(inside.interfaces[0].addresses, ["192.0.2.7/24"]);
    let free: Vec<&str> = inside.free.iter().map(|it| it.place.as_str()).collect();
    assert_eq!(free, ["/", "/boot"]);
}

#[test]
fn a_sles_is_seen_in_the_snapshot_that_its_btrfs_mounts() {
    let mut disk = Vec::new();
    let fixture = &include_bytes!("../fixtures/btrfs-sles.gz")[..];
    flate2::read::GzDecoder::new(fixture).read_to_end(&mut disk).unwrap();
    let inside = inspect(&[Arc::new(disk)]);
    assert_eq!(inside.unseen, Vec::<String>::new());
    assert_eq!(inside.system.as_deref(), Some("SUSE Linux Enterprise Server 15 SP6"));
    assert!(inside.saw_root() && inside.by_path.is_empty());
    assert_eq!(inside.free.iter().map(|it| it.place.as_str()).collect::<Vec<_>>(), ["/"]);
}

#[test]
fn a_root_on_a_volume_of_two_disks_is_seen_and_what_is_not_is_told() {
    let tree = tempfile::tempdir().unwrap();
    put(tree.path(), "etc/os-release", "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
    put(tree.path(), "etc/fstab", "UUID=1 / ext4\n");
    let blocks = (36 * EXTENT / 1024).to_string();
    // The image must not lie in the tree that it is made of.
    let outside = tempfile::tempdir().unwrap();
    let image = outside.path().join("image");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()));
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-d"]).arg(tree.path()).arg(&image).arg(&blocks);
    match mke2fs.status() {
        Ok(status) => assert!(status.success()),
        Err(_) => return println!("skipped: no mke2fs"),
    }
    let root = std::fs::read(&image).unwrap();
    let [mut first, mut second] = disks();
    let (on_first, on_second) = root.split_at(20 * EXTENT);
    first[FIRST + 2 * EXTENT..][..on_first.len()].copy_from_slice(on_first);
    second[FIRST + 2 * EXTENT..][..on_second.len()].copy_from_slice(on_second);
    let inside = inspect(&[Arc::new(first.clone()), Arc::new(second)]);
    assert_eq!(inside.system.as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
    assert!(inside.saw_root());
    assert_eq!(inside.unseen, ["LVM volume rhel/data: it is striped, and linear ones alone are looked into"]);
    let alone = inspect(&[Arc::new(first.clone())]);
    assert_eq!(
        alone.unseen,
        [
            "LVM volume rhel/root: a part of it lies on a disk that is not there",
            "LVM volume rhel/data: it is striped, and linear ones alone are looked into"
        ]
    );
    // A volume that is encrypted lies on the disk where it begins.
    first[FIRST..][..6].copy_from_slice(b"LUKS\xba\xbe");
    let inside = inspect(&[Arc::new(vec![0u8; 1 << 20]), Arc::new(first)]);
    assert_eq!(inside.encrypted, [Encrypted { disk: 1, partition: 0, kind: "LUKS".into() }]);
}
