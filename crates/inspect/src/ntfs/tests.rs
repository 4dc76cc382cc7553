use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::*;
use crate::tests::made;

/// An NTFS as ntfs-3g makes it; see `fixtures/make-ntfs`.
static FIXTURE: LazyLock<Arc<Vec<u8>>> = LazyLock::new(|| Arc::new(drover_lab::windows::ntfs().unwrap()));

/// A disk some bytes of which are read as others.
struct Damaged(Arc<Vec<u8>>, BTreeMap<u64, u8>);

impl ReadAt for Damaged {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, bytes)?;
        for (at, byte) in self.1.range(offset..offset + bytes.len() as u64) {
            bytes[(at - offset) as usize] = *byte;
        }
        Ok(())
    }
}

fn damaged(damage: BTreeMap<u64, u8>) -> Part {
    let disk = Damaged(FIXTURE.clone(), damage);
    let length = disk.size();
    Part::new(Arc::new(disk), 0, length)
}

fn sound() -> Ntfs {
    Ntfs::load(damaged(BTreeMap::new())).unwrap()
}

fn with(at: u64, bytes: &[u8]) -> Part {
    damaged((at..).zip(bytes.iter().copied()).collect())
}

/// Where a byte of a stream lies on the disk.
fn place(stream: &Stream, offset: u64) -> u64 {
    let Content::Elsewhere { runs, .. } = &stream.content else { panic!("it lies in its record") };
    let cluster_bytes = stream.on.cluster_bytes;
    let run = runs.iter().rfind(|run| run.at * cluster_bytes <= offset).unwrap();
    run.from.unwrap() * cluster_bytes + offset - run.at * cluster_bytes
}

/// Where the record of a path lies on the disk, and what is in it.
fn record_of(ntfs: &Ntfs, path: &str) -> (u64, Vec<u8>) {
    let reference = ntfs.find(path).unwrap().unwrap();
    (place(&ntfs.table, (reference & NUMBER) * 1024), ntfs.record(reference).unwrap())
}

/// Where an attribute begins in a record.
fn attribute_at(record: &[u8], kind: u32) -> usize {
    let mut at = usize::from(u16_at(record, 20));
    for attribute in attributes(record).unwrap() {
        if attribute.kind == kind {
            return at;
        }
        at += attribute.bytes.len();
    }
    panic!("it has no attribute {kind:#x}")
}

fn text(ntfs: &Ntfs, path: &str) -> Option<String> {
    let bytes = ntfs.file(path).unwrap()?.whole(1 << 20).unwrap();
    Some(String::from_utf8(bytes).unwrap())
}

#[test]
fn files_are_found_in_folders_of_any_size_whatever_the_case_of_their_names() {
    let ntfs = sound();
    assert_eq!(text(&ntfs, "/small.TXT").as_deref(), Some("hello\n"));
    for path in ["/", "/windows/SYSTEM32/Config", "/Program Files", "/$MFT"] {
        assert!(ntfs.has(path).unwrap(), "{path}");
    }
    let name = |number: u32| format!("/many/name-{number}-{}", "X".repeat(180));
    assert!((100..300).all(|number| ntfs.has(&name(number)).unwrap()));
    for path in ["/Windows/none", "/Small.txt/x", "/many/name-100", &name(300), &name(99), "/zzz"] {
        assert!(!ntfs.has(path).unwrap(), "{path}");
        assert!(ntfs.file(path).unwrap().is_none(), "{path}");
    }
    assert!(ntfs.file("/Windows").unwrap().is_none(), "a folder has no content");
}

#[test]
fn a_file_in_many_pieces_is_read_through_the_list_of_its_records() {
    let ntfs = sound();
    let (_, record) = record_of(&ntfs, "/pieces");
    assert!(attributes(&record).unwrap().iter().any(|it| it.kind == ATTRIBUTE_LIST), "a list");
    let stream = ntfs.file("/pieces").unwrap().unwrap();
    let Content::Elsewhere { runs, .. } = &stream.content else { panic!("runs") };
    assert!(runs.len() > 200, "{} runs", runs.len());
    let expected: String = (0..400).map(|number| format!("{number:4096}")).collect();
    assert!(stream.whole(2 << 20).unwrap() == format!("{expected}end").into_bytes());
    let mut end = [0; 4];
    stream.read_at(stream.size() - 4, &mut end).unwrap();
    assert_eq!(&end, b"9end");
    assert!(stream.read_at(stream.size() - 3, &mut end).is_err(), "past its end");
    assert!(stream.whole(1 << 20).is_err_and(|why| why.contains("more than such a thing has")));
}

#[test]
fn holes_and_what_was_never_written_are_zeros() {
    let ntfs = sound();
    let stream = ntfs.file("/sparse").unwrap().unwrap();
    let whole = stream.whole(1 << 20).unwrap();
    let mut expected = vec![0; 1 << 20];
    expected[524_288] = b'x';
    assert!(whole == expected);
    let file = ntfs.file("/pieces").unwrap().unwrap();
    let Content::Elsewhere { runs, size, .. } = file.content.clone() else { panic!("runs") };
    let shorter = Stream { content: Content::Elsewhere { runs, size, written: 4095 }, ..file };
    let mut bytes = [1; 3];
    shorter.read_at(4093, &mut bytes).unwrap();
    assert_eq!(bytes, *b"  \0", "what lies there is not the file's");
}

#[test]
fn free_space_is_counted_by_the_bitmap() {
    let ntfs = sound();
    let free = ntfs.free_bytes().unwrap().unwrap();
    assert!(free.is_multiple_of(4096) && (24 << 20..30 << 20).contains(&free), "{free}");
    let work = tempfile::tempdir().unwrap();
    let image = work.path().join("part");
    std::fs::write(&image, &**FIXTURE).unwrap();
    let mut tool = std::process::Command::new("ntfsinfo");
    let Ok(told) = tool.arg("-m").arg(&image).output() else { return println!("skipped: no ntfsinfo") };
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let clusters = told.lines().find_map(|line| line.trim().strip_prefix("Free Clusters: "));
    let clusters: u64 = clusters.unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(free, clusters * 4096);
}

#[test]
fn each_size_of_clusters_is_read() {
    for options in ["-c 512", "-c 1024", "-c 2048", "-c 8192", "-c 65536", "-s 4096 -c 4096", "-c 2097152"] {
        let Some(file) = made::ntfs(options, &[("Here", b"x")]) else { return };
        let ntfs =
            Ntfs::load(made::part(&file, BTreeMap::new())).unwrap_or_else(|why| panic!("{options}: {why}"));
        assert!(ntfs.has("/$Boot").unwrap() && !ntfs.has("/none").unwrap(), "{options}");
        assert_eq!(text(&ntfs, "/HERE").as_deref(), Some("x"), "{options}");
        assert!(ntfs.free_bytes().unwrap().unwrap() > 16 << 20, "{options}");
        assert!(!ntfs.is_dirty().unwrap(), "{options}");
    }
}

#[test]
fn a_file_system_that_is_to_be_checked_says_so() {
    let ntfs = sound();
    assert!(!ntfs.is_dirty().unwrap());
    let (at, record) = record_of(&ntfs, "/$Volume");
    let attribute = attribute_at(&record, VOLUME_INFORMATION);
    let flags = at + attribute as u64 + u64::from(u16_at(&record, attribute + 20)) + 10;
    assert!(Ntfs::load(with(flags, &[1])).unwrap().is_dirty().unwrap());
}

#[test]
fn what_is_compressed_encrypted_or_a_link_is_refused_with_a_word() {
    let ntfs = sound();
    let (at, record) = record_of(&ntfs, "/Small.txt");
    let data = attribute_at(&record, DATA) as u64;
    for (flags, word) in [(1u16, "compressed by NTFS"), (0x4000, "encrypted")] {
        let ntfs = Ntfs::load(with(at + data + 12, &flags.to_le_bytes())).unwrap();
        let refused = ntfs.file("/Small.txt").map(drop).unwrap_err();
        assert!(refused.contains(word), "{refused}");
    }
    // Its name becomes what tells where a link leads.
    let name = attribute_at(&record, 0x30) as u64;
    let ntfs = Ntfs::load(with(at + name, &REPARSE_POINT.to_le_bytes())).unwrap();
    assert!(ntfs.file("/Small.txt").is_err_and(|why| why.contains("a link")));
    assert!(ntfs.has("/Small.txt").unwrap());
}

#[test]
fn a_boot_sector_that_lies_is_refused() {
    let outside = (1u64 << 40).to_le_bytes();
    for (at, bytes, word) in [
        (11, &[0, 0][..], "no sensible size"),
        (11, &[1, 2], "no sensible size"),
        (13, &[0], "no sensible size"),
        (13, &[3], "no sensible size"),
        (13, &[0xc0], "no sensible size"),
        (40, &outside, "more than its partition"),
        (48, &outside, "begins in cluster"),
        (48, &[0, 1], "does not begin as a record does"),
        (64, &[0], "records have no sensible size"),
        (64, &[0x7f], "records have no sensible size"),
        (64, &[0x80], "records have no sensible size"),
        (68, &[0xe0], "records have no sensible size"),
    ] {
        let refused = Ntfs::load(with(at, bytes)).map(drop).unwrap_err();
        assert!(refused.contains(word), "{at} {bytes:?}: {refused}");
    }
}

#[test]
fn a_record_that_was_written_in_part_or_is_another_is_refused() {
    let ntfs = sound();
    let (at, _) = record_of(&ntfs, "/Small.txt");
    for (offset, bytes, word) in [
        (510, &[9, 9][..], "written in part only"),
        (6, &[2, 0], "makes no sense"),
        (4, &[0xff, 0xff], "makes no sense"),
        (0, b"BAAD", "does not begin"),
        (16, &[77, 0], "none that is in use"),
        (22, &[0, 0], "none that is in use"),
        (20, &[0xff, 0x03], "makes no sense"),
    ] {
        let refused = Ntfs::load(with(at + offset, bytes)).unwrap().file("/Small.txt").map(drop).unwrap_err();
        assert!(refused.contains(word), "{offset}: {refused}");
    }
}

#[test]
fn runs_that_lead_outside_are_refused() {
    let ntfs = sound();
    let (at, record) = record_of(&ntfs, "/sparse");
    let data = attribute_at(&record, DATA);
    let runs = data + usize::from(u16_at(&record, data + 32));
    for (bytes, word) in [
        (&[0x41, 1, 0xff, 0xff, 0xff, 0x7f][..], "outside"),
        (&[0x11, 1, 0x80], "outside"),
        (&[0x21, 0, 1, 0], "no sensible number"),
        (&[0x10, 1], "makes no sense"),
        (&[0x9f, 1], "makes no sense"),
        (&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 0x01, 9], "makes no sense"),
    ] {
        let refused =
            Ntfs::load(with(at + runs as u64, bytes)).unwrap().file("/sparse").map(drop).unwrap_err();
        assert!(refused.contains(word), "{bytes:?}: {refused}");
    }
    // One that has no clusters there where it has bytes.
    let ntfs = Ntfs::load(with(at + runs as u64, &[0])).unwrap();
    let refused = ntfs.file("/sparse").unwrap().unwrap().whole(1 << 20).unwrap_err();
    assert!(refused.contains("not there"), "{refused}");
}

#[test]
fn a_folder_that_leads_into_itself_ends() {
    let ntfs = sound();
    let folder = ntfs.find("/many").unwrap().unwrap();
    let nodes = ntfs.attribute(folder, INDEX_ALLOCATION, NAMES).unwrap().unwrap();
    // Each node's entries lead to the node itself.
    let mut damage = BTreeMap::new();
    for number in 0..nodes.size() / 4096 {
        let Ok(node) = ntfs.on.node(&nodes, number) else { continue };
        let mut at = 24 + u32_at(&node, 24) as usize;
        while at + 16 <= 24 + u32_at(&node, 28) as usize {
            let (length, flags) = (usize::from(u16_at(&node, at + 8)), u16_at(&node, at + 12));
            if flags & HAS_NODE != 0 {
                let byte = (at + length - 8) as u64;
                let bytes = (place(&nodes, number * 4096 + byte)..).zip(number.to_le_bytes());
                // Not where another byte stands for it.
                damage.extend(bytes.filter(|(at, _)| at % 512 < 510));
            }
            at += length;
        }
    }
    assert!(!damage.is_empty(), "there are nodes below nodes");
    let ntfs = Ntfs::load(damaged(damage)).unwrap();
    let name = |number: u32| format!("/many/name-{number}-{}", "x".repeat(180));
    let ended: Vec<_> = (100..300).map(|number| ntfs.has(&name(number))).collect();
    assert!(ended.iter().any(|it| it.as_ref().is_err_and(|why| why.contains("more levels"))), "{ended:?}");
}

/// Where it keeps what finds its files: the boot sector, the file table, the nodes of a folder.
static METADATA: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let ntfs = sound();
    let mut places: Vec<u64> = (0..80).collect();
    for path in [
        "/$MFT",
        "/$Volume",
        "/$Bitmap",
        "/",
        "/Windows",
        "/Windows/System32",
        "/many",
        "/pieces",
        "/sparse",
        "/Small.txt",
    ] {
        let (at, record) = record_of(&ntfs, path);
        places.extend(at..at + u64::from(u32_at(&record, 24)));
    }
    let nodes =
        ntfs.attribute(ntfs.find("/many").unwrap().unwrap(), INDEX_ALLOCATION, NAMES).unwrap().unwrap();
    let start = place(&nodes, 0);
    places.extend(start..start + 4096);
    places
});

proptest::proptest! {
    #[test]
    fn no_damage_makes_it_panic(
        damage in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::num::u8::ANY), 1..24),
    ) {
        let damage = damage.into_iter().map(|(index, byte)| (*index.get(&METADATA), byte)).collect();
        if let Ok(ntfs) = Ntfs::load(damaged(damage)) {
            let _ = ntfs.is_dirty();
            let _ = ntfs.free_bytes();
            for path in ["/Windows/System32/config/SYSTEM", "/pieces", "/sparse", "/Small.txt", "/$MFT"] {
                if let Ok(Some(stream)) = ntfs.file(path) {
                    let _ = stream.whole(4 << 20);
                }
            }
            let _ = ntfs.has(&format!("/many/name-150-{}", "x".repeat(180)));
        }
    }
}
