use super::*;
use crate::{Buffer, Slice, conformance};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory of this test's own, gone when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        Dir::below(&std::env::temp_dir())
    }

    fn below(parent: &Path) -> Dir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("drover-disk-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn new_target(size: u64) -> OpenTarget {
    OpenTarget { size, create: true, resume: false }
}

fn run(disk: &dyn Disk, span: ByteSpan, work: Work) -> Completion {
    let mut lane = disk.open_lane().unwrap();
    lane.submit(Request { id: 1, span, work });
    lane.complete().unwrap()
}

fn write(disk: &dyn Disk, offset: u64, bytes: &[u8]) {
    let mut buffer = Buffer::zeroed(bytes.len());
    buffer.copy_from_slice(bytes);
    let span = ByteSpan::new(offset, bytes.len() as u64);
    run(disk, span, Work::Write(Slice::from(buffer))).result.unwrap();
}

fn refused(result: Result<FileDisk, DiskError>) -> (DiskErrorKind, String) {
    let Err(error) = result else { panic!("should have been refused") };
    (error.kind, format!("{error}: {}", error.source))
}

fn conforms(dir: &Dir) {
    let next = AtomicU64::new(0);
    let path = || dir.file(&format!("t{}", next.load(Ordering::Relaxed)));
    conformance::check_writer(
        |size| {
            next.fetch_add(1, Ordering::Relaxed);
            Arc::new(FileDisk::open_target(path(), new_target(size)).unwrap())
        },
        || std::fs::read(path()).unwrap(),
    );
    let expected = std::fs::read(path()).unwrap();
    conformance::check_reader(&FileDisk::open_source(path()).unwrap(), &expected);
}

#[test]
fn passes_the_conformance_suite_on_disk() {
    conforms(&Dir::new());
}

#[test]
fn passes_the_conformance_suite_in_memory() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        println!("skipped: no /dev/shm");
        return;
    }
    conforms(&Dir::below(shm));
}

#[test]
fn reads_for_verification_bypass_the_cache_for_every_byte() {
    let dir = Dir::new();
    for size in [1, 4095, 4097, 70_001, (2 << 20) + 5] {
        let path = dir.file(&format!("v{size}"));
        let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let disk = FileDisk::open_for_verify(&path).unwrap();
        conformance::check_reader(&disk, &content);
        // Spans that do not lie on the grain, and memory that is not aligned.
        let from = content.len() / 3;
        let mut bytes = vec![0; content.len() - from + 1];
        disk.handle.read(ByteSpan::new(from as u64, (content.len() - from) as u64), &mut bytes[1..]).unwrap();
        assert_eq!(bytes[1..], content[from..]);
        if disk.is_direct() {
            std::fs::File::options().write(true).open(&path).unwrap().set_len(size / 2).unwrap();
            let error = disk.handle.read(ByteSpan::new(size / 2, 1), &mut [0]).unwrap_err();
            assert!(error.source.to_string().contains("it ends at byte"), "{}", error.source);
        } else {
            println!("skipped in part: no direct I/O in {}", dir.0.display());
        }
    }
}

#[test]
fn an_odd_sized_file_keeps_its_size() {
    let dir = Dir::new();
    for size in [1, 511, 513, 65537] {
        let path = dir.file(&format!("{size}"));
        let disk = FileDisk::open_target(&path, new_target(size)).unwrap();
        assert!(disk.features().zeroed);
        let bytes = conformance::pattern(size);
        write(&disk, 0, &bytes);
        run(&disk, ByteSpan::new(size - 1, 1), Work::Zero).result.unwrap();
        disk.flush().unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found.len() as u64, size);
        assert_eq!(found[..size as usize - 1], bytes[..size as usize - 1]);
    }
}

#[test]
fn a_file_that_holds_something_is_taken_only_to_resume_with_its_size() {
    let dir = Dir::new();
    let path = dir.file("disk");
    std::fs::write(&path, [1; 5000]).unwrap();
    let (kind, text) = refused(FileDisk::open_target(&path, new_target(5000)));
    assert_eq!(kind, DiskErrorKind::Denied);
    assert!(text.contains("already holds 5000 bytes"), "{text}");
    let resume = |size| OpenTarget { size, create: false, resume: true };
    assert_eq!(refused(FileDisk::open_target(&path, resume(5001))).0, DiskErrorKind::Denied);
    let disk = FileDisk::open_target(&path, resume(5000)).unwrap();
    assert!(!disk.features().zeroed);
    assert_eq!(std::fs::read(&path).unwrap(), [1; 5000]);
}

#[test]
fn a_target_has_one_owner_at_a_time() {
    let dir = Dir::new();
    let path = dir.file("disk");
    let first = FileDisk::open_target(&path, new_target(4096)).unwrap();
    let again = OpenTarget { size: 4096, create: false, resume: true };
    let (kind, text) = refused(FileDisk::open_target(&path, again));
    assert_eq!(kind, DiskErrorKind::Denied);
    assert!(text.contains("another process holds"), "{text}");
    drop(first);
    FileDisk::open_target(&path, again).unwrap();
}

#[test]
fn what_is_no_disk_is_refused_in_words() {
    let dir = Dir::new();
    let (kind, text) = refused(FileDisk::open_target(&dir.0, new_target(1)));
    assert!(kind == DiskErrorKind::Unsupported && text.contains("it is a directory"), "{text}");
    let (_, text) = refused(FileDisk::open_source("/dev/null"));
    assert!(text.contains("a character device"), "{text}");
    let _socket = std::os::unix::net::UnixListener::bind(dir.file("socket")).unwrap();
    assert!(refused(FileDisk::open_source(dir.file("socket"))).1.contains("a socket"));
    let missing = OpenTarget { size: 1, create: false, resume: false };
    assert_eq!(refused(FileDisk::open_target(dir.file("none"), missing)).0, DiskErrorKind::Gone);
    assert_eq!(refused(FileDisk::open_source(dir.file("none"))).0, DiskErrorKind::Gone);
}

#[test]
fn a_failed_creation_leaves_no_file() {
    let dir = Dir::new();
    let path = dir.file("disk");
    refused(FileDisk::open_target(&path, new_target(u64::MAX / 2)));
    assert!(!path.exists());
}

#[test]
fn a_source_cut_short_is_an_error_and_not_zeros() {
    let dir = Dir::new();
    let path = dir.file("disk");
    std::fs::write(&path, [1; 100_000]).unwrap();
    let disk = FileDisk::open_source(&path).unwrap();
    let before = disk.identity();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(50_000).unwrap();
    assert_ne!(disk.identity(), before);
    let span = ByteSpan::new(40_000, 20_000);
    let error = run(&disk, span, Work::Read(Buffer::zeroed(20_000))).result.unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::Corrupt);
    let error = disk.extents(ByteSpan::new(60_000, 1000)).unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::Corrupt);
}

#[test]
fn holes_are_told_and_zeroing_makes_one() {
    let dir = Dir::new();
    let disk = FileDisk::open_target(dir.file("disk"), new_target(4 << 20)).unwrap();
    let whole = ByteSpan::new(0, disk.size());
    assert_eq!(disk.extents(whole).unwrap(), [Extent::zero(whole)]);
    write(&disk, 1 << 20, &vec![7; 1 << 20]);
    let middle = ByteSpan::new(1 << 20, 1 << 20);
    let rest = ByteSpan::new(2 << 20, 2 << 20);
    let expected = [Extent::zero(ByteSpan::new(0, 1 << 20)), Extent::allocated(middle), Extent::zero(rest)];
    assert_eq!(disk.extents(whole).unwrap(), expected);
    run(&disk, middle, Work::Zero).result.unwrap();
    assert_eq!(disk.extents(whole).unwrap(), [Extent::zero(whole)]);
    assert!(disk.features().fast_zero, "a hole was made, so zeroing is cheap here");
}

#[test]
fn a_source_of_crumbs_answers_in_bounded_pieces() {
    let dir = Dir::new();
    let path = dir.file("disk");
    let disk = FileDisk::open_target(&path, new_target(20 << 20)).unwrap();
    for crumb in 0..1500 {
        write(&disk, crumb * 12288, &[1; 4096]);
    }
    let first = disk.extents(ByteSpan::new(0, disk.size())).unwrap();
    assert!((1024..=1025).contains(&first.len()), "{}", first.len());
    conformance::check_reader(&disk, &std::fs::read(&path).unwrap());
}

#[test]
fn writers_that_share_pages_do_not_lose_each_others_bytes() {
    let dir = Dir::new();
    let path = dir.file("disk");
    let size = 1 << 20;
    let disk = FileDisk::open_target(&path, new_target(size)).unwrap();
    // Pieces of 5000 bytes: every page is shared by two of them, each written by another thread.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let disk = &disk;
            scope.spawn(move || {
                for index in (thread..size / 20_000).step_by(4) {
                    for part in 0..4 {
                        write(disk, index * 20_000 + part * 5000, &[index as u8 + 1; 5000]);
                    }
                }
            });
        }
    });
    disk.flush().unwrap();
    let found = std::fs::read(&path).unwrap();
    for (at, byte) in found.iter().enumerate().take((size / 20_000 * 20_000) as usize) {
        assert_eq!(*byte as usize, at / 20_000 + 1, "byte {at}");
    }
}

#[test]
fn preflight_tells_room_and_rights() {
    let dir = Dir::new();
    assert!(free_bytes(&dir.0).unwrap() > 0);
    is_writable_dir(&dir.0).unwrap();
    assert_eq!(free_bytes(dir.file("none")).unwrap_err().kind, DiskErrorKind::Gone);
    std::fs::write(dir.file("file"), "x").unwrap();
    let error = is_writable_dir(dir.file("file")).unwrap_err();
    assert!(error.source.to_string().contains("not a directory"));
    assert!(can_hold_file(&dir.0, 1 << 20).unwrap());
    assert!(!can_hold_file(&dir.0, u64::MAX).unwrap(), "no file is as large");
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1, "it leaves nothing");
}

/// Runs a program that needs rights; `None`, and a word about it, if it fails.
fn privileged(program: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(arguments).output().ok();
    let output = output.filter(|output| output.status.success());
    if output.is_none() {
        println!("skipped: {program} {arguments:?} is not possible here");
    }
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

#[test]
fn a_full_file_system_is_out_of_space() {
    let dir = Dir::new();
    let mount = dir.0.to_str().unwrap();
    if privileged("mount", &["-t", "tmpfs", "-o", "size=256k", "tmpfs", mount]).is_none() {
        return;
    }
    let disk = FileDisk::open_target(dir.file("disk"), new_target(1 << 20)).unwrap();
    let mut buffer = Buffer::zeroed(1 << 20);
    buffer.fill(1);
    let whole = ByteSpan::new(0, 1 << 20);
    let error = run(&disk, whole, Work::Write(Slice::from(buffer))).result.unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::OutOfSpace);
    // With room again it goes on.
    run(&disk, whole, Work::Zero).result.unwrap();
    write(&disk, 0, &[2; 4096]);
    disk.flush().unwrap();
    drop(disk);
    privileged("umount", &[mount]);
}

/// A loop device, taken down when dropped.
struct LoopDevice(String);

impl LoopDevice {
    fn new(file: &Path, sector_bytes: &str) -> Option<LoopDevice> {
        let how = ["--find", "--show", "--sector-size", sector_bytes, file.to_str().unwrap()];
        privileged("losetup", &how).map(LoopDevice)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        privileged("losetup", &["--detach", &self.0]);
    }
}

/// A device with sectors of that size does what a disk has to do, and what is behind the disk stays as it is.
fn a_device_conforms(sector_bytes: &str) {
    let dir = Dir::new();
    let image = dir.file("image");
    std::fs::write(&image, vec![0xee; 8 << 20]).unwrap();
    let Some(LoopDevice(device)) = &LoopDevice::new(&image, sector_bytes) else { return };
    let asked = AtomicU64::new(0);
    let content = || {
        let mut content = std::fs::read(device).unwrap();
        let behind = content.split_off(asked.load(Ordering::Relaxed) as usize);
        assert!(behind.iter().all(|byte| *byte == 0xee), "what is behind the disk");
        content
    };
    conformance::check_writer(
        |size| {
            asked.store(size, Ordering::Relaxed);
            Arc::new(FileDisk::open_target(device, new_target(size)).unwrap())
        },
        content,
    );
    let expected = std::fs::read(device).unwrap();
    conformance::check_reader(&FileDisk::open_source(device).unwrap(), &expected);
    conformance::check_reader(&FileDisk::open_for_verify(device).unwrap(), &expected);
    assert!(refused(FileDisk::open_target(device, new_target(9 << 20))).1.contains("holds 8388608 bytes"));
    let size = (4 << 20) + 512;
    let disk = FileDisk::open_target(device, new_target(size)).unwrap();
    assert!(!disk.features().zeroed && disk.kind() == FileKind::Block);
    let (kind, text) = refused(FileDisk::open_target(device, new_target(size)));
    assert!(kind == DiskErrorKind::Denied && text.contains("in use"), "{text}");
}

#[test]
fn a_device_whose_path_leads_to_another_one_by_now_is_not_the_target_that_was_opened() {
    let dir = Dir::new();
    let devices = ["a", "b"].map(|name| {
        let image = dir.file(name);
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        LoopDevice::new(&image, "512")
    });
    let [Some(LoopDevice(first)), Some(LoopDevice(other))] = &devices else { return };
    let link = dir.file("volume");
    std::os::unix::fs::symlink(first, &link).unwrap();
    let disk = FileDisk::open_target(&link, new_target(1 << 20)).unwrap();
    disk.check_same().unwrap();
    std::fs::remove_file(&link).unwrap();
    assert_eq!(disk.check_same().unwrap_err().kind, DiskErrorKind::Gone);
    std::os::unix::fs::symlink(other, &link).unwrap();
    let error = disk.flush().unwrap_err();
    assert!(
        error.kind == DiskErrorKind::Gone && error.source.to_string().contains("another device"),
        "{error}"
    );
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(first, &link).unwrap();
    disk.flush().unwrap();
}

#[test]
fn a_block_device_is_a_target_unless_it_is_used_or_too_small() {
    a_device_conforms("512");
}

#[test]
fn a_block_device_of_large_sectors_is_one_as_well() {
    a_device_conforms("4096");
}

#[test]
fn a_file_for_an_image_appears_when_published_and_never_in_place_of_another() {
    let dir = Dir::new();
    let path = dir.file("image");
    let file = HostFile::create(&path).unwrap();
    file.set_length(10_000).unwrap();
    file.write(5000, &[7; 300]).unwrap();
    assert!(!path.exists(), "half of an image is nobody's business");
    file.publish().unwrap();
    let again = HostFile::open(&path).err().unwrap();
    assert_eq!(again.kind, DiskErrorKind::Denied, "one writer at a time");
    let mut bytes = [1; 400];
    HostFile::open_for_verify(&path).unwrap().read(4950, &mut bytes).unwrap();
    assert!(bytes[..50].iter().all(|byte| *byte == 0) && bytes[50..350] == [7; 300]);
    file.zero(ByteSpan::new(5000, 300)).unwrap();
    file.read(4950, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 400]);
    assert_eq!((file.length().unwrap(), HostFile::create(&path).is_err()), (10_000, true));
    drop(file);
    drop(HostFile::create(&dir.file("never")).unwrap());
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1);
}

#[test]
fn writes_under_way_end_before_the_disk_is_gone() {
    let dir = Dir::new();
    let path = dir.file("t");
    const COUNT: u64 = 64;
    let size = COUNT << 16;
    let disk = FileDisk::open_target(&path, new_target(size)).unwrap();
    let mut lanes: Vec<_> = (0..4).map(|_| disk.open_lane().unwrap()).collect();
    for number in 0..COUNT {
        let mut buffer = Buffer::zeroed(1 << 16);
        buffer.fill(number as u8 + 1);
        let lane = &mut lanes[number as usize % 4];
        if lane.in_flight() == disk.limits().depth_max {
            lane.complete().unwrap().result.unwrap();
        }
        let span = ByteSpan::new(number << 16, 1 << 16);
        lane.submit(Request { id: number, span, work: Work::Write(Slice::from(buffer)) });
    }
    assert!(lanes.iter().all(|lane| lane.in_flight() > 0));
    drop((disk, lanes));
    let found = std::fs::read(&path).unwrap();
    assert!(found.chunks(1 << 16).zip(1u8..).all(|(block, byte)| block.iter().all(|it| *it == byte)));
    // And the lock is gone with it.
    FileDisk::open_target(&path, OpenTarget { size, create: false, resume: true }).unwrap();
}

#[test]
fn space_set_aside_changes_no_byte_and_no_length() {
    let dir = Dir::new();
    let path = dir.file("t");
    let size = (1 << 20) + 100;
    let disk = FileDisk::open_target(&path, new_target(size)).unwrap();
    write(&disk, 5000, &[7; 9000]);
    disk.reserve(&[ByteSpan::new(4096, 65536), ByteSpan::new(500_000, 100_000), ByteSpan::new(size - 1, 1)])
        .unwrap();
    let found = std::fs::read(&path).unwrap();
    assert_eq!(found.len() as u64, size);
    assert!((0..).zip(&found).all(|(at, byte)| *byte == if (5000..14000).contains(&at) { 7 } else { 0 }));
    assert_eq!(disk.reserve(&[ByteSpan::new(size, 1)]).unwrap_err().kind, DiskErrorKind::Misuse);
}
