//! What a killed run had copied is not copied again, although its host still holds the locks of the client that vanished:
//! as long as nobody wrote to the disk, and only then.

use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_http::{Client, Request};
use drover_types::BLOCK_BYTES;
use drover_vsphere::{OpenDisk, Route, Timeouts, Trust};
use serde_json::{Value, json};

use crate::{counted, image, one, plan, write_mib};
use drover_stage::process::{PATIENCE, recorded_blocks, wait_for_records, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm, with};

/// Of a disk, how it was read on.
struct Resumed {
    /// Of the journal that the killed run left.
    recorded: u64,
    /// Of the run after it.
    resumed: u64,
    /// From the hosts, by the run after it.
    read: u64,
    note: String,
}

/// Begins a plan, kills it in the middle of its copy, does something, and resumes it.
fn kill_and_resume(stage: &Stage, name: &str, keys: &str, vm: &str, meanwhile: impl FnOnce()) -> Resumed {
    let slow = json!({"host_bytes_per_s": 6 * MIB, "vanished_hold_ms": 1_800_000});
    stage.sim.post("/nfc/set", slow).unwrap();
    let plan = plan(stage, name, keys, &[]);
    let target = image(stage, name, vm, 0);
    let running = stage.drover.start(&["migrate", &plan]).unwrap();
    wait_for_records(&target);
    running.kill().unwrap();
    let recorded = recorded_blocks(&target) * BLOCK_BYTES;
    meanwhile();
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 0})).unwrap();
    let read = || {
        let of = |host: &str| counted(stage, host, "vpxa-nfc", "bytes_read");
        ["esx1.lab", "esx2.lab"].map(of).iter().sum::<u64>()
    };
    // What the session that ended was still sent is counted a moment after it.
    let mut before = read();
    wait_until("the last read of what was killed", PATIENCE, || {
        std::thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut before, read()) == before
    });
    let output = stage.run(&["resume", &plan]);
    assert_eq!(output.code, Some(0), "{name}: {}{}", output.out, output.err);
    let details = &stage.report(&plan)["vms"][0]["disks"][0]["details"];
    let live = live(stage, vm);
    assert!(drover_stage::same_bytes(&target, &live), "{} differs from {}", target.display(), live.display());
    assert!(!stage.sim.vm(vm).unwrap()["snapshots"].to_string().contains("drover"), "{name}");
    let resumed = details["resumed_bytes"].as_u64().unwrap();
    Resumed { recorded, resumed, read: read() - before, note: details["note"].to_string() }
}

fn live(stage: &Stage, vm: &str) -> PathBuf {
    let disks = stage.sim.get(&format!("/disks?vm={vm}")).unwrap();
    PathBuf::from(disks[0]["disks"][0]["live"].as_str().unwrap())
}

impl Resumed {
    /// What was on the target was neither read nor counted again.
    #[track_caller]
    fn assert_goes_on(&self, size: u64) {
        assert!(self.recorded > 0 && self.resumed == self.recorded, "{} of {}", self.resumed, self.recorded);
        assert_eq!(self.read, size - self.resumed, "{}", self.note);
    }

    #[track_caller]
    fn assert_begins_again(&self, size: u64) {
        assert!(self.recorded > 0);
        assert_eq!((self.resumed, self.read), (0, size), "{}", self.note);
        assert!(self.note.contains("the source has changed since the journal was made"), "{}", self.note);
    }
}

/// What the datastore's server says to whoever asks for the frozen file while an NFC session has it locked.
fn asked_of_server(stage: &Stage) -> String {
    let session = stage.somebody();
    let vm = session.inventory().unwrap().vms.into_iter().find(|vm| vm.name == "one").unwrap();
    let snapshot = Some(vm.snapshots[0].id.as_str());
    let (disk, route, datacenter) = (&vm.disks[0], &Route::Provider, vm.datacenter.as_str());
    let refused = session.open_disk(OpenDisk { vm: &vm, disk, snapshot, route, datacenter }).unwrap_err();
    format!("{refused:?}")
}

#[test]
fn a_killed_copy_goes_on_while_its_host_still_holds_its_locks() {
    let Some(stage) = Stage::new(165, one(24)) else { return };
    let ask = || {
        let told = asked_of_server(&stage);
        assert!(told.contains("500"), "it does not tell the file's time: {told}");
    };
    kill_and_resume(&stage, "killed", "", "one", ask).assert_goes_on(24 * MIB);
    // It is another host's by now, and no other content.
    let to = json!({"vm": "one", "host": "esx2.lab"});
    let moved = kill_and_resume(&stage, "moved", "", "one", || drop(stage.sim.post("/vm/move", to).unwrap()));
    moved.assert_goes_on(24 * MIB);
}

#[test]
fn a_killed_copy_of_a_disk_that_was_named_goes_on_as_well() {
    let Some(stage) = Stage::new(188, one(24)) else { return };
    let slow = json!({"host_bytes_per_s": 6 * MIB, "vanished_hold_ms": 1_800_000});
    stage.sim.post("/nfc/set", slow).unwrap();
    let (disk, target) = (format!("vsphere://127.0.0.1:{}/one/0", stage.sim.port), stage.path("copy.raw"));
    let args = ["copy", &disk, &target.display().to_string(), "--thumbprint", &stage.sim.thumbprint];
    let running = stage.drover.start(&args).unwrap();
    wait_for_records(&target);
    running.kill().unwrap();
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 0})).unwrap();
    let output = stage.run(&args);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!((output.out + &output.err).contains("resumed: "), "it begins again");
    assert!(drover_stage::same_bytes(&target, &stage.path("a")));
}

/// Whoever is asked, and in whatever order, gives a disk of one state one name.
#[test]
fn a_copy_goes_on_by_whoever_tells_the_state_of_its_disk() {
    let Some(stage) = Stage::new(166, one(24)) else { return };
    let no_browser = || {
        let fault = json!({"method": "SearchDatastore_Task", "fault": "NoPermission", "count": -1});
        stage.sim.post("/fault/soap", fault).unwrap();
        // The host has noticed, so the datastore's own server tells.
        stage.sim.post("/nfc/restart", json!({})).unwrap();
    };
    kill_and_resume(&stage, "by-server", "", "one", no_browser).assert_goes_on(24 * MIB);
    // Neither does: nobody can say that it is as it was.
    let nobody = kill_and_resume(&stage, "by-nobody", "", "one", || ());
    nobody.assert_begins_again(24 * MIB);
    assert!(nobody.note.contains("begins again with its first byte"), "{}", nobody.note);
}

#[test]
fn a_disk_that_was_written_to_meanwhile_is_copied_from_its_beginning() {
    let Some(stage) = Stage::new(167, one(24)) else { return };
    // Later than the time that the file has.
    let pause = || std::thread::sleep(Duration::from_millis(1100));
    let power =
        |state: &str| drop(stage.sim.post("/vm/power", json!({"vm": "one", "state": state})).unwrap());
    let write = || {
        pause();
        let order = json!({"vm": "one", "disk": 0, "offset": 0, "fill": "random", "length": 65536});
        stage.sim.post("/write", order).unwrap();
    };
    let ran = || {
        power("on");
        write();
        power("off");
    };
    kill_and_resume(&stage, "ran", "", "one", ran).assert_begins_again(24 * MIB);
    kill_and_resume(&stage, "written", "", "one", write).assert_begins_again(24 * MIB);
    let moved = || {
        pause();
        stage.sim.post("/vm/move", json!({"vm": "one", "datastore": "ds2"})).unwrap();
    };
    kill_and_resume(&stage, "other-store", "", "one", moved).assert_begins_again(24 * MIB);
}

/// Whose data HTTPS does not give.
#[test]
fn of_disks_that_nfc_alone_reads_those_whose_files_tell_their_time_go_on() {
    let Some(stage) = Stage::new(168, |folder| {
        let a = disk_file(folder, "a", 24 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let write = |offset: u64| write_mib(&stage, offset);
    write(MIB);
    let backup = stage.backup("one");
    write(3 * MIB);
    kill_and_resume(&stage, "chain", "", "one", || ()).assert_goes_on(24 * MIB);
    let written = || {
        std::thread::sleep(Duration::from_millis(1100));
        write(5 * MIB);
    };
    kill_and_resume(&stage, "written", "", "one", written).assert_begins_again(24 * MIB);
    kill_and_resume(&stage, "gone-back", "", "one", || go_back(&stage, &backup))
        .assert_begins_again(24 * MIB);
}

/// Somebody takes a VM back to a snapshot; drover never does.
fn go_back(stage: &Stage, snapshot: &str) {
    let (endpoint, pin) = (format!("127.0.0.1:{}", stage.sim.port), stage.sim.thumbprint.parse().unwrap());
    let client =
        Client::new(endpoint.parse().unwrap(), &Trust::Thumbprint(pin), Timeouts::default()).unwrap();
    let call = |call: &str, cookie: &str| {
        let text = format!(
            "<e:Envelope xmlns:e=\"http://schemas.xmlsoap.org/soap/envelope/\"><e:Body>{call}</e:Body></e:Envelope>"
        );
        let request = Request::post("/sdk", text).with_header("Content-Type", "text/xml; charset=utf-8");
        let response = client.send(&request.with_header("Cookie", cookie)).unwrap();
        assert_eq!(response.head.status, 200, "{}", String::from_utf8_lossy(&response.body));
        response.head.header("set-cookie").unwrap_or_default().to_string()
    };
    let before = live(stage, "one");
    let login = format!(
        "<Login xmlns=\"urn:vim25\"><_this type=\"SessionManager\">SessionManager</_this><userName>{}</userName>\
         <password>{}</password></Login>",
        drover_lab::USER,
        drover_lab::PASSWORD
    );
    let cookie = call(&login, "");
    let back = format!(
        "<RevertToSnapshot_Task xmlns=\"urn:vim25\"><_this type=\"VirtualMachineSnapshot\">{snapshot}</_this>\
         </RevertToSnapshot_Task>"
    );
    call(&back, cookie.split(';').next().unwrap_or_default());
    wait_until("the VM is back", PATIENCE, || live(stage, "one") != before);
}

#[test]
fn an_object_of_vsan_tells_no_time_and_is_copied_from_its_beginning() {
    let objects = |folder: &Path| -> Vec<Value> {
        let a = disk_file(folder, "a", 24 * MIB);
        let object = json!({"file": a, "datastore": "ds1", "controller": "pvscsi", "format": "vsan"});
        vec![with(vm("one", &[]), json!({"disks": [object]}))]
    };
    let Some(stage) = Stage::new(169, objects) else { return };
    let resumed = kill_and_resume(&stage, "object", "", "one", || ());
    resumed.assert_begins_again(24 * MIB);
    assert!(resumed.note.contains("no file with the data of [ds1] one/one.vmdk"), "{}", resumed.note);
}
