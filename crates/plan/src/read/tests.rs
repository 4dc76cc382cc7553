use proptest::prelude::*;

use super::*;

mod target;
mod waves;

const EXAMPLE: &str = include_str!("../../example.yaml");

const DOMAINS: &str = include_str!("../../libvirt.yaml");
const CLUSTER: &str = include_str!("../../kubevirt.yaml");

const SMALL: &str = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                     target: {type: qemu, folder: /t}\nvms: [{name: a}]\n";

const OVA: &str = "version: 1\nname: p\nsource: {type: ova, path: web.ova}\n\
                   target: {type: qemu, folder: /t}\nvms: [{glob: \"*\"}]\n";

fn problems(text: &str) -> Vec<String> {
    match Plan::parse(text) {
        Ok(plan) => plan.warnings.iter().map(ToString::to_string).collect(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn only_problem(change: impl Fn(&str) -> String) -> String {
    let found = problems(&change(SMALL));
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].clone()
}

#[test]
fn the_example_says_everything_and_is_fine() {
    let plan = Plan::parse(EXAMPLE).unwrap();
    assert_eq!(plan.warnings, []);
    assert_eq!(plan.limits.request, Some(4 << 20));
    assert_eq!(plan.vms[2].overrides.verify, Some(Verify::Sampled { blocks: 5000 }));
    assert_eq!(plan.source.vsphere().unwrap().data.hosts[0].address.as_deref(), Some("192.0.2.7"));
    for table in [
        &keys::PLAN,
        &keys::SOURCE,
        &keys::DATA,
        &keys::VDDK,
        &keys::TARGET,
        &keys::QCOW2,
        &keys::SELECTION,
        &keys::LIMITS,
        &keys::UEFI,
        &keys::WARM,
        &keys::HOOKS,
        &keys::HOOK,
        &keys::CHECKS,
        &keys::CHECK,
        &keys::FIRST_BOOT,
        &keys::WAVE,
    ] {
        // The last five are of domains.
        let elsewhere = ["insecure", "ca_file", "uri", "pool", "target_host", "autostart", "volumes"];
        for key in table.keys.iter().filter(|key| !elsewhere.contains(&key.name)) {
            assert!(EXAMPLE.contains(&format!("{}:", key.name)), "the example lacks '{}'", key.name);
        }
    }
}

#[test]
fn qcow2_images_are_made_as_the_plan_says() {
    let read = |more: &str| {
        Plan::parse(&SMALL.replace("type: qemu", &format!("type: qemu{more}"))).unwrap().target.qcow2
    };
    let plain = read("");
    assert_eq!((plain.cluster_bytes, plain.preallocation), (64 << 10, Preallocation::Off));
    assert_eq!((plain.compressed, plain.compression), (false, Qcow2Compression::Zlib));
    let packed = read(", qcow2: {cluster_size: 2MiB, compressed: true, compression_type: zstd}");
    assert_eq!((packed.cluster_bytes, packed.preallocation), (2 << 20, Preallocation::Off));
    assert_eq!((packed.compressed, packed.compression), (true, Qcow2Compression::Zstd));
    for (word, wanted) in [
        ("metadata", Preallocation::Metadata),
        ("falloc", Preallocation::Falloc),
        ("full", Preallocation::Full),
    ] {
        assert_eq!(read(&format!(", qcow2: {{preallocation: {word}}}")).preallocation, wanted);
    }
}

#[test]
fn the_example_fits_the_schema_and_the_schema_refuses_what_the_reader_refuses() {
    let validator = jsonschema::validator_for(&crate::schema()).unwrap();
    let as_json = |text: &str| to_json(&crate::node::parse(text).unwrap());
    assert!(validator.is_valid(&as_json(EXAMPLE)));
    assert!(validator.is_valid(&as_json(SMALL)));
    for (from, to) in [
        ("name: p", "name: P!"),
        ("version: 1", "version: 2"),
        ("type: qemu", "type: xen"),
        ("vms:", "vmz:"),
        ("[{name: a}]", "[]"),
        ("[{name: a}]", "[{start: true}]"),
        ("[{name: a}]", "[{name: a, priority: 5000000000}]"),
        (", password_env: P", ""),
        ("password_env: P", "password_env: P, password_file: p"),
        ("password_env: P", "password_env: P, thumbprint: abc"),
        ("password_env: P", "password_env: P, data: {user: root}"),
        ("password_env: P", "password_env: P, data: {password_env: P}"),
        ("name: p", "name: p\nlimits: {request: 100000000}"),
        ("name: p", "name: p\nlimits: {request: 1 parsec}"),
        ("name: p", "name: p\nshutdown_timeout: 5"),
        ("name: p", "name: p\nverify: {sampled: 0}"),
        ("name: p", "name: p\nmode: hot"),
        ("name: p", "name: p\nwarm: {interval: 5}"),
        ("name: p", "name: p\nwarm: {cutover: tonight}"),
        ("name: p", "name: p\nfirst_boot: {script: a.sh}"),
    ] {
        let text = SMALL.replace(from, to);
        assert!(Plan::parse(&text).is_err() && !validator.is_valid(&as_json(&text)), "{to}");
    }
}

#[test]
fn an_address_that_cannot_be_is_told_with_its_place() {
    let with = |address: &str| {
        SMALL.replace("{name: a}", &format!("{{name: a, addresses: {{\"00:50:56:aa:00:07\": {address}}}}}"))
    };
    let read = Plan::parse(&with("192.0.2.7/24")).unwrap();
    assert_eq!(read.vms[0].overrides.first_boot.addresses[0].prefix, 24);
    let found = problems(&with("192.0.2.7"));
    assert!(
        found[0].contains("vms[0].addresses.00:50:56:aa:00:07") && found[0].contains("is no fixed address"),
        "{found:?}"
    );
}

/// A copy of `text` as JSON on one line, with `value` at `path` (made where it is missing).
fn with(text: &str, path: &[&str], value: serde_json::Value) -> String {
    let mut json = to_json(&crate::node::parse(text).unwrap());
    let mut place = &mut json;
    for part in path {
        place = match part.parse::<usize>() {
            Ok(number) => &mut place[number],
            Err(_) => &mut place[*part],
        };
    }
    *place = value;
    json.to_string()
}

/// Every table and where it is used, in the example.
const TABLES: [(&[&str], &keys::Table); 13] = [
    (&[], &keys::PLAN),
    (&["source"], &keys::SOURCE),
    (&["source", "data"], &keys::DATA),
    (&["source", "data", "hosts", "esx1.example.org"], &keys::HOST),
    (&["target"], &keys::TARGET),
    (&["target", "qcow2"], &keys::QCOW2),
    (&["target", "uefi"], &keys::UEFI),
    (&["vms", "2"], &keys::SELECTION),
    (&["exclude", "0"], &keys::SELECTOR),
    (&["limits"], &keys::LIMITS),
    (&["first_boot"], &keys::FIRST_BOOT),
    (&["warm"], &keys::WARM),
    (&["vms", "2", "warm"], &keys::WARM),
];

#[test]
fn every_key_of_the_tables_is_read_and_its_kind_is_checked() {
    for (place, table) in TABLES {
        for key in table.keys {
            let path: Vec<&str> = place.iter().copied().chain([key.name]).collect();
            let found = Plan::parse(&with(EXAMPLE, &path, serde_json::json!([[]]))).unwrap_err();
            let written = path.join(".").replace("vms.2", "vms[2]").replace("exclude.0", "exclude[0]");
            assert!(found.iter().any(|it| it.path.starts_with(&written)), "{written}: {found:#?}");
        }
    }
}

#[test]
fn the_defaults_that_are_documented_are_those_that_hold() {
    // A selection has the plan's own settings for defaults, so its table names none but the priority's.
    for (place, table) in TABLES.into_iter().filter(|(_, table)| !std::ptr::eq(*table, &keys::SELECTION)) {
        for key in table.keys.iter().filter(|key| !key.default.is_empty()) {
            let value = match key.kind {
                Kind::Flag | Kind::Number(..) => serde_json::from_str(key.default).unwrap(),
                _ => serde_json::Value::from(key.default),
            };
            let path: Vec<&str> = place.iter().copied().chain([key.name]).collect();
            let said = with(SMALL, &path, value);
            let silent = with(SMALL, place, to_json_without(&said, place, key.name));
            assert_ne!(said, silent, "the key is there in one and not in the other");
            assert_eq!(without_places(&said), without_places(&silent), "{}", path.join("."));
        }
    }
}

fn to_json_without(text: &str, place: &[&str], key: &str) -> serde_json::Value {
    let mut json = to_json(&crate::node::parse(text).unwrap());
    let place = place.iter().fold(&mut json, |place, part| &mut place[*part]);
    place.as_object_mut().unwrap().remove(key);
    place.clone()
}

/// All that a plan says, but for where it says it.
fn without_places(text: &str) -> String {
    let plan = format!("{:?}", Plan::parse(text).unwrap());
    let mut parts = plan.split("At {");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + part.split_once('}').unwrap().1)
}

fn to_json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Scalar { text, quoted: true } => text.clone().into(),
        Value::Scalar { text, .. } => serde_json::from_str(text).unwrap_or(text.clone().into()),
        Value::List(nodes) => nodes.iter().map(to_json).collect(),
        Value::Map(entries) => {
            entries.iter().map(|entry| (entry.key.clone(), to_json(&entry.node))).collect()
        }
    }
}

#[test]
fn the_schema_tells_defaults_as_the_values_that_they_are() {
    let schema = crate::schema();
    let default = |path: &str| schema.pointer(path).and_then(|property| property.get("default")).cloned();
    assert_eq!(default("/properties/start"), Some(false.into()));
    assert_eq!(default("/properties/limits/properties/disks"), Some(200.into()));
    assert_eq!(default("/properties/vms/items/properties/priority"), Some(0.into()));
    assert_eq!(default("/properties/verify"), Some("full".into()));
    assert_eq!(default("/properties/name"), None);
}

/// What a plan says with `more` added after `key`.
fn with_more(key: &str, more: &str) -> Plan {
    let text = SMALL.replace(key, &format!("{key}{more}"));
    Plan::parse(&text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
}

#[test]
fn each_word_of_a_data_path_is_read_as_what_it_means() {
    let data = |more: &str| {
        let plan = with_more("password_env: P", &format!(", data: {{{more}}}"));
        plan.source.vsphere().unwrap().data.clone()
    };
    assert_eq!(
        ["auto", "vddk", "https", "hotadd, proxies: [{vm: p, site: s}]"]
            .map(|word| data(&format!("path: {word}")).path),
        [PathChoice::Auto, PathChoice::Vddk, PathChoice::Https, PathChoice::HotAdd]
    );
    assert_eq!(
        ["provider", "hosts"].map(|word| data(&format!("from: {word}")).from),
        [DataFrom::Provider, DataFrom::Hosts,]
    );
    assert_eq!(data("network: auto").network, HostNetwork::Auto);
    assert_eq!(data("network: vmk2").network, HostNetwork::Device("vmk2".into()));
    let vddk = |more: &str| data(&format!("vddk: {{{more}}}")).vddk;
    assert_eq!(
        ["none", "zlib", "fastlz", "skipz"].map(|word| vddk(&format!("compression: {word}")).compression),
        [Compression::None, Compression::Zlib, Compression::Fastlz, Compression::Skipz,]
    );
}

#[test]
fn each_word_of_a_target_is_read_as_what_it_means() {
    let target = |key: &str, word: &str| with_more("type: qemu", &format!(", {key}: {word}")).target;
    assert_eq!(
        ["auto", "kvm", "tcg"].map(|word| target("accelerator", word).accelerator),
        [Accelerator::Auto, Accelerator::Kvm, Accelerator::Tcg,]
    );
    assert_eq!(
        ["raw", "qcow2"].map(|word| target("format", word).format),
        [ImageFormat::Raw, ImageFormat::Qcow2]
    );
    assert_eq!(
        ["virtio", "scsi", "sata", "keep"].map(|word| target("disk_bus", word).disk_bus),
        [DiskBusChoice::Virtio, DiskBusChoice::Scsi, DiskBusChoice::Sata, DiskBusChoice::Keep,]
    );
    assert_eq!(
        ["auto", "virtio", "e1000e", "keep"].map(|word| target("nic_model", word).nic_model),
        [NicChoice::Auto, NicChoice::Virtio, NicChoice::E1000e, NicChoice::Keep]
    );
    let qcow2 = |word: &str| target("qcow2", &format!("{{preallocation: {word}}}")).qcow2.preallocation;
    assert_eq!(
        ["off", "metadata", "falloc", "full"].map(qcow2),
        [Preallocation::Off, Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full,]
    );
}

#[test]
fn each_word_of_what_is_done_to_a_vm_is_read_as_what_it_means() {
    let plan = |key: &str, word: &str| with_more("name: p", &format!("\n{key}: {word}"));
    assert_eq!(
        ["refuse", "shutdown", "force"].map(|word| plan("power_off", word).power_off),
        [PowerOff::Refuse, PowerOff::Shutdown, PowerOff::Force,]
    );
    assert_eq!(
        ["auto", "never", "always"].map(|word| plan("convert", word).convert),
        [Convert::Auto, Convert::Never, Convert::Always,]
    );
    assert_eq!(
        ["none", "full", "sampled", "{sampled: 7}"].map(|word| plan("verify", word).verify),
        [Verify::None, Verify::Full, Verify::Sampled { blocks: 1000 }, Verify::Sampled { blocks: 7 },]
    );
    assert_eq!(
        ["user", "none", "br0"]
            .map(|word| plan("networks", &format!("{{n: {word}}}")).networks[0].to.clone()),
        [NetworkTarget::User, NetworkTarget::None, NetworkTarget::Bridge("br0".into()),]
    );
    assert_eq!(
        ["default", "/fast"].map(|word| plan("storage", &format!("{{d: {word}}}")).storage[0].to.clone()),
        [None, Some(PathBuf::from("/fast")),]
    );
    let warm = |more: &str| plan("mode", &format!("warm\nwarm: {{{more}}}")).warm.or_default();
    assert_eq!(
        ["none", "sampled", "full"].map(|word| warm(&format!("audit: {word}")).audit),
        [crate::Audit::None, crate::Audit::Sampled, crate::Audit::Full,]
    );
    assert_eq!(
        ["manual", "auto"].map(|word| warm(&format!("cutover: {word}")).cutover),
        [crate::Cutover::Manual, crate::Cutover::Auto,]
    );
    assert_eq!(
        ["auto", "1s", "720h"].map(|word| warm(&format!("interval: {word}")).interval),
        [
            crate::Interval::Auto,
            crate::Interval::Every(Duration::from_secs(1)),
            crate::Interval::Every(Duration::from_secs(30 * 24 * 3600)),
        ]
    );
}

#[test]
fn times_are_read_in_all_their_units() {
    let time = |text: &str| with_more("name: p", &format!("\nshutdown_timeout: {text}")).shutdown_timeout;
    let millis = ["1500ms", "90s", "5m", "2h"].map(|text| time(text).as_millis());
    assert_eq!(millis, [1500, 90_000, 300_000, 7_200_000]);
}

#[test]
fn what_is_empty_is_told_where_something_is_needed_and_is_well_where_nothing_is() {
    let host = with_more("password_env: P", ", data: {hosts: {esx1: }}");
    assert_eq!(host.source.vsphere().unwrap().data.hosts[0].host, "esx1");
    let at_its_bound = with_more("name: p", "\nlimits: {request: 4MiB, memory: 4MiB}");
    assert_eq!(at_its_bound.limits.request, Some(4 << 20));
    for (from, to, words) in [
        ("endpoint: vc", "endpoint: ''", "source.endpoint: '' is empty"),
        ("name: p", "name: p\nnetworks: {n: ''}", "networks.n: a single value is here where a text belongs"),
        ("name: p", "name: p\nstart: maybe", "start: 'maybe' is neither true nor false"),
        ("name: p", "name: p\nstart: 'true'", "start: 'true' is neither true nor false"),
        ("name: p", "name: p\nverify: {samples: 7}", "is not none, sampled, full or {sampled: NUMBER}"),
        ("name: p", "name: p\nverify: {sampled: 0}", "is not none, sampled, full or {sampled: NUMBER}"),
        ("version: 1", "version: 2", "version: '2' is not 1"),
        ("name: p", "name: p\nlimits: {disks: 0}", "limits.disks: '0' is not a number from 1 to"),
    ] {
        let found = problems(&SMALL.replace(from, to)).join("\n");
        assert!(found.contains(words), "{to}: {found}");
    }
}

#[test]
fn names_of_plans_may_be_so_long_and_no_longer() {
    let named = |name: &str| Plan::parse(&SMALL.replace("name: p", &format!("name: {name}")));
    assert!(named(&"a".repeat(64)).is_ok() && named(&"a".repeat(65)).is_err());
    assert!(named("a-1").is_ok() && named("1a").is_ok() && named("\"-a\"").is_err() && named("a_b").is_err());
}

#[test]
fn a_small_plan_gets_the_documented_defaults() {
    let plan = Plan::parse(SMALL).unwrap();
    assert_eq!((plan.power_off, plan.verify, plan.convert), (PowerOff::Refuse, Verify::Full, Convert::Auto));
    let limits = plan.limits;
    assert_eq!((limits.vms_per_host, limits.disks, limits.cutovers, limits.memory), (20, 200, 20, 96 << 20));
    assert_eq!((plan.source.vsphere().unwrap().endpoint.to_string().as_str(), plan.start), ("vc:443", false));
}

#[test]
fn every_mistake_is_told_at_once_with_its_line() {
    let text = "version: 2\nname: P\nsorce: {}\nsource:\n  type: vsphere\n  endpoint: vc\n  user: u\n  password: hunter2\n\
                target:\n  type: qemu\n  folder: /t\n  format: vmdk\nvms:\n  - nme: a\npower_off: maybe\nlimits: {disks: 0}\n";
    let found = Plan::parse(text).unwrap_err();
    let lines: Vec<Option<u32>> = found.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [1, 2, 3, 5, 8, 12, 14, 14, 15, 16].map(Some), "{found:#?}");
    assert!(
        found.iter().all(|problem| !problem.to_string().contains("hunter2")),
        "a secret is never repeated"
    );
}

#[test]
fn each_mistake_has_its_own_words() {
    let changes: [(&str, &str, &str); 25] = [
        ("name: p", "name: p\nverfy: full", "did you mean 'verify'?"),
        ("vms: [{name: a}]", "vms: []", "selects nothing"),
        ("vms: [{name: a}]", "vms: [{start: true}]", "does not say which VMs"),
        ("vms: [{name: a}]", "vms: {name: a}", "a map is here where a list belongs"),
        ("folder: /t", "folder: []", "a list is here where a single value belongs"),
        ("endpoint: vc", "endpoint: \"v c\"", "host, host:port or an https URL"),
        ("name: p", "name: p\nmode: hot", "not one of: cold, warm"),
        (
            "name: p",
            "name: p\nmode: warm\nwarm: {interval: 500ms}",
            "error: warm.interval: '500ms' is neither auto nor",
        ),
        (
            "name: p",
            "name: p\nmode: warm\nwarm: {cutover: 2026-12-01}",
            "'2026-12-01' is neither manual, auto, nor a moment",
        ),
        (
            "name: a",
            "name: a, warm: {audit: some}",
            "vms[0].warm.audit: 'some' is not one of: none, sampled, full",
        ),
        ("name: p", "name: p\nwarm: {quiesce: true}", "warning: warm: is not used"),
        ("name: p", "name: p\nname: q", "there twice"),
        ("password_env: P", "password_env: P, thumbprint: abc", "20 bytes"),
        (
            "password_env: P",
            "password_env: P, thumbprint: 00112233445566778899aabbccddeeff00112233, insecure: true",
            "exclude each other",
        ),
        ("name: p", "name: p\nshutdown_timeout: 5", "is not a time"),
        ("type: qemu", "type: qemu, qcow2: {cluster_size: 5KiB}", "is not a power of two"),
        ("type: qemu", "type: qemu, qcow2: {cluster_size: 4MiB}", "is not a size"),
        (
            "type: qemu",
            "type: qemu, qcow2: {compressed: true, preallocation: full}",
            "does not go with preallocation",
        ),
        ("name: p", "name: p\nlimits: {memory: lots}", "is not a size"),
        ("name: p", "name: p\nlimits: {request: 64MiB}", "'64MiB' is not a size from 64 KiB to 32 MiB"),
        ("name: p", "name: p\nlimits: {request: 4MiB, memory: 2MiB}", "more than all the `memory`"),
        ("name: a", "name: a, target_name: a/b", "'a-b' is"),
        ("password_env: P", "password_env: P, data: {hosts: {h: {}, h: {}}}", "'h' is there twice"),
        ("name: p", "name: p\nnetworks: {n: br0, n: br1}", "networks.n: 'n' is there twice"),
        ("name: p", "name: p\nstorage: {ds: }", "nothing is here where a text belongs"),
    ];
    for (from, to, words) in changes {
        let found = problems(&SMALL.replace(from, to)).join("\n");
        assert!(found.contains(words), "{to}: {found}");
    }
    assert!(only_problem(|text| text.replace(", password_env: P", "")).contains("where the password is"));
}

#[test]
fn warm_keys_are_read_and_an_appliance_never_moves_warm() {
    let plan = Plan::parse(EXAMPLE).unwrap();
    assert_eq!((plan.mode, plan.vms[1].overrides.mode), (Mode::Warm, Some(Mode::Cold)));
    assert_eq!(plan.warm.or_default(), crate::Warm::default());
    let own = plan.vms[2].overrides.warm.or(plan.warm).or_default();
    assert_eq!(own.cutover, crate::Cutover::At(1_796_162_400_000));
    assert_eq!((own.interval, own.audit), (crate::Interval::Auto, crate::Audit::Full));
    for text in
        [OVA.replace("name: p", "name: p\nmode: warm"), OVA.replace("glob: \"*\"", "glob: \"*\", mode: warm")]
    {
        assert!(problems(&text).join("\n").contains("an appliance does not run"), "{text}");
    }
}

#[test]
fn an_unverified_certificate_is_a_loud_warning_but_no_error() {
    let plan = Plan::parse(&SMALL.replace("password_env: P", "password_env: P, insecure: true")).unwrap();
    assert!(plan.warnings[0].to_string().contains("anyone on the line"));
}

#[test]
fn a_password_in_the_endpoint_is_refused_and_not_repeated() {
    let told = only_problem(|text| text.replace("endpoint: vc", "endpoint: \"https://root:hunter2@vc\""));
    assert!(told.contains("does not belong into the endpoint") && !told.contains("hunter2"), "{told}");
}

#[test]
fn endpoints_of_all_kinds_are_read() {
    let read = |text| parse_endpoint(text).map(|endpoint| endpoint.to_string());
    assert_eq!(read("https://vc.example.org/sdk").as_deref(), Some("vc.example.org:443"));
    assert_eq!(read("127.0.0.1:8989").as_deref(), Some("127.0.0.1:8989"));
    assert_eq!(read("[2001:db8::1]:8443").as_deref(), Some("[2001:db8::1]:8443"));
    assert_eq!(read("2001:db8::1").as_deref(), Some("[2001:db8::1]:443"));
    for wrong in ["", "vc:0", "vc:99999", "http://vc", "vc/path", "a b"] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
}

#[test]
fn an_appliance_is_a_source_by_its_path_and_needs_no_login() {
    let validator = jsonschema::validator_for(&crate::schema()).unwrap();
    let as_json = |text: &str| to_json(&crate::node::parse(text).unwrap());
    let source = |text: &str| match Plan::parse(text).unwrap().source {
        Source::Ova(source) => source,
        other => panic!("{other:?}"),
    };
    assert_eq!(source(OVA), OvaSource { path: "web.ova".into(), manifest: ManifestUse::Check });
    let ignored = OVA.replace("web.ova", "web.ova, manifest: ignore");
    assert_eq!(source(&ignored).manifest, ManifestUse::Ignore);
    assert!(validator.is_valid(&as_json(OVA)) && validator.is_valid(&as_json(&ignored)));
    for (from, to, words) in [
        (", path: web.ova", "", "'path' is missing"),
        ("path: web.ova", "path: web.ova, user: root", "unknown key 'user'"),
        ("path: web.ova", "path: web.ova, manifest: maybe", "not one of: check, ignore"),
        ("type: ova", "type: xen", "'xen' is not one of: vsphere, ova"),
        ("type: ova", "type: [ova]", "is not one of: vsphere, ova"),
    ] {
        let text = OVA.replace(from, to);
        assert!(problems(&text).join("\n").contains(words), "{to}: {:#?}", problems(&text));
        assert!(!validator.is_valid(&as_json(&text)), "{to}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC*") {
        let _ = Plan::parse(&text);
    }

    #[test]
    fn no_damage_to_a_plan_makes_the_reader_panic(at in 0..EXAMPLE.len(), insert in "[\\PC\n]{0,4}", cut in 0usize..20) {
        let start = (0..=at).rev().find(|at| EXAMPLE.is_char_boundary(*at)).unwrap_or(0);
        let end = (start + cut).min(EXAMPLE.len());
        let _ = Plan::parse(&format!("{}{insert}{}", &EXAMPLE[..start], &EXAMPLE[end..]));
    }
}

fn with_vddk(keys: &str) -> impl Fn(&str) -> String {
    let keys = keys.to_string();
    move |text| text.replace("password_env: P}", &format!("password_env: P, data: {{vddk: {{{keys}}}}}}}"))
}

#[test]
fn vddk_keys_are_read_and_their_mistakes_found() {
    let read = |keys: &str| {
        let plan = Plan::parse(&with_vddk(keys)(SMALL)).unwrap();
        plan.source.vsphere().unwrap().data.vddk.clone()
    };
    let aio = Aio { buf_size_in_64kb: 8, buf_count: 2 };
    assert_eq!(read("aio: {buf_size_in_64kb: 8, buf_count: 2}").aio, Some(aio));
    assert_eq!((read("aio: auto").aio, read("").transports), (None, "nbdssl:nbd".to_string()));
    assert_eq!(read("").reuse_session, ReuseSession::Never);
    assert_eq!(read("reuse_session: hidden").reuse_session, ReuseSession::Hidden);
    for (keys, complaint) in [
        ("transports: \"nbd:fax\"", "names 'fax', which is not one of: san, hotadd, nbdssl, nbd"),
        ("aio: fast", "'fast' is neither auto nor {buf_size_in_64kb: N, buf_count: N}"),
        ("aio: {buf_size_in_64kb: 8}", "'buf_count' is missing"),
        ("compression: gzip", "is not one of: none, zlib, fastlz, skipz"),
    ] {
        let found = only_problem(with_vddk(keys));
        assert!(found.contains(complaint) && found.starts_with("3:"), "{found}");
    }
}

#[test]
fn a_session_that_others_can_see_is_a_loud_warning_but_no_error() {
    let plan = Plan::parse(&with_vddk("reuse_session: visible")(SMALL)).unwrap();
    assert_eq!(plan.source.vsphere().unwrap().data.vddk.reuse_session, ReuseSession::Visible);
    let [warning] = &plan.warnings[..] else { panic!("{:?}", plan.warnings) };
    assert_eq!((warning.path.as_str(), warning.is_error()), ("source.data.vddk.reuse_session", false));
    assert!(warning.message.contains("every user of this machine can read it"), "{}", warning.message);
    assert!(Plan::parse(&with_vddk("reuse_session: hidden")(SMALL)).unwrap().warnings.is_empty());
}

#[test]
fn aio_buffers_are_refused_wherever_a_vm_moves_warm() {
    let aio = with_vddk("aio: {buf_size_in_64kb: 16, buf_count: 4}");
    assert_eq!(problems(&aio(SMALL)), Vec::<String>::new());
    let whole = only_problem(|text| aio(&text.replace("vms:", "mode: warm\nvms:")));
    let single = only_problem(|text| aio(&text.replace("{name: a}", "{name: a, mode: warm}")));
    for found in [whole, single] {
        assert!(found.contains("source.data.vddk.aio") && found.contains("must be off for warm"), "{found}");
    }
    assert!(problems(&with_vddk("aio: auto")(&SMALL.replace("vms:", "mode: warm\nvms:"))).is_empty());
}

fn target(lines: &str) -> Result<Plan, Vec<Problem>> {
    Plan::parse(&format!(
        "version: 1\nname: p\nsource: {{type: ova, path: a.ova}}\ntarget: {{type: qemu, {lines}}}\nvms: [{{glob: '*'}}]\n"
    ))
}

#[test]
fn a_target_at_a_site_has_a_pool_and_limits() {
    let plan = target("via: site-b, folder: vms/prod, rate_limit: [500m, '08:00-18:00=12MiB']").unwrap();
    assert_eq!(plan.target.via.as_deref(), Some("site-b"));
    let rates: Vec<u64> = plan.target.rate_limit.iter().map(|limit| limit.bytes_per_second).collect();
    assert_eq!(rates, [62_500_000, 12 << 20]);
    assert_eq!(target("folder: /vms").unwrap().target.via, None);
}

#[test]
fn a_site_s_name_begins_with_a_letter_or_digit_and_has_64_of_them_at_most() {
    let is_name = |name: &str| target(&format!("via: '{name}', folder: vms")).is_ok();
    assert!(is_name("b") && is_name("9.b_c-d") && is_name(&"b".repeat(64)));
    assert!(!is_name("-b") && !is_name(".b") && !is_name(&"b".repeat(65)) && !is_name("b/c"));
}

#[test]
fn what_does_not_go_with_a_site_is_told_with_what_to_do() {
    for (lines, words) in [
        ("via: 'site b', folder: vms", "no name of a site"),
        ("via: site-b, folder: ../vms", "is not POOL or POOL/FOLDER"),
        ("via: site-b, folder: /", "is not POOL or POOL/FOLDER"),
        ("via: site-b, folder: vms, uefi: {code: /a, vars: /b}", "firmware files cannot be named"),
        ("via: site-b, folder: vms, qcow2: {compressed: true}", "writes raw images"),
        ("folder: /vms, rate_limit: [1g]", "an appliance is read where it lies"),
        ("via: site-b, folder: vms, rate_limit: [fast]", "'fast' is no rate"),
    ] {
        let problems = target(lines).unwrap_err();
        assert_eq!(problems.len(), 1, "{lines}: {problems:?}");
        assert!(problems[0].message.contains(words), "{lines}: {}", problems[0]);
        assert!(problems[0].line.is_some());
    }
}

#[test]
fn hooks_are_read_with_their_defaults_and_those_of_a_vm_replace_the_plans_moment_by_moment() {
    let plan = Plan::parse(&format!(
        "{SMALL}hooks: {{before_copy: [{{command: [a, b c]}}], after_done: [{{url: 'http://[::1]:8/x?k=v', on_failure: warn, \
         timeout: 9s}}]}}\n"
    ))
    .unwrap();
    let hook = &plan.hooks[&HookPoint::BeforeCopy][0];
    assert_eq!(hook.call, Call::Command(vec!["a".into(), "b c".into()]));
    assert_eq!((hook.timeout, hook.on_failure), (Duration::from_secs(300), OnFailure::Stop));
    let done = &plan.hooks[&HookPoint::AfterDone][0];
    assert_eq!((done.timeout, done.on_failure), (Duration::from_secs(9), OnFailure::Warn));
    assert_eq!(done.words(), "POST http://[::1]:8/x", "a query may be a key");
    let over = Plan::parse(&SMALL.replace(
        "{name: a}",
        "{name: a, hooks: {before_copy: [{shell: x}]}, checks: {on_post_start_failure: roll_back}}",
    ))
    .unwrap();
    let of_vm = &over.vms[0].overrides;
    assert_eq!(of_vm.hooks[&HookPoint::BeforeCopy][0].call, Call::Shell("x".into()));
    assert_eq!(of_vm.checks.roll_back, Some(true));
}

#[test]
fn checks_name_the_vm_as_the_target_does() {
    let checks = "checks: {post_start: [{tcp: '{name}.example.org:22', within: 9s}, {http: 'https://{name}/', status: 204}]}\n";
    let plan = Plan::parse(&format!("{SMALL}{checks}")).unwrap();
    let of_vm = plan.checks.of("web01");
    let words: Vec<String> = of_vm.post_start.iter().map(Check::words).collect();
    assert_eq!(words, ["tcp web01.example.org:22", "GET https://web01/"]);
    assert_eq!(of_vm.post_start[0].within, Duration::from_secs(9));
    assert!(!of_vm.roll_back, "only by leave");
}

#[test]
fn what_is_wrong_with_a_hook_or_a_check_is_told_with_its_place() {
    let hook = |hook: &str| only_problem(|small| format!("{small}hooks: {{after_copy: [{{{hook}}}]}}\n"));
    let check = |check: &str| only_problem(|small| format!("{small}checks: {{post_start: [{{{check}}}]}}\n"));
    for (found, expected) in [
        (hook("timeout: 1m"), "it does not say what is called"),
        (hook("command: [a], shell: b"), "it says twice what is called"),
        (hook("command: []"), "names no program"),
        (hook("url: ftp://x"), "is not an address"),
        (hook("url: 'https://u:secret@x/'"), "a user or password does not belong into the address"),
        (
            hook("url: 'http://hooks.example.org/x'"),
            "error: hooks.after_copy[0].url: http:// to another host",
        ),
        (hook("url: 'https://x/', token_file: a, token_env: B"), "the token is given twice"),
        (hook("command: [a], token_file: b"), "belong to a `url`"),
        (hook("command: [a], timeout: 25h"), "at most 24h"),
        (hook("command: [a], on_failure: never"), "is not one of: stop, warn"),
        (check("within: 1m"), "it does not say what is called"),
        (check("tcp: web01"), "is not HOST:PORT"),
        (check("tcp: 'web01:0'"), "is not HOST:PORT"),
        (check("tcp: 'web01:22', status: 200"), "belong to `http`"),
        (check("http: 'https://x/', every: 0s"), "more than 0"),
    ] {
        assert!(found.contains(expected), "{found} lacks {expected}");
        assert!(!found.contains("secret"), "{found}");
    }
    let insecure = hook("url: 'http://hooks.example.org/x', insecure: true");
    assert!(insecure.contains("warning"), "{insecure}");
}

#[test]
fn as_many_cutovers_at_once_as_a_plan_says() {
    let cutovers = |number: &str| Plan::parse(&format!("{SMALL}limits: {{cutovers: {number}}}\n"));
    assert_eq!(cutovers("3").unwrap().limits.cutovers, 3);
    let problems = cutovers("0").unwrap_err();
    assert!(problems.iter().any(|it| it.to_string().contains("limits.cutovers")), "{problems:?}");
}
