//! The lanes of a disk, without a plan: what every backend must do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_disk::conformance::{check_reader, check_writer};
use drover_disk::{Buffer, Disk, DiskError, DiskErrorKind, Request, Work};
use drover_http::{Thumbprint, Trust};
use drover_nfc::{
    Codec, CodecWish, Ledger, NfcDisk, NfcError, NfcErrorKind, NfcOptions, Rustls, Ticket, Tickets,
};
use drover_types::inventory::Vm;
use drover_types::{ByteSpan, ExtentKind};
use drover_vsphere::{NfcAccess, Session};
use serde_json::json;

use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm};

/// Tickets by a session, without a plan.
struct BySession {
    session: Session,
    vm: Vm,
    disk: usize,
    access: NfcAccess,
}

impl Tickets for BySession {
    fn ticket(&self) -> Result<Ticket, NfcError> {
        let failed = |error| NfcError::other(NfcErrorKind::Unsupported, "ticket", error);
        let (vm, disk) = (&self.vm, &self.vm.disks[self.disk]);
        let ticket = self.session.nfc_ticket(&vm.id, disk.key, &vm.host_id, self.access).map_err(failed)?;
        let pin: Thumbprint = ticket.thumbprint.unwrap().parse().unwrap();
        Ok(Ticket {
            host: ticket.host.clone().unwrap(),
            memory_of: ticket.host.unwrap(),
            port: ticket.port.unwrap(),
            trust: Trust::Thumbprint(pin),
            service: ticket.service,
            session: ticket.session,
        })
    }
}

fn open(stage: &Stage, session: &Session, vm: &Vm, disk: usize, access: NfcAccess, codec: Codec) -> NfcDisk {
    let options = NfcOptions {
        codec: CodecWish::Always(codec),
        timeout: Duration::from_secs(60),
        writable: access == NfcAccess::Write,
        ..NfcOptions::new("one", &vm.disks[disk].path)
    };
    let tickets = BySession { session: session.clone(), vm: vm.clone(), disk, access };
    NfcDisk::open(options, Arc::new(tickets), Arc::new(Rustls), Ledger::new(stage.path("ledger"))).unwrap()
}

fn only_vm(session: &Session) -> Vm {
    session.inventory().unwrap().vms.into_iter().find(|vm| vm.name == "one").unwrap()
}

#[test]
fn its_lanes_do_what_every_backend_must() {
    let Some(stage) = Stage::new(143, |folder| vec![vm("one", &[&disk_file(folder, "a", 9 * MIB + 1024)])])
    else {
        return;
    };
    let session = stage.somebody();
    let vm = only_vm(&session);
    let expected = std::fs::read(stage.path("a")).unwrap();
    for (codec, host) in [
        (Codec::None, json!({"fragment_order": "shuffle", "mix": 3, "fragment_bytes": [4096, 65536]})),
        (Codec::SkipZ, json!({"fragment_order": "reverse"})),
        (Codec::Zlib, json!({"mix": 2})),
        (Codec::FastLz, json!({})),
    ] {
        stage.sim.post("/nfc/reset", json!({})).unwrap();
        stage.sim.post("/nfc/set", host).unwrap();
        let disk = open(&stage, &session, &vm, 0, NfcAccess::Read, codec);
        check_reader(&disk, &expected);
        assert!(disk.database("uuid").is_ok() && disk.database("no-such-key").unwrap().is_none());
    }
}

/// A sparse disk of more chunks than are asked for at once, with data at both sides of where a question ends.
#[test]
fn of_a_disk_of_many_chunks_no_hole_is_taken_for_data_and_no_data_for_a_hole() {
    const GIB: u64 = 1 << 30;
    const CHUNK: u64 = 64 << 10;
    let size = 33 * GIB + 3 * 512;
    // Around where questions of 32 GiB, and of the powers of two below them, begin; and the tail, which is no whole chunk.
    let data = [0, GIB, 16 * GIB - CHUNK, 32 * GIB - CHUNK, 32 * GIB, 33 * GIB - CHUNK];
    let Some(stage) = Stage::new(182, |folder| {
        let file = std::fs::File::create(folder.join("a")).unwrap();
        file.set_len(size).unwrap();
        for offset in data {
            std::os::unix::fs::FileExt::write_all_at(&file, &[7; CHUNK as usize], offset).unwrap();
        }
        vec![vm("one", &[&folder.join("a")])]
    }) else {
        return;
    };
    let session = stage.somebody();
    let vm = only_vm(&session);
    let tail = ByteSpan::from_bounds(33 * GIB, size);
    let expected: Vec<ByteSpan> =
        data.iter().map(|offset| ByteSpan::new(*offset, CHUNK)).chain([tail]).collect();
    // As many chunks as are asked for, fewer, and too few to be asked for.
    for (most, is_told) in [(1 << 20, true), (1500, true), (100, false)] {
        stage.sim.post("/nfc/set", json!({"qab_count_max": most})).unwrap();
        let disk = open(&stage, &session, &vm, 0, NfcAccess::Read, Codec::None);
        let (mut at, mut found) = (0, Vec::new());
        while at < size {
            let told = disk.extents(ByteSpan::from_bounds(at, size)).unwrap();
            assert_eq!(told[0].span.offset, at);
            at = told.last().unwrap().span.end();
            found.extend(told.iter().filter(|it| it.kind != ExtentKind::Zero).map(|it| it.span));
        }
        match is_told {
            true => assert_eq!(joined(found), joined(expected.clone()), "at most {most} chunks"),
            false => {
                assert_eq!(joined(found), [ByteSpan::new(0, size)]);
                assert!(disk.state().notes.iter().any(|it| it.contains("allocated blocks are unknown")));
            }
        }
    }
}

/// Spans in order, those that touch made one.
fn joined(spans: Vec<ByteSpan>) -> Vec<ByteSpan> {
    let mut joined: Vec<ByteSpan> = Vec::new();
    for span in spans {
        match joined.last_mut().filter(|last| last.end() == span.offset) {
            Some(last) => *last = ByteSpan::from_bounds(last.offset, span.end()),
            None => joined.push(span),
        }
    }
    joined
}

/// Reads a block by a lane of its own.
fn read_block(disk: &dyn Disk) -> Result<(), DiskError> {
    let mut lane = disk.open_lane()?;
    lane.submit(Request {
        id: 0,
        span: ByteSpan::new(0, MIB),
        work: Work::Read(Buffer::zeroed(MIB as usize)),
    });
    lane.complete().unwrap().result
}

/// Reads after a cut: a connection whose end is not noticed yet fails a request first.
fn read_again(disk: &dyn Disk) -> Result<(), DiskError> {
    match read_block(disk) {
        Err(error) if error.kind == DiskErrorKind::Transient => read_block(disk),
        done => done,
    }
}

#[test]
fn a_disk_that_became_another_is_not_read_on() {
    let Some(stage) = Stage::new(152, |folder| vec![vm("one", &[&disk_file(folder, "a", 4 * MIB)])]) else {
        return;
    };
    let session = stage.somebody();
    let vm = only_vm(&session);
    let orders = [
        ("another uuid", "/nfc/fault", json!({"at": "ddb_get", "do": "flip"})),
        ("another size", "/disk/grow", json!({"vm": "one", "disk": 0, "capacity": "8MiB"})),
    ];
    for (what, path, order) in orders {
        let disk = open(&stage, &session, &vm, 0, NfcAccess::Read, Codec::None);
        read_block(&disk).unwrap();
        stage.sim.post("/nfc/cut", json!({"vm": "one"})).unwrap();
        read_again(&disk).unwrap();
        stage.sim.post(path, order).unwrap();
        stage.sim.post("/nfc/cut", json!({"vm": "one"})).unwrap();
        let error = read_again(&disk).unwrap_err();
        assert_eq!(error.kind, DiskErrorKind::Corrupt, "{what}: {error}");
        let why = error.source.to_string();
        assert!(why.contains("another disk"), "{what}: {why}");
    }
}

#[test]
fn a_uuid_that_a_host_did_not_tell_once_is_no_other_disk() {
    let Some(stage) = Stage::new(153, |folder| vec![vm("one", &[&disk_file(folder, "a", 4 * MIB)])]) else {
        return;
    };
    let session = stage.somebody();
    let vm = only_vm(&session);
    let refuse_uuid = || {
        let order = json!({"at": "ddb_get", "do": "error", "code": 7, "text": "no such key"});
        stage.sim.post("/nfc/fault", order).unwrap();
    };
    let cut = || stage.sim.post("/nfc/cut", json!({"vm": "one"})).unwrap();
    refuse_uuid();
    let disk = open(&stage, &session, &vm, 0, NfcAccess::Read, Codec::None);
    assert!(disk.state().notes.iter().any(|note| note.contains("uuid")), "{:?}", disk.state().notes);
    cut();
    read_again(&disk).unwrap();
    // Told by now, then not, then told again.
    refuse_uuid();
    for _ in 0..2 {
        cut();
        read_again(&disk).unwrap();
    }
    assert_eq!(disk.state().reconnects, 3);
    // Nor does what was told late go unheeded.
    stage.sim.post("/nfc/fault", json!({"at": "ddb_get", "do": "flip"})).unwrap();
    cut();
    assert_eq!(read_again(&disk).unwrap_err().kind, DiskErrorKind::Corrupt);
}

#[test]
fn what_its_lanes_write_is_what_the_datastore_has() {
    // Whole sectors, as large as each size of the suite or the next larger.
    let sizes = [512, 1024, 4096, 66_048, MIB, 3 * MIB + 512];
    let Some(stage) = Stage::new(150, |folder| {
        let files: Vec<_> =
            sizes.iter().map(|size| disk_file(folder, &format!("disk-{size}"), *size)).collect();
        vec![vm("one", &files.iter().map(std::path::PathBuf::as_path).collect::<Vec<_>>())]
    }) else {
        return;
    };
    let session = stage.somebody();
    let vm = only_vm(&session);
    let last = Mutex::new(0);
    let make = |size: u64| -> Arc<dyn Disk> {
        let number = sizes.iter().position(|it| *it >= size).unwrap();
        *last.lock().unwrap() = number;
        Arc::new(open(&stage, &session, &vm, number, NfcAccess::Write, Codec::SkipZ))
    };
    check_writer(make, || {
        let disks = stage.sim.get("/disks?vm=one").unwrap();
        let file = disks[0]["disks"][*last.lock().unwrap()]["live"].as_str().unwrap().to_string();
        std::fs::read(file).unwrap()
    });
    assert_eq!(crate::counted(&stage, "esx1.lab", "vpxa-nfc", "sessions"), 0);
}

/// A disk of 8 MiB that is written, and the file of its datastore.
fn written(stage: &Stage) -> (NfcDisk, std::path::PathBuf) {
    let session = stage.somebody();
    let vm = only_vm(&session);
    let disk = open(stage, &session, &vm, 0, NfcAccess::Write, Codec::None);
    let disks = stage.sim.get("/disks?vm=one").unwrap();
    (disk, disks[0]["disks"][0]["live"].as_str().unwrap().into())
}

/// Writes MiBs of these values from the disk's beginning by a lane of its own, all of them in flight at once; gives the
/// first error.
fn write_mibs(disk: &dyn Disk, values: &[u8]) -> Result<(), DiskError> {
    let mut lane = disk.open_lane()?;
    for (id, value) in (0u64..).zip(values) {
        let mut data = Buffer::zeroed(MIB as usize);
        data.fill(*value);
        lane.submit(Request { id, span: ByteSpan::new(id * MIB, MIB), work: Work::Write(data.into()) });
    }
    let results: Vec<_> = values.iter().map(|_| lane.complete().unwrap().result).collect();
    assert_eq!(lane.is_broken(), results.iter().any(Result::is_err));
    results.into_iter().collect()
}

fn assert_mibs(file: &std::path::Path, values: &[u8]) {
    let content = std::fs::read(file).unwrap();
    for (mib, value) in content.chunks(MIB as usize).zip(values) {
        assert!(mib.iter().all(|byte| byte == value), "{value}");
    }
}

#[test]
fn a_write_that_fails_is_told_and_the_next_lane_writes_on() {
    let Some(stage) = Stage::new(164, |folder| vec![vm("one", &[&disk_file(folder, "a", 8 * MIB)])]) else {
        return;
    };
    let (disk, file) = written(&stage);
    write_mibs(&disk, &[1; 8]).unwrap();
    assert_mibs(&file, &[1; 8]);

    let so_far = crate::counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_written");
    stage.sim.post("/nfc/set", json!({"write_space": so_far + 2 * MIB})).unwrap();
    let full = write_mibs(&disk, &[2, 3, 4]).unwrap_err();
    assert_eq!(full.kind, DiskErrorKind::OutOfSpace, "{full}");
    assert!(full.source.to_string().contains("no more space"), "{}", full.source);
    stage.sim.post("/nfc/set", json!({"write_space": -1})).unwrap();
    write_mibs(&disk, &[2, 3, 4]).unwrap();
    assert_mibs(&file, &[2, 3, 4, 1, 1, 1, 1, 1]);

    for reply in [
        json!({"at": "write", "do": "cut", "where": "before"}),
        json!({"at": "write", "do": "cut", "where": "payload", "skip": 1}),
        json!({"at": "write", "do": "status", "code": 5}),
    ] {
        stage.sim.post("/nfc/fault", reply.clone()).unwrap();
        let cut = write_mibs(&disk, &[5, 6]).unwrap_err();
        assert_eq!(cut.kind, DiskErrorKind::Transient, "{reply}: {cut}");
        write_mibs(&disk, &[7, 8]).unwrap();
        assert_mibs(&file, &[7, 8, 4, 1]);
    }

    // In the middle of what is sent.
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 4 * MIB})).unwrap();
    let before = crate::counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_written");
    let cut = std::thread::scope(|scope| {
        let writing = scope.spawn(|| write_mibs(&disk, &[9; 8]));
        wait_until("a part is written", PATIENCE, || {
            crate::counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_written") > before + MIB
        });
        stage.sim.post("/nfc/cut", json!({"vm": "one"})).unwrap();
        writing.join().unwrap().unwrap_err()
    });
    assert_eq!(cut.kind, DiskErrorKind::Transient, "{cut}");
    stage.sim.post("/nfc/reset", json!({})).unwrap();
    write_mibs(&disk, &[10; 8]).unwrap();
    assert_mibs(&file, &[10; 8]);
    drop(disk);
    assert_eq!(crate::counted(&stage, "esx1.lab", "vpxa-nfc", "sessions"), 0);
}
