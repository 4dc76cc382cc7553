//! Passes whose areas were told since a state that this target never had, and what an audit tells on its way.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use drover_copy::replay;
use drover_disk::MemDisk;
use drover_mover::{
    Areas, Audit, CopyJob, CopyReport, MoveError, PassJob, Progress, StopSignal, TransferOptions, copy,
    copy_telling,
};
use drover_types::{BLOCK_BYTES, ByteSpan};

const BLOCKS: u64 = 64;
const SIZE: u64 = BLOCKS * BLOCK_BYTES;

struct Replica {
    source: Arc<MemDisk>,
    target: Arc<MemDisk>,
    folder: tempfile::TempDir,
}

impl Replica {
    fn new(blocks: u64) -> Replica {
        Replica {
            source: Arc::new(MemDisk::new("source", vec![7; (blocks * BLOCK_BYTES) as usize])),
            target: Arc::new(MemDisk::new("target", vec![0; (blocks * BLOCK_BYTES) as usize])),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn journal(&self) -> PathBuf {
        self.folder.path().join("t.drover-journal")
    }

    fn job(&self, pass: PassJob) -> CopyJob {
        CopyJob {
            source: self.source.clone(),
            target: self.target.clone(),
            target_tag: "target".into(),
            target_is_new: false,
            target_zeroed: false,
            owner: None,
            journal: Some(self.journal()),
            pass: Some(pass),
            options: TransferOptions::default(),
        }
    }

    fn run(&self, pass: PassJob) -> Result<CopyReport, MoveError> {
        copy(&self.job(pass), &Progress::default(), &StopSignal::default())
    }

    fn write(&self, block: u64, byte: u8) -> ByteSpan {
        let span = ByteSpan::new(block * BLOCK_BYTES, 9);
        self.source.overwrite(span.offset, &[byte; 9]);
        span
    }

    fn is_equal(&self) -> bool {
        self.target.content() == self.source.content()
    }

    /// What is kept of the target and its journal, as a backup would.
    fn kept(&self) -> (Vec<u8>, Vec<u8>) {
        (self.target.content(), std::fs::read(self.journal()).unwrap())
    }

    fn put_back(&self, (content, journal): (Vec<u8>, Vec<u8>)) {
        self.target.overwrite(0, &content);
        std::fs::write(self.journal(), journal).unwrap();
    }
}

/// Pass `number` from the state of its number, with the areas since that of the pass before.
fn delta(number: u32, areas: Vec<ByteSpan>) -> PassJob {
    PassJob {
        number,
        disk: "vm/2000".into(),
        frozen: Some(format!("state {number}")),
        areas: Areas::Changed(areas),
        since: Some(format!("state {}", number - 1)),
        audit: None,
    }
}

#[test]
fn a_delta_on_top_of_an_older_image_compares_all_of_it() {
    let replica = Replica::new(BLOCKS);
    replica.run(delta(1, vec![])).unwrap();
    let old = replica.kept();
    let second = replica.write(20, 1);
    assert!(!replica.run(delta(2, vec![second])).unwrap().pass.unwrap().is_other_base);
    replica.put_back(old);
    let third = replica.write(40, 2);
    let report = replica.run(delta(3, vec![third])).unwrap();
    let told = report.pass.unwrap();
    assert!(replica.is_equal(), "what pass 2 brought is not there");
    assert!(told.is_other_base);
    assert_eq!((told.areas_bytes, told.changed_bytes), (SIZE, 2 * BLOCK_BYTES));
    // From here on it has had that state.
    let fourth = replica.write(41, 2);
    let told = replica.run(delta(4, vec![fourth])).unwrap().pass.unwrap();
    assert_eq!((told.is_other_base, told.areas_bytes), (false, BLOCK_BYTES));
    assert!(replica.is_equal());
}

#[test]
fn a_pass_that_is_done_again_is_told_since_the_state_of_the_last_complete_one() {
    let replica = Replica::new(BLOCKS);
    replica.run(delta(1, vec![])).unwrap();
    // Complete here and not in the store, so it is done again, from another frozen state.
    let spans = vec![replica.write(3, 1), replica.write(9, 1)];
    replica.run(delta(2, spans.clone())).unwrap();
    let again = PassJob { frozen: Some("state 2, later".into()), ..delta(2, spans) };
    let told = replica.run(again).unwrap().pass.unwrap();
    assert_eq!((told.is_other_base, told.changed_bytes), (false, 0));
}

#[test]
fn an_interrupted_first_pass_is_told_since_the_state_from_which_it_began() {
    let replica = Replica::new(BLOCKS);
    let stop = StopSignal::default();
    stop.stop();
    let job = replica.job(PassJob { since: None, ..delta(1, vec![]) });
    assert!(matches!(copy(&job, &Progress::default(), &stop), Err(MoveError::Cancelled)));
    // Another half of it, and then the rest, each from a later state.
    replica
        .run(PassJob { frozen: Some("later".into()), since: Some("state 1".into()), ..delta(1, vec![]) })
        .unwrap();
    let span = replica.write(5, 5);
    let told =
        replica.run(PassJob { since: Some("state 1".into()), ..delta(2, vec![span]) }).unwrap().pass.unwrap();
    assert!(!told.is_other_base && replica.is_equal());
}

#[test]
fn a_journal_that_was_rewritten_still_tells_the_states_it_has_had() {
    let replica = Replica::new(3000);
    let mut rewritten = false;
    for number in 1..9 {
        let before = std::fs::metadata(replica.journal()).map_or(0, |file| file.len());
        let spans = (0..1500).map(|block| ByteSpan::new(2 * block * BLOCK_BYTES, 1)).collect();
        let told = replica.run(delta(number, spans)).unwrap().pass.unwrap();
        assert!(!told.is_other_base, "pass {number}");
        rewritten |= std::fs::metadata(replica.journal()).unwrap().len() < before;
        // The disk beside it failed, so this one is done again from the state before.
        if number > 1 {
            let again = PassJob { frozen: Some(format!("state {number}, later")), ..delta(number, vec![]) };
            assert!(!replica.run(again).unwrap().pass.unwrap().is_other_base, "pass {number} again");
            // The store goes on from this one.
            let told = PassJob { frozen: Some(format!("state {number}")), ..delta(number, vec![]) };
            replica.run(told).unwrap();
        }
    }
    assert!(rewritten);
    let told = replay(&mut &std::fs::read(replica.journal()).unwrap()[..]).unwrap();
    assert!(told.bases.have("state 8") && told.bases.have("state 7") && !told.bases.have("state 9"));
}

#[test]
fn only_a_pass_that_was_cut_short_is_said_to_be_resumed() {
    let replica = Replica::new(BLOCKS);
    assert_eq!(replica.run(delta(1, vec![])).unwrap().note, None);
    let span = replica.write(20, 1);
    assert_eq!(replica.run(delta(2, vec![span])).unwrap().note, None, "it goes on with nothing");
    let stop = StopSignal::default();
    stop.stop();
    copy(&replica.job(delta(3, vec![span])), &Progress::default(), &stop).unwrap_err();
    let note = replica.run(delta(3, vec![span])).unwrap().note.unwrap();
    assert!(note.starts_with("resumed: "), "{note}");
    // What is wrong is told also where nothing is resumed.
    let mut journal = std::fs::read(replica.journal()).unwrap();
    journal.extend([1, 2, 3]);
    std::fs::write(replica.journal(), journal).unwrap();
    let note = replica.run(delta(4, vec![span])).unwrap().note.unwrap();
    assert!(note.starts_with("the journal was cut at byte"), "{note}");
}

#[test]
fn what_an_audit_finds_is_told_before_it_is_mended_and_not_mended_if_it_cannot_be_kept() {
    let audited = |number| PassJob { audit: Some(Audit { share: 1.0, seed: 4 }), ..delta(number, vec![]) };
    for is_kept in [true, false] {
        let replica = Replica::new(BLOCKS);
        replica.run(delta(1, vec![])).unwrap();
        let before = replica.kept();
        replica.write(30, 3);
        let told = AtomicU64::new(0);
        let found = |blocks: u64| {
            assert!(replica.target.content() == before.0, "it was mended before it was told");
            let journal = replay(&mut &std::fs::read(replica.journal()).unwrap()[..]).unwrap();
            assert_eq!(journal.leaves.known_blocks(), BLOCKS, "the journal has forgotten it already");
            told.fetch_add(blocks, Ordering::SeqCst);
            if is_kept { Ok(()) } else { Err("the store is full".into()) }
        };
        let job = replica.job(audited(2));
        let result = copy_telling(&job, &found, &Progress::default(), &StopSignal::default());
        assert_eq!(told.load(Ordering::SeqCst), 1);
        assert_eq!((result.is_ok(), replica.is_equal()), (is_kept, is_kept));
        if let Err(error) = result {
            assert!(error.to_string().contains("keeping what the audit found"), "{error}");
        }
    }
}
