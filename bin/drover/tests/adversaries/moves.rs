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
        given_up(site, &ended)?;
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
    match ended.code {
        // It says that it has arrived and that its source stays off: so it must be.
        Some(13) => {
            let all_off = site.guests.iter().all(|guest| {
                site.is_equal(guest).is_ok()
                    && site.vm(&guest.moid).is_some_and(|vm| vm["power"] == "poweredOff")
            });
            match all_off && ended.said.contains("NOT CLEANED UP") {
                true => Ok(()),
                false => Err(Violation::new(Kind::Source, format!("it says it has arrived: {}", ended.said))),
            }
        }
        Some(1..) if !ended.said.contains("left behind") => given_up(site, ended).map_err(|found| {
            Violation::new(found.kind, format!("nothing is said to be left behind: {}", found.what))
        }),
        _ => Ok(()),
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
