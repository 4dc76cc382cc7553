use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, LazyLock};

use super::*;
use crate::tests::made::{self, part};
use crate::tree::Tree;

const MANY: usize = 3000;

fn big() -> Vec<u8> {
    (0..200_001u32).map(|at| (at / 7) as u8).collect()
}

/// What mkfs.xfs makes with these options; `None`, after a printed line, without it.
fn made(options: &str) -> Option<Arc<File>> {
    let tree = tempfile::tempdir().unwrap();
    let at = |name: &str| tree.path().join(name);
    std::fs::create_dir(at("etc")).unwrap();
    std::fs::write(at("etc/os-release"), "PRETTY_NAME=\"AlmaLinux 9.4\"\n").unwrap();
    std::fs::write(at("big"), big()).unwrap();
    let far = format!("{}etc/os-release", "./".repeat(400));
    for (name, target) in [("link", "etc/../etc/os-release"), ("long", far.as_str())] {
        std::os::unix::fs::symlink(target, at(name)).unwrap();
    }
    for (folder, count) in [("few", 30), ("many", MANY)] {
        std::fs::create_dir(at(folder)).unwrap();
        (0..count).for_each(|number| std::fs::write(at(&format!("{folder}/name-{number:05}")), "").unwrap());
    }
    made::xfs(tree.path(), options)
}

fn whole(mut file: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn files_links_and_folders_are_read_in_each_version_and_size() {
    for options in [
        "",
        "-m crc=0 -n ftype=0",
        "-m crc=0 -i size=256",
        "-b size=1024",
        "-n size=16384 -i size=2048",
        "-i nrext64=1",
        "-s size=4096 -b size=65536",
    ] {
        let Some(file) = made(options) else { return };
        let tree =
            Tree::of_xfs(part(&file, BTreeMap::new())).unwrap_or_else(|why| panic!("{options}: {why}"));
        assert_eq!(tree.names("/"), ["big", "etc", "few", "link", "long", "many"], "{options}");
        for path in ["/etc/os-release", "/link"] {
            assert_eq!(
                tree.text(path).as_deref(),
                Some("PRETTY_NAME=\"AlmaLinux 9.4\"\n"),
                "{options} {path}"
            );
        }
        assert!(whole(tree.open("/big").unwrap()) == big(), "{options}");
        assert_eq!(tree.names("/few").len(), 30, "{options}");
        let many = tree.names("/many");
        assert_eq!((many.len(), many[MANY - 1].as_str()), (MANY, "name-02999"), "{options}");
        assert!(tree.has("/many/name-02998") && tree.has("/few/name-00029"), "{options}");
        for path in ["/many/name-03000", "/etc/os-release/x", "/none", "/few/name-00030"] {
            assert!(!tree.has(path), "{options} {path}");
        }
        assert!(tree.text("/etc").is_none() && tree.open("/etc").is_err() && tree.names("/big").is_empty());
        assert!((100 << 20..320 << 20).contains(&tree.free_bytes), "{options}: {}", tree.free_bytes);
    }
}

#[test]
fn a_link_that_its_inode_does_not_hold_is_read_from_its_blocks() {
    for (options, is_v5) in [("", true), ("-m crc=0", false)] {
        let Some(file) = made(options) else { return };
        let (xfs, _) = Xfs::load(part(&file, BTreeMap::new())).unwrap();
        let inode = xfs.inode_of("/long").unwrap();
        assert_eq!((inode.format, xfs.on.is_v5), (EXTENTS, is_v5));
        let extents = xfs.on.extents(&inode).unwrap();
        let at = xfs.on.place(extents[0].block).unwrap();
        // As the kernel writes it; mkfs.xfs forgets the head.
        let target = xfs.on.block(extents[0].block).unwrap();
        let head = [&b"XSLM"[..], &[0; 52]].concat();
        let bytes = if is_v5 { [&head[..], &target[..4040]].concat() } else { target };
        let tree = Tree::of_xfs(part(&file, (at..).zip(bytes).collect())).unwrap();
        assert_eq!(tree.text("/long").as_deref(), Some("PRETTY_NAME=\"AlmaLinux 9.4\"\n"), "{options}");
    }
}

/// A file as one that was written bit by bit has it: a tree of that many levels, whose extents have one block each.
fn in_a_tree(file: &Arc<File>, levels: u16) -> Xfs {
    let (xfs, _) = Xfs::load(part(file, BTreeMap::new())).unwrap();
    let number = xfs.number_of("/big").unwrap();
    let [extent] = xfs.on.extents(&xfs.on.inode(number).unwrap()).unwrap()[..] else { panic!("one extent") };
    let mut damage = BTreeMap::new();
    let mut put = |at: u64, bytes: &[u8]| damage.extend((at..).zip(bytes.iter().copied()));
    let at = xfs.on.place(number >> xfs.on.inode_bits).unwrap()
        + (number & ((1 << xfs.on.inode_bits) - 1)) * xfs.on.inode_bytes as u64;
    // Blocks at the end of the last group, which are free.
    let free = |back: u64| ((xfs.on.groups - 1) << xfs.on.group_bits) + xfs.on.blocks_of_group - back;
    for level in 0..levels {
        let mut block = vec![0; xfs.on.block_bytes as usize];
        block[..4].copy_from_slice(b"BMA3");
        block[4..6].copy_from_slice(&level.to_be_bytes());
        let records = if level == 0 { extent.blocks } else { 1 } as u16;
        block[6..8].copy_from_slice(&records.to_be_bytes());
        match level {
            0 => {
                for index in 0..extent.blocks {
                    let bits = u128::from(index) << 73 | u128::from(extent.block + index) << 21 | 1;
                    block[72 + index as usize * 16..][..16].copy_from_slice(&bits.to_be_bytes());
                }
            }
            level => {
                let room = (block.len() - 72) / 16;
                block[72 + room * 8..][..8].copy_from_slice(&free(u64::from(level)).to_be_bytes());
            }
        }
        put(xfs.on.place(free(u64::from(level) + 1)).unwrap(), &block);
    }
    put(at + 5, &[TREE]);
    let data = xfs.on.inode(number).unwrap().data.len();
    let mut root = vec![0; data];
    root[..2].copy_from_slice(&levels.to_be_bytes());
    root[2..4].copy_from_slice(&1u16.to_be_bytes());
    root[4 + (data - 4) / 16 * 8..][..8].copy_from_slice(&free(u64::from(levels)).to_be_bytes());
    put(at + 176, &root);
    Xfs::load(part(file, damage)).unwrap().0
}

#[test]
fn a_file_in_many_pieces_is_read_through_its_tree() {
    let Some(file) = made("") else { return };
    for levels in [1, 2, 3] {
        let xfs = in_a_tree(&file, levels);
        let content = xfs.file("/big").unwrap();
        assert_eq!(content.extents.len(), 49, "{levels} levels");
        assert!(whole(content) == big(), "{levels} levels");
    }
    assert!(in_a_tree(&file, LEVELS_MAX + 2).file("/big").is_err(), "deeper than any");
}

#[test]
fn holes_and_what_was_never_written_are_zeros() {
    let Some(file) = made("") else { return };
    let (xfs, _) = Xfs::load(part(&file, BTreeMap::new())).unwrap();
    let found = xfs.file("/big").unwrap();
    let extent = |at, blocks, is_written| Extent { at, blocks, is_written, ..found.extents[0] };
    let extents = vec![extent(1, 1, true), extent(2, 1, false), extent(4, 1, true)];
    let bytes = whole(Content { on: xfs.on.clone(), extents, at: 0, size: 6 * 4096 - 1 });
    let zeros = [0; 4096];
    let block = &big()[..4096];
    assert_eq!(bytes, [&zeros, block, &zeros, &zeros, block, &zeros[..4095]].concat());
}

#[test]
fn a_superblock_that_lies_is_refused() {
    let Some(file) = made("") else { return };
    for (at, byte, words) in [
        (0, 0, "makes no sense"),
        (8, 1, "more than its partition"),
        (56, 1, "is none"),
        (84, 0xff, "makes no sense"),
        (120, 13, "makes no sense"),
        (123, 4, "makes no sense"),
        (101, 0xa6, "of version 6"),
        (216, 0x80, "not known here"),
        (192, 5, "makes no sense"),
    ] {
        let refused = Xfs::load(part(&file, BTreeMap::from([(at, byte)]))).map(drop).unwrap_err();
        assert!(refused.contains(words), "{at}: {refused}");
    }
}

#[test]
fn a_folder_that_leads_into_itself_ends() {
    let Some(file) = made("") else { return };
    let (xfs, _) = Xfs::load(part(&file, BTreeMap::new())).unwrap();
    let (etc, root) = (xfs.number_of("/etc").unwrap(), xfs.root);
    let at = xfs.on.place(root >> xfs.on.inode_bits).unwrap()
        + (root & ((1 << xfs.on.inode_bits) - 1)) * xfs.on.inode_bytes as u64;
    // The root holds its names itself, with numbers of four bytes: that of `etc` becomes its own.
    let inode = xfs.on.inode(root).unwrap();
    let name = inode.data.windows(3).position(|window| window == b"etc").unwrap() + 4;
    assert_eq!(inode.data[name..name + 4], (etc as u32).to_be_bytes());
    let damage = (at + 176 + name as u64..).zip((root as u32).to_be_bytes()).collect();
    let tree = Tree::of_xfs(part(&file, damage)).unwrap();
    assert!(tree.has("/etc/etc/etc/big"));
    assert!(!tree.has(&format!("{}big", "/etc".repeat(100_000))));
}

/// Where it keeps what finds its files: the superblock, the inodes, the folders.
static METADATA: LazyLock<Option<(Arc<File>, Vec<u64>)>> = LazyLock::new(|| {
    let file = made("")?;
    let (xfs, _) = Xfs::load(part(&file, BTreeMap::new())).unwrap();
    let inodes = xfs.on.place(xfs.root >> xfs.on.inode_bits).unwrap();
    let mut places: Vec<u64> = (0..256).chain(inodes..inodes + 4096).collect();
    for folder in ["/few", "/many"] {
        let inode = xfs.inode_of(folder).unwrap();
        let extents = xfs.on.extents(&inode).unwrap();
        let start = xfs.on.place(extents[0].block).unwrap();
        places.extend((start..start + 4096).filter(|at| at % 4096 < 256 || at % 4096 > 4000));
    }
    Some((file, places))
});

proptest::proptest! {
    #[test]
    fn no_damage_makes_it_panic(
        damage in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::num::u8::ANY), 1..24),
    ) {
        let Some((file, places)) = &*METADATA else { return Ok(()) };
        let damage = damage.into_iter().map(|(index, byte)| (*index.get(places), byte)).collect();
        if let Ok(tree) = Tree::of_xfs(part(file, damage)) {
            for path in ["/", "/etc", "/few", "/many"] {
                for name in tree.names(path).iter().take(20) {
                    let _ = tree.short_text(&format!("{path}/{name}"), 1 << 20);
                }
            }
            for path in ["/big", "/long"] {
                let _ = tree.open(path).map(|file| whole_up_to(file, 1 << 20));
            }
        }
    }
}

fn whole_up_to(file: Box<dyn Read>, bytes: u64) -> io::Result<u64> {
    io::copy(&mut file.take(bytes), &mut io::sink())
}
