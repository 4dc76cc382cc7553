//! `drover link test`: what the way to a site, and back, carries, and what limits it.

use std::time::Duration;

use drover_agent::{MEASURE_TIME_MAX, Refusal, Site};
use drover_disk::DiskErrorKind;
use drover_link::probe::{Probe, SETTLE, Way, advice, probe, wait_for_stripes};
use drover_link::{LinkError, RdmaState, Session};
use serde_json::{Value, json};

use crate::cli::LinkTestArgs;
use crate::exit::{Exit, Failure, link_failure};
use crate::out::line;
use crate::sites::{self, Measured};

/// All connections of a probe are there within this time, or it is measured with those that are.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A line that carries this share of the limit that was set for it is held by the limit.
const LIMIT_SHARE: f64 = 0.8;

const HEAD: &str = "connections            goodput      round trip, shortest  sent again  waits for";

/// Runs `drover link test`.
pub fn test(args: &LinkTestArgs) -> Result<Exit, Failure> {
    let site = sites::measured(args.state.as_deref(), &args.site, args.rdma)?;
    if args.back {
        check_back(args, &site)?;
    }
    let there = there(args, &site)?;
    if !args.json {
        there.tell();
    }
    let back = args.back.then(|| back(args, &site)).transpose()?;
    match (&back, args.json) {
        (back, true) => crate::out::json(document(&args.site, &there, back.as_ref())),
        (Some(back), false) => back.tell(),
        (None, false) => {}
    }
    Ok(Exit::Success)
}

/// What was found of one way.
struct Found {
    way: Way,
    /// Bytes a second that may go this way, if that is limited.
    limit: Option<u64>,
    /// What other runs of the host that sends leave of it.
    share: Option<u64>,
    probes: Vec<Probe>,
    /// Whether RDMA carried the last of them.
    rdma: RdmaState,
}

impl Found {
    fn new(way: Way, limit: Option<u64>) -> Found {
        let rdma = RdmaState::Off("nothing was measured".into());
        Found { way, limit, share: None, probes: Vec::new(), rdma }
    }

    fn add(&mut self, args: &LinkTestArgs, probe: Probe, rdma: RdmaState) {
        self.rdma = rdma;
        if !args.json {
            line(row(&probe, self.way));
        }
        self.probes.push(probe);
    }

    fn advice(&self) -> Vec<String> {
        self.limited().map_or_else(|| advice(&self.probes, self.way), |text| vec![text])
    }

    /// Says so if a limit that was set is what held the line back.
    fn limited(&self) -> Option<String> {
        let limit = self.limit?;
        let share = self.share.unwrap_or(limit).min(limit);
        let held = self.probes.iter().any(|probe| probe.goodput > share as f64 * LIMIT_SHARE);
        let mbit = |rate: u64| format!("{:.1} Mbit/s", rate as f64 * 8.0 / 1e6);
        let (whose, host, sets) = match self.way {
            Way::There => ("limit of this hour", "this host", "`drover agent limit` sets it"),
            Way::Back => {
                ("agent's limit", "that host", "its --rate-limit, or `drover agent limit` there, sets it")
            }
        };
        let others = match share < limit {
            true => format!(", of which other runs of {host} left {}", mbit(share)),
            false => String::new(),
        };
        let text = format!("the {whose} is what limits, {}{others}: {sets}", mbit(limit));
        held.then_some(text)
    }

    fn tell(&self) {
        line("");
        match &self.rdma {
            RdmaState::On => line("RDMA carries this link"),
            RdmaState::Off(why) => line(format_args!("TCP carries this link; RDMA: {why}")),
            RdmaState::Joining => line("TCP carries this link; RDMA was still being tried"),
        }
        self.advice().iter().for_each(line);
    }

    fn document(&self) -> Value {
        let probes: Vec<Value> = self.probes.iter().map(|it| one(it, self.way)).collect();
        let why_not = match &self.rdma {
            RdmaState::On => None,
            RdmaState::Off(why) => Some(why.as_str()),
            RdmaState::Joining => Some("it was still being tried"),
        };
        json!({
            "limit_bytes_per_s": self.limit, "probes": probes, "advice": self.advice(),
            "rdma": self.rdma == RdmaState::On, "rdma_why_not": why_not,
        })
    }
}

fn there(args: &LinkTestArgs, site: &Measured) -> Result<Found, Failure> {
    if !args.json {
        line(HEAD);
    }
    let mut found = Found::new(Way::There, site.limit);
    for stripes in args.stripes.iter().copied().map(usize::from) {
        let probe = site.session(stripes).and_then(|session| {
            let probe = measured(&session, stripes, args.time);
            let rdma = session.stats().rdma;
            session.close();
            probe.map(|probe| (probe, rdma))
        });
        let (probe, rdma) = probe.map_err(|error| failed(&args.site, &error))?;
        found.add(args, probe, rdma);
    }
    found.share = site.share();
    Ok(found)
}

/// Finds out before anything is measured that the agent cannot do it.
fn check_back(args: &LinkTestArgs, site: &Measured) -> Result<(), Failure> {
    if args.time > MEASURE_TIME_MAX {
        let text = format!("--back: a site sends for {} s at most", MEASURE_TIME_MAX.as_secs());
        return Err(Failure::new(Exit::Usage, text).advise("give a shorter --time"));
    }
    let session = site.session(1).map_err(|error| failed(&args.site, &error))?;
    let checked = site_of(&args.site, &session).check_back();
    session.close();
    checked.map_err(|refusal| refused(&args.site, &refusal))
}

fn back(args: &LinkTestArgs, site: &Measured) -> Result<Found, Failure> {
    if !args.json {
        line(format_args!("\nthe way back, as the agent of {} sends\n{HEAD}", args.site));
    }
    let mut found = Found::new(Way::Back, None);
    for stripes in args.stripes.iter().copied().map(usize::from) {
        let session = site.session(stripes).map_err(|error| failed(&args.site, &error))?;
        wait_for_stripes(&session, stripes, CONNECT_WITHIN);
        let told = site_of(&args.site, &session).measure_back(args.time);
        let rdma = session.stats().rdma;
        session.close();
        let told = told.map_err(|refusal| refused(&args.site, &refusal))?;
        (found.limit, found.share) = (told.limit_bytes_per_s, told.share_bytes_per_s);
        found.add(args, told.probe(), rdma);
    }
    Ok(found)
}

/// A site that has this session and no other.
fn site_of(name: &str, session: &Session) -> std::sync::Arc<Site> {
    let session = session.clone();
    Site::new(name, move || Ok(session.clone()))
}

fn failed(site: &str, error: &LinkError) -> Failure {
    let Failure { exit, message, .. } = link_failure(error);
    Failure::new(exit, format!("agent of {site}: {message}"))
        .advise("see `drover agent list`, and whether the agent runs there")
}

fn refused(site: &str, refusal: &Refusal) -> Failure {
    let failure = Failure::new(Exit::Connection, format!("agent of {site}: {refusal}"));
    match refusal.kind {
        DiskErrorKind::Unsupported => failure.advise("without --back the way there is measured"),
        _ => failure,
    }
}

fn measured(session: &Session, stripes: usize, time: Duration) -> Result<Probe, LinkError> {
    // Fewer are measured as what they are: the row says how many there were.
    wait_for_stripes(session, stripes, CONNECT_WITHIN);
    probe(session, SETTLE, time)
}

/// What the connections of a probe waited for most.
fn waits_for(found: &Probe, way: Way) -> &'static str {
    if found.is_rdma() {
        return "not known";
    }
    let [busy, window, buffer] = found.busy;
    let (sender, receiver) = match way {
        Way::There => ("this host", "the far side"),
        Way::Back => ("the far side", "this host"),
    };
    if busy < 0.5 {
        sender
    } else if window > busy * 0.3 {
        receiver
    } else if buffer > busy * 0.3 {
        "send buffers"
    } else {
        "the line"
    }
}

fn row(found: &Probe, way: Way) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "{:>11}  {:>10.1} Mbit/s  {:>7.2} ms, {:>7.2} ms  {:>8.3} %  {} ({})",
        found.stripes,
        found.goodput * 8.0 / 1e6,
        ms(found.rtt),
        ms(found.rtt_min),
        found.again * 100.0,
        waits_for(found, way),
        found.congestion,
    )
}

fn one(it: &Probe, way: Way) -> Value {
    json!({
        "connections": it.stripes,
        "goodput_bytes_per_s": it.goodput,
        "rtt_ms": it.rtt.as_secs_f64() * 1e3,
        "rtt_min_ms": it.rtt_min.as_secs_f64() * 1e3,
        "sent_again_share": it.again,
        "busy_share": it.busy[0],
        "far_window_full_share": it.busy[1],
        "send_buffer_full_share": it.busy[2],
        "congestion_control": it.congestion,
        "waits_for": waits_for(it, way),
    })
}

/// The way there as it has always been, with the way back beside it.
fn document(site: &str, there: &Found, back: Option<&Found>) -> Value {
    let mut document = there.document();
    document["site"] = json!(site);
    document["back"] = json!(back.map(Found::document));
    document
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_told_as_what_others_of_the_sending_host_left_of_the_limit() {
        let text = |way, share, goodput| {
            let probe = Probe {
                stripes: 1,
                goodput,
                rtt_min: Duration::ZERO,
                rtt: Duration::ZERO,
                again: 0.0,
                busy: [1.0, 0.0, 0.0],
                congestion: "bbr".to_string(),
            };
            Found { share, probes: vec![probe], ..Found::new(way, Some(1_000_000)) }.limited()
        };
        let back = text(Way::Back, Some(500_000), 450_000.0).unwrap();
        assert!(back.contains("8.0 Mbit/s, of which other runs of that host left 4.0 Mbit/s"), "{back}");
        let there = text(Way::There, Some(500_000), 450_000.0).unwrap();
        assert!(there.contains("of which other runs of this host left 4.0 Mbit/s"), "{there}");
        // An agent that tells no share.
        assert!(!text(Way::Back, None, 900_000.0).unwrap().contains("left"));
        assert_eq!(text(Way::Back, None, 450_000.0), None);
    }
}
