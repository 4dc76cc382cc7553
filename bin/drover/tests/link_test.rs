//! `drover link test`, against a true agent on this host.
#![allow(clippy::unwrap_used)]

use drover_stage::sites::Sites;
use serde_json::Value;

#[test]
fn the_way_to_a_site_is_measured_for_each_number_of_connections() {
    let sites = Sites::paired();
    let args = ["link", "test", "site-b", "--stripes", "1,3", "--time", "2s"];
    let found = sites.here.run(&[&args[..], &["--json"]].concat()).unwrap();
    assert_eq!(found.code, Some(0), "{}", found.err);
    let found = found.json().unwrap();
    assert_eq!((&found["site"], &found["limit_bytes_per_s"]), (&"site-b".into(), &Value::Null));
    for (probe, connections) in found["probes"].as_array().unwrap().iter().zip([1, 3]) {
        assert_eq!(probe["connections"], connections, "{probe}");
        assert!(probe["goodput_bytes_per_s"].as_f64().unwrap() > 0.0, "{probe}");
        assert!(probe["rtt_ms"].as_f64().unwrap() > 0.0, "{probe}");
        let again = probe["sent_again_share"].as_f64().unwrap();
        assert!((0.0..1.0).contains(&again), "{probe}");
        assert!(!probe["congestion_control"].as_str().unwrap().is_empty(), "{probe}");
    }
    assert_eq!(found["probes"].as_array().unwrap().len(), 2);
    assert!(!found["advice"].as_array().unwrap().is_empty());
    let told = sites.here.run(&args).unwrap();
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(told.out.starts_with("connections") && told.out.contains("Mbit/s"), "{}", told.out);
    assert_eq!(told.out.lines().filter(|line| line.contains(" ms")).count(), 2, "{}", told.out);
}

#[test]
fn the_way_back_is_measured_by_the_site_that_sends() {
    let sites = Sites::paired();
    let args = ["link", "test", "site-b", "--stripes", "1,2", "--time", "2s", "--back"];
    let found = sites.here.run(&[&args[..], &["--json"]].concat()).unwrap();
    assert_eq!(found.code, Some(0), "{}", found.err);
    let found = found.json().unwrap();
    assert_eq!(found["probes"].as_array().unwrap().len(), 2, "the way there, as ever");
    let back = &found["back"];
    assert_eq!((back["probes"].as_array().unwrap().len(), &back["limit_bytes_per_s"]), (2, &Value::Null));
    for (probe, connections) in back["probes"].as_array().unwrap().iter().zip([1, 2]) {
        assert_eq!(probe["connections"], connections, "{probe}");
        assert!(probe["goodput_bytes_per_s"].as_f64().unwrap() > 0.0, "{probe}");
        assert!(probe["rtt_ms"].as_f64().unwrap() > 0.0, "{probe}");
        assert!(!probe["congestion_control"].as_str().unwrap().is_empty(), "{probe}");
    }
    assert!(!back["advice"].as_array().unwrap().is_empty());
    let told = sites.here.run(&args).unwrap();
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(told.out.contains("\nthe way back, as the agent of site-b sends\nconnections"), "{}", told.out);
    assert_eq!(told.out.lines().filter(|line| line.contains(" ms")).count(), 4, "{}", told.out);
}

#[test]
fn the_limit_of_an_agent_is_told_as_what_limits_the_way_back() {
    let sites = Sites::paired_with(&["--rate-limit", "1MiB"]);
    let args = ["link", "test", "site-b", "--stripes", "1", "--time", "4s", "--back", "--json"];
    let found = sites.here.run(&args).unwrap().json().unwrap();
    let back = &found["back"];
    assert_eq!((&found["limit_bytes_per_s"], &back["limit_bytes_per_s"]), (&Value::Null, &(1 << 20).into()));
    assert!(back["advice"].to_string().contains("--rate-limit"), "{back}");
    let long = ["link", "test", "site-b", "--time", "61s", "--back"];
    let refused = sites.here.run(&long).unwrap();
    assert!(refused.code == Some(2) && refused.err.contains("60 s at most"), "{}", refused.err);
}

#[test]
fn a_limit_that_was_set_is_kept_and_named_as_what_limits() {
    let sites = Sites::paired();
    assert_eq!(sites.here.run(&["agent", "limit", "site-b", "00:00-24:00=1MiB"]).unwrap().code, Some(0));
    let args = ["link", "test", "site-b", "--stripes", "2", "--time", "4s", "--json"];
    let found = sites.here.run(&args).unwrap().json().unwrap();
    assert_eq!(found["limit_bytes_per_s"], 1 << 20);
    assert!(found["probes"][0]["goodput_bytes_per_s"].as_f64().unwrap() < 20e6, "{found}");
    let advice = found["advice"].to_string();
    assert!(advice.contains("drover agent limit"), "{found}");
}

#[test]
fn sites_that_are_unknown_away_or_no_friends_end_it_by_their_codes() {
    let mut sites = Sites::paired();
    let test = |sites: &Sites, site: &str| {
        let args = ["link", "test", site, "--stripes", "1", "--time", "100ms"];
        let output = sites.here.run(&args).unwrap();
        (output.code, output.err)
    };
    let (code, words) = test(&sites, "site-c");
    assert!(code == Some(2) && words.contains("no site 'site-c'"), "{code:?} {words}");
    assert_eq!(sites.there.run(&["agent", "revoke", "site-a"]).unwrap().code, Some(0));
    let (code, words) = test(&sites, "site-b");
    assert!(code == Some(5) && words.contains("revoked"), "{code:?} {words}");
    sites.kill();
    let (code, words) = test(&sites, "site-b");
    assert!(code == Some(5) && words.contains("agent of site-b"), "{code:?} {words}");
    let nonsense = ["link", "test", "site-b", "--stripes", "0"];
    assert_eq!(sites.here.run(&nonsense).unwrap().code, Some(2));
}
