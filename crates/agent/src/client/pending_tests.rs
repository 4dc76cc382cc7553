use super::*;
use proptest::prelude::*;

const BLOCKS: u64 = 8;
const FOR_EVER: Duration = Duration::from_secs(900);

fn block(number: u64) -> ByteSpan {
    ByteSpan::new(number * 65536, 65536)
}

/// The agent's side: a disk of one value for each block, and what was not flushed.
#[derive(Default)]
struct Agent {
    content: [u8; BLOCKS as usize],
    durable: [u8; BLOCKS as usize],
    generation: u64,
    answers: Vec<(Head, Vec<u8>)>,
}

impl Agent {
    fn serve(&mut self, job: Job) {
        let at = (job.span.offset / 65536) as usize;
        let kind = match (&job.what, job.rest) {
            // The target has it already if it happens to.
            (What::Write(bytes), None) if self.content[at] == bytes[0] && bytes[0] % 2 == 0 => {
                let have = Head { mask: 1, ..Head::plain(Kind::Have, job.id, job.span) };
                return self.answers.push((have, Vec::new()));
            }
            (What::Write(bytes), None) if bytes[0] % 2 == 0 => {
                return self.answers.push((Head::plain(Kind::Have, job.id, job.span), Vec::new()));
            }
            (What::Write(bytes), _) => {
                self.content[at] = bytes[0];
                Kind::Done
            }
            (What::Zero, _) => {
                self.content[at] = 0;
                Kind::Done
            }
            (What::Flush, _) => {
                self.durable = self.content;
                Kind::Done
            }
            (what, _) => panic!("nobody asked for {what:?}"),
        };
        self.answers.push((Head::plain(kind, job.id, ByteSpan::new(0, 0)), Vec::new()));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u8),
    Zero(u64),
    /// The agent serves the next message.
    Serve,
    /// The nth answer arrives.
    Answer(usize),
    /// An answer that says that a write failed for now, or arrived damaged.
    Fail(usize, bool),
    Flush,
    Disconnect,
    Reboot,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..BLOCKS, 1u8..255).prop_map(|(block, value)| Step::Write(block, value)),
        1 => (0..BLOCKS).prop_map(Step::Zero),
        9 => Just(Step::Serve),
        9 => (0usize..8).prop_map(Step::Answer),
        1 => (0usize..8, any::<bool>()).prop_map(|(nth, passes)| Step::Fail(nth, passes)),
        3 => Just(Step::Flush),
        1 => Just(Step::Disconnect),
        1 => Just(Step::Reboot),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever happens to connections and hosts: once a flush ended well, all that was taken before it is durable, or
    /// overwritten by what came later; and a disk that failed never says that a flush ended well.
    #[test]
    fn what_a_flush_covered_is_durable(steps in prop::collection::vec(step(), 0..300)) {
        let mut agent = Agent::default();
        let mut pending = Pending::new("0", FOR_EVER);
        let mut now = Duration::ZERO;
        let mut last = [0u8; BLOCKS as usize];
        // How often each block was written.
        let mut writes = [0u32; BLOCKS as usize];
        // What a flush must have made durable: its id, what was last written to each block then, and how often it was.
        let mut flushes = Vec::new();
        for step in steps {
            now += Duration::from_secs(1);
            if pending.failed().is_some() {
                prop_assert!(flushes.iter().all(|(id, _, _)| !matches!(pending.replies.get(id), Some(Reply::Done(_)))));
                break;
            }
            match step {
                Step::Write(number, value) if !pending.overlaps(block(number)) => {
                    pending.add(What::Write(Arc::new(vec![value; 65536])), block(number));
                    last[number as usize] = value;
                    writes[number as usize] += 1;
                }
                Step::Zero(number) if !pending.overlaps(block(number)) => {
                    pending.add(What::Zero, block(number));
                    last[number as usize] = 0;
                    writes[number as usize] += 1;
                }
                Step::Serve => {
                    if let Some(job) = pending.next(now) {
                        agent.serve(job);
                    }
                }
                Step::Answer(nth) if nth < agent.answers.len() => {
                    let (head, body) = agent.answers.swap_remove(nth);
                    prop_assert_eq!(pending.answer(head, body, now), Ok(()));
                }
                Step::Fail(nth, passes) if nth < agent.answers.len() => {
                    let (head, _) = agent.answers.swap_remove(nth);
                    let kind = if passes { DiskErrorKind::Transient } else { DiskErrorKind::Corrupt };
                    let head = Head { detail: crate::message::status_of(kind), ..Head::plain(Kind::Done, head.id, ByteSpan::new(0, 0)) };
                    prop_assert_eq!(pending.answer(head, Vec::new(), now), Ok(()));
                }
                Step::Flush if !pending.has_writes_before(pending.next_id()) => {
                    flushes.push((pending.add(What::Flush, ByteSpan::new(0, 0)), last, writes));
                }
                Step::Disconnect => {
                    agent.answers.clear();
                    pending.disconnected();
                    prop_assert!(pending.next(now).is_none());
                    prop_assert_eq!(pending.reopened(&agent.generation.to_string()), Ok(()));
                }
                Step::Reboot => {
                    agent.answers.clear();
                    agent.content = agent.durable;
                    agent.generation += 1;
                    pending.disconnected();
                    let _ = pending.reopened(&agent.generation.to_string());
                }
                _ => {}
            }
            flushes.retain(|(id, wanted, written)| match pending.take_reply(*id) {
                Some(Reply::Done(_)) => {
                    for number in 0..BLOCKS as usize {
                        let later = writes[number] != written[number];
                        assert!(agent.durable[number] == wanted[number] || later, "block {number} is lost");
                    }
                    false
                }
                Some(_) => false,
                None => true,
            });
        }
        // Left alone, everything ends.
        while pending.failed().is_none() && !pending.entries.is_empty() {
            now += Duration::from_secs(10);
            match pending.next(now) {
                Some(job) => agent.serve(job),
                None => prop_assert!(!agent.answers.is_empty() || pending.next_wake().is_some()),
            }
            for (head, body) in std::mem::take(&mut agent.answers) {
                prop_assert_eq!(pending.answer(head, body, now), Ok(()));
            }
        }
        if pending.failed().is_none() {
            prop_assert_eq!(agent.content, last);
            prop_assert_eq!(pending.bytes(), 0);
        }
    }
}

#[test]
fn overlap_is_told_at_the_last_byte() {
    let mut pending = Pending::new("0", FOR_EVER);
    pending.add(What::Zero, ByteSpan::new(100, 50));
    for (offset, length, expected) in [(0, 100, false), (0, 101, true), (149, 1, true), (150, 9, false)] {
        assert_eq!(pending.overlaps(ByteSpan::new(offset, length)), expected, "{offset}+{length}");
    }
}

#[test]
fn a_write_that_fails_for_good_ends_the_disk_and_every_later_flush() {
    let mut pending = Pending::new("0", FOR_EVER);
    let id = pending.add(What::Zero, block(0));
    let flush = pending.add(What::Flush, ByteSpan::new(0, 0));
    while pending.next(Duration::ZERO).is_some() {}
    let full = Head { detail: 2, ..Head::plain(Kind::Done, id, ByteSpan::new(0, 0)) };
    pending.answer(full, b"no room".to_vec(), Duration::ZERO).unwrap();
    assert_eq!(pending.failed().unwrap(), &Refusal::new(DiskErrorKind::OutOfSpace, "no room"));
    let done = Head::plain(Kind::Done, flush, ByteSpan::new(0, 0));
    pending.answer(done, Vec::new(), Duration::ZERO).unwrap();
    assert!(pending.take_reply(flush).is_none(), "a late answer does not count");
}

#[test]
fn answers_to_nothing_and_of_another_kind_are_senseless() {
    let mut pending = Pending::new("0", FOR_EVER);
    let id = pending.add(What::Zero, block(0));
    let done = Head::plain(Kind::Done, id, ByteSpan::new(0, 0));
    assert_eq!(pending.answer(done, Vec::new(), Duration::ZERO), Err(Senseless), "it was not even sent");
    for head in [
        Head::plain(Kind::Done, id + 1, ByteSpan::new(0, 0)),
        Head::plain(Kind::Have, id, block(0)),
        Head::plain(Kind::Map, id, block(1)),
        Head { detail: 99, ..Head::plain(Kind::Done, id, ByteSpan::new(0, 0)) },
    ] {
        pending.reopened("0").unwrap();
        assert_eq!(pending.next(Duration::ZERO).map(|job| job.id), Some(id));
        assert_eq!(pending.answer(head.clone(), Vec::new(), Duration::ZERO), Err(Senseless), "{head:?}");
    }
}

/// An agent that answers one write again and again makes this side neither remember nor send more.
#[test]
fn an_answer_counts_once() {
    let mut pending = Pending::new("0", FOR_EVER);
    let id = pending.add(What::Write(Arc::new(vec![2; 65536])), block(0));
    let none_of_it = Head::plain(Kind::Have, id, block(0));
    let not_now = Head { detail: 1, ..Head::plain(Kind::Done, id, ByteSpan::new(0, 0)) };
    for answer in [none_of_it, not_now] {
        let now = pending.next_wake().unwrap_or_default();
        assert_eq!(pending.next(now).map(|job| job.id), Some(id));
        assert_eq!(pending.answer(answer.clone(), Vec::new(), now), Ok(()));
        for _ in 0..1000 {
            assert_eq!(pending.answer(answer.clone(), Vec::new(), now), Err(Senseless));
        }
        assert!(pending.queue.len() + pending.paused.len() == 1);
    }
}

/// Whatever is on its way when the run is to stop is answered; all else is given up, and no flush covers it.
#[test]
fn what_was_not_sent_is_withdrawn_and_what_was_is_still_answered() {
    let mut pending = Pending::new("0", FOR_EVER);
    let even = || What::Write(Arc::new(vec![2; 65536]));
    let ids: Vec<u64> = (0..6).map(|number| pending.add(even(), block(number))).collect();
    for _ in 0..4 {
        pending.next(Duration::ZERO).unwrap();
    }
    let not_now = Head { detail: 1, ..Head::plain(Kind::Done, ids[0], ByteSpan::new(0, 0)) };
    pending.answer(not_now, Vec::new(), Duration::ZERO).unwrap();
    pending.withdraw();
    assert_eq!(pending.withdrawn(), [block(0), block(4), block(5)], "one that pauses, two that wait");
    // Only the offer of it was sent.
    pending.answer(Head::plain(Kind::Have, ids[1], block(1)), Vec::new(), Duration::ZERO).unwrap();
    // A connection had not taken it yet.
    pending.unsent(ids[2]);
    let flush = pending.next_id();
    assert!(pending.has_writes_before(flush), "one is on its way");
    pending.answer(Head::plain(Kind::Done, ids[3], ByteSpan::new(0, 0)), Vec::new(), Duration::ZERO).unwrap();
    assert!(!pending.has_writes_before(flush) && pending.bytes() == 0);
    assert_eq!(pending.withdrawn()[3..], [block(1), block(2)]);
    pending.add(What::Flush, ByteSpan::new(0, 0));
    assert!(matches!(pending.next(FOR_EVER), Some(Job { what: What::Flush, .. })), "nothing else is sent");
    pending.check();
}

#[test]
fn what_was_on_its_way_over_a_line_that_broke_is_not_sent_again_by_a_run_that_is_to_stop() {
    let mut pending = Pending::new("0", FOR_EVER);
    pending.add(What::Zero, block(0));
    pending.next(Duration::ZERO).unwrap();
    pending.withdraw();
    pending.disconnected();
    pending.reopened("0").unwrap();
    assert!(pending.next(Duration::ZERO).is_none());
    assert_eq!(pending.withdrawn(), [block(0)]);
}
