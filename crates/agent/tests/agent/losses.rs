//! Links that end and agents that die in the middle of a copy, and what a flush means then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use drover_agent::opening::{Access, Announced, How, Stat};
use drover_agent::{AgentDisk, AgentOptions, Held, Refusal, Store};
use drover_disk::memory::{Effect, MemDisk, Nth};
use drover_disk::{Buffer, Disk, DiskErrorKind, DiskOp, Request, Work, conformance};
use drover_types::ByteSpan;

use crate::stage::{One, Stage, source, target, write, write_all};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 24 * MIB;

fn content() -> Vec<u8> {
    conformance::pattern(SIZE)
}

/// A disk in memory that is slow, so that something is always on its way.
fn slow() -> MemDisk {
    let disk = MemDisk::new("slow", vec![0xee; SIZE as usize]);
    disk.with_fault(DiskOp::Write, Nth::Every(1), Effect::Delay(Duration::from_millis(2)))
}

/// Disturbs the stage again and again while `work` is done, which is once, and until a disturbance has cost `remote`
/// its way to the agent.
fn disturbed(stage: &Stage, remote: &AgentDisk, disturb: impl Fn(&Stage) + Sync, mut work: impl FnMut()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(30));
                disturb(stage);
            }
        });
        let until = Instant::now() + Duration::from_secs(120);
        work();
        while remote.sent().reopened == 0 && Instant::now() < until {
            work();
        }
        over.store(true, SeqCst);
    });
    assert!(remote.sent().reopened > 0, "the way was never lost");
}

#[test]
fn every_byte_arrives_through_links_that_end_again_and_again() {
    let (disk, content) = (slow(), content());
    let stage = Stage::new(One::new(disk.clone()));
    let remote = target(&stage.site(), "one", SIZE, How::Resume).unwrap();
    disturbed(&stage, &remote, Stage::cut, || {
        write_all(&remote, &content);
        remote.flush().unwrap();
    });
    assert!(disk.content() == content && !disk.has_unflushed());
}

#[test]
fn every_byte_arrives_through_agents_that_die_and_come_back() {
    let (disk, content) = (slow(), content());
    let stage = Stage::new(One::new(disk.clone()));
    let remote = target(&stage.site(), "one", SIZE, How::Resume).unwrap();
    let restart = |stage: &Stage| {
        stage.kill();
        std::thread::sleep(Duration::from_millis(20));
        stage.start_again();
    };
    disturbed(&stage, &remote, restart, || {
        write_all(&remote, &content);
        remote.flush().unwrap();
    });
    assert!(disk.content() == content && !disk.has_unflushed());
}

#[test]
fn a_disk_is_read_to_its_end_through_links_that_end() {
    let content = content();
    let disk = MemDisk::new("a", content.clone());
    let disk = disk.with_fault(DiskOp::Read, Nth::Every(1), Effect::Delay(Duration::from_millis(3)));
    let stage = Stage::new(One::new(disk));
    let remote = source(&stage.site(), "one");
    disturbed(&stage, &remote, Stage::cut, || conformance::check_reader(&remote, &content));
}

#[test]
fn writes_that_a_restart_of_the_host_may_have_taken_are_never_called_safe() {
    let content = content();
    let disk = MemDisk::new("a", vec![0; SIZE as usize]);
    let one = One::new(disk.clone());
    let generation = one.generation.clone();
    let stage = Stage::new(one);
    let remote = target(&stage.site(), "one", SIZE, How::Resume).unwrap();
    let first = ByteSpan::new(0, MIB);
    write(&remote, first, &content).unwrap();
    remote.flush().unwrap();
    // Nothing is lost if nothing was unflushed.
    *generation.lock().unwrap() = "second".to_string();
    stage.cut();
    write(&remote, first, &content).unwrap();
    remote.flush().unwrap();
    // Answered, which a read shows, and not flushed.
    write(&remote, first, &content).unwrap();
    let mut lane = remote.open_lane().unwrap();
    lane.submit(Request { id: 1, span: first, work: Work::Read(Buffer::zeroed(MIB as usize)) });
    lane.complete().unwrap().result.unwrap();
    *generation.lock().unwrap() = "third".to_string();
    stage.cut();
    let error = remote.flush().unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::Failed, "{}", error.source);
    assert!(error.source.to_string().contains("not flushed"), "{}", error.source);
    assert!(remote.flush().is_err(), "it stays so");
    assert_eq!(write(&remote, first, &content), Err(DiskErrorKind::Failed));
}

#[test]
fn a_write_that_fails_there_is_told_by_the_next_flush_and_ever_after() {
    let content = content();
    for (kind, nth) in [(DiskErrorKind::OutOfSpace, Nth::Only(3)), (DiskErrorKind::Failed, Nth::Only(1))] {
        let disk =
            MemDisk::new("a", vec![0; SIZE as usize]).with_fault(DiskOp::Write, nth, Effect::Fail(kind));
        let remote = target(&Stage::new(One::new(disk)).site(), "one", SIZE, How::Resume).unwrap();
        for block in 0..4 {
            // A later one may already know.
            let _ = write(&remote, ByteSpan::new(block * MIB, MIB), &content);
        }
        assert_eq!(remote.flush().unwrap_err().kind, kind);
        assert_eq!(remote.flush().unwrap_err().kind, kind);
    }
}

#[test]
fn a_write_that_fails_for_now_is_done_again() {
    let content = content();
    let fault = Effect::Fail(DiskErrorKind::Transient);
    let disk = MemDisk::new("a", vec![0; SIZE as usize]).with_fault(DiskOp::Write, Nth::Every(3), fault);
    let remote = target(&Stage::new(One::new(disk.clone())).site(), "one", SIZE, How::Resume).unwrap();
    write_all(&remote, &content);
    remote.flush().unwrap();
    assert!(disk.content() == content);
}

#[test]
fn a_flush_that_fails_is_told_and_what_came_before_it_is_not_forgotten() {
    let content = content();
    let disk = MemDisk::new("a", vec![0; SIZE as usize]);
    let disk = disk.with_fault(DiskOp::Flush, Nth::Only(1), Effect::Fail(DiskErrorKind::Transient));
    let one = One::new(disk.clone());
    let generation = one.generation.clone();
    let stage = Stage::new(one);
    let remote = target(&stage.site(), "one", SIZE, How::Resume).unwrap();
    write(&remote, ByteSpan::new(0, MIB), &content).unwrap();
    assert_eq!(remote.flush().unwrap_err().kind, DiskErrorKind::Transient);
    *generation.lock().unwrap() = "second".to_string();
    stage.cut();
    assert_eq!(remote.flush().unwrap_err().kind, DiskErrorKind::Failed, "that write was never durable");
}

/// Two writes of one block in a row: the second must win, though messages overtake each other and are sent again.
#[test]
fn the_later_of_two_writes_counts() {
    let disk = slow();
    let stage = Stage::new(One::new(disk.clone()));
    let remote = target(&stage.site(), "one", SIZE, How::Resume).unwrap();
    let span = ByteSpan::new(5 * MIB + 77, 100_000);
    disturbed(&stage, &remote, Stage::cut, || {
        for round in 0..100u8 {
            let content = vec![round | 1; SIZE as usize];
            write(&remote, span, &content).unwrap();
            let zero = ByteSpan::new(span.offset + 1000, 5000);
            let mut lane = remote.open_lane().unwrap();
            lane.submit(Request { id: 1, span: zero, work: Work::Zero });
            lane.complete().unwrap().result.unwrap();
            let mut expected = content[..span.length as usize].to_vec();
            expected[1000..6000].fill(0);
            lane.submit(Request { id: 2, span, work: Work::Read(Buffer::zeroed(span.length as usize)) });
            let completion = lane.complete().unwrap();
            completion.result.unwrap();
            let Work::Read(found) = completion.work else { panic!("a read comes back as one") };
            assert!(*found == expected[..], "round {round}");
        }
    });
}

#[test]
fn an_agent_that_stays_away_is_given_up_and_says_so() {
    let stage = Stage::new(One::new(MemDisk::new("a", vec![0; SIZE as usize])));
    let options = AgentOptions { give_up_after: Duration::from_millis(300), ..AgentOptions::default() };
    let target = drover_agent::Target { size: SIZE, how: How::Resume, epoch: 1, volume: None };
    let remote = AgentDisk::open_target(&stage.site(), "one", &target, options).unwrap();
    stage.kill();
    let error = remote.flush().unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::Gone);
    assert!(error.source.to_string().contains("nobody listens"), "{}", error.source);
}

/// Its disk's failed flushes are counted.
struct Counting {
    one: One,
    losses: Arc<AtomicU64>,
}

impl Store for Counting {
    fn open(&self, disk: &str, access: &Access) -> Result<Held, Refusal> {
        let losses = self.losses.clone();
        let on_loss = move || {
            losses.fetch_add(1, SeqCst);
            Ok(())
        };
        Ok(Held { on_loss: Some(Box::new(on_loss)), ..self.one.open(disk, access)? })
    }

    fn stat(&self, disk: &str) -> Result<Stat, Refusal> {
        self.one.stat(disk)
    }

    fn announce(&self) -> Announced {
        self.one.announce()
    }
}

#[test]
fn a_flush_that_failed_is_written_down_before_it_is_told() {
    let disk = MemDisk::new("a", vec![0; SIZE as usize]);
    let disk = disk.with_fault(DiskOp::Flush, Nth::Only(1), Effect::Fail(DiskErrorKind::Failed));
    let losses = Arc::new(AtomicU64::new(0));
    let stage = Stage::new(Counting { one: One::new(disk), losses: losses.clone() });
    let remote = target(&stage.site(), "one", SIZE, How::Resume).unwrap();
    write(&remote, ByteSpan::new(0, MIB), &content()).unwrap();
    assert!(remote.flush().is_err());
    assert_eq!(losses.load(SeqCst), 1);
}

#[test]
fn memory_for_what_is_not_answered_is_bounded() {
    // Nothing is ever answered: the second lane to find no room waits, and is let go when the disk is given up.
    let disk = MemDisk::new("a", vec![0; SIZE as usize]);
    let disk = disk.with_fault(DiskOp::Write, Nth::Only(1), Effect::Delay(Duration::from_secs(2)));
    let stage = Stage::new(One::new(disk));
    let options = AgentOptions { pending_bytes_max: 2 * MIB, ..AgentOptions::default() };
    let wanted = drover_agent::Target { size: SIZE, how: How::Resume, epoch: 1, volume: None };
    let remote = Arc::new(AgentDisk::open_target(&stage.site(), "one", &wanted, options).unwrap());
    let content = content();
    for block in 0..20 {
        write(&*remote, ByteSpan::new(block * MIB, MIB), &content).unwrap();
        assert!(remote.pending_bytes() <= 2 * MIB);
    }
    remote.flush().unwrap();
    assert_eq!(remote.pending_bytes(), 0);
}
