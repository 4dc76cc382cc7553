//! The guest boots, beats, writes, and finds what was changed behind its back. Skips, and says so, where there is no QEMU.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_pulse::{PAGE_BYTES, Pulse, PulseError, PulseSpec, pages_max};
use tempfile::TempDir;

/// Where its pages begin.
const PAGES_AT: u64 = 4 << 20;

/// A guest whose memory is this file.
struct Scene {
    guest: Pulse,
    memory: File,
    _folder: TempDir,
}

fn lab() -> Option<PulseSpec> {
    Some(PulseSpec { qemu: drover_lab::Pulse::qemu()?, ..PulseSpec::default() })
}

/// The same with its memory in a file of this folder, as it lies there.
fn in_file(spec: PulseSpec, folder: &TempDir) -> PulseSpec {
    let file = folder.path().join("memory");
    let backend = format!(
        "memory-backend-file,id=memory,size={}M,share=on,mem-path={}",
        spec.memory_mib,
        file.display()
    );
    let more = ["-object", &backend, "-machine", "memory-backend=memory"].map(str::to_string).to_vec();
    PulseSpec { more, ..spec }
}

impl Scene {
    fn new(spec: PulseSpec) -> Scene {
        let folder = tempfile::Builder::new().prefix("drover-pulse-").tempdir().unwrap();
        let guest = Pulse::start(&folder.path().join("a"), &in_file(spec, &folder)).unwrap();
        let memory = File::options().read(true).write(true).open(folder.path().join("memory")).unwrap();
        guest.beat(5).unwrap();
        Scene { guest, memory, _folder: folder }
    }

    fn is_sound(&mut self) -> bool {
        self.guest.verify().unwrap().is_sound()
    }

    /// Does something to the bytes at an address of the file.
    fn change(&self, at: u64, by: impl Fn(u8) -> u8) {
        let mut byte = [0];
        self.memory.read_exact_at(&mut byte, at).unwrap();
        self.memory.write_all_at(&[by(byte[0])], at).unwrap();
    }

    fn page(&self, page: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES as usize];
        self.memory.read_exact_at(&mut bytes, PAGES_AT + page * PAGE_BYTES).unwrap();
        bytes
    }
}

#[test]
fn it_beats_and_proves_memory_that_it_writes_to() {
    let Some(lab) = lab() else { return };
    for at_random in [true, false] {
        let mut scene = Scene::new(PulseSpec { pages_per_beat: 20, at_random, ..lab.clone() });
        scene.guest.beat(20).unwrap();
        let writes = scene.guest.writes();
        let [(_, first), .., (_, last)] = writes[..] else { panic!("{writes:?}") };
        assert!(last >= first + 20 * 20, "{writes:?}");
        assert!(scene.is_sound());
        assert!(scene.guest.verify().unwrap().writes_counted >= last);
    }
}

#[test]
fn a_byte_that_is_changed_behind_its_back_is_found_wherever_it_is() {
    let Some(lab) = lab() else { return };
    let pages = u64::from(lab.pages);
    let mut scene = Scene::new(lab);
    for (page, byte) in [(0, 0), (1, 2500), (pages / 2, 8), (pages - 1, 4091), (pages - 1, 4095)] {
        let at = PAGES_AT + page * PAGE_BYTES + byte;
        assert!(scene.is_sound());
        scene.change(at, |byte| byte ^ 0x10);
        let verdict = scene.guest.verify().unwrap();
        assert_eq!(verdict.bad_pages, 1, "page {page}, byte {byte}: {verdict:?}");
        scene.change(at, |byte| byte ^ 0x10);
    }
    assert!(scene.is_sound());
    // Behind its last page nothing is its own.
    scene.change(PAGES_AT + pages * PAGE_BYTES, |byte| byte ^ 0x10);
    assert!(scene.is_sound());
}

/// What a move loses that forgets a write: the page is whole, and older than its guest.
#[test]
fn a_page_that_is_older_than_its_guest_is_found() {
    let Some(lab) = lab() else { return };
    // Each page is written to in its turn, about twice in a second.
    let mut scene = Scene::new(PulseSpec { pages: 1024, pages_per_beat: 20, at_random: false, ..lab });
    let old = scene.page(7);
    let until = (0..1000).find(|_| {
        std::thread::sleep(Duration::from_millis(20));
        scene.page(7) != old
    });
    assert!(until.is_some(), "the page is never written to");
    scene.memory.write_all_at(&old, PAGES_AT + 7 * PAGE_BYTES).unwrap();
    let verdict = scene.guest.verify().unwrap();
    assert!(verdict.bad_pages == 0 && verdict.writes_found < verdict.writes_counted, "{verdict:?}");
}

#[test]
fn a_guest_that_fills_all_that_it_can_is_sound() {
    let Some(lab) = lab() else { return };
    let mut scene = Scene::new(PulseSpec { memory_mib: 128, pages: pages_max(128), ..lab });
    assert!(scene.is_sound());
}

/// What a PC of more than 3 GiB has beyond 4 GiB. The hole is moved down, so that little memory has some on either side.
#[test]
fn pages_go_on_where_memory_does_beyond_4_gib() {
    let Some(lab) = lab() else { return };
    for machine in ["pc,max-ram-below-4g=32M", "q35,max-ram-below-4g=32M"] {
        let spec = PulseSpec { memory_mib: 96, pages: pages_max(96), pages_per_beat: 20, ..lab.clone() };
        let mut scene = Scene::new(PulseSpec { machine: machine.into(), ..spec });
        assert!(scene.is_sound());
        // Each page begins with its number; what lies beyond the hole follows in the file, behind tables of the firmware.
        let beyond = scene.page((32 - 4) << 8);
        let number = u64::from(u32::from_le_bytes(beyond[..4].try_into().unwrap()));
        let below = (28 << 8) - number;
        assert!((1..256).contains(&below), "page {number} is the first beyond the hole");
        for (page, byte) in
            [((28 << 8) - below - 1, 8), (28 << 8, 8), (u64::from(pages_max(96)) + below - 1, 4091)]
        {
            let at = PAGES_AT + page * PAGE_BYTES + byte;
            scene.change(at, |byte| byte ^ 0x10);
            assert_eq!(scene.guest.verify().unwrap().bad_pages, 1, "{machine}: {page}");
            scene.change(at, |byte| byte ^ 0x10);
        }
        assert!(scene.is_sound());
    }
}

#[test]
fn a_qemu_that_does_not_start_is_told_in_its_own_words() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let error =
        Pulse::start(folder.path(), &PulseSpec { machine: "toaster".into(), ..lab.clone() }).unwrap_err();
    assert!(matches!(&error, PulseError::Ended(why) if why.contains("toaster")), "{error}");
    let error = Pulse::start(folder.path(), &PulseSpec { qemu: "/no/such/qemu".into(), ..lab }).unwrap_err();
    assert!(error.to_string().contains("/no/such/qemu"), "{error}");
}

#[test]
fn who_waits_for_a_guest_can_be_stopped() {
    let Some(lab) = lab() else { return };
    let folder = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let silent = Pulse::waiting(folder.path(), &PulseSpec { stop: stop.clone(), ..lab }).unwrap();
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| silent.beat(1));
        stop.store(true, Ordering::Relaxed);
        waits.join().unwrap()
    });
    assert!(matches!(waits, Err(PulseError::Stopped)), "{waits:?}");
}
