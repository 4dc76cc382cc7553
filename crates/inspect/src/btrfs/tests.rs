use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, LazyLock};

use super::*;
use crate::tests::made::{self, part};
use crate::tree::Tree;

const MANY: usize = 3000;
const RELEASE: &str = "PRETTY_NAME=\"openSUSE Leap 15.6\"\n";

fn pattern(bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8).collect()
}

fn big() -> Vec<u8> {
    pattern(200_001)
}

/// What mkfs.btrfs makes with these options; `None`, after a printed line, without it.
fn made(options: &str) -> Option<Arc<File>> {
    let tree = tempfile::tempdir().unwrap();
    let at = |name: &str| tree.path().join(name);
    std::fs::create_dir(at("etc")).unwrap();
    std::fs::write(at("etc/os-release"), RELEASE).unwrap();
    std::fs::write(at("big"), big()).unwrap();
    std::os::unix::fs::symlink("etc/../etc/os-release", at("link")).unwrap();
    std::fs::create_dir(at("many")).unwrap();
    (0..MANY).for_each(|number| std::fs::write(at(&format!("many/name-{number:05}")), "").unwrap());
    made::btrfs(tree.path(), options)
}

/// A file system as SLES makes it (its default is a snapshot below a subvolume), with files that the kernel packed: made by
/// mkfs.btrfs 6.2 and Linux 6.18.
fn sles() -> Part {
    let mut bytes = Vec::new();
    let fixture = &include_bytes!("../../fixtures/btrfs-sles.gz")[..];
    flate2::read::GzDecoder::new(fixture).read_to_end(&mut bytes).unwrap();
    let length = bytes.len() as u64;
    Part::new(Arc::new(bytes), 0, length)
}

fn whole(mut file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn files_links_and_folders_are_read_in_each_size_of_nodes() {
    for options in ["", "-M -n 4096", "-n 65536", "-n 4096 -O ^no-holes", "-m single -d dup"] {
        let Some(file) = made(options) else { return };
        let tree =
            Tree::of_btrfs(part(&file, BTreeMap::new())).unwrap_or_else(|why| panic!("{options}: {why}"));
        assert_eq!(tree.names("/"), ["big", "etc", "link", "many"], "{options}");
        for path in ["/etc/os-release", "/link"] {
            assert_eq!(tree.text(path).as_deref(), Some(RELEASE), "{options} {path}");
        }
        assert!(whole(tree.open("/big").unwrap()).unwrap() == big(), "{options}");
        let many = tree.names("/many");
        assert_eq!((many.len(), many[MANY - 1].as_str()), (MANY, "name-02999"), "{options}");
        assert!(tree.has("/many/name-02998"), "{options}");
        for path in ["/many/name-03000", "/etc/os-release/x", "/none"] {
            assert!(!tree.has(path), "{options} {path}");
        }
        assert!(tree.text("/etc").is_none() && tree.open("/etc").is_err() && tree.names("/big").is_empty());
        assert!(
            (50 << 20..2 * made::BTRFS_BYTES).contains(&tree.free_bytes),
            "{options}: {}",
            tree.free_bytes
        );
    }
}

#[test]
fn the_system_is_found_in_the_subvolume_that_is_the_default_and_packed_files_are_read() {
    let tree = Tree::of_btrfs(sles()).unwrap();
    let release = tree.text("/etc/os-release");
    assert_eq!(release.as_deref(), Some("PRETTY_NAME=\"SUSE Linux Enterprise Server 15 SP6\"\n"));
    let read = |path: &str| whole(tree.open(path).unwrap());
    for path in ["/plain", "/zlib", "/zstd"] {
        assert!(read(path).unwrap() == pattern(300_001), "{path}");
    }
    let refused = read("/lzo").unwrap_err().to_string();
    assert!(refused.contains("LZO, which is not read"), "{refused}");
    let (data, hole) = (pattern(5000), |bytes: usize| vec![0; bytes]);
    assert!(read("/holes").unwrap() == [data.clone(), hole(95_000), data, hole(95_000)].concat());
    assert!(read("/prealloc").unwrap() == [vec![b'x'; 4096], hole(70_000 - 4096)].concat());
    assert_eq!(tree.names("/many").len(), 300);
}

#[test]
fn a_subvolume_with_the_name_that_installers_give_is_found_without_a_default() {
    // The top folder leads to the subvolumes, as other file systems lead to folders.
    let (on, chunks) = On::of(sles(), &head(&sles())).unwrap();
    let mut on = on;
    on.read_chunks(chunks).unwrap();
    let top = on.tree(TOP).unwrap();
    let named = on.entry(top, "@").unwrap().unwrap();
    assert_ne!(named.tree, top.tree);
    assert_eq!(on.entry(top, "none").unwrap(), None);
    let snapshots = on.entry(named, ".snapshots").unwrap().unwrap();
    let first = on.entry(snapshots, "1").unwrap().unwrap();
    assert_eq!(on.entry(first, "snapshot").unwrap(), Some(on.root_of_system().unwrap()));
}

fn head(part: &Part) -> Vec<u8> {
    let mut head = vec![0; SUPERBLOCK_BYTES];
    part.read_at(SUPERBLOCK, &mut head).unwrap();
    head
}

#[test]
fn a_superblock_that_lies_is_refused() {
    let Some(file) = made("") else { return };
    for (at, byte, words) in [
        (64, 0, "makes no sense"),
        (145, 0, "makes no sense"),
        (149, 1, "makes no sense"),
        (189, 0x20, "not known here"),
        (162, 1, "makes no sense"),
        (84, 0xff, "points to no chunk"),
        (88, 1, "is no node of it"),
        (201, 9, "on another disk"),
    ] {
        let damage = BTreeMap::from([(SUPERBLOCK + at, byte)]);
        let refused = Btrfs::load(part(&file, damage)).map(drop).unwrap_err();
        assert!(refused.contains(words), "{at}: {refused}");
    }
}

#[test]
fn a_tree_that_leads_into_itself_ends() {
    let Some(file) = made("-n 4096") else { return };
    let (btrfs, _) = Btrfs::load(part(&file, BTreeMap::new())).unwrap();
    let root = btrfs.root.tree;
    let node = btrfs.on.node(root).unwrap();
    assert!(node[100] > 0, "it has nodes below");
    let items = u32_at(&node, 96) as usize;
    let place = btrfs.on.find(root).unwrap().0;
    // Each of its pointers leads back to it, and their level would have to fall.
    let pointers = (0..items).flat_map(|index| {
        (place + (NODE_HEAD_BYTES + index * BRANCH_ITEM_BYTES + 17) as u64..).zip(root.to_le_bytes())
    });
    let tree = Tree::of_btrfs(part(&file, pointers.collect())).unwrap();
    assert!(!tree.has("/big") && tree.names("/").is_empty());
    // What is asked again and again has an end, too.
    btrfs.on.left.set(3);
    let names = (0..10).filter(|_| btrfs.on.entry(btrfs.root, "none").is_ok()).count();
    assert!(names < 3, "{names}");
}

#[test]
fn extents_that_lie_with_a_file_are_at_its_beginning_alone() {
    let item = |kind: u8| [&[0; 8][..], &5u64.to_le_bytes(), &[0, 0, 0, 0, kind], b"hello"].concat();
    assert!(Extent::at(0, &item(HERE)).is_ok());
    assert_eq!(Extent::at(4096, &item(HERE)), Err(SENSELESS.to_string()));
    assert!(Extent::at(0, &item(ON_DISK)).is_err(), "it is too short");
}

/// Where it keeps what finds its files: the superblock and the first nodes.
static METADATA: LazyLock<Option<(Arc<File>, Vec<u64>)>> = LazyLock::new(|| {
    let file = made("-n 4096")?;
    let (btrfs, _) = Btrfs::load(part(&file, BTreeMap::new())).unwrap();
    let nodes: Vec<u64> = btrfs.on.nodes.borrow().keys().copied().chain([btrfs.root.tree]).collect();
    let in_node = |node: u64| {
        let place = btrfs.on.find(node).unwrap().0;
        place + 48..place + 1024
    };
    let superblock = (SUPERBLOCK + 64..SUPERBLOCK + 240).chain(SUPERBLOCK + 811..SUPERBLOCK + 1000);
    Some((file, superblock.chain(nodes.into_iter().flat_map(in_node)).collect()))
});

proptest::proptest! {
    #[test]
    fn no_damage_makes_it_panic(
        damage in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::num::u8::ANY), 1..24),
    ) {
        let Some((file, places)) = &*METADATA else { return Ok(()) };
        let damage = damage.into_iter().map(|(index, byte)| (*index.get(places), byte)).collect();
        if let Ok(tree) = Tree::of_btrfs(part(file, damage)) {
            for path in ["/", "/etc", "/many"] {
                for name in tree.names(path).iter().take(20) {
                    let _ = tree.short_text(&format!("{path}/{name}"), 1 << 20);
                }
            }
            let _ = tree.open("/big").map(|file| io::copy(&mut file.take(1 << 20), &mut io::sink()));
        }
    }
}
