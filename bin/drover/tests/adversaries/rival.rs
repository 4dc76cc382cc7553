//! A second vSphere client that renames, powers, adds, removes and deletes while drover works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_http::{Client, Endpoint, Request, Timeouts, Trust};
use drover_lab::{PASSWORD, USER};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::moves::is_known;
use crate::site::{Guest, Site};
use crate::tally::{Ending, Kind, Violation};

/// What somebody did to a VM, as far as it counts in the end.
#[derive(Clone, Debug, Default)]
struct Touched {
    /// Its power, or it is gone.
    power: bool,
    /// Its disks.
    disks: bool,
    /// A snapshot of somebody's own.
    snapshot: bool,
    name: bool,
}

/// In the plan by its name or by a glob; the last is not.
const NAMES: &[&str] = &["web1", "web2", "db"];

pub fn round(dice: &mut Dice) -> Ending {
    let site = Site::new(NAMES, dice);
    let (endpoint, thumbprint) = site.direct();
    let start = if dice.percent(40) { "start: true\n" } else { "" };
    let plan = site.plan(&endpoint, &thumbprint, "[{glob: 'web*'}]", start);
    let is_over = AtomicBool::new(false);
    let time = match dice.percent(50) {
        true => Duration::from_millis(dice.spread(64, 1000)),
        false => Duration::MAX,
    };
    let mut rival = Rival::new(&site, Dice::new(dice.roll(u64::MAX)));
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| rival.work(&is_over));
        let ended = site.run_for(time, "rivalled", &["migrate", &plan], &[]);
        // What is done to VMs that nobody moves any more counts for who goes on with them.
        is_over.store(time == Duration::MAX, Ordering::SeqCst);
        ended
    });
    let Rival { touched, mut done, .. } = rival;
    done.insert(0, format!("{start:?} {:?}", site.guests));
    let tell = |found: Violation| Violation::new(found.kind, format!("{done:?}; {}", found.what));
    let ended = ended.map_err(tell)?;
    let mut last = format!("{:?} {}", ended.code, ended.said);
    let mut is_given_up = false;
    if ended.code != Some(0) && is_known(&site) {
        is_given_up = dice.percent(50);
        let command = if is_given_up { "cancel" } else { "resume" };
        let ended = site.run("after", &[command, "moved"], &[]).map_err(tell)?;
        is_given_up &= ended.code == Some(0);
        last += &format!("; {command} {:?} {}", ended.code, ended.said);
    }
    check(&site, &touched, is_given_up)
        .map_err(|found| Violation::new(found.kind, format!("{done:?}; {}; {last}", found.what)))?;
    site.look_for_secrets().map_err(tell)?;
    Ok(format!("{} {}", if is_given_up { "given up after" } else { "ended with" }, ended.code.unwrap_or(-1)))
}

fn check(site: &Site, touched: &[Touched], is_given_up: bool) -> Result<(), Violation> {
    let report = site.report();
    let empty = Vec::new();
    let told = report["vms"].as_array().unwrap_or(&empty);
    for (guest, touched) in site.guests.iter().zip(touched) {
        let is_done = told.iter().any(|vm| vm["name"] == guest.name.as_str() && vm["state"] == "done");
        if is_done && !touched.disks {
            site.is_equal(guest).map_err(|why| Violation::new(Kind::Differs, why))?;
        }
        if is_done && !touched.power && site.vm(&guest.moid).is_some_and(|vm| vm["power"] != "poweredOff") {
            return Err(Violation::new(
                Kind::Source,
                format!("{} is done and runs at the source", guest.name),
            ));
        }
        let is_moved = guest.name.starts_with("web");
        if (is_given_up && !is_done || !is_moved) && !touched.power {
            as_it_was(site, guest)?;
        }
        if !touched.power && !touched.snapshot && (is_given_up || is_done || !is_moved) {
            no_snapshot(site, guest)?;
        }
    }
    Ok(())
}

fn as_it_was(site: &Site, guest: &Guest) -> Result<(), Violation> {
    match site.vm(&guest.moid) {
        Some(vm) if vm["power"] == guest.power.as_str() => Ok(()),
        vm => Err(Violation::new(Kind::Source, format!("{} was {}: {vm:?}", guest.name, guest.power))),
    }
}

fn no_snapshot(site: &Site, guest: &Guest) -> Result<(), Violation> {
    let vm = site.vm(&guest.moid).unwrap_or_default();
    match vm["snapshots"].as_array().is_none_or(Vec::is_empty) {
        true => Ok(()),
        false => Err(Violation::new(Kind::Source, format!("a snapshot is left: {vm}"))),
    }
}

fn is_resolved(site: &Site) -> bool {
    let said = std::fs::read_to_string(site.work().join("rivalled.err"));
    said.is_ok_and(|said| said.contains(" to move"))
}

struct Rival<'a> {
    site: &'a Site,
    dice: Dice,
    client: Client,
    cookie: String,
    touched: Vec<Touched>,
    done: Vec<String>,
    began: Instant,
}

impl Rival<'_> {
    fn new(site: &Site, dice: Dice) -> Rival<'_> {
        let endpoint: Endpoint = format!("https://127.0.0.1:{}", site.sim.port).parse().unwrap();
        let client = Client::new(endpoint, &Trust::Insecure, Timeouts::default()).unwrap();
        let touched = vec![Touched::default(); site.guests.len()];
        let mut rival = Rival {
            site,
            dice,
            client,
            cookie: String::new(),
            touched,
            done: Vec::new(),
            began: Instant::now(),
        };
        rival.cookie = rival.login();
        rival
    }

    fn work(&mut self, is_over: &AtomicBool) {
        for _ in 0..1 + self.dice.roll(6) {
            std::thread::sleep(Duration::from_millis(self.dice.spread(8, 512)));
            if is_over.load(Ordering::SeqCst) {
                return;
            }
            self.act();
        }
    }

    fn act(&mut self) {
        let at = self.dice.roll(self.site.guests.len() as u64) as usize;
        let guest = self.site.guests[at].clone();
        let what = self.dice.roll(15);
        self.done.push(format!("{} ms: {what} {}", self.began.elapsed().as_millis(), guest.name));
        let touched = &mut self.touched[at];
        match what {
            0..=2 => {
                touched.power = true;
                let state = *self.dice.one_of(&["on", "off", "suspended"]);
                self.power(&guest, state);
            }
            3 => {
                // For a moment only: a guest that ran.
                touched.power = true;
                self.power(&guest, "on");
                self.power(&guest, "off");
            }
            // A VM that has another name before drover looks for names is another one in the plan, rightly.
            4 | 5 if !is_resolved(self.site) => {}
            4 | 5 => {
                touched.name = true;
                let name = *self.dice.one_of(&["web9", "other", "web1 (old)", "db\u{202e}gnp"]);
                self.task("Rename_Task", &guest, &format!("<newName>{name}</newName>"));
            }
            6 => {
                touched.disks = true;
                self.post("/disk/add", json!({"vm": guest.moid, "capacity": "1MiB", "controller": "pvscsi"}));
            }
            7 => {
                touched.disks = true;
                let disk = self.dice.roll(2);
                self.post("/disk/remove", json!({"vm": guest.moid, "disk": disk}));
            }
            8 => {
                touched.disks = true;
                self.post("/disk/grow", json!({"vm": guest.moid, "disk": 0, "capacity": "2MiB"}));
            }
            9 => {
                touched.snapshot = true;
                let arguments = "<name>backup</name><memory>false</memory><quiesce>false</quiesce>";
                self.task("CreateSnapshot_Task", &guest, arguments);
            }
            10 => self.task("RemoveAllSnapshots_Task", &guest, ""),
            11 => {
                touched.power = true;
                touched.disks = true;
                self.task("Destroy_Task", &guest, "");
            }
            12 => {
                touched.power = true;
                touched.disks = true;
                self.call("UnregisterVM", &format!("<_this type=\"VirtualMachine\">{}</_this>", guest.moid));
            }
            13 => self.post("/cbt/reset", json!({"vm": guest.moid})),
            _ => {
                let host = *self.dice.one_of(&["esx1.lab", "esx2.lab"]);
                self.post("/vm/move", json!({"vm": guest.moid, "host": host}));
            }
        }
    }

    fn power(&self, guest: &Guest, state: &str) {
        if state == "on" {
            self.site.switched_on.lock().unwrap().insert(guest.moid.clone(), Instant::now());
        }
        self.post("/vm/power", json!({"vm": guest.moid, "state": state}));
    }

    /// The VM's state may not allow it just now, or the VM may be gone.
    fn post(&self, path: &str, body: Value) {
        let _ = self.site.sim.post(path, body);
    }

    /// Nobody waits for its end.
    fn task(&self, method: &str, guest: &Guest, arguments: &str) {
        let this = format!("<_this type=\"VirtualMachine\">{}</_this>", guest.moid);
        self.call(method, &format!("{this}{arguments}"));
    }

    fn login(&self) -> String {
        let arguments = format!(
            "<_this type=\"SessionManager\">SessionManager</_this><userName>{USER}</userName><password>{PASSWORD}</password>"
        );
        let answer = self.call("Login", &arguments);
        let cookie = answer.header_all("set-cookie").find(|value| value.starts_with("vmware_soap_session="));
        cookie.unwrap_or_else(|| panic!("{answer:?}")).split(';').next().unwrap().to_string()
    }

    fn call(&self, method: &str, arguments: &str) -> drover_http::Head {
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><soapenv:Envelope \
             xmlns:soapenv=\"http://schemas.xmlsoap.org/soap/envelope/\"><soapenv:Body>\
             <{method} xmlns=\"urn:vim25\">{arguments}</{method}></soapenv:Body></soapenv:Envelope>"
        );
        let request = Request::post("/sdk", body).with_header("SOAPAction", "\"urn:vim25/8.0.2.0\"");
        let request = request.with_header("Content-Type", "text/xml; charset=utf-8");
        let request = request.with_header("Cookie", self.cookie.as_str());
        self.client.send(&request).unwrap().head
    }
}
