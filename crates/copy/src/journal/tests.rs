use super::*;

fn header() -> Header {
    Header::new(10 * BLOCK_BYTES, "source", "target", 3)
}

fn sample() -> Vec<u8> {
    let header = header();
    let mut bytes = header.encode().to_vec();
    bytes.extend(encode_entry(
        &header,
        &Entry::Data { first: 1, leaves: vec![Digest([7; 32]), Digest([8; 32])] },
    ));
    bytes.extend(encode_entry(&header, &Entry::Zero { first: 4, count: 6 }));
    bytes.extend(encode_entry(&header, &Entry::Complete(Digest([9; 32]))));
    bytes
}

#[test]
fn what_was_written_is_read_back() {
    let bytes = sample();
    let replay = replay(&mut &bytes[..]).unwrap();
    assert_eq!((replay.header, replay.damage), (header(), None));
    assert_eq!(replay.leaves.get(2), Some(Leaf::Data(Digest([8; 32]))));
    assert_eq!((replay.leaves.get(0), replay.leaves.get(9)), (None, Some(Leaf::Zero)));
    assert_eq!((replay.complete, replay.sound_bytes), (Some(Digest([9; 32])), bytes.len() as u64));
}

#[test]
fn a_journal_cut_at_any_byte_keeps_its_whole_records() {
    let bytes = sample();
    let ends = [128, 128 + 96, 128 + 96 + 32, bytes.len()];
    for cut in 128..bytes.len() {
        let replay = replay(&mut &bytes[..cut]).unwrap();
        let expected = ends.iter().filter(|end| **end <= cut).max().unwrap();
        assert_eq!(replay.sound_bytes, *expected as u64, "cut at {cut}");
        assert_eq!(replay.damage.is_some(), cut != *expected, "cut at {cut}");
    }
    for cut in 0..128 {
        assert!(matches!(replay(&mut &bytes[..cut]), Err(JournalError::NotAJournal)));
    }
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let bytes = sample();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        match replay(&mut &damaged[..]) {
            Err(_) => assert!(at < 128, "header error from byte {at}"),
            Ok(replay) => {
                assert!(at >= 128 && replay.damage.is_some(), "byte {at}");
                assert!(replay.sound_bytes as usize <= at);
            }
        }
    }
}

#[test]
fn a_record_of_another_journal_is_refused() {
    let other = Header { epoch: 4, ..header() };
    let mut bytes = header().encode().to_vec();
    bytes.extend(encode_entry(&other, &Entry::Zero { first: 0, count: 1 }));
    assert_eq!(replay(&mut &bytes[..]).unwrap().damage, Some(Damage::FailedCheck));
}

#[test]
fn blocks_beyond_the_disk_are_refused() {
    for entry in [
        Entry::Zero { first: 10, count: 1 },
        Entry::Zero { first: u64::MAX, count: 2 },
        Entry::Data { first: 9, leaves: vec![Digest([1; 32]); 2] },
        Entry::Forget { first: 9, count: 2 },
        Entry::Forget { first: u64::MAX, count: 2 },
    ] {
        let mut bytes = header().encode().to_vec();
        bytes.extend(encode_entry(&header(), &entry));
        assert_eq!(replay(&mut &bytes[..]).unwrap().damage, Some(Damage::OutOfRange));
    }
}

#[test]
fn a_forged_size_costs_no_memory() {
    let header = Header::new(u64::MAX, "source", "target", 1).encode();
    assert!(matches!(replay(&mut &header[..]), Err(JournalError::DamagedHeader)));
}

#[test]
fn a_record_of_no_blocks_or_too_many_is_refused() {
    let header = Header::new((RECORD_BLOCKS_MAX as u64 + 1) * BLOCK_BYTES, "source", "target", 1);
    for (count, damage) in [
        (0, Some(Damage::FailedCheck)),
        (RECORD_BLOCKS_MAX, None),
        (RECORD_BLOCKS_MAX + 1, Some(Damage::FailedCheck)),
    ] {
        let entry = Entry::Data { first: 0, leaves: vec![Digest([1; 32]); count] };
        let bytes = [&header.encode()[..], &encode_entry(&header, &entry)].concat();
        assert_eq!(replay(&mut &bytes[..]).unwrap().damage, damage, "{count} blocks");
    }
}

/// Gives a byte at a time, is interrupted each time before, and fails in the end.
struct Slow<'a> {
    bytes: &'a [u8],
    interrupted: bool,
}

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.interrupted = !self.interrupted;
        match self.bytes.split_first() {
            _ if self.interrupted => Err(io::ErrorKind::Interrupted.into()),
            Some((first, rest)) => {
                (buffer[0], self.bytes) = (*first, rest);
                Ok(1)
            }
            None => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

#[test]
fn interrupted_reads_go_on_and_failed_ones_do_not() {
    let bytes = sample();
    let error = replay(&mut Slow { bytes: &bytes, interrupted: false }).unwrap_err();
    assert!(matches!(&error, JournalError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied));
    let chained = Slow { bytes: &bytes, interrupted: false }.take(bytes.len() as u64);
    let whole = replay(&mut { chained }).unwrap();
    assert_eq!((whole.damage, whole.sound_bytes), (None, bytes.len() as u64));
}

#[test]
fn passes_and_what_they_forget_are_read_back() {
    let header = header();
    let (old, new) = (Digest([7; 32]), Digest([8; 32]));
    let entries = [
        Entry::Data { first: 1, leaves: vec![old; 3] },
        Entry::Zero { first: 4, count: 6 },
        Entry::Complete(Digest([9; 32])),
        Entry::pass_begun(2, Some("a state")),
        Entry::Forget { first: 2, count: 3 },
        Entry::Data { first: 3, leaves: vec![new] },
        Entry::PassComplete { number: 2, root: Digest([5; 32]) },
    ];
    let told = |count: usize| {
        let mut bytes = header.encode().to_vec();
        entries[..count].iter().for_each(|entry| bytes.extend(encode_entry(&header, entry)));
        let sum: u64 = entries[..count].iter().map(Entry::encoded_bytes).sum();
        assert_eq!(bytes.len() as u64, 128 + sum);
        let told = replay(&mut &bytes[..]).unwrap();
        assert_eq!((told.damage, told.sound_bytes), (None, bytes.len() as u64));
        told
    };
    assert_eq!((told(3).complete, told(3).pass), (Some(Digest([9; 32])), None));
    let begun = told(4);
    let pass = begun.pass.unwrap();
    assert_eq!((begun.complete, pass.is_complete, pass.number), (None, false, 2));
    assert_eq!(begun.leaves.get(2), Some(Leaf::Data(old)), "what is not forgotten counts");
    let forgotten = told(5).leaves;
    assert_eq!(
        [1, 2, 3, 4, 5].map(|block| forgotten.get(block).is_some()),
        [true, false, false, false, true]
    );
    let middle = told(6);
    assert_eq!(middle.leaves.get(3), Some(Leaf::Data(new)));
    let recorded = middle.pass.unwrap().recorded;
    assert_eq!(recorded.runs(0, 10).collect::<Vec<_>>(), [(3, 1)]);
    let end = told(7);
    assert_eq!(end.complete, Some(Digest([5; 32])));
    assert!(end.pass.unwrap().is_complete);
}

#[test]
fn a_pass_is_the_same_only_with_its_number_and_a_frozen_state_that_is_told() {
    let pass = |entry: Entry| {
        let bytes = [&header().encode()[..], &encode_entry(&header(), &entry)].concat();
        replay(&mut &bytes[..]).unwrap().pass.unwrap()
    };
    let told = pass(Entry::pass_begun(2, Some("a")));
    assert!(told.is(2, Some("a")) && !told.is(3, Some("a")) && !told.is(2, Some("b")) && !told.is(2, None));
    assert!(!pass(Entry::pass_begun(2, None)).is(2, None), "nothing tells that it is the same");
    let alone = pass(Entry::PassComplete { number: 4, root: Digest([1; 32]) });
    assert!(alone.is_complete && alone.number == 4 && !alone.is(4, Some("a")));
}

#[test]
fn older_formats_are_read_and_take_no_passes() {
    for version in [1, 2] {
        let header = Header { version, ..header() };
        let mut bytes = header.encode().to_vec();
        bytes.extend(encode_entry(&header, &Entry::Zero { first: 0, count: 4 }));
        let sound = bytes.len() as u64;
        assert_eq!(replay(&mut &bytes[..]).unwrap().leaves.known_blocks(), 4, "version {version}");
        assert!(!header.takes_passes() && header.newest().takes_passes());
        bytes.extend(encode_entry(&header, &Entry::Forget { first: 0, count: 4 }));
        let replay = replay(&mut &bytes[..]).unwrap();
        assert_eq!((replay.damage, replay.sound_bytes), (Some(Damage::FailedCheck), sound));
    }
    let newer = Header { version: 5, ..header() }.encode();
    assert!(matches!(replay(&mut &newer[..]), Err(JournalError::Version(5))));
}

#[test]
fn an_owner_is_read_back_and_no_format_of_before_names_one() {
    let owned = header().owned_by("a plan");
    let mut bytes = owned.encode().to_vec();
    bytes.extend(encode_entry(&owned, &Entry::Zero { first: 0, count: 4 }));
    let found = replay(&mut &bytes[..]).unwrap();
    assert_eq!((found.header, found.damage, found.header.version), (owned, None, 4));
    assert_eq!((owned.is_owned_by("a plan"), owned.is_owned_by("another")), (Some(true), Some(false)));
    assert_eq!((header().is_owned_by("a plan"), header().version), (None, 3));
    assert_eq!((owned.newest(), header().newest()), (owned, header()));
    let forged = Header { version: 3, ..owned }.encode();
    assert!(matches!(replay(&mut &forged[..]), Err(JournalError::DamagedHeader)));
}

#[test]
fn a_table_as_records_is_the_table_again() {
    let header = Header::new((2 * RECORD_BLOCKS_MAX as u64 + 50) * BLOCK_BYTES - 5, "source", "target", 1);
    let mut table = LeafTable::new(header.size);
    table.set_zero(0, 3);
    (3..4500).for_each(|block| table.set(block, Leaf::Data(Digest([block as u8; 32]))));
    table.set_zero(5000, table.blocks() - 5000);
    table.set(6000, Leaf::Data(Digest([3; 32])));
    let entries: Vec<Entry> = table.entries().collect();
    assert_eq!(entries.len(), 6, "as few as can be");
    let mut bytes = header.encode().to_vec();
    entries.iter().for_each(|entry| bytes.extend(encode_entry(&header, entry)));
    let told = replay(&mut &bytes[..]).unwrap();
    assert_eq!(told.damage, None);
    assert!((0..table.blocks()).all(|block| told.leaves.get(block) == table.get(block)));
    assert_eq!(told.leaves.unknown().runs(0, u64::MAX).collect::<Vec<_>>(), [(4500, 500)]);
}
