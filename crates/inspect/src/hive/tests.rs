use std::sync::LazyLock;

use drover_lab::windows::{Lists, hive, hive_with};

use super::*;

const REGISTRY: &str = r#"
[Select]
"Current"=dword:00000001
[Microsoft\Windows NT\CurrentVersion]
"ProductName"="Windows Server 2022 Datacenter, äö"
"Long"="a value that does not lie in its place"
"Odd"=hex:00,50,56
[Microsoft\Windows\CurrentVersion]
[A]
[A\B]
"Addresses"=multi:"192.0.2.7" "192.0.2.8"
"Empty"=multi:
"#;

/// A registry with many services.
fn many(count: usize) -> String {
    let service = |number: usize| format!("[Services\\Service{number:04}]\n\"Start\"=dword:{number:08x}\n");
    REGISTRY.to_string() + &(0..count).map(service).collect::<String>()
}

fn opened(bytes: Vec<u8>) -> Hive {
    Hive::open(bytes).unwrap()
}

#[test]
fn keys_and_values_are_found_in_each_form_of_lists() {
    for (kind, keys_max) in
        [(*b"lh", 400), (*b"lf", 400), (*b"li", 400), (*b"lh", 7), (*b"lf", 7), (*b"li", 7)]
    {
        let hive = opened(hive_with(&many(300), Lists { kind, keys_max }));
        let key = |path: &str| hive.key(path).unwrap();
        let version = key(r"MICROSOFT\windows nt\CurrentVersion").unwrap();
        assert_eq!(
            version.text("productname").unwrap().as_deref(),
            Some("Windows Server 2022 Datacenter, äö")
        );
        assert_eq!(version.value("Odd").unwrap(), Some(Value::Bytes(vec![0, 0x50, 0x56])));
        assert_eq!(version.number("Odd").unwrap(), None);
        assert_eq!(key("Select").unwrap().number("Current").unwrap(), Some(1));
        assert_eq!(key(r"A\B").unwrap().texts("Addresses").unwrap(), ["192.0.2.7", "192.0.2.8"]);
        assert_eq!(key(r"A\B").unwrap().texts("Empty").unwrap(), Vec::<String>::new());
        for number in [0, 1, 150, 299] {
            let service = key(&format!(r"services\SERVICE{number:04}")).unwrap();
            assert_eq!(service.number("Start").unwrap(), Some(number), "{kind:?} {keys_max}");
        }
        for path in ["None", r"A\C", r"A\B\C", r"Services\Service0300", r"Services\Service", ""] {
            assert!(key(path).is_none(), "{path}");
        }
        let services = key("Services").unwrap();
        assert_eq!(services.children(1000).unwrap().len(), 300);
        let few: Vec<String> = services.children(2).unwrap().into_iter().map(|key| key.name).collect();
        assert_eq!(few, ["Service0000", "Service0001"]);
        assert!(services.value("Start").unwrap().is_none());
    }
}

/// Made by hivex 1.3.23 (`hivexregedit --merge`) from an empty one, with names and lists as it writes them.
#[test]
fn a_hive_of_another_writer_is_read() {
    let mut bytes = Vec::new();
    let fixture = &include_bytes!("../../fixtures/hive-hivex.gz")[..];
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(fixture), &mut bytes).unwrap();
    let hive = opened(bytes);
    let version = hive.key(r"Microsoft\Windows NT\CurrentVersion").unwrap().unwrap();
    assert_eq!(version.text("ProductName").unwrap().as_deref(), Some("Windows 10 Pro"));
    assert_eq!(version.number("CurrentMajorVersionNumber").unwrap(), Some(10));
    let interface = hive.key(r"Interfaces\{0F1E2D3C-0000-0000-0000-000000000001}").unwrap().unwrap();
    assert_eq!(interface.texts("IPAddress").unwrap(), ["192.0.2.7", "192.0.2.8"]);
    let names: Vec<String> = hive
        .key("Services")
        .unwrap()
        .unwrap()
        .children(100)
        .unwrap()
        .into_iter()
        .map(|key| key.name)
        .collect();
    assert_eq!(names.len(), 40);
    assert_eq!(hive.key(r"Services\service07").unwrap().unwrap().number("Start").unwrap(), Some(7));
}

#[test]
fn a_hint_rules_out_other_names_alone() {
    assert_eq!((hint(""), hint("a"), hint("Ab")), (0, 65, 65 * 37 + 66));
    assert!(begins_so(b"VMTo", "vmtools") && begins_so(b"vmc\0", "VMC") && begins_so(b"\0\0\0\0", "VMTools"));
    assert!(!begins_so(b"VMTo", "VMT") && !begins_so(b"viostor", "vioscsi"));
}

#[test]
fn what_is_no_hive_is_refused() {
    let refused = |bytes: Vec<u8>| Hive::open(bytes).map(drop).unwrap_err();
    assert!(refused(vec![0; 8192]).contains("does not begin as a hive"));
    assert!(refused(vec![0; 10]).contains("past the end"));
    let mut other = hive(REGISTRY);
    other[20] = 2;
    assert!(refused(other).contains("does not begin as a hive"));
}

#[test]
fn a_hive_that_is_cut_off_gives_an_error_or_what_it_has() {
    let whole = hive(&many(50));
    let mut errors = 0;
    for length in (64..whole.len()).step_by(40) {
        let hive = opened(whole[..length].to_vec());
        match hive.key(r"Services\Service0049") {
            Ok(found) => assert!(found.is_some(), "{length}: absent is what nobody read"),
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 50, "{errors}");
}

/// Where a key's cell begins in its file.
fn cell_of(bytes: &[u8], name: &str) -> usize {
    let found = bytes.windows(name.len()).position(|window| window == name.as_bytes());
    found.unwrap() - 80
}

fn with(mut bytes: Vec<u8>, at: usize, word: u32) -> Hive {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    opened(bytes)
}

#[test]
fn keys_that_lead_in_circles_end() {
    let whole = hive("[Outer\\Inner]\n\"Value\"=dword:00000001\n");
    let (outer, root) = (cell_of(&whole, "Outer"), cell_of(&whole, "ROOT"));
    // What lies below `Outer` is what lies beside it.
    let list = u32_at(&whole, root + 4 + 28);
    let hive = with(whole.clone(), outer + 4 + 28, list);
    let deep = vec!["Outer"; 2000].join("\\");
    assert!(hive.key(&deep).unwrap().is_some());
    assert!(hive.key(&vec!["Outer"; 70_000].join("\\")).is_err_and(|why| why.contains("too many keys")));
    // A list of lists that is its own.
    let mut nested = hive_with(&many(20), Lists { kind: *b"lh", keys_max: 2 });
    let services = cell_of(&nested, "Services");
    let list = u32_at(&nested, services + 4 + 28);
    let at = 4096 + list as usize + 4;
    assert_eq!(&nested[at..at + 2], b"ri");
    nested[at + 4..at + 8].copy_from_slice(&list.to_le_bytes());
    assert!(opened(nested).key(r"Services\Service0003").is_err_and(|why| why.contains("makes no sense")));
}

#[test]
fn a_hive_whose_lists_are_all_one_long_list_is_not_read_to_its_end() {
    const LONG: u16 = 0xffff;
    let mut bytes = vec![0; 4096];
    bytes[..4].copy_from_slice(b"regf");
    bytes[20] = 1;
    let mut put = |content: Vec<u8>| {
        let at = (bytes.len() - 4096) as u32;
        bytes.extend((-(content.len() as i32 + 4)).to_le_bytes());
        bytes.extend(content);
        at
    };
    let list = |kind: &[u8; 2], entry: &[u8]| {
        [&kind[..], &LONG.to_le_bytes()[..], &entry.repeat(usize::from(LONG))].concat()
    };
    // No name has the hint, so that none of the keys is looked at.
    let long = put(list(b"lh", &[0, 0, 0, 0, 1, 0, 0, 0]));
    let all = put(list(b"ri", &long.to_le_bytes()));
    let mut root = vec![0; 80];
    root[..2].copy_from_slice(b"nk");
    root[20] = 1;
    root[28..32].copy_from_slice(&all.to_le_bytes());
    root[36..40].fill(0);
    let root = put(root);
    bytes[36..40].copy_from_slice(&root.to_le_bytes());
    let why = opened(bytes).key("Microsoft").map(drop).unwrap_err();
    assert!(why.starts_with("more of its registry would be read"), "{why}");
}

#[test]
fn absurd_sizes_are_refused() {
    let whole = hive("[Key\\Below]\n\"Value\"=\"a text that lies elsewhere\"\n");
    let key = cell_of(&whole, "Key");
    let refused = |at: usize, word: u32| {
        let hive = with(whole.clone(), at, word);
        let read = hive.key("Key").and_then(|key| {
            let key = key.ok_or("no key")?;
            key.key("Below")?.ok_or("no key below")?.value("Value")
        });
        read.map(drop).unwrap_err()
    };
    for (offset, word, words) in [
        (0, 0x8000_0000u32, "larger than its hive"),
        (0, 0x10, "none that is in use"),
        (0, 0xffff_ffff, "none that is in use"),
        (4, 0, "makes no sense"),
        (4 + 28, 0xffff_fff0, "past the end"),
        (4 + 72, 0xffff, "makes no sense"),
    ] {
        let why = refused(key + offset, word);
        assert!(why.contains(words), "{offset} {word:#x}: {why}");
    }
    let below = cell_of(&whole, "Below");
    for (offset, word, words) in [(4 + 36, u32::MAX, "too many values"), (4 + 40, 0, "none that is in use")] {
        let why = refused(below + offset, word);
        assert!(why.contains(words), "{offset} {word:#x}: {why}");
    }
    // A value that claims more than its cell has, and one that claims more than is read.
    let value = whole.windows(5).position(|window| window == b"Value").unwrap() - 20;
    assert!(refused(value + 4, 16_000).contains("makes no sense"));
    let large = with(whole.clone(), value + 4, 1 << 20);
    assert_eq!(large.key(r"Key\Below").unwrap().unwrap().value("Value").unwrap(), None);
}

/// A small one, so that each byte matters.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| hive(REGISTRY));

proptest::proptest! {
    #[test]
    fn no_damage_makes_it_panic(
        damage in proptest::collection::vec((0usize..3000, proptest::num::u8::ANY), 1..16), is_list_of_lists: bool,
    ) {
        let mut bytes = match is_list_of_lists {
            true => hive_with(REGISTRY, Lists { kind: *b"lf", keys_max: 1 }),
            false => SMALL.clone(),
        };
        for (at, byte) in damage {
            // The head up to its sum, and the cells.
            let at = if at < 64 { at } else { 4096 + at - 64 };
            bytes[at] = byte;
        }
        if let Ok(hive) = Hive::open(bytes) {
            crate::fuzzing::walk(&hive);
        }
    }
}
