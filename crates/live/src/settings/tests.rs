use super::*;
use crate::ability::tests::qemu;

const OLD: [&str; 11] = [
    "events",
    "late-block-activate",
    "multifd",
    "postcopy-ram",
    "return-path",
    "pause-before-switchover",
    "auto-converge",
    "xbzrle",
    "compress",
    "dirty-bitmaps",
    "rdma-pin-all",
];
const PARAMETERS: [&str; 12] = [
    "multifd-channels",
    "multifd-compression=none|zlib|zstd",
    "multifd-zlib-level",
    "multifd-zstd-level",
    "xbzrle-cache-size",
    "throttle-trigger-threshold",
    "downtime-limit",
    "max-bandwidth",
    "cpu-throttle-initial",
    "cpu-throttle-increment",
    "tls-creds",
    "tls-hostname",
];

pub(crate) fn old() -> Ability {
    qemu((7, 2), &OLD, &PARAMETERS)
}

pub(crate) fn new() -> Ability {
    let gone = ["compress"];
    let more = ["switchover-ack", "postcopy-preempt", "dirty-limit"];
    let capabilities: Vec<&str> =
        OLD.iter().filter(|name| !gone.contains(name)).chain(&more).copied().collect();
    let more =
        ["zero-page-detection=none|legacy|multifd", "avail-switchover-bandwidth", CHUNK, "vcpu-dirty-limit"];
    qemu((11, 1), &capabilities, &[&PARAMETERS[..], &more].concat())
}

fn many() -> Wish {
    Wish { channels: 4, switchover_rate: Some(1 << 30), ..Wish::default() }
}

#[test]
fn what_only_helps_is_left_out_where_one_side_lacks_it() {
    let settings = settings(&many(), &old(), &new()).unwrap();
    assert!(settings.capabilities["multifd"]);
    assert_eq!(settings.parameters["multifd-channels"], 4);
    assert!(!settings.parameters.contains_key("zero-page-detection"));
    assert!(!settings.capabilities.contains_key("switchover-ack"));
    assert_eq!(
        settings.left_out,
        ["switchover-ack", "zero-page-detection=multifd", "avail-switchover-bandwidth"]
    );
}

#[test]
fn what_somebody_left_switched_on_is_switched_off() {
    let settings = settings(&Wish::default(), &old(), &old()).unwrap();
    for name in ["multifd", "postcopy-ram", "auto-converge", "compress", "xbzrle"] {
        assert!(!settings.capabilities[name], "{name}");
    }
    assert_eq!(settings.parameters["max-bandwidth"], RATE_UNLIMITED);
    assert_eq!(settings.parameters["downtime-limit"], 300);
}

#[test]
fn two_new_ones_get_all_that_helps() {
    let settings = settings(&many(), &new(), &new()).unwrap();
    assert!(settings.capabilities["switchover-ack"]);
    assert_eq!(settings.parameters["zero-page-detection"], "multifd");
    assert_eq!(settings.parameters["avail-switchover-bandwidth"], 1 << 30);
    assert!(settings.left_out.is_empty(), "{:?}", settings.left_out);
}

#[test]
fn what_was_wished_for_is_refused_by_name_and_side() {
    let wish = Wish { postcopy: true, ..Wish::default() };
    let without = qemu((10, 0), &["multifd"], &PARAMETERS);
    let error = settings(&wish, &new(), &without).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the capability postcopy-ram is not known to the target's QEMU 10.0.0; move without post-copy"
    );
    let limit = Wish { throttle: Throttle::DirtyLimit, ..Wish::default() };
    assert_eq!(settings(&limit, &old(), &new()).unwrap_err().side, Side::Source);
}

#[test]
fn a_move_over_a_link_needs_the_way_back() {
    let carried = Wish { is_carried: true, ..Wish::default() };
    assert!(settings(&carried, &new(), &new()).unwrap().capabilities["return-path"]);
    let without = qemu((10, 0), &["multifd"], &PARAMETERS);
    let error = settings(&carried, &new(), &without).unwrap_err();
    assert!(error.side == Side::Target && error.what.contains("return-path"), "{error}");
    assert!(settings(&Wish::default(), &new(), &without).is_ok());
}

#[test]
fn compression_that_one_side_lacks_is_refused() {
    let wish = Wish { compression: Compression::Zstd(1), ..many() };
    let without = qemu(
        (7, 2),
        &OLD,
        &["multifd-channels", "multifd-compression=none|zlib", "max-bandwidth", "downtime-limit"],
    );
    assert!(settings(&wish, &old(), &without).unwrap_err().what.contains("zstd"));
    assert_eq!(settings(&wish, &old(), &old()).unwrap().parameters["multifd-compression"], "zstd");
}

#[test]
fn one_connection_that_packs_is_one_of_many() {
    for (compression, word, level) in [
        (Compression::Zlib(9), "zlib", "multifd-zlib-level"),
        (Compression::Zstd(9), "zstd", "multifd-zstd-level"),
    ] {
        let wish = Wish { compression, ..Wish::default() };
        let settings = settings(&wish, &old(), &new()).unwrap();
        assert!(settings.capabilities["multifd"]);
        assert_eq!(settings.parameters["multifd-channels"], 1);
        assert_eq!(
            (&settings.parameters["multifd-compression"], &settings.parameters[level]),
            (&json!(word), &json!(9))
        );
    }
}

#[test]
fn what_is_out_of_the_ordinary_is_told_in_words() {
    assert!(Wish::default().words().is_empty());
    let tls = Some(Tls { credentials: "tls0".into(), hostname: String::new() });
    let wish = Wish { compression: Compression::Zstd(3), tls, ..Wish::default() };
    assert_eq!(wish.words(), ["compressed by zstd (level 3)", "encrypted by QEMU (tls0)"]);
    let wish = Wish { xbzrle_bytes: Some(32 << 20), ..Wish::default() };
    assert_eq!(wish.words(), ["by what changed in 32 MiB of pages"]);
    let wish = Wish { rdma: Some(Rdma { pin_all: true, chunk_bytes: None }), ..Wish::default() };
    assert_eq!(wish.words(), ["by RDMA, with all of it held in place"]);
}

#[test]
fn a_cache_of_pages_is_as_large_on_both_sides() {
    let wish = Wish { xbzrle_bytes: Some(1 << 30), ..Wish::default() };
    let found = settings(&wish, &old(), &new()).unwrap();
    assert!(found.capabilities["xbzrle"] && !found.capabilities["multifd"]);
    assert_eq!(found.parameters["xbzrle-cache-size"], 1 << 30);
    let without = qemu((10, 0), &["xbzrle"], &["max-bandwidth", "downtime-limit"]);
    assert!(settings(&wish, &new(), &without).unwrap_err().what.contains("xbzrle-cache-size"));
}

#[test]
fn credentials_are_named_on_both_sides() {
    let tls = Tls { credentials: "tls0".into(), hostname: String::new() };
    let settings = settings(&Wish { tls: Some(tls), ..Wish::default() }, &old(), &new()).unwrap();
    assert_eq!(
        (&settings.parameters["tls-creds"], &settings.parameters["tls-hostname"]),
        (&json!("tls0"), &json!(""))
    );
}

#[test]
fn a_bound_on_writes_is_set_at_the_source_alone_and_does_nothing_until_it_must() {
    let wish = Wish { throttle: Throttle::DirtyLimit, ..Wish::default() };
    let settings = settings(&wish, &new(), &new()).unwrap();
    let of = |side: Side| {
        let capabilities = settings.capabilities_of(side);
        (capabilities["dirty-limit"], settings.parameters_of(side).get("vcpu-dirty-limit").cloned())
    };
    assert_eq!(of(Side::Source), (true, Some(json!(1 << 20))));
    assert_eq!(of(Side::Target), (false, None));
    let found = json!([{"capability": "dirty-limit", "state": false}]);
    let names = |side| {
        differences(&settings, side, &found, &json!({})).into_iter().any(|one| one.name == "dirty-limit")
    };
    assert!(names(Side::Source) && !names(Side::Target));
}

/// What the source says of all that is set for a move that may slow the guest down so.
fn before(throttle: Throttle) -> Settings {
    let settings = settings(&Wish { throttle, ..Wish::default() }, &new(), &new()).unwrap();
    let told = json!({
        "cpu-throttle-initial": 20, "cpu-throttle-increment": 10, "throttle-trigger-threshold": 50, "vcpu-dirty-limit": 1,
    });
    settings.as_found(Side::Source, &json!(null), &told)
}

#[test]
fn a_guest_is_slowed_down_to_half_of_what_is_sent() {
    let mib = f64::from(1 << 20);
    let of = |throttle, rate, processors| {
        let before = before(throttle);
        slow_down(throttle, |name| before.parameters.contains_key(name), rate, processors)
    };
    let limits = |rate, processors| of(Throttle::DirtyLimit, rate, processors);
    let limit = |rate, processors| limits(rate, processors)["vcpu-dirty-limit"].clone();
    assert_eq!(limit(400.0 * mib, 4), json!(50));
    assert_eq!(limit(1.0 * mib, 8), json!(1));
    let harder = of(Throttle::AutoConverge, 400.0 * mib, 4);
    assert_eq!((harder.get("vcpu-dirty-limit"), &harder["cpu-throttle-initial"]), (None, &json!(40)));
}

#[test]
fn a_guest_is_slowed_down_by_nothing_that_is_not_set_back() {
    for throttle in [Throttle::AutoConverge, Throttle::DirtyLimit] {
        let before = before(throttle);
        for name in slow_down(throttle, |name| before.parameters.contains_key(name), 1e9, 4).keys() {
            assert!(before.parameters.contains_key(name), "{name} stays as it is set");
        }
    }
}

#[test]
fn what_was_there_before_can_be_had_back() {
    let wish = Wish { throttle: Throttle::DirtyLimit, ..many() };
    let settings = settings(&wish, &new(), &new()).unwrap();
    let capabilities =
        json!([{"capability": "xbzrle", "state": true}, {"capability": "other", "state": true}]);
    let parameters = json!({"max-bandwidth": 7, "vcpu-dirty-limit": 1, "tls-creds": "x"});
    let before = settings.as_found(Side::Source, &capabilities, &parameters);
    assert_eq!(before.capabilities, BTreeMap::from([("xbzrle".to_string(), true)]));
    assert_eq!(Value::Object(before.parameters), json!({"max-bandwidth": 7, "vcpu-dirty-limit": 1}));
    let before = settings.as_found(Side::Target, &json!(null), &parameters);
    assert_eq!(Value::Object(before.parameters), json!({"max-bandwidth": 7}));
    assert!(settings.as_found(Side::Target, &json!(null), &json!(null)).is_empty());
}

#[test]
fn chunks_of_rdma_are_the_same_on_both_sides_or_it_is_refused() {
    let rdma = |chunk_bytes| Wish { rdma: Some(Rdma { pin_all: false, chunk_bytes }), ..Wish::default() };
    let both = settings(&rdma(Some(1 << 30)), &new(), &new()).unwrap();
    assert_eq!(both.parameters[CHUNK], 1 << 30);
    assert_eq!(settings(&rdma(None), &new(), &new()).unwrap().parameters[CHUNK], 1 << 20);
    assert!(!settings(&rdma(None), &old(), &old()).unwrap().parameters.contains_key(CHUNK));
    for chunk in [None, Some(32 << 20)] {
        let error = settings(&rdma(chunk), &new(), &old()).unwrap_err();
        assert!(error.side == Side::Target && error.what.contains(CHUNK), "{error}");
        if chunk.is_some() {
            let sizes =
                error.what.contains("chunks of 32 MiB") && error.what.contains("of the target are 1 MiB");
            assert!(sizes && error.advice.contains("--rdma-chunk-size"), "{error}");
        }
    }
    assert!(!both.capabilities["rdma-pin-all"]);
    let pinned = Wish { rdma: Some(Rdma { pin_all: true, chunk_bytes: None }), ..Wish::default() };
    assert!(settings(&pinned, &old(), &old()).unwrap().capabilities["rdma-pin-all"]);
}

#[test]
fn what_is_read_back_is_held_against_what_was_set() {
    let settings = settings(&many(), &old(), &old()).unwrap();
    let mut states: Vec<Value> = settings
        .capabilities
        .iter()
        .map(|(name, state)| json!({"capability": name, "state": state}))
        .collect();
    let mut parameters = Value::Object(settings.parameters.clone());
    assert_eq!(differences(&settings, Side::Target, &json!(states), &parameters), []);
    parameters["multifd-channels"] = json!(2);
    states.retain(|entry| entry["capability"] != "return-path");
    let found = differences(&settings, Side::Target, &json!(states), &parameters);
    let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["return-path", "multifd-channels"]);
    assert_eq!(found[1].to_string(), "multifd-channels of the target was set to 4 and is 2");
}
