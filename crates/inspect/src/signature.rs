//! What a partition holds, by what its first bytes say.
//!
//! Offsets from the partition's start:
//!
//! ```text
//! 0      "LUKS\xba\xbe"           LUKS 1 and 2
//! 0      "XFSB"                   XFS
//! 3      "-FVE-FS-", "MSWIN4.1"+   BitLocker, BitLocker To Go (with its GUID at 424)
//! 3      "NTFS    "               NTFS
//! 54, 82 "FAT"                   FAT
//! 512    "LABELONE"               LVM, in one of the first four sectors
//! 1080   0xEF53, little-endian    ext2, ext3, ext4
//! 4086   "SWAPSPACE2"             swap
//! 4096   0xA92B4EFC               Linux RAID 1.2 (at 0: 1.1)
//! 65600  "_BHRfS_M"               btrfs
//! ```

use std::io;

use crate::read::Part;

/// What a partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signature {
    /// ext2, ext3 or ext4.
    Ext,
    /// NTFS.
    Ntfs,
    /// Encrypted: `LUKS` or `BitLocker`.
    Locked(&'static str),
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
    /// A physical volume of LVM.
    Lvm,
    /// Something that may hold a system and is not read.
    Unread(&'static str),
    /// FAT, as EFI system partitions have it.
    Fat,
    /// Something that holds no system: swap.
    Passed,
}

/// Absent where nothing is known.
pub(crate) fn of(part: &Part) -> io::Result<Option<Signature>> {
    let mut head = vec![0; HEAD_BYTES];
    part.head(&mut head)?;
    Ok(known(&head))
}

fn known(head: &[u8]) -> Option<Signature> {
    use Signature as S;
    let at = |offset: usize, word: &[u8]| head.get(offset..offset + word.len()) == Some(word);
    let raid = RAID_MAGIC.to_le_bytes();
    if at(0, b"LUKS\xba\xbe") {
        Some(S::Locked("LUKS"))
    } else if at(3, b"-FVE-FS-") || (at(3, b"MSWIN4.1") && at(424, &BITLOCKER_TO_GO)) {
        Some(S::Locked("BitLocker"))
    } else if at(3, b"NTFS    ") {
        Some(S::Ntfs)
    } else if at(0, b"XFSB") {
        Some(S::Xfs)
    } else if at(0x10040, b"_BHRfS_M") {
        Some(S::Btrfs)
    } else if at(1080, &0xef53u16.to_le_bytes()) {
        Some(S::Ext)
    } else if (0..4).any(|sector| at(sector * 512, b"LABELONE")) {
        Some(S::Lvm)
    } else if at(0, &raid) || at(4096, &raid) {
        Some(S::Unread("a software RAID"))
    } else if at(54, b"FAT") || at(82, b"FAT32") {
        Some(S::Fat)
    } else if at(4086, b"SWAPSPACE2") {
        Some(S::Passed)
    } else {
        None
    }
}

const HEAD_BYTES: usize = 68 << 10;
const RAID_MAGIC: u32 = 0xa92b_4efc;
/// `4967D63B-2E29-4AD8-8399-F6A339E3D001`, as it lies on the disk.
const BITLOCKER_TO_GO: [u8; 16] =
    [0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn with(offset: usize, word: &[u8]) -> Option<Signature> {
        let mut bytes = vec![0; 1 << 20];
        bytes[offset..offset + word.len()].copy_from_slice(word);
        let length = bytes.len() as u64;
        of(&Part::new(Arc::new(bytes), 0, length)).unwrap()
    }

    #[test]
    fn each_signature_is_known_where_it_lies() {
        use Signature as S;
        assert_eq!(with(0, b"LUKS\xba\xbe"), Some(S::Locked("LUKS")));
        assert_eq!(with(3, b"-FVE-FS-"), Some(S::Locked("BitLocker")));
        assert_eq!(with(3, b"NTFS    "), Some(S::Ntfs));
        assert_eq!(with(1080, &[0x53, 0xef]), Some(S::Ext));
        assert_eq!(with(512, b"LABELONE"), Some(S::Lvm));
        assert_eq!(with(0, b"XFSB"), Some(S::Xfs));
        assert_eq!(with(0x10040, b"_BHRfS_M"), Some(S::Btrfs));
        assert_eq!(with(4096, &RAID_MAGIC.to_le_bytes()), Some(S::Unread("a software RAID")));
        assert_eq!(with(4086, b"SWAPSPACE2"), Some(S::Passed));
        assert_eq!((with(54, b"FAT12"), with(82, b"FAT32")), (Some(S::Fat), Some(S::Fat)));
        assert_eq!(with(100, b"nothing"), None);
    }

    #[test]
    fn a_part_that_is_shorter_than_its_head_is_looked_at_all_the_same() {
        let mut bytes = vec![0; 2048];
        bytes[..6].copy_from_slice(b"LUKS\xba\xbe");
        assert_eq!(of(&Part::new(Arc::new(bytes), 0, 2048)).unwrap(), Some(Signature::Locked("LUKS")));
    }
}
