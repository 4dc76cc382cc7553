//! A first plan from an inventory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use drover_types::drives_terminal;
use drover_types::inventory::{Inventory, PowerState, Vm};

use crate::concern::{ConcernContext, Namesakes, Weight, concerns_among};
use crate::draft_table::DraftTable;
use crate::model::{ManifestUse, OvaSource};
use crate::resolve::safe_name;
use crate::wanted::Wanted;

/// What the user said about the plan to be written.
#[derive(Clone, Debug, Default)]
pub struct DraftOptions {
    /// Plan's name.
    pub name: String,
    /// Where the VMs come from.
    pub source: DraftSource,
    /// Folder that VMs go to.
    pub folder: PathBuf,
    /// Whether VMs are started once they have arrived.
    pub start: bool,
}

/// Where the VMs of a plan to be written come from.
#[derive(Clone, Debug)]
pub enum DraftSource {
    /// A vCenter or ESXi host.
    Vsphere {
        /// Its endpoint.
        endpoint: String,
        /// User.
        user: String,
        /// File with the password; absent: the variable `DROVER_PASSWORD`.
        password_file: Option<PathBuf>,
        /// File with certificate authorities.
        ca_file: Option<PathBuf>,
        /// Thumbprint of the certificate.
        thumbprint: Option<String>,
        /// Whether the certificate is not verified.
        insecure: bool,
    },
    /// An appliance.
    Ova(OvaSource),
}

impl Default for DraftSource {
    fn default() -> Self {
        DraftSource::Ova(OvaSource { path: PathBuf::new(), manifest: ManifestUse::Check })
    }
}

/// Writes a plan that takes the VMs that are wanted.
///
/// VMs that cannot be moved as they are stand in it as comments, with the reason. Absent if there is none.
pub fn draft(inventory: &Inventory, wanted: &Wanted, options: &DraftOptions) -> Option<String> {
    let mut vms: Vec<&Vm> = inventory.vms.iter().filter(|vm| wanted.takes(vm, inventory)).collect();
    vms.sort_by(|a, b| (&a.folder, &a.name, &a.id).cmp(&(&b.folder, &b.name, &b.id)));
    plan_of(inventory, &vms.iter().map(|vm| (*vm, &[][..])).collect::<Vec<_>>(), "", options)
}

/// Writes a plan that takes those VMs of a table that are wanted, in its order; its waves go one after the other. Absent as of
/// [`draft`].
pub fn draft_rows(
    inventory: &Inventory,
    table: &DraftTable<'_>,
    wanted: &Wanted,
    options: &DraftOptions,
) -> Option<String> {
    let rows = table.rows.iter().filter(|row| wanted.takes(row.vm, inventory));
    let chosen: Vec<Chosen<'_>> = rows.map(|row| (row.vm, row.keys.as_slice())).collect();
    let named = chosen.iter().flat_map(|(_, keys)| *keys).filter(|(key, _)| *key == "wave");
    let named: BTreeSet<&String> = named.map(|(_, wave)| wave).collect();
    let mut waves = String::new();
    if !named.is_empty() {
        waves.push_str(
            "\nwaves:                    # one after the other; `window`, or `from` and `until`, say when each may move\n",
        );
    }
    let mut before: Option<&String> = None;
    // As YAML they are already.
    for wave in table.waves.iter().filter(|wave| named.contains(wave)) {
        let after = before.map(|before| format!(", after: [{before}]")).unwrap_or_default();
        let quoted = |it: &crate::draft_table::Windows| {
            let list: Vec<String> = it.list.iter().map(|window| quote(&window.to_string())).collect();
            format!(", window: [{}]", list.join(", "))
        };
        let window = table.windows.get(wave).map(quoted).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(waves, "  - {{name: {wave}{after}{window}}}");
        before = Some(wave);
    }
    plan_of(inventory, &chosen, &waves, options)
}

/// A VM, and keys of its selection as YAML.
type Chosen<'a> = (&'a Vm, &'a [(&'static str, String)]);

fn plan_of(
    inventory: &Inventory,
    chosen: &[Chosen<'_>],
    waves: &str,
    options: &DraftOptions,
) -> Option<String> {
    if chosen.is_empty() {
        return None;
    }
    let mut text = head(options);
    text.push_str(&networks(&chosen.iter().map(|(vm, _)| *vm).collect::<Vec<_>>()));
    text.push_str(waves);
    text.push_str("\nvms:\n");
    let names = Namesakes::of(inventory);
    let given = given_names(chosen);
    chosen.iter().zip(&given).for_each(|(it, given)| {
        text.push_str(&entry(*it, given.as_deref(), inventory, &names));
    });
    Some(text)
}

/// Said of a name that a VM is given.
const GIVEN: &str = "   # since another VM has the same name";

/// Names at the target that a plan written by [`draft`] gives VMs, since others before them have the same name, as its text has them.
pub fn given_in(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim_start);
    lines.filter_map(|line| line.strip_prefix("target_name: ")?.strip_suffix(GIVEN)).collect()
}

/// A name at the target for each VM that would have one there that another has, in whatever case, and is not told one. Of those that
/// share a name the first keeps it.
fn given_names(chosen: &[Chosen<'_>]) -> Vec<Option<String>> {
    let said = |keys: &[(&'static str, String)]| {
        keys.iter().find(|(key, _)| *key == "target_name").map(|(_, name)| name.trim_matches('"').to_string())
    };
    let wanted = |(vm, keys): &Chosen<'_>| {
        let said = said(keys);
        (safe_name(said.as_deref().unwrap_or(&vm.name)).to_lowercase(), said.is_some())
    };
    let wanted: Vec<(String, bool)> = chosen.iter().map(wanted).collect();
    let mut taken: BTreeSet<String> = wanted.iter().map(|(name, _)| name.clone()).collect();
    let mut kept: BTreeSet<&str> =
        wanted.iter().filter(|(_, is_said)| *is_said).map(|(name, _)| name.as_str()).collect();
    let mut given = Vec::with_capacity(chosen.len());
    for ((vm, _), (name, is_said)) in chosen.iter().zip(&wanted) {
        let is_another = !is_said && !kept.insert(name);
        given.push(is_another.then(|| free_name(vm, &mut taken)));
    }
    given
}

/// A name made of a VM's own and its id, which none has yet.
fn free_name(vm: &Vm, taken: &mut BTreeSet<String>) -> String {
    let id: String = vm.id.chars().take(64).collect();
    // Short enough to be no other than what it becomes at the target.
    let stem: String = safe_name(&vm.name).chars().take(24).collect();
    let nth = |number: u32| match number {
        1 => safe_name(&format!("{stem}-{id}")),
        number => safe_name(&format!("{stem}-{id}-{number}")),
    };
    (1..=u32::MAX).map(nth).find(|name| taken.insert(name.to_lowercase())).unwrap_or_default()
}

fn head(options: &DraftOptions) -> String {
    let (source, power_off) = match &options.source {
        DraftSource::Vsphere { .. } => (
            vsphere(&options.source),
            "power_off: refuse         # shutdown: running VMs are shut down when their turn comes\n",
        ),
        DraftSource::Ova(source) => (ova(source), ""),
    };
    format!(
        "# Look through it, then: drover plan check FILE. All keys: drover plan schema.\n\
         version: 1\n\
         name: {}\n\n\
         source:\n{source}\n\
         target:\n  type: qemu\n  folder: {}\n  format: raw             # or qcow2\n\n\
         mode: cold\n\
         {power_off}\
         verify: full              # read every byte back and compare\n\
         start: {}\n\n",
        quote(&options.name),
        path_text(&options.folder),
        options.start
    )
}

fn vsphere(source: &DraftSource) -> String {
    let DraftSource::Vsphere { endpoint, user, password_file, ca_file, thumbprint, insecure } = source else {
        return String::new();
    };
    let password = match password_file {
        Some(path) => format!("password_file: {}", path_text(path)),
        None => "password_env: DROVER_PASSWORD".to_string(),
    };
    let trust = match (ca_file, thumbprint) {
        (Some(path), _) => format!("  ca_file: {}\n", path_text(path)),
        (None, Some(thumbprint)) => format!("  thumbprint: {}\n", quote(thumbprint)),
        (None, None) if *insecure => "  insecure: true\n".to_string(),
        (None, None) => String::new(),
    };
    format!(
        "  type: vsphere\n  endpoint: {}\n  user: {}\n  {password}\n{trust}  \
         data:\n    from: provider          # hosts: straight from the ESXi hosts, faster for many VMs\n",
        quote(endpoint),
        quote(user)
    )
}

fn ova(source: &OvaSource) -> String {
    let manifest = match source.manifest {
        ManifestUse::Check => "check         # every file against the appliance's own checksums",
        ManifestUse::Ignore => "ignore",
    };
    format!("  type: ova\n  path: {}\n  manifest: {manifest}\n", path_text(&source.path))
}

fn path_text(path: &Path) -> String {
    quote(&path.display().to_string())
}

fn networks(vms: &[&Vm]) -> String {
    let mut of_name = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (vm, nic) in vms.iter().flat_map(|vm| vm.nics.iter().map(move |nic| (vm, nic))) {
        of_name.entry(&nic.network).or_default().insert(&vm.datacenter);
    }
    let named = |(name, datacenters): (&str, BTreeSet<&str>)| -> Vec<String> {
        match datacenters.len() {
            1 => vec![name.to_string()],
            _ => datacenters.iter().map(|datacenter| format!("{datacenter}/{name}")).collect(),
        }
    };
    let names: Vec<String> = of_name.into_iter().flat_map(named).collect();
    if names.is_empty() {
        return String::new();
    }
    let mut text =
        "networks:                 # source network: bridge at the target, `user` or `none`\n".to_string();
    for name in names {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}: user", quote(&name));
    }
    text
}

fn entry(
    (vm, keys): Chosen<'_>,
    given: Option<&str>,
    inventory: &Inventory,
    names: &Namesakes<'_>,
) -> String {
    let found = concerns_among(vm, inventory, names, &ConcernContext::default());
    let blocking: Vec<String> =
        found.iter().filter(|it| it.severity == Weight::Blocks).map(ToString::to_string).collect();
    let mut text = String::new();
    for reason in &blocking {
        let _ = writeln!(text, "  # cannot be moved as it is: {}", one_line(reason));
    }
    let mark = if blocking.is_empty() { "" } else { "# " };
    let power = if vm.power == PowerState::On { "   # is running" } else { "" };
    let _ = writeln!(text, "  {mark}- name: {}{power}", quote(&vm.name));
    if names.twin(vm).is_some() {
        let _ = writeln!(text, "  {mark}  id: {}", quote(&vm.id));
    }
    if let Some(given) = given {
        let _ = writeln!(text, "  {mark}  target_name: {}{GIVEN}", quote(given));
    }
    for (key, value) in keys {
        let _ = writeln!(text, "  {mark}  {key}: {value}");
    }
    let says_addresses = keys.iter().any(|(key, _)| *key == "keep_addresses");
    if !says_addresses && found.iter().any(|it| it.id == "fixed-addresses") {
        let _ = writeln!(text, "  {mark}  keep_addresses: true   # as VMware Tools tell them");
    }
    text
}

/// A YAML text in double quotes. JSON's strings are YAML's, but for what YAML takes as a line break or
/// does not print, and what would turn the direction of writing on a terminal.
pub(crate) fn quote(text: &str) -> String {
    let json = serde_json::Value::String(text.to_string()).to_string();
    let quoted = |c| if is_odd(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    json.chars().map(quoted).collect()
}

fn is_odd(c: char) -> bool {
    drives_terminal(c) || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// For a comment.
pub(crate) fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().map(|c| if is_odd(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::{Nic, VmDisk};
    use proptest::prelude::*;

    use super::*;
    use crate::{NetworkTarget, Plan};

    fn vm(name: &str, network: &str) -> Vm {
        let disk = VmDisk { capacity_bytes: 1 << 20, ..VmDisk::default() };
        let nic = Nic { network: network.into(), connected: true, ..Nic::default() };
        let power = PowerState::Off;
        Vm {
            id: "vm-1".into(),
            name: name.into(),
            instance_uuid: "uuid-1".into(),
            power,
            disks: vec![disk],
            nics: vec![nic],
            ..Vm::default()
        }
    }

    fn drafted(vm: Vm) -> String {
        drafted_from(vec![vm], false)
    }

    fn drafted_from(vms: Vec<Vm>, insecure: bool) -> String {
        let inventory = Inventory { vms, ..Inventory::default() };
        let options = DraftOptions {
            name: "p".into(),
            folder: "/t".into(),
            source: DraftSource::Vsphere {
                endpoint: "vc".into(),
                user: "u".into(),
                password_file: None,
                ca_file: None,
                thumbprint: None,
                insecure,
            },
            ..DraftOptions::default()
        };
        draft(&inventory, &Wanted::default(), &options).unwrap()
    }

    #[test]
    fn of_vms_of_one_name_all_but_the_first_are_given_another_at_the_target_that_a_check_takes() {
        let with_id = |id: &str, name: &str| {
            let (id, instance_uuid) = (id.to_string(), format!("uuid-{id}"));
            Vm { id, instance_uuid, ..vm(name, "net") }
        };
        let long = "ü".repeat(120);
        let vms = vec![
            with_id("vm-1", "dup"),
            with_id("vm-2", "dup"),
            with_id("vm-3", "Dup"),
            with_id("vm-4", "dup-vm-2"),
            with_id("vm-5", &long),
            with_id("vm-6", &long),
        ];
        let text = drafted_from(vms.clone(), false);
        let plan = Plan::parse(&text).unwrap_or_else(|problems| panic!("{problems:#?}\n{text}"));
        let resolution = crate::resolve(&plan, &Inventory { vms, ..Inventory::default() });
        assert!(resolution.is_ok(), "{:?}\n{text}", resolution.problems);
        assert_eq!(resolution.vms.len(), 6, "{text}");
        let given: BTreeSet<&str> = given_in(&text).into_iter().collect();
        let long_one = format!("\"{}-vm-6\"", "ü".repeat(24));
        // Sorted by name: of `Dup` and `dup` it is `Dup` that comes first.
        assert_eq!(given, BTreeSet::from(["\"dup-vm-1\"", "\"dup-vm-2-2\"", long_one.as_str()]), "{text}");
        assert!(given_in(&drafted(vm("web", "net"))).is_empty());
    }

    #[test]
    fn networks_of_one_name_in_two_data_centres_are_written_with_these() {
        let at = |id: &str, name: &str, network: &str, datacenter: &str| {
            let (id, instance_uuid) = (id.to_string(), format!("uuid-{id}"));
            Vm { id, instance_uuid, datacenter: datacenter.into(), ..vm(name, network) }
        };
        let vms =
            vec![at("1", "a", "net", "east"), at("2", "b", "net", "eu/west"), at("3", "c", "lan", "east")];
        let plan = Plan::parse(&drafted_from(vms.clone(), false)).unwrap();
        let from: Vec<&str> = plan.networks.iter().map(|rule| rule.from.as_str()).collect();
        assert_eq!(from, ["east/net", "eu/west/net", "lan"]);
        let resolution = crate::resolve(&plan, &Inventory { vms, ..Inventory::default() });
        assert!(
            resolution.vms.iter().all(|vm| vm.nics[0].target == NetworkTarget::User),
            "{:?}",
            resolution.problems
        );
        assert!(resolution.problems.is_empty(), "{:?}", resolution.problems);
    }

    #[test]
    fn a_certificate_is_verified_unless_it_was_said_otherwise() {
        let is_insecure = |insecure| {
            let plan = Plan::parse(&drafted_from(vec![vm("web01", "net")], insecure)).unwrap();
            plan.source.vsphere().unwrap().trust == crate::Trust::Insecure
        };
        assert!(is_insecure(true) && !is_insecure(false));
    }

    #[test]
    fn vms_are_drafted_by_their_names_and_twins_by_their_ids() {
        let with_id = |id: &str, name: &str| Vm { id: id.into(), ..vm(name, "net") };
        let text = drafted_from(
            vec![with_id("vm-1", "twin"), with_id("vm-2", "twin"), with_id("vm-3", "web")],
            false,
        );
        let plan = Plan::parse(&text).unwrap();
        let ids: Vec<_> = plan.vms.iter().map(|vm| vm.selector.id.as_deref()).collect();
        assert_eq!(ids, [Some("vm-1"), Some("vm-2"), None], "{text}");
    }

    #[test]
    fn no_name_gets_out_of_its_comment() {
        let disk = drover_types::inventory::VmDisk {
            label: "a\n- name: evil\r\u{2028}b\u{85}c\u{202e}d\u{7}e".into(),
            ..Default::default()
        };
        let text = drafted(Vm { disks: vec![disk], ..vm("web01", "net") });
        let comment = text.lines().find(|line| line.contains("cannot be moved as it is")).unwrap();
        assert!(comment.contains("a - name: evil b c\u{fffd}d\u{fffd}e"), "{comment:?}");
        assert!(comment.starts_with("  # cannot be moved as it is: web01"), "{comment:?}");
        assert!(!text.contains(['\u{2028}', '\u{85}', '\u{202e}', '\u{7}']), "{text:?}");
    }

    #[test]
    fn what_yaml_or_a_terminal_would_take_for_more_than_a_letter_is_escaped() {
        for odd in [
            '\u{7f}', '\u{85}', '\u{9f}', '\u{200f}', '\u{2028}', '\u{202e}', '\u{2066}', '\u{feff}',
            '\u{ffff}',
        ] {
            assert_eq!(quote(&format!("a{odd}b")), format!("\"a\\u{:04x}b\"", u32::from(odd)));
        }
        assert_eq!(quote("ä \u{a0}\u{200d}€"), "\"ä \u{a0}\u{200d}€\"");
    }

    #[test]
    fn a_running_vm_is_marked() {
        let text = drafted(Vm { power: PowerState::On, ..vm("web01", "net") });
        assert!(text.contains("- name: \"web01\"   # is running\n"), "{text}");
    }

    #[test]
    fn a_draft_takes_the_vms_of_a_power_state_and_the_waves_that_they_are_in() {
        let of = |name: &str, power| Vm { power, id: name.into(), ..vm(name, "net") };
        let vms = vec![of("a", PowerState::On), of("b", PowerState::Off), of("c", PowerState::Suspended)];
        let inventory = Inventory { vms, ..Inventory::default() };
        let options = DraftOptions { name: "p".into(), folder: "/t".into(), ..DraftOptions::default() };
        let names = |text: Option<String>| -> Vec<String> {
            let text = text.unwrap_or_default();
            let name = |line: &str| line.split("- name: ").nth(1).map(|it| it.chars().take(3).collect());
            text.lines().filter_map(name).collect()
        };
        let drafted = |power, patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|it| it.to_string()).collect();
            draft(&inventory, &Wanted::of_power(power).named(&patterns), &options)
        };
        assert_eq!(names(drafted(None, &[])), ["\"a\"", "\"b\"", "\"c\""]);
        assert_eq!(names(drafted(Some(PowerState::On), &[])), ["\"a\""]);
        assert_eq!(names(drafted(Some(PowerState::Off), &["*"])), ["\"b\""]);
        assert_eq!(drafted(Some(PowerState::Off), &["a"]), None);
        let table = crate::draft_table("name,wave\na,one\nb,two\n", &inventory).unwrap();
        let rows = |power| draft_rows(&inventory, &table, &Wanted::of_power(Some(power)), &options);
        let text = rows(PowerState::Off).unwrap();
        assert!(text.contains("- {name: \"two\"}") && !text.contains("one\""), "{text}");
        assert_eq!(rows(PowerState::Suspended), None);
    }

    #[test]
    fn a_draft_for_an_appliance_is_read_back_and_says_nothing_of_running_vms() {
        let inventory = Inventory { vms: vec![vm("web \"01\"", "net")], ..Inventory::default() };
        let source = OvaSource { path: "/a: b/web.ova".into(), manifest: ManifestUse::Check };
        let source = DraftSource::Ova(source.clone());
        let options = DraftOptions { name: "p".into(), source, folder: "/t".into(), start: true };
        let text = draft(&inventory, &Wanted::default(), &options).unwrap();
        let plan = Plan::parse(&text).unwrap();
        let expected = OvaSource { path: "/a: b/web.ova".into(), manifest: ManifestUse::Check };
        assert_eq!((plan.source, plan.start), (crate::Source::Ova(expected), true));
        assert!(!text.contains("power_off"), "{text}");
    }

    proptest! {
        #[test]
        fn any_name_of_a_vm_and_a_network_is_read_back_as_it_was(name in "(?s).{1,20}", network in "(?s).{1,20}") {
            let text = drafted(vm(&name, &network));
            let plan = Plan::parse(&text).map_err(|problems| TestCaseError::fail(format!("{problems:?}\n{text}")))?;
            prop_assert_eq!(plan.vms[0].selector.name.as_ref(), Some(&name));
            prop_assert_eq!(&plan.networks[0].from, &network);
            prop_assert_eq!(&plan.networks[0].to, &NetworkTarget::User);
        }
    }
}
