use std::net::IpAddr;

use drover_types::inventory::{Firmware, FixedAddresses, Host, HostAddress, Nic};

use super::route::{DATA_SERVICE, MANAGEMENT_SERVICE};
use super::*;
use crate::resolution::Route;

fn vm(id: &str, name: &str, folder: &str) -> Vm {
    let disk = VmDisk {
        key: 2000,
        label: "Hard disk 1".into(),
        capacity_bytes: 1 << 30,
        datastore: "ds1".into(),
        ..VmDisk::default()
    };
    Vm {
        id: id.into(),
        name: name.into(),
        instance_uuid: format!("uuid-{id}"),
        folder: folder.into(),
        host_id: "host-1".into(),
        power: PowerState::Off,
        firmware: Some(Firmware::Bios),
        change_tracking: true,
        tools: ToolsState::Running,
        tags: vec![format!("env:{folder}")],
        disks: vec![disk],
        nics: vec![Nic { network: "VM Network".into(), connected: true, ..Nic::default() }],
        ..Vm::default()
    }
}

fn vsphere(plan: &mut Plan) -> &mut VsphereSource {
    match &mut plan.source {
        Source::Vsphere(source) => source,
        Source::Ova(_) => panic!("the plan's source is an appliance"),
    }
}

fn inventory() -> Inventory {
    let address = |device: &str, address: &str, service: &str| HostAddress {
        device: device.into(),
        address: address.into(),
        services: vec![service.into()],
    };
    let host = Host {
        id: "host-1".into(),
        name: "esx1".into(),
        addresses: vec![
            address("vmk0", "192.0.2.1", MANAGEMENT_SERVICE),
            address("vmk1", "192.0.2.2", DATA_SERVICE),
        ],
        thumbprint: Some("AA:BB".into()),
        ..Host::default()
    };
    let vms = vec![
        vm("vm-1", "web01", "prod"),
        vm("vm-2", "web02", "prod/web"),
        vm("vm-3", "twin", "a"),
        vm("vm-4", "twin", "b"),
    ];
    let mut inventory = Inventory { hosts: vec![host], vms, ..Inventory::default() };
    inventory.about.is_vcenter = true;
    inventory
}

fn plan(vms: &str, more: &str) -> Plan {
    let text = format!(
        "version: 1\nname: p\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P, data: {{from: hosts}}}}\n\
         target: {{type: qemu, folder: /t}}\nnetworks: {{VM Network: br0}}\nvms: {vms}\n{more}"
    );
    Plan::parse(&text).unwrap()
}

fn errors(plan: &Plan, inventory: &Inventory) -> String {
    resolve(plan, inventory).problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn names(plan: &Plan) -> Vec<String> {
    let resolution = resolve(plan, &inventory());
    resolution.vms.into_iter().map(|vm| vm.vm.id).collect()
}

#[test]
fn vms_are_selected_by_name_place_tag_and_id() {
    assert_eq!(names(&plan("[{name: web01}]", "")), ["vm-1"]);
    assert_eq!(names(&plan("[{glob: 'web*'}]", "")), ["vm-1", "vm-2"]);
    assert_eq!(names(&plan("[{folder: prod}]", "")), ["vm-1", "vm-2"]);
    assert_eq!(names(&plan("[{folder: prod, glob: '*2'}]", "")), ["vm-2"]);
    assert_eq!(names(&plan("[{tag: 'env:a'}]", "")), ["vm-3"]);
    assert_eq!(names(&plan("[{id: vm-4}]", "")), ["vm-4"]);
    assert_eq!(names(&plan("[{glob: 'web*'}]", "exclude: [{name: web01}]")), ["vm-2"]);
    assert_eq!(names(&plan("[{host: esx1, glob: 'web*'}]", "")), ["vm-1", "vm-2"]);
    let mut inventory = inventory();
    inventory.hosts.push(Host { id: "host-2".into(), name: "esx2".into(), ..Host::default() });
    inventory.hosts[0].cluster = Some("old".into());
    inventory.vms[1].host_id = "host-2".into();
    inventory.vms[2].disks[0].datastore = "ds2".into();
    let second = VmDisk { datastore: "ds2".into(), ..inventory.vms[3].disks[0].clone() };
    inventory.vms[3].disks.push(second);
    let names = |vms: &str, more: &str| {
        let resolution = resolve(&plan(vms, more), &inventory);
        let mut names: Vec<String> = resolution.vms.into_iter().map(|vm| vm.vm.id).collect();
        names.sort();
        names
    };
    assert_eq!(names("[{cluster: old}]", ""), ["vm-1", "vm-3", "vm-4"]);
    assert_eq!(names("[{datastore: ds2}]", ""), ["vm-3", "vm-4"], "any of its disks");
    assert_eq!(names("[{cluster: old, datastore: ds1}]", "exclude: [{datastore: ds2}]"), ["vm-1"]);
    let told = errors(&plan("[{cluster: new}]", ""), &inventory);
    assert!(told.contains("error: vms[0]: it selects no VM: cluster 'new'"), "{told}");
    let told = errors(&plan("[{folder: prd, glob: 'w*'}]", ""), &inventory);
    assert!(
        told.contains("it selects no VM: glob 'w*', folder 'prd'") && told.contains("did you mean 'prod'?"),
        "{told}"
    );
}

#[test]
fn each_vm_is_in_one_wave_by_its_own_word_or_by_that_of_the_wave() {
    let waves = "waves:\n  - {name: one, vms: [{folder: prod}]}\n  - {name: two}\n";
    let of = |vms: &str, waves: &str| {
        let resolution = resolve(&plan(vms, waves), &inventory());
        let problems: Vec<String> = resolution.problems.iter().map(ToString::to_string).collect();
        let waves = resolution.vms.into_iter().map(|vm| vm.wave.unwrap_or_default());
        (waves.collect::<Vec<_>>().join(" "), problems)
    };
    let fine = of("[{glob: 'web*'}, {id: vm-3, wave: one}, {id: vm-3, wave: two}]", waves);
    assert_eq!(fine, ("two one one".to_string(), vec![]), "a later entry wins, as with all keys");
    let (_, both) = of("[{name: web01, wave: two}]", waves);
    assert!(both[0].contains("web01 is in more than one wave: one, two"), "{both:?}");
    let (_, none) = of("[{glob: 'web*', wave: one}]", "waves: [{name: one}, {name: two, vms: [{name: db}]}]");
    assert!(none[0].contains("warning: waves[1]: no VM of the plan is in wave two"), "{none:?}");
    let (_, without) = of("[{glob: 'web*'}, {id: vm-3}]", "waves: [{name: one, vms: [{id: vm-1}]}]");
    let joined = without.join("\n");
    assert!(
        joined.contains("web02 is in no wave") || joined.contains("web02, twin are in no wave"),
        "{joined}"
    );
    assert_eq!(of("[{glob: 'web*'}]", "").0, " ");
}

#[test]
fn a_moment_for_a_cutover_is_in_the_window_of_its_wave() {
    let found = |from: &str| {
        let waves = format!("mode: warm\nwaves: [{{name: one, from: \"{from}\", vms: [{{glob: '*'}}]}}]");
        errors(&plan("[{name: web01, warm: {cutover: \"2026-12-01T22:00:00Z\"}}]", &waves), &inventory())
    };
    let wrong = found("2026-12-01T23:00:00Z");
    assert!(
        wrong.contains("the moment for the cutover of web01 is not in the window of wave one"),
        "{wrong}"
    );
    assert_eq!(found("2026-12-01T21:00:00Z"), "");
}

#[test]
fn a_good_plan_says_where_everything_goes() {
    let resolution = resolve(&plan("[{name: web01}]", "storage: {ds1: /fast}"), &inventory());
    assert_eq!(resolution.problems, []);
    let vm = &resolution.vms[0];
    assert_eq!(vm.folder, PathBuf::from("/t/web01"));
    assert_eq!(vm.disks[0].path, PathBuf::from("/fast/web01/web01-0.raw"));
    assert_eq!(vm.nics[0].target, NetworkTarget::Bridge("br0".into()));
    let Route::Host(route) = &vm.route else { panic!("the bytes come from the host") };
    assert_eq!((route.address.as_str(), route.port), ("192.0.2.2", 443), "the address meant for backups");
    assert_eq!(route.trust, Trust::Thumbprint("AA:BB".into()));
}

#[test]
fn a_disk_goes_where_the_rule_for_its_datastore_says_or_else_the_one_for_all() {
    let folder = |storage: &str| {
        let resolution = resolve(&plan("[{name: web01}]", &format!("storage: {{{storage}}}")), &inventory());
        let disk = resolution.vms[0].disks[0].path.clone();
        (disk.to_str().unwrap().to_string(), resolution.problems.len())
    };
    assert_eq!(folder("'*': /slow, ds1: /fast").0, "/fast/web01/web01-0.raw");
    assert_eq!(folder("'*': /slow").0, "/slow/web01/web01-0.raw");
    assert_eq!(folder("ds2: /other"), ("/t/web01/web01-0.raw".to_string(), 1), "with a warning");
    assert_eq!(folder("'*': /slow, ds1: default").0, "/t/web01/web01-0.raw");
}

#[test]
fn each_folder_takes_in_what_its_disks_hold_and_thick_ones_are_told_apart() {
    let mut inventory = inventory();
    let disk = |key: i32, datastore: &str, gib: u64, thin: Option<bool>| VmDisk {
        key,
        label: format!("Hard disk {key}"),
        capacity_bytes: gib << 30,
        datastore: datastore.into(),
        thin,
        ..VmDisk::default()
    };
    inventory.vms[0].disks = vec![disk(1, "ds1", 1, Some(false)), disk(2, "ds2", 2, Some(true))];
    inventory.vms[1].disks = vec![disk(1, "ds1", 4, None), disk(2, "ds1", 8, Some(false))];
    let resolution = resolve(&plan("[{glob: 'web*'}]", "storage: {ds1: /fast}"), &inventory);
    assert_eq!(resolution.vms.iter().map(PlannedVm::capacity_bytes).collect::<Vec<_>>(), [3 << 30, 12 << 30]);
    let space =
        |capacity: u64, thick: u64| crate::Space { capacity_bytes: capacity << 30, thick_bytes: thick << 30 };
    let expected = [(PathBuf::from("/fast"), space(13, 9)), (PathBuf::from("/t"), space(2, 0))];
    assert_eq!(crate::space_needed(&resolution), BTreeMap::from(expected));
}

#[test]
fn bytes_go_through_the_endpoint_unless_a_vcenter_is_to_send_them_from_its_hosts() {
    let route = |from: DataFrom, is_vcenter: bool| {
        let (mut plan, mut inventory) = (plan("[{name: web01}]", ""), inventory());
        vsphere(&mut plan).data.from = from;
        inventory.about.is_vcenter = is_vcenter;
        resolve(&plan, &inventory).vms[0].route == Route::Provider
    };
    assert!(
        route(DataFrom::Provider, true) && route(DataFrom::Provider, false) && route(DataFrom::Hosts, false)
    );
    assert!(!route(DataFrom::Hosts, true));
}

#[test]
fn what_is_told_of_a_host_holds_for_that_host_alone() {
    let (mut plan, mut inventory) = (plan("[{glob: 'web*'}]", ""), inventory());
    let address = |address: &str| HostAddress {
        device: "vmk0".into(),
        address: address.into(),
        services: vec![MANAGEMENT_SERVICE.into()],
    };
    let addresses = vec![address("192.0.2.9")];
    inventory.hosts.push(Host { id: "host-2".into(), name: "esx2".into(), addresses, ..Host::default() });
    inventory.vms[1].host_id = "host-2".into();
    let (host, address) = ("esx2".to_string(), Some("esx2.example.org".to_string()));
    let over = HostOverride { host, address, port: Some(8443), login: None, trust: None, at: At::default() };
    vsphere(&mut plan).data.hosts = vec![over];
    let resolution = resolve(&plan, &inventory);
    let routes: Vec<(&str, u16)> = resolution
        .vms
        .iter()
        .map(|vm| match &vm.route {
            Route::Host(route) => (route.address.as_str(), route.port),
            Route::Provider => panic!("a host's route"),
        })
        .collect();
    assert_eq!(routes, [("192.0.2.2", 443), ("esx2.example.org", 8443)]);
}

#[test]
fn a_host_without_an_address_is_told_once_whatever_the_number_of_its_vms() {
    let mut inventory = inventory();
    inventory.hosts[0].addresses.clear();
    let told = errors(&plan("[{glob: 'web*'}]", ""), &inventory);
    assert_eq!(told.matches("host esx1 has no address that drover knows").count(), 1, "{told}");
}

#[test]
fn a_target_name_is_for_one_vm_only() {
    let of_two = errors(&plan("[{glob: 'web*', target_name: one}]", ""), &inventory());
    assert!(of_two.contains("vms[0].target_name: 2 VMs would get one name"), "{of_two}");
    assert!(errors(&plan("[{glob: 'web*1', target_name: one}]", ""), &inventory()).is_empty());
    let all_stay =
        errors(&plan("[{glob: 'web*', target_name: one}]", "exclude: [{glob: 'web*'}]"), &inventory());
    assert!(!all_stay.contains("would get one name"), "{all_stay}");
}

#[test]
fn a_selection_of_which_nothing_is_left_or_nothing_found_says_why() {
    let excluded = plan("[{name: web01}, {name: web02}]", "exclude: [{name: web01}]");
    let told = errors(&excluded, &inventory());
    assert!(told.contains("warning: vms[0]: every VM it selects is excluded"), "{told}");
    assert_eq!(names(&excluded), ["vm-2"]);
    let elsewhere = errors(&plan("[{name: web01, folder: test}]", ""), &inventory());
    assert!(elsewhere.contains("no VM called 'web01' is where this selection looks"), "{elsewhere}");
}

#[test]
fn unknown_and_double_names_are_told_apart() {
    assert!(errors(&plan("[{name: wbe01}]", ""), &inventory()).contains("did you mean 'web01'?"));
    let twins = errors(&plan("[{name: twin}]", ""), &inventory());
    assert!(twins.contains("vm-3 in folder 'a', vm-4 in folder 'b'") && twins.contains("`id:`"), "{twins}");
    assert!(errors(&plan("[{name: twin, folder: a}]", ""), &inventory()).is_empty());
    assert!(
        errors(&plan("[{glob: 'twin'}]", ""), &inventory())
            .contains("twin would be 'twin' at the target, and so would 'twin' (ids ")
    );
    assert!(errors(&plan("[{glob: 'nothing*'}]", ""), &inventory()).contains("selects no VM"));
}

#[test]
fn what_cannot_be_moved_is_an_error_with_its_line() {
    let mut inventory = inventory();
    inventory.vms[0].consolidation_needed = true;
    inventory.vms[0].nics[0].network = "DMZ".into();
    inventory.vms[0].power = PowerState::On;
    let found = resolve(&plan("[{name: web01}]", ""), &inventory);
    assert!(!found.is_ok());
    let text = found.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for words in [
        "its disks need consolidation",
        "network 'DMZ' of web01 is not mapped",
        "is running, and the plan does not allow",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(found.problems.iter().all(|problem| problem.line == Some(6)), "{text}");
}

#[test]
fn an_error_says_which_vms_it_is_of_and_none_if_it_stops_the_whole_plan() {
    let mut inventory = inventory();
    inventory.vms[0].power = PowerState::Suspended;
    inventory.vms[1].host_id = "host-9".into();
    inventory.vms.iter_mut().take(2).for_each(|vm| vm.nics[0].network = "DMZ".into());
    let found = resolve(&plan("[{glob: 'web*'}, {name: nobody}]", ""), &inventory);
    let of = |words: &str| {
        let told = found.problems.iter().find(|problem| problem.message.contains(words));
        told.unwrap_or_else(|| panic!("{words} in {:?}", found.problems)).vms.join(" ")
    };
    assert_eq!(of("web01 is suspended"), "vm-1");
    assert_eq!(of("network 'DMZ' of"), "vm-1 vm-2");
    assert_eq!(of("the host of web02 is not known"), "vm-2");
    assert_eq!(of("there is no VM called 'nobody'"), "");
}

#[test]
fn an_unmapped_network_is_told_once_with_its_vms() {
    let mut inventory = inventory();
    inventory.vms = (0..8).map(|n| vm(&format!("vm-{n}"), &format!("web{n}"), "prod")).collect();
    inventory
        .vms
        .iter_mut()
        .for_each(|vm| vm.nics = vec![Nic { network: "DMZ".into(), ..Nic::default() }; 2]);
    let told = errors(&plan("[{glob: '*'}]", ""), &inventory);
    assert!(
        told.contains("network 'DMZ' of web0, web1, web2, web3, web4 and 3 more is not mapped"),
        "{told}"
    );
    assert_eq!(told.matches("is not mapped").count(), 1, "{told}");
}

#[test]
fn windows_keeps_the_fixed_addresses_that_its_tools_tell() {
    let card = |number: u8, fixed: Option<FixedAddresses>| Nic {
        label: format!("Network adapter {number}"),
        mac: format!("00:50:56:AA:00:0{number}"),
        network: "VM Network".into(),
        connected: true,
        fixed,
        ..Nic::default()
    };
    let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
    let fixed = FixedAddresses {
        addresses: ips(&["2001:db8::7", "192.0.2.7", "192.0.2.8"]).into_iter().zip([64, 24, 24]).collect(),
        gateways: ips(&["2001:db8::1", "192.0.2.1"]),
        dns: ips(&["192.0.2.53", "2001:db8::53"]),
    };
    let mut inventory = inventory();
    inventory.vms[0].guest_id = "windows2019srv_64Guest".into();
    inventory.vms[0].nics = vec![card(1, Some(fixed.clone())), card(2, Some(FixedAddresses::default()))];
    let of = |text: &str, inventory: &Inventory| {
        let mut resolution = resolve(&plan("[{name: web01}]", text), inventory);
        let told = resolution.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        (resolution.vms.remove(0), told)
    };
    let (vm, told) = of("keep_addresses: true", &inventory);
    let given = &vm.first_boot.addresses;
    let told_of: Vec<_> = given.iter().map(|it| (it.mac.as_str(), it.with_prefix(), it.kept)).collect();
    let kept = |address: &str| ("00:50:56:aa:00:01", address.to_string(), true);
    assert_eq!(
        told_of,
        ["2001:db8::7/64", "192.0.2.7/24", "192.0.2.8/24"].map(kept),
        "the other card has a lease"
    );
    let gateways: Vec<_> = given.iter().map(|it| it.gateway).collect();
    assert_eq!(gateways, [Some(ips(&["2001:db8::1"])[0]), Some(ips(&["192.0.2.1"])[0]), None]);
    let dns: Vec<_> = given.iter().map(|it| it.dns.clone()).collect();
    assert_eq!(dns, [ips(&["2001:db8::53"]), ips(&["192.0.2.53"]), vec![]]);
    assert_eq!(vm.convert, Convert::Always);
    assert!(!told.contains("error"), "{told}");
    assert!(!vm.concerns.iter().any(|it| it.id == "fixed-addresses"), "{:?}", vm.concerns);

    let (vm, _) = of("", &inventory);
    assert!(vm.first_boot.addresses.is_empty() && vm.concerns.iter().any(|it| it.id == "fixed-addresses"));
    // What the plan gives goes before it, and cards that nobody tells of are named.
    inventory.vms[0].nics.push(card(3, None));
    let (_, told) = of("keep_addresses: true", &inventory);
    assert!(told.contains("tell no addresses of Network adapter 3"), "{told}");
    inventory.vms[0].nics[2].connected = false;
    let (_, told) = of("keep_addresses: true", &inventory);
    assert!(!told.contains("tell no addresses"), "{told}");
    let text = "[{name: web01, keep_addresses: true, addresses: {\"00:50:56:aa:00:01\": 198.51.100.7/24}}]";
    let given = resolve(&plan(text, ""), &inventory).vms.remove(0).first_boot.addresses;
    assert_eq!(given.iter().map(|it| it.address).collect::<Vec<_>>(), ips(&["198.51.100.7"]));
    // Linux keeps its own.
    inventory.vms[0].guest_id = "debian12_64Guest".into();
    let (vm, _) = of("keep_addresses: true", &inventory);
    assert!(vm.first_boot.is_empty());
}

#[test]
fn what_goes_by_tags_is_refused_where_tags_are_not_known() {
    let told = |vms: &str, more: &str, unknown: bool| {
        let mut inventory = inventory();
        inventory.tags_unknown = unknown.then(|| "503".to_string());
        errors(&plan(vms, more), &inventory)
    };
    let (all, out) = ("[{glob: '*'}]", "exclude: [{tag: 'move:never'}]");
    let words = |at: &str, tag: &str| format!("{at}: which VMs have the tag '{tag}' is not known: 503");
    let found = told(all, out, true);
    assert!(
        found.contains(&words("exclude[0]", "move:never")) && !found.contains("excludes no VM"),
        "{found}"
    );
    let found = told("[{tag: 'env:*'}]", "", true);
    assert!(found.contains(&words("vms[0]", "env:*")), "{found}");
    let waves = "waves: [{name: one, vms: [{tag: 'env:a'}]}, {name: two, vms: [{glob: '*'}]}]";
    assert!(told(all, waves, true).contains(&words("waves[0].vms[0]", "env:a")));
    assert!(!told(all, out, false).contains("is not known"));
    assert!(!told(all, "exclude: [{name: web01}]", true).contains("is not known"), "nothing goes by tags");
}

#[test]
fn what_a_plan_names_in_vain_is_a_warning() {
    let plan = plan("[{name: web01}]", "exclude: [{name: wbe02}]\nstorage: {ds2: /fast}");
    let resolution = resolve(&plan, &inventory());
    let told: Vec<String> = resolution.problems.iter().map(ToString::to_string).collect();
    assert!(resolution.is_ok() && told.len() == 2, "{told:#?}");
    assert!(told[0].contains("it excludes no VM (did you mean 'web02'?)"), "{told:#?}");
    assert!(told[1].contains("there is no datastore 'ds2' (did you mean 'ds1'?)"), "{told:#?}");
}

#[test]
fn excluding_one_of_two_twins_tells_them_apart_and_excluding_all_is_an_error() {
    assert_eq!(names(&plan("[{name: twin}]", "exclude: [{folder: a}]")), ["vm-4"]);
    assert!(errors(&plan("[{name: twin}]", "exclude: [{folder: a}]"), &inventory()).is_empty());
    let none = resolve(&plan("[{name: web01}]", "exclude: [{glob: '*'}]"), &inventory());
    assert!(!none.is_ok() && none.vms.is_empty(), "{:#?}", none.problems);
}

#[test]
fn the_thumbprint_of_the_vcenter_is_not_taken_for_a_hosts() {
    let mut inventory = inventory();
    inventory.hosts[0].thumbprint = None;
    let mut plan = plan("[{name: web01}]", "");
    for (source, host) in [
        (Trust::Thumbprint("CC".into()), Trust::System),
        (Trust::CaFile("ca.pem".into()), Trust::CaFile("ca.pem".into())),
    ] {
        vsphere(&mut plan).trust = source;
        let Route::Host(route) = &resolve(&plan, &inventory).vms[0].route else { panic!("a host's route") };
        assert_eq!(route.trust, host);
    }
}

#[test]
fn thousands_of_vms_can_be_selected_one_by_one() {
    let mut inventory = inventory();
    inventory.vms = (0..2000).map(|n| vm(&format!("vm-{n}"), &format!("web{n}"), "prod")).collect();
    let names: Vec<String> = (0..2000).map(|n| format!("{{name: web{n}}}")).collect();
    let resolution = resolve(&plan(&format!("[{}]", names.join(", ")), ""), &inventory);
    assert!(resolution.is_ok() && resolution.vms.len() == 2000);
}

#[test]
fn a_running_vm_needs_tools_for_a_clean_shutdown() {
    let mut inventory = inventory();
    inventory.vms[0].power = PowerState::On;
    assert!(errors(&plan("[{name: web01}]", "power_off: shutdown"), &inventory).is_empty());
    inventory.vms[0].tools = ToolsState::NotRunning;
    assert!(
        errors(&plan("[{name: web01}]", "power_off: shutdown"), &inventory).contains("without guest tools")
    );
    assert!(errors(&plan("[{name: web01}]", "power_off: force"), &inventory).is_empty());
}

#[test]
fn each_vm_moves_warm_or_cold_as_the_plan_and_its_selections_say() {
    let mut inventory = inventory();
    inventory.vms.iter_mut().for_each(|vm| vm.power = PowerState::On);
    let plan = plan(
        "[{name: web01, warm: {quiesce: true}}, {name: web02, mode: cold}]",
        "power_off: shutdown\nmode: warm\nwarm: {cutover: auto, interval: 1s}",
    );
    let resolution = resolve(&plan, &inventory);
    assert!(resolution.is_ok(), "{:#?}", resolution.problems);
    let warm = resolution.vms[0].warm.unwrap();
    assert_eq!((warm.cutover, warm.quiesce), (crate::Cutover::Auto, true));
    assert_eq!(resolution.vms[1].warm, None);
    // As an earlier drover kept it.
    let mut json = serde_json::to_value(&resolution.vms[1]).unwrap();
    json.as_object_mut().unwrap().remove("warm");
    assert_eq!(serde_json::from_value::<PlannedVm>(json).unwrap(), resolution.vms[1]);
}

#[test]
fn later_selections_override_earlier_ones() {
    let plan = plan(
        "[{glob: 'web*', format: qcow2, priority: 1}, {name: web02, priority: 7, target_name: two}]",
        "",
    );
    let resolution = resolve(&plan, &inventory());
    let two = resolution.vms.iter().find(|vm| vm.vm.id == "vm-2").unwrap();
    assert_eq!((two.format, two.priority, two.target_name.as_str()), (ImageFormat::Qcow2, 7, "two"));
    assert_eq!(resolution.vms.len(), 2);
}

#[test]
fn the_order_within_a_wave_is_that_of_groups_and_a_stage_alone_is_none() {
    let vms = "[{glob: 'web*', group: shop, deadline: '2026-12-02T06:00:00Z'}, {name: web02, stage: 1, anti_affinity: pair}]";
    let resolution = resolve(&plan(vms, ""), &inventory());
    assert!(resolution.is_ok(), "{:#?}", resolution.problems);
    let of = |id: &str| resolution.vms.iter().find(|vm| vm.vm.id == id).unwrap();
    let stage = |id: &str| of(id).group.as_ref().map(|group| (group.name.as_str(), group.stage));
    assert_eq!((stage("vm-1"), stage("vm-2")), (Some(("shop", 0)), Some(("shop", 1))));
    assert_eq!(
        (of("vm-1").deadline_ms, of("vm-2").deadline_ms),
        (Some(1_796_191_200_000), Some(1_796_191_200_000))
    );
    assert_eq!(
        (of("vm-1").anti_affinity.as_deref(), of("vm-2").anti_affinity.as_deref()),
        (None, Some("pair"))
    );
    let alone = errors(&plan("[{name: web02, stage: 1}]", ""), &inventory());
    assert!(alone.contains("web02 has a stage, and no group"), "{alone}");
    let waves = "waves: [{name: a, vms: [{name: web01}]}, {name: b, vms: [{name: web02}]}]\n";
    let apart = resolve(&plan("[{glob: 'web*', group: shop}]", waves), &inventory());
    assert!(apart.is_ok(), "{:#?}", apart.problems);
    assert!(
        apart.problems.iter().any(|it| it.message.contains("group shop are in several waves (a, b)")),
        "{:#?}",
        apart.problems
    );
}

#[test]
fn disks_can_stay_behind_but_must_exist() {
    let left = resolve(&plan("[{name: web01, exclude_disks: [Hard disk 1]}]", ""), &inventory());
    assert!(left.problems[0].message.contains("has no disk to move"));
    assert!(
        errors(&plan("[{name: web01, exclude_disks: [Disk X]}]", ""), &inventory())
            .contains("it has: Hard disk 1")
    );
}

#[test]
fn a_missing_vmknic_and_an_unknown_host_are_told() {
    let mut with_device = plan("[{name: web01}]", "");
    vsphere(&mut with_device).data.network = HostNetwork::Device("vmk9".into());
    assert!(errors(&with_device, &inventory()).contains("host esx1 has no vmknic 'vmk9'"));
    vsphere(&mut with_device).data.hosts = vec![HostOverride {
        host: "esx9".into(),
        address: None,
        port: None,
        login: None,
        trust: None,
        at: At::default(),
    }];
    assert!(errors(&with_device, &inventory()).contains("did you mean 'esx1'?"));
}

#[test]
fn names_become_safe() {
    for (name, safe) in [
        ("web01", "web01"),
        ("file srv ä", "file-srv-ä"),
        ("a/../b", "a-..-b"),
        ("..", "vm-2"),
        ("-rf", "rf"),
    ] {
        assert_eq!(safe_name(name), safe);
    }
    assert_eq!(safe_name(&"x".repeat(500)).len(), NAME_BYTES_MAX);
    assert_eq!(safe_name(&"ä".repeat(500)).chars().count(), NAME_BYTES_MAX / 2, "no letter is torn");
}

#[test]
fn a_draft_parses_and_its_movable_vms_resolve() {
    let mut inventory = inventory();
    inventory.vms[1].consolidation_needed = true;
    let options = crate::DraftOptions {
        name: "drafted".into(),
        source: crate::DraftSource::Vsphere {
            endpoint: "vc".into(),
            user: "u\"x".into(),
            password_file: None,
            ca_file: None,
            thumbprint: None,
            insecure: false,
        },
        folder: "/t".into(),
        ..crate::DraftOptions::default()
    };
    let web = crate::Wanted::default().named(&["web*".into()]);
    let text = crate::draft(&inventory, &web, &options).unwrap();
    let plan = Plan::parse(&text).unwrap();
    let resolution = resolve(&plan, &inventory);
    assert!(resolution.is_ok(), "{text}\n{:#?}", resolution.problems);
    assert_eq!(resolution.vms.len(), 1);
    assert!(text.contains("# cannot be moved as it is") && text.contains("# - name: \"web02\""), "{text}");
    assert_eq!(
        text,
        crate::draft(&inventory, &web, &options).unwrap(),
        "the same inventory gives the same text"
    );
}

#[test]
fn places_at_a_site_are_below_its_pools_and_images_are_raw() {
    let text = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                target: {type: qemu, via: site-b, folder: /vms}\nnetworks: {VM Network: br0}\nstorage: {ds1: /nvme}\n";
    let plan = |vms: &str| Plan::parse(&format!("{text}vms: {vms}\n")).unwrap();
    let resolution = resolve(&plan("[{name: web01}]"), &inventory());
    assert_eq!(resolution.problems, []);
    let vm = &resolution.vms[0];
    assert_eq!((vm.site.as_deref(), vm.folder.to_str()), (Some("site-b"), Some("/vms/web01")));
    assert_eq!(vm.place_of(&vm.disks[0]), PathBuf::from("agent://site-b/nvme/web01/web01-0.raw"));
    let told = errors(&plan("[{name: web01, format: qcow2}]"), &inventory());
    assert!(told.contains("the agent of site-b writes raw images"), "{told}");
}

#[test]
fn disks_of_a_domain_are_volumes_of_the_pools_that_the_plan_names() {
    let text = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                target: {type: libvirt, pool: images}\nstorage: {ds1: nvme, '*': default}\nnetworks: {'*': user}\n\
                vms: [{name: web01}, {name: web02, uri: 'qemu+unix:///system?socket=/b', pool: slow, storage: {ds1: default}}]\n";
    let resolution = resolve(&Plan::parse(text).unwrap(), &inventory());
    assert!(resolution.is_ok(), "{:#?}", resolution.problems);
    let place = |vm: &PlannedVm| (vm.daemon.clone(), vm.disks[0].pool.clone(), vm.disks[0].path.clone());
    let of = |uri: &str, pool: &str, path: &str| (Some(uri.into()), Some(pool.into()), PathBuf::from(path));
    assert_eq!(place(&resolution.vms[0]), of("qemu:///system", "nvme", "/nvme/web01-0.raw"));
    assert_eq!(place(&resolution.vms[1]), of("qemu+unix:///system?socket=/b", "slow", "/slow/web02-0.raw"));
}

#[test]
fn a_disk_of_a_domain_goes_to_the_volume_that_the_plan_names_for_it() {
    let plan = |volumes: &str| {
        let text = format!(
            "version: 1\nname: p\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\n\
             target: {{type: libvirt, pool: san}}\nnetworks: {{'*': user}}\nvms: [{{name: web01, volumes: {{{volumes}}}}}]\n"
        );
        Plan::parse(&text).unwrap()
    };
    let named = |volumes: &str| {
        let resolution = resolve(&plan(volumes), &inventory());
        assert!(resolution.is_ok(), "{:#?}", resolution.problems);
        let disk = &resolution.vms[0].disks[0];
        disk.volume.clone().map(|volume| (volume.name, volume.overwrite))
    };
    assert_eq!(named(""), None);
    assert_eq!(named("Hard disk 1: 'unit:0:0:1'"), Some(("unit:0:0:1".into(), false)));
    assert_eq!(named("Hard disk 1: 'unit:0:0:1,overwrite'"), Some(("unit:0:0:1".into(), true)));
    let told = errors(&plan("Hard disk 7: 'unit:0:0:1'"), &inventory());
    assert!(
        told.contains("web01 moves no disk 'Hard disk 7'") && told.contains("it moves: Hard disk 1"),
        "{told}"
    );
}

#[test]
fn a_vm_of_several_hosts_has_no_daemon_before_it_is_placed_and_takes_the_pools_of_its_host() {
    let text = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                target: {type: libvirt, pool: images, hosts: [{name: b, uri: 'qemu+ssh://b/system', via: site-b, pool: own}]}\n\
                networks: {'*': user}\nvms: [{name: web01}, {name: web02, pool: slow}, {name: web02, target_host: b}]\n";
    let plan = Plan::parse(text).unwrap();
    let mut resolution = resolve(&plan, &inventory());
    assert!(resolution.is_ok(), "{:#?}", resolution.problems);
    let hosts: Vec<_> =
        resolution.vms.iter().map(|vm| vm.target_host.as_ref().map(|it| it.name.as_str())).collect();
    assert_eq!(hosts, [None, Some("b")], "a later selection adds to an earlier one");
    assert!(resolution.vms.iter().all(|vm| vm.daemon.is_none() && vm.site.is_none()));
    let libvirt = plan.target.libvirt().unwrap();
    resolution.vms.iter_mut().for_each(|vm| vm.place_on(&libvirt.hosts[0], "why", libvirt));
    let place =
        |vm: &PlannedVm| (vm.daemon.clone().unwrap(), vm.place_of(&vm.disks[0]).display().to_string());
    let of = |path: &str| ("qemu+ssh://b/system".to_string(), format!("agent://site-b{path}"));
    assert_eq!(place(&resolution.vms[0]), of("/own/web01-0.raw"));
    assert_eq!(place(&resolution.vms[1]), of("/slow/web02-0.raw"));
}

#[test]
fn names_in_a_cluster_are_valid_and_short_and_long_ones_differ() {
    for (name, wanted) in [("Web_01", "web-01"), ("web01", "web01"), ("-a.b-", "a-b")] {
        assert_eq!(kube_name(name), wanted);
    }
    let (long, other) = ("x".repeat(60), "x".repeat(61));
    assert_eq!((kube_name(&long).len(), kube_name("\u{4e16}").len()), (48, 11));
    assert_ne!(kube_name(&long), kube_name(&other));
}

#[test]
fn work_at_the_first_boot_makes_a_vm_one_to_convert_and_is_refused_where_it_cannot_be_done() {
    let mut inventory = inventory();
    let windows = &mut inventory.vms[1];
    (windows.guest_id, windows.nics[0].mac) = ("windows2019srv_64Guest".into(), "00:50:56:aa:00:07".into());
    let all = "first_boot: {scripts: [a.sh], guest_agent: x.deb}";
    let found =
        resolve(&plan("[{name: web01, first_boot: {scripts: [b.sh]}}, {name: web02}]", all), &inventory);
    assert!(found.is_ok(), "{:?}", found.problems);
    let told: Vec<_> = found.vms.iter().map(|vm| (vm.convert, vm.first_boot.clone())).collect();
    let work = |script: &str, agent: Option<&str>| FirstBoot {
        scripts: vec![script.into()],
        guest_agent: agent.map(Into::into),
        addresses: vec![],
    };
    let expected = [work("b.sh", Some("x.deb")), work("a.sh", None)].map(|work| (Convert::Always, work));
    assert_eq!(told, expected, "a VM's own word wins; Windows has an agent of its own");
    let address = "addresses: {\"00:50:56:AA:00:07\": 192.0.2.7/24}";
    let mut of_web01 = inventory.clone();
    of_web01.vms[0].nics[0].mac = "00:50:56:aa:00:07".into();
    for (id, is_taken) in [("otherGuest64", true), ("otherLinux64Guest", false), ("debian12_64Guest", false)]
    {
        of_web01.vms[0].guest_id = id.into();
        let told = errors(&plan(&format!("[{{name: web01, {address}}}]"), ""), &of_web01);
        assert_eq!(told.contains("web01 is no Windows by its guest id"), !is_taken, "{id}: {told}");
        assert_eq!(told.is_empty(), is_taken, "{id}: {told}");
    }
    let wrong = |vms: &str| errors(&plan(vms, ""), &inventory);
    assert_eq!(wrong(&format!("[{{name: web02, {address}}}]")), "");
    assert!(
        wrong("[{name: web02, addresses: {\"00:50:56:aa:00:08\": 192.0.2.7/24}}]")
            .contains("web02 has no network card")
    );
    let never = wrong("[{name: web01, convert: never, first_boot: {scripts: [a.sh]}}]");
    assert!(never.contains("web01 has work for its first boot, and is not to be converted"), "{never}");
}

fn bridge_of(nic: &PlannedNic) -> String {
    match &nic.target {
        NetworkTarget::Bridge(bridge) => bridge.clone(),
        other => format!("{other:?}").to_lowercase(),
    }
}

#[test]
fn a_name_of_two_data_centres_is_told_and_mapped_by_each_of_them() {
    let mut inventory = inventory();
    inventory.vms.truncate(2);
    for (vm, datacenter) in inventory.vms.iter_mut().zip(["dc1", "eu/dc2"]) {
        vm.datacenter = datacenter.into();
    }
    let with = |networks: &str, storage: &str| {
        let text = format!(
            "version: 1\nname: p\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\ntarget: {{type: qemu, folder: /t}}\n\
             networks: {{{networks}}}\nstorage: {{{storage}}}\nvms: [{{glob: 'web*'}}]\n"
        );
        let resolution = resolve(&Plan::parse(&text).unwrap(), &inventory);
        let nics = resolution.vms.iter().map(|vm| bridge_of(&vm.nics[0])).collect::<Vec<_>>();
        let disks =
            resolution.vms.iter().map(|vm| vm.disks[0].base.display().to_string()).collect::<Vec<_>>();
        let told = resolution.problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        (nics.join(" "), disks.join(" "), told)
    };
    let (nics, disks, told) = with("VM Network: br0", "ds1: fast");
    assert_eq!((nics.as_str(), disks.as_str()), ("br0 br0", "/t/fast /t/fast"));
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].contains("warning: networks.VM Network: there is a network 'VM Network' in each of dc1 (web01), eu/dc2 (web02), and this rule \
                          takes them for one")
            && told[0].contains("\"dc1/VM Network\""),
        "{told:?}"
    );
    assert!(
        told[1].contains("there is a datastore 'ds1' in each of dc1 (web01), eu/dc2 (web02)"),
        "{told:?}"
    );
    // One that names its data centre counts before the name alone, wherever it stands.
    let (nics, disks, told) =
        with("VM Network: br0, eu/dc2/VM Network: br1", "dc1/ds1: one, eu/dc2/ds1: two");
    assert_eq!((nics.as_str(), disks.as_str(), told), ("br0 br1", "/t/one /t/two", vec![]));
    let (nics, disks, told) = with("dc1/VM Network: br0, '*': user", "'*': all");
    assert_eq!((nics.as_str(), disks.as_str(), told), ("br0 user", "/t/all /t/all", vec![]));
    let (_, _, told) = with("dc3/VM Network: br0, '*': user", "");
    assert!(told.len() == 1 && told[0].contains("there is no network 'dc3/VM Network'"), "{told:?}");
}
