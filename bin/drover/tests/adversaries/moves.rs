//! kill -9 and errors of the kernel at any system call of a whole migration; then it goes on, or is given up.

use crate::dice::Dice;
use crate::run::{Ended, Point, points_of, strike};
use crate::site::Site;
use crate::tally::{Ending, Kind, Violation};

/// The system calls of a migration's whole life.
pub struct Life(Vec<Point>);

impl Life {
    pub fn new() -> Life {
        let site = Site::new(&["one"], &mut Dice::new(7));
        let (endpoint, thumbprint) = site.direct();
        let plan = site.plan(&endpoint, &thumbprint, "[{name: one}]", "");
        Life(points_of(&site.drover, &site.work(), &["migrate", &plan]))
    }

    pub fn round(&self, dice: &mut Dice) -> Ending {
        let site = Site::new(&["one"], dice);
        let (endpoint, thumbprint) = site.direct();
        let start = if dice.percent(40) { "start: true\n" } else { "" };
        let mut site = site;
        site.be_warm(dice.percent(20));
        let plan = site.plan(&endpoint, &thumbprint, "[{name: one}]", start);
        let mut story = format!("{} {start:?} warm {}", site.guests[0].power, site.is_warm);
        let tell =
            |story: &str, found: Violation| Violation::new(found.kind, format!("{story}; {}", found.what));
        for number in 0..1 + dice.roll(2) {
            let injections = [strike(&self.0, dice)];
            let command = if number == 0 || !is_known(&site) { "migrate" } else { "resume" };
            story += &format!("; {command} {injections:?}");
            let ended =
                site.run("struck", &[command, &plan], &injections).map_err(|found| tell(&story, found))?;
            story += &format!(" -> {:?}", ended.code);
            if ended.code == Some(0) {
                arrived(&site, &ended).map_err(|found| tell(&story, found))?;
                site.look_for_secrets().map_err(|found| tell(&story, found))?;
                return Ok("through".to_string());
            }
            if number == 0 {
                failed(&site, &ended).map_err(|found| tell(&story, found))?;
            }
        }
        let goes_on = dice.percent(60);
        let ending = after(&site, &plan, goes_on).map_err(|found| tell(&story, found))?;
        site.look_for_secrets().map_err(|found| tell(&story, found))?;
        Ok(ending)
    }
}

/// A run that was killed early enough knows nothing of the plan.
pub fn is_known(site: &Site) -> bool {
    site.drover.run(&["status", "moved"]).unwrap().code == Some(0)
}

/// A guest that was asked to shut down, and whose answer was lost, is waited for (docs/how-to/warm.md).
const MAY_GO_DOWN_YET: &str = "asked to shut down less than";

/// Without any fault: it goes on and arrives, or is given up and leaves nothing.
pub fn after(site: &Site, plan: &str, goes_on: bool) -> Ending {
    let is_known = is_known(site);
    if !goes_on && is_known && site.state("one").as_deref() != Some("done") {
        let ended = site.run("cancel", &["cancel", "moved"], &[])?;
        if ended.said.contains(MAY_GO_DOWN_YET) {
            return Ok("given up, and asked to wait".to_string());
        }
        if ended.code != Some(0) {
            return Err(Violation::new(
                Kind::Stuck,
                format!("cancel ends with {:?}: {}", ended.code, ended.said),
            ));
        }
        // One that had arrived stays where it is.
        match ended.said.contains("had arrived: it stays at the target") {
            true => arrived(site, &ended)?,
            false => given_up(site, &ended)?,
        }
        return Ok("given up".to_string());
    }
    let command = if is_known { "resume" } else { "migrate" };
    let ended = site.run("plain", &[command, plan], &[])?;
    if ended.code != Some(0) {
        return Err(Violation::new(
            Kind::Stuck,
            format!("{command} ends with {:?}: {}", ended.code, ended.said),
        ));
    }
    arrived(site, &ended)?;
    Ok("gone on with".to_string())
}

/// It said that it is done: so it must be.
pub fn arrived(site: &Site, ended: &Ended) -> Result<(), Violation> {
    let source = |what: String| Err(Violation::new(Kind::Source, format!("{what}: {}", ended.said)));
    for guest in &site.guests {
        site.is_equal(guest)
            .map_err(|why| Violation::new(Kind::Differs, format!("{why}: {}", ended.said)))?;
        match site.vm(&guest.moid) {
            Some(vm) if vm["power"] == "poweredOff" => {}
            vm => return source(format!("{} is not off: {vm:?}", guest.name)),
        }
    }
    match site.snapshots() {
        left if left.is_empty() => Ok(()),
        left => source(format!("snapshots are left: {left:?}")),
    }
}

/// A first run that failed by itself has put everything back, or says what it left behind.
pub fn failed(site: &Site, ended: &Ended) -> Result<(), Violation> {
    let said = &ended.said;
    let source = |what: &str| Err(Violation::new(Kind::Source, format!("{what}: {said}")));
    let tells_of_arrival = said.contains("has arrived at the target");
    match ended.code {
        Some(13) if !(tells_of_arrival && said.contains("NOT CLEANED UP")) => {
            source("13, and no word of an arrival")
        }
        // It says that it has arrived and that its source stays off: so it must be.
        Some(1..) if tells_of_arrival => {
            let all_off = site.guests.iter().all(|guest| {
                site.is_equal(guest).is_ok()
                    && site.vm(&guest.moid).is_some_and(|vm| vm["power"] == "poweredOff")
            });
            if all_off { names_what_is_left(site, ended) } else { source("it says it has arrived") }
        }
        Some(1..) if said.contains(WHERE_IT_STANDS) => {
            let is_off = |moid: &str| site.vm(moid).is_some_and(|vm| vm["power"] == "poweredOff");
            let down = site.guests.iter().any(|guest| guest.power == "poweredOn" && is_off(&guest.moid));
            let tells = ["its source is off", "its source does not tell its power now"];
            match down && !tells.iter().any(|words| said.contains(words)) {
                true => source("a source that was left off is not told"),
                false => names_what_is_left(site, ended),
            }
        }
        Some(1..) if !said.contains("left behind") => given_up(site, ended).map_err(|found| {
            Violation::new(found.kind, format!("nothing is said to be left behind: {}", found.what))
        }),
        _ => Ok(()),
    }
}

/// Begins what is told of a VM that was touched and has not arrived.
const WHERE_IT_STANDS: &str = "where it stands: ";

/// A snapshot of drover's that is left is told by its name.
fn names_what_is_left(site: &Site, ended: &Ended) -> Result<(), Violation> {
    match site.snapshots() {
        left if left.is_empty() || ended.said.contains("snapshot drover-moved") => Ok(()),
        left => Err(Violation::new(Kind::Source, format!("not told by name: {left:?}: {}", ended.said))),
    }
}

/// The source is as it was, or its guest runs at the target.
pub fn given_up(site: &Site, ended: &Ended) -> Result<(), Violation> {
    let source = |what: String| Err(Violation::new(Kind::Source, format!("{what}: {}", ended.said)));
    for guest in &site.guests {
        // One that had been started there stays there, and only there.
        let runs = site.at_target(&guest.name).is_some();
        let wanted = if runs { "poweredOff" } else { guest.power.as_str() };
        match site.vm(&guest.moid) {
            Some(vm) if vm["power"] == wanted => {}
            vm => {
                return source(format!(
                    "{} was {}, runs at the target: {runs}: {vm:?}",
                    guest.name, guest.power
                ));
            }
        }
    }
    match site.snapshots() {
        left if left.is_empty() => Ok(()),
        left => source(format!("snapshots are left: {left:?}")),
    }
}
