use std::sync::Arc;

use drover_lab::windows::Windows as Made;
use drover_types::guest::Encrypted;

use super::*;
use crate::inspect;

/// What is found in a disk that has it; `None`, after a printed line, where it cannot be made.
fn found(made: &Made) -> Option<Inside> {
    let work = tempfile::tempdir().unwrap();
    Some(inspect(&[Arc::new(made.part(work.path()).unwrap()?)]))
}

fn windows(made: &Made) -> Option<(Inside, Windows)> {
    let inside = found(made)?;
    let windows = inside.windows.clone().unwrap_or_else(|| panic!("a Windows in {inside:?}"));
    Some((inside, windows))
}

#[test]
fn a_server_as_vmware_has_it_is_told_by_its_registry() {
    let Some((inside, windows)) = windows(&Made::server()) else { return };
    assert_eq!(inside.unseen, Vec::<String>::new());
    assert_eq!(inside.system.as_deref(), Some("Windows Server 2019 Standard (build 17763)"));
    assert!(inside.ntfs && !inside.saw_root() && inside.only_windows().is_some());
    assert_eq!(
        (windows.build, windows.is_server, windows.machine.as_deref()),
        (Some(17763), true, Some("AMD64"))
    );
    assert_eq!(windows.drivers, Some(vec![]));
    assert_eq!(inside.vmware_tools.as_deref(), Some("VMware Tools"));
    assert_eq!(inside.vendor_services, ["VMTools", "VGAuthService"]);
    let fixed = WindowsAddresses {
        name: "Ethernet0".into(),
        mac: Some("00:50:56:aa:00:01".into()),
        addresses: vec!["192.0.2.7/24".into()],
        gateways: vec!["192.0.2.1".into()],
        dns: vec!["192.0.2.53".into(), "192.0.2.54".into()],
    };
    assert_eq!(windows.fixed, [fixed], "the other card asks for its address");
    assert_eq!(inside.free.iter().map(|it| it.place.as_str()).collect::<Vec<_>>(), ["C:"]);
    assert!((20 << 20..30 << 20).contains(&inside.free[0].bytes));
    assert!(inside.dirty.is_empty());
    let not_said = [
        windows.is_hibernated,
        windows.is_domain_controller,
        windows.is_cluster_node,
        windows.waits_for_restart,
    ];
    assert_eq!(not_said, [false; 4]);
}

#[test]
fn a_card_has_all_its_addresses_and_the_machine_its_routes_whatever_else_stands_there() {
    let card =
        "[ControlSet001\\Services\\Tcpip\\Parameters\\Interfaces\\{0F1E2D3C-0000-0000-0000-000000000003}]\n";
    let values = "\"EnableDHCP\"=dword:00000000\n\"IPAddress\"=multi:\"192.0.2.8\" \"198.51.100.8\" \"203.0.113.8 & calc\"\n\
        \"SubnetMask\"=multi:\"255.255.255.0\" \"255.255.255.128\" \"255.255.255.0\"\n\
        \"DefaultGateway\"=multi:\"192.0.2.1\" \"%PATH%\" \"198.51.100.1\"\n\"NameServer\"=\"192.0.2.53 calc,192.0.2.54\"\n";
    let of_ipv6 = card.replace("Tcpip\\", "Tcpip6\\") + "\"NameServer\"=\"2001:db8::53,::\"\n";
    let routes = "[ControlSet001\\Services\\Tcpip\\Parameters\\PersistentRoutes]\n\
        \"10.1.0.0,255.255.0.0,192.0.2.254,1\"=\"\"\n\"10.2.0.0,255.255.0.0,192.0.2.254,-1\"=\"\"\n\
        \"10.3.0.0,255.0.255.0,192.0.2.254,1\"=\"\"\n\"10.4.0.0,255.255.0.0,calc,1\"=\"\"\n\"10.5.0.0,255.255.0.0\"=\"\"\n";
    let made = Made::server().and_system(&[card, values, &of_ipv6, routes].concat());
    let Some((_, windows)) = windows(&made) else { return };
    let fixed = windows.fixed.iter().find(|it| it.name.ends_with("3}")).unwrap();
    assert_eq!(fixed.addresses, ["192.0.2.8/24", "198.51.100.8/25"]);
    assert_eq!(fixed.gateways, ["192.0.2.1", "198.51.100.1"]);
    assert_eq!(fixed.dns, ["192.0.2.53", "192.0.2.54", "2001:db8::53"]);
    let route = |second: u8, metric| {
        let network = Ipv4Addr::new(10, second, 0, 0).into();
        Route { network, prefix: 16, gateway: Ipv4Addr::new(192, 0, 2, 254).into(), metric }
    };
    assert_eq!(windows.routes, [route(1, Some(1)), route(2, None)]);
}

#[test]
fn a_card_that_asks_for_its_address_is_known_by_its_mac_address() {
    let with_mac = "[ControlSet001\\Control\\NetworkSetup2\\Interfaces\\{0F1E2D3C-0000-0000-0000-000000000002}\\Kernel]\n\
        \"PermanentAddress\"=hex:00,50,56,aa,00,02\n";
    let Some((_, unknown)) = windows(&Made::server()) else { return };
    assert_eq!(unknown.by_dhcp, Vec::<String>::new());
    let Some((_, known)) = windows(&Made::server().and_system(with_mac)) else { return };
    assert_eq!(known.by_dhcp, ["00:50:56:aa:00:02"]);
}

#[test]
fn a_driver_counts_with_its_file_and_its_start() {
    let made = Made::server().and_driver("viostor").and_system(
        "[ControlSet001\\Services\\vioscsi]\n\"Start\"=dword:00000003\n\
             [ControlSet001\\Services\\NETKVM]\n\"Start\"=dword:00000000\n",
    );
    let put_off = "[ControlSet001\\Services\\viostor\\StartOverride]\n\"0\"=dword:00000003\n";
    let Some((_, later)) = windows(&made.clone().and_system(put_off)) else { return };
    assert!(later.drivers.is_some_and(|drivers| drivers[0].has_file && !drivers[0].starts_at_boot));
    let Some((_, windows)) = windows(&made) else { return };
    let driver =
        |name: &str, starts_at_boot, has_file| WindowsDriver { name: name.into(), starts_at_boot, has_file };
    let expected =
        [driver("viostor", true, true), driver("vioscsi", false, false), driver("netkvm", true, false)];
    assert_eq!(windows.drivers.unwrap(), expected);
}

#[test]
fn what_stands_in_the_way_of_a_move_is_found() {
    let made = Made::server()
        .and_system("[ControlSet001\\Services\\ClusSvc]\n\"Start\"=dword:00000002\n")
        .and_file("hiberfil.sys", &[&b"HIBR"[..], &[0; 4096]].concat());
    let made = Made {
        software: made.software
            + "[Microsoft\\Windows\\CurrentVersion\\Component Based Servicing\\RebootPending]\n",
        system: made.system.replace("\"ServerNT\"", "\"LanmanNT\""),
        ..made
    };
    let Some((_, found)) = windows(&made) else { return };
    assert!(
        found.is_domain_controller && found.is_cluster_node && found.is_hibernated && found.waits_for_restart
    );
    // It was loaded again, and services that are there do not start.
    let made = Made::server()
        .and_system("[ControlSet001\\Services\\ClusSvc]\n\"Start\"=dword:00000004\n[ControlSet001\\Services\\NTDS]\n\"Start\"=dword:00000004\n")
        .and_file("hiberfil.sys", &[&b"WAKE"[..], &[0; 4096]].concat());
    let Some((_, found)) = windows(&made) else { return };
    assert!(!found.is_domain_controller && !found.is_cluster_node && !found.is_hibernated);
}

#[test]
fn the_control_set_that_counts_is_the_one_that_is_selected() {
    let made = Made::server();
    let system = made.system.replace("\"Current\"=dword:00000001", "\"Current\"=dword:00000002")
        + "[ControlSet002\\Services\\viostor]\n\"Start\"=dword:00000000\n";
    let Some((inside, found)) = windows(&Made { system, ..made.clone() }) else { return };
    assert_eq!(
        (found.drivers.map(|it| it.len()), found.fixed.len(), inside.vmware_tools),
        (Some(1), 0, None)
    );
    let system = made.system.replace("\"Current\"=dword:00000001", "\"Current\"=dword:00000009");
    let inside = self::found(&Made { system, ..made }).unwrap();
    assert_eq!(inside.unseen, ["disk 0: SYSTEM cannot be read: it has no control set"]);
    let found = inside.windows.unwrap();
    assert_eq!((found.build, found.drivers), (Some(17763), None), "the rest is read all the same");
}

#[test]
fn windows_11_is_called_so() {
    let made = Made::server();
    let client = |build: &str| Made {
        software: made
            .software
            .replace("17763", build)
            .replace("Windows Server 2019 Standard", "Windows 10 Pro")
            .replace("\"Server\"", "\"Client\""),
        system: made.system.replace("ServerNT", "WinNT"),
        ..made.clone()
    };
    let Some((inside, found)) = windows(&client("22631")) else { return };
    assert_eq!((inside.system.as_deref(), found.is_server), (Some("Windows 11 Pro (build 22631)"), false));
    let (inside, _) = windows(&client("19045")).unwrap();
    assert_eq!(inside.system.as_deref(), Some("Windows 10 Pro (build 19045)"));
}

#[test]
fn a_registry_that_cannot_be_read_is_told_and_not_taken_for_an_empty_one() {
    let work = tempfile::tempdir().unwrap();
    let Some(part) = Made::server().part(work.path()).unwrap() else { return };
    // Each hive has one head.
    let heads: Vec<usize> =
        (0..part.len()).step_by(512).filter(|at| part[*at..].starts_with(b"regf")).collect();
    assert_eq!(heads.len(), 2);
    let without = |heads: &[usize]| {
        let mut part = part.clone();
        heads.iter().for_each(|at| part[*at] = b'x');
        inspect(&[Arc::new(part)])
    };
    let neither = without(&heads);
    assert!(neither.ntfs && neither.windows.is_none() && neither.system.is_none());
    assert_eq!(neither.unseen.len(), 2, "{:?}", neither.unseen);
    assert!(
        neither.unseen.iter().all(|why| why.contains("does not begin as a hive")),
        "{:?}",
        neither.unseen
    );
    for head in heads {
        let one = without(&[head]);
        assert!(one.windows.is_some() && one.unseen.len() == 1, "{:?}", one.unseen);
    }
}

#[test]
fn a_volume_that_is_locked_is_told_and_the_rest_of_the_guest_is_looked_into() {
    let work = tempfile::tempdir().unwrap();
    let Some(part) = Made::server().part(work.path()).unwrap() else { return };
    let mut locked = part.clone();
    locked[3..11].copy_from_slice(b"-FVE-FS-");
    let inside = inspect(&[Arc::new(locked), Arc::new(part)]);
    assert_eq!(inside.encrypted, [Encrypted { disk: 0, partition: 0, kind: "BitLocker".into() }]);
    assert_eq!(inside.windows.map(|windows| windows.disk), Some(1));
}

#[test]
fn files_of_services_are_found_as_they_name_them() {
    for path in [
        r"\SystemRoot\System32\drivers\viostor.sys",
        r"System32\DRIVERS\viostor.sys",
        r"%SystemRoot%\system32\drivers\viostor.sys",
        r"\??\C:\Windows\System32\drivers\viostor.sys",
    ] {
        assert_eq!(in_windows(path).as_deref(), Some("system32/drivers/viostor.sys"), "{path}");
    }
    for path in [r"D:\viostor.sys", "", r"\SystemRoot\x.sys", "System32\\\u{1}"] {
        assert_eq!(in_windows(path), None, "{path}");
    }
}

#[test]
fn an_address_has_a_mask_of_bits_in_a_row() {
    assert_eq!(with_prefix("192.0.2.7", "255.255.255.0").as_deref(), Some("192.0.2.7/24"));
    assert_eq!(with_prefix("192.0.2.7", "0.0.0.0").as_deref(), Some("192.0.2.7/0"));
    for (ip, mask) in
        [("192.0.2.7", "255.0.255.0"), ("0.0.0.0", "255.0.0.0"), ("192.0.2", "255.0.0.0"), ("x", "y")]
    {
        assert_eq!(with_prefix(ip, mask), None, "{ip} {mask}");
    }
}
