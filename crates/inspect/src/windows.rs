//! What of a Windows decides whether it boots on other hardware, by its registry.
//!
//! ```text
//! \Windows\System32\config\SOFTWARE   Microsoft\Windows NT\CurrentVersion: what it is
//! \Windows\System32\config\SYSTEM     Select: which ControlSet00N counts; below it Services, Control
//! ```
//!
//! Source: Microsoft's documentation of these keys; `NetworkSetup2` by what forensic tools read. No licensed Windows was looked at.

use std::net::{IpAddr, Ipv4Addr};

use drover_types::guest::{FreeSpace, Inside, Route, Windows, WindowsAddresses, WindowsDriver};

use crate::hive::{Hive, Key, Value};
use crate::ntfs::Ntfs;
use crate::read::ReadAt;

/// An NTFS of a guest.
pub(crate) struct Volume {
    pub(crate) ntfs: Ntfs,
    pub(crate) disk: usize,
    pub(crate) partition: usize,
    pub(crate) name: String,
}

/// Looks into the file systems of a guest.
pub(crate) fn look(volumes: &[Volume], inside: &mut Inside) {
    for Volume { ntfs, name, .. } in volumes {
        match ntfs.is_dirty() {
            Ok(true) => inside.dirty.push(name.clone()),
            Ok(false) => {}
            Err(why) => inside.unseen.push(format!("{name}: its state cannot be read: {why}")),
        }
    }
    for volume in volumes {
        match volume.ntfs.has(&format!("{CONFIG}/SYSTEM")) {
            Ok(true) => return Look { volume, inside }.at_system(),
            Ok(false) => {}
            Err(why) => inside.unseen.push(format!("{}: its folders cannot be read: {why}", volume.name)),
        }
    }
}

/// A look at the file system that Windows is on. What cannot be read is told, and the rest is read all the same.
struct Look<'a> {
    volume: &'a Volume,
    inside: &'a mut Inside,
}

impl Look<'_> {
    fn at_system(mut self) {
        let Volume { ntfs, disk, partition, .. } = self.volume;
        let is_hibernated = self.or_tell("hiberfil.sys", is_hibernated(ntfs));
        let mut found = Windows { disk: *disk, partition: *partition, is_hibernated, ..Windows::default() };
        if let Some(bytes) = self.or_tell("its bitmap", ntfs.free_bytes()) {
            self.inside.free.push(FreeSpace { place: "C:".into(), bytes });
        }
        let hives = ["SYSTEM", "SOFTWARE"].map(|name| self.or_tell(name, hive(ntfs, name).map(Some)));
        if let [None, None] = hives {
            // Nothing is known of it then but that it is there, which the file system tells.
            return;
        }
        let [system, software] = &hives;
        let result = system.as_ref().map_or(Ok(()), |hive| self.at_control(hive, &mut found));
        self.or_tell("SYSTEM", result);
        let result = software.as_ref().map_or(Ok(()), |hive| self.at_software(hive, &mut found));
        self.or_tell("SOFTWARE", result);
        self.inside.windows = Some(found);
    }

    fn or_tell<T: Default>(&mut self, what: &str, found: Result<T, String>) -> T {
        found.unwrap_or_else(|why| {
            self.inside.unseen.push(format!("{}: {what} cannot be read: {why}", self.volume.name));
            T::default()
        })
    }

    fn at_software(&mut self, hive: &Hive, found: &mut Windows) -> Result<(), String> {
        if let Some(version) = hive.key(r"Microsoft\Windows NT\CurrentVersion")? {
            let build = version.text("CurrentBuildNumber")?.or(version.text("CurrentBuild")?);
            found.build = build.and_then(|build| build.trim().parse().ok());
            if let Some(kind) = version.text("InstallationType")? {
                found.is_server = kind.to_ascii_lowercase().starts_with("server");
            }
            if let Some(name) = version.text("ProductName")? {
                let build = found.build.map(|build| format!(" (build {build})")).unwrap_or_default();
                let system = shown(&product(&name, found)) + &build;
                self.inside.system.get_or_insert(system);
            }
        }
        for place in [r"Component Based Servicing\RebootPending", r"WindowsUpdate\Auto Update\RebootRequired"]
        {
            let key = hive.key(&format!(r"Microsoft\Windows\CurrentVersion\{place}"))?;
            found.waits_for_restart |= key.is_some();
        }
        Ok(())
    }

    fn at_control(&mut self, hive: &Hive, found: &mut Windows) -> Result<(), String> {
        let current = match hive.key("Select")? {
            Some(select) => select.number("Current")?.unwrap_or(1),
            None => 1,
        };
        let set = hive.key(&format!("ControlSet{current:03}"))?.ok_or("it has no control set")?;
        if let Some(options) = set.key(r"Control\ProductOptions")? {
            let kind = options.text("ProductType")?.unwrap_or_default();
            found.is_server = !kind.is_empty() && !kind.eq_ignore_ascii_case("WinNT");
            found.is_domain_controller = kind.eq_ignore_ascii_case("LanmanNT");
        }
        if let Some(environment) = set.key(r"Control\Session Manager\Environment")? {
            found.machine = environment.text("PROCESSOR_ARCHITECTURE")?.map(|it| shown(&it));
        }
        if let Some(services) = set.key("Services")? {
            let result = self.at_services(&services, found);
            self.or_tell("its services", result);
        }
        (found.fixed, found.by_dhcp) = self.or_tell("its network settings", addresses(&set));
        found.routes = self.or_tell("its routes", routes(&set));
        Ok(())
    }

    fn at_services(&mut self, services: &Key<'_>, found: &mut Windows) -> Result<(), String> {
        let mut drivers = Vec::new();
        for name in DRIVERS {
            let Some(service) = services.key(name)? else { continue };
            let starts_at_boot = service.number("Start")? == Some(AT_BOOT) && !is_put_off(&service)?;
            let has_file = self.has_file(&service, name)?;
            drivers.push(WindowsDriver { name: name.into(), starts_at_boot, has_file });
        }
        found.drivers = Some(drivers);
        let start = |name: &str| match services.key(name)? {
            Some(service) => service.number("Start"),
            None => Ok(None),
        };
        found.is_domain_controller |= start("NTDS")?.is_some_and(|start| start != DISABLED);
        found.is_cluster_node = start("ClusSvc")?.is_some_and(|start| start != DISABLED);
        if services.key("VMTools")?.is_some() {
            self.inside.vmware_tools.get_or_insert_with(|| "VMware Tools".into());
        }
        for name in OF_VMWARE {
            if start(name)?.is_some_and(|start| start <= AUTOMATIC) {
                self.inside.vendor_services.push(name.into());
            }
        }
        Ok(())
    }

    /// Whether the file of a driver is there.
    fn has_file(&self, service: &Key<'_>, name: &str) -> Result<bool, String> {
        let path = service.text("ImagePath")?.and_then(|path| in_windows(&path));
        let path = path.unwrap_or_else(|| format!("System32/drivers/{name}.sys"));
        self.volume.ntfs.has(&format!("/Windows/{path}"))
    }
}

/// Whether Windows starts a driver later than its `Start` says, as it does where it booted without that hardware.
fn is_put_off(service: &Key<'_>) -> Result<bool, String> {
    let instead = service.key("StartOverride")?.map(|key| key.number("0")).transpose()?.flatten();
    Ok(instead.is_some_and(|start| start != AT_BOOT))
}

fn hive(ntfs: &Ntfs, name: &str) -> Result<Hive, String> {
    Hive::open(ntfs.file(&format!("{CONFIG}/{name}"))?.ok_or("it is not there")?)
}

/// Whether memory waits in it to be loaded. Once it was, its head is another.
fn is_hibernated(ntfs: &Ntfs) -> Result<bool, String> {
    let Some(file) = ntfs.file("/hiberfil.sys")? else { return Ok(false) };
    let mut head = [0; 4];
    if file.size() < 4096 {
        return Ok(false);
    }
    file.read_at(0, &mut head).map_err(|error| error.to_string())?;
    Ok(head.eq_ignore_ascii_case(b"hibr"))
}

/// Windows 11 calls itself Windows 10 there.
fn product(name: &str, found: &Windows) -> String {
    match name.strip_prefix("Windows 10") {
        Some(rest) if !found.is_server && found.build.is_some_and(|build| build >= BUILD_OF_11) => {
            format!("Windows 11{rest}")
        }
        _ => name.to_string(),
    }
}

/// A path below the folder of Windows, as services name their files (`\SystemRoot\System32\drivers\viostor.sys`).
fn in_windows(path: &str) -> Option<String> {
    let path = path.trim_matches('"').replace('\\', "/");
    let folded = path.to_ascii_lowercase();
    let starts = ["/systemroot/", "%systemroot%/", "/??/c:/windows/", "c:/windows/"];
    let rest = starts.iter().find_map(|start| folded.strip_prefix(start)).unwrap_or(&folded);
    let is_plain = rest.len() <= TEXT_CHARS_MAX && rest.bytes().all(|byte| byte.is_ascii_graphic());
    (is_plain && rest.starts_with("system32/")).then(|| rest.to_string())
}

/// Cards that have fixed addresses, and MAC addresses of those that ask for theirs.
fn addresses(set: &Key<'_>) -> Result<(Vec<WindowsAddresses>, Vec<String>), String> {
    let (mut found, mut by_dhcp) = (Vec::new(), Vec::new());
    let Some(interfaces) = set.key(r"Services\Tcpip\Parameters\Interfaces")? else {
        return Ok((found, by_dhcp));
    };
    for interface in interfaces.children(INTERFACES_MAX)? {
        match interface.number("EnableDHCP")? {
            Some(0) => {}
            Some(_) => {
                by_dhcp.extend(card_mac(set, &interface.name)?);
                continue;
            }
            None => continue,
        }
        let (ips, masks) = (interface.texts("IPAddress")?, interface.texts("SubnetMask")?);
        let with_prefix = ips.iter().zip(&masks).filter_map(|(ip, mask)| with_prefix(ip, mask));
        let addresses: Vec<String> = with_prefix.take(ADDRESSES_MAX).collect();
        if addresses.is_empty() {
            continue;
        }
        let gateways = interface.texts("DefaultGateway")?;
        let gateways = gateways.iter().filter_map(|it| address(it)).take(ADDRESSES_MAX).collect();
        let of_ipv6 = set.key(&format!(r"Services\Tcpip6\Parameters\Interfaces\{}", interface.name))?;
        let dns = name_servers(Some(&interface))?.into_iter().chain(name_servers(of_ipv6.as_ref())?);
        let dns = dns.take(ADDRESSES_MAX).collect();
        let (name, mac) = (card_name(set, &interface.name)?, card_mac(set, &interface.name)?);
        found.push(WindowsAddresses { name, mac, addresses, gateways, dns });
    }
    Ok((found, by_dhcp))
}

/// Those that were given by hand.
fn name_servers(interface: Option<&Key<'_>>) -> Result<Vec<String>, String> {
    let text = interface.map(|it| it.text("NameServer")).transpose()?.flatten().unwrap_or_default();
    let address = |text: &str| text.parse::<IpAddr>().ok().filter(|ip| !ip.is_unspecified());
    Ok(text.split([',', ' ']).filter_map(address).map(|ip| ip.to_string()).collect())
}

/// What `route -p add` wrote: values whose names are `NETWORK,MASK,GATEWAY,METRIC`.
fn routes(set: &Key<'_>) -> Result<Vec<Route>, String> {
    let Some(key) = set.key(r"Services\Tcpip\Parameters\PersistentRoutes")? else { return Ok(Vec::new()) };
    Ok(key.names(ROUTES_MAX)?.iter().filter_map(|name| route(name)).collect())
}

fn route(name: &str) -> Option<Route> {
    let [network, mask, gateway, metric] = <[&str; 4]>::try_from(name.split(',').collect::<Vec<_>>()).ok()?;
    let (network, gateway): (Ipv4Addr, Ipv4Addr) = (network.parse().ok()?, gateway.parse().ok()?);
    let (prefix, metric) = (bits_of(mask)?, metric.parse().ok().filter(|metric| *metric > 0));
    (!gateway.is_unspecified()).then_some(Route {
        network: network.into(),
        prefix,
        gateway: gateway.into(),
        metric,
    })
}

/// What Windows calls a card.
fn card_name(set: &Key<'_>, guid: &str) -> Result<String, String> {
    let connection = set.key(&format!(r"Control\Network\{NETWORK_CARDS}\{guid}\Connection"))?;
    let name = connection.map(|connection| connection.text("Name")).transpose()?.flatten();
    Ok(shown(name.as_deref().unwrap_or(guid)))
}

/// The MAC address of a card, which Windows keeps from version 10 on.
fn card_mac(set: &Key<'_>, guid: &str) -> Result<Option<String>, String> {
    let Some(card) = set.key(&format!(r"Control\NetworkSetup2\Interfaces\{guid}\Kernel"))? else {
        return Ok(None);
    };
    let Some(Value::Bytes(bytes)) = card.value("PermanentAddress")? else { return Ok(None) };
    let Ok([a, b, c, d, e, f]) = <[u8; 6]>::try_from(bytes) else { return Ok(None) };
    Ok(Some(format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")))
}

fn with_prefix(ip: &str, mask: &str) -> Option<String> {
    Some(format!("{}/{}", address(ip)?, bits_of(mask)?))
}

fn bits_of(mask: &str) -> Option<u8> {
    let mask = u32::from(mask.trim().parse::<Ipv4Addr>().ok()?);
    (mask.leading_ones() == mask.count_ones()).then_some(mask.count_ones() as u8)
}

fn address(text: &str) -> Option<String> {
    let ip: Ipv4Addr = text.trim().parse().ok()?;
    (!ip.is_unspecified()).then(|| ip.to_string())
}

/// A guest's text as people may be shown it.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(TEXT_CHARS_MAX).collect()
}

const CONFIG: &str = "/Windows/System32/config";
/// For disks on virtio-blk and virtio-scsi, and for cards.
const DRIVERS: [&str; 3] = ["viostor", "vioscsi", "netkvm"];
/// Services that are of use on VMware alone: of the tools, of NSX and its introspection of guests, of Log Insight. Drivers of hardware
/// that is not there any more do nothing.
const OF_VMWARE: [&str; 12] = [
    "VMTools",
    "VGAuthService",
    "vmvss",
    "vmci",
    "vsock",
    "vmmemctl",
    "vmhgfs",
    "vsepflt",
    "vnetflt",
    "vnetWFP",
    "giappdef",
    "LogInsightAgentService",
];
/// Values of `Start`. Source: `CreateService` of the Windows API.
const AT_BOOT: u32 = 0;
const AUTOMATIC: u32 = 2;
const DISABLED: u32 = 4;
const BUILD_OF_11: u32 = 22_000;
/// The class of network adapters.
const NETWORK_CARDS: &str = "{4D36E972-E325-11CE-BFC1-08002BE10318}";
/// Windows keeps those of cards that it had once.
const INTERFACES_MAX: usize = 256;
const ADDRESSES_MAX: usize = 16;
const ROUTES_MAX: usize = 64;
const TEXT_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests;
