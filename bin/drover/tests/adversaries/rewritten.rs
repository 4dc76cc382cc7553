//! Migrations past a server that rewrites the vCenter's answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::dice::Dice;
use crate::moves::{after, arrived, failed};
use crate::proxy::{Proxy, REWRITES, Rewrite, Rule};
use crate::site::Site;
use crate::tally::{Ending, Violation};

pub fn round(dice: &mut Dice) -> Ending {
    let mut site = Site::new(&["one"], dice);
    site.be_warm(dice.percent(30));
    let proxy = Proxy::start(site.sim.port);
    let start = if dice.percent(50) { "start: true\n" } else { "" };
    let plan = site.plan(&proxy.endpoint, &proxy.thumbprint, "[{name: one}]", start);
    let rule = |dice: &mut Dice| Rule {
        rewrite: *dice.one_of(REWRITES),
        skip: dice.spread(1, 64) - 1,
        count: if dice.percent(30) { u64::MAX } else { 1 + dice.roll(3) },
        seed: dice.roll(u64::MAX),
    };
    let rules: Vec<Rule> = (0..1 + dice.roll(3)).map(|_| rule(dice)).collect();
    proxy.order(&rules);
    let mut story = format!("{} {start:?} warm {} {rules:?}", site.guests[0].power, site.is_warm);
    let tell = |story: &str, found: Violation| Violation::new(found.kind, format!("{story}; {}", found.what));
    let is_over = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| relent(&proxy, &rules, &is_over));
        let ended = site.run("rewritten", &["migrate", &plan], &[]);
        is_over.store(true, Ordering::SeqCst);
        ended
    });
    site.needles.lock().unwrap().extend(proxy.cookies());
    let ended = ended.map_err(|found| tell(&story, found))?;
    story += &format!(" -> {:?}", ended.code);
    proxy.order(&[]);
    if ended.code == Some(0) {
        arrived(&site, &ended).map_err(|found| tell(&story, found))?;
        site.look_for_secrets().map_err(|found| tell(&story, found))?;
        return Ok("through".to_string());
    }
    failed(&site, &ended).map_err(|found| tell(&story, found))?;
    let goes_on = dice.percent(60);
    let ending =
        after(&site, &plan, goes_on).map_err(|found| tell(&format!("{story} {}", ended.said), found))?;
    site.needles.lock().unwrap().extend(proxy.cookies());
    site.look_for_secrets().map_err(|found| tell(&story, found))?;
    Ok(ending)
}

/// A vCenter that tells of no snapshot any more: the run has one, says so, and leaves the rest to the next.
pub fn without_snapshots(is_warm: bool) {
    let mut site = Site::new(&["one"], &mut Dice::new(1));
    site.be_warm(is_warm);
    let proxy = Proxy::start(site.sim.port);
    let plan = site.plan(&proxy.endpoint, &proxy.thumbprint, "[{name: one}]", "");
    proxy.order(&[Rule { rewrite: Rewrite::NoSnapshots, skip: 0, count: u64::MAX, seed: 0 }]);
    let ended = site.run("rewritten", &["migrate", &plan], &[]).unwrap();
    let left = site.snapshots();
    assert_eq!(left.len(), 1, "{left:?}: {}", ended.said);
    assert!(ended.said.contains("is still there, and the source does not list it"), "{}", ended.said);
    failed(&site, &ended).unwrap();
    // One that runs is as it was but for that; one that is off has arrived.
    assert_eq!(ended.code == Some(13), !is_warm, "{:?}: {}", ended.code, ended.said);
    // Nor for the next command.
    let again = site.run("again", &["resume", &plan], &[]).unwrap();
    assert!(again.code != Some(0) && site.snapshots().len() == 1, "{:?}: {}", again.code, again.said);
    proxy.order(&[]);
    after(&site, &plan, true).unwrap();
}

/// Change tracking whose answers cannot be: all is compared, and that is said.
pub fn with_areas(rewrite: Rewrite, words: &str) {
    let mut site = Site::new(&["one"], &mut Dice::new(3));
    site.be_warm(true);
    let proxy = Proxy::start(site.sim.port);
    let plan = site.plan(&proxy.endpoint, &proxy.thumbprint, "[{name: one}]", "");
    proxy.order(&[Rule { rewrite, skip: 0, count: u64::MAX, seed: 0 }]);
    let ended = site.run("rewritten", &["migrate", &plan], &[]).unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.said);
    arrived(&site, &ended).unwrap();
    let report = site.report().to_string();
    assert!(report.contains(words), "{rewrite:?}: '{words}' is not told of: {}", ended.said);
}

/// A task whose state is never told is rightly waited for, for hours. What nobody can wait for stays.
fn relent(proxy: &Proxy, rules: &[Rule], is_over: &AtomicBool) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let for_ever =
        |rule: &&Rule| matches!(rule.rewrite, Rewrite::TinyPage | Rewrite::AreaBeyond | Rewrite::AreaBefore);
    proxy.order(&rules.iter().filter(for_ever).cloned().collect::<Vec<_>>());
}

const PATIENCE: Duration = Duration::from_secs(15);
