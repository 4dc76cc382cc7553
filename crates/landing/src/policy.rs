//! What a daemon lets plans of others do on its machine. Commands have no such bounds: their user has the rights anyway.

use std::path::{Component, Path, PathBuf};

use drover_engine::{Cause, ProviderError};
use drover_plan::{Check, CheckKeys, FirstBoot, Hooks, Plan, PlannedVm, Probe, Source};

/// Transports of libvirt that start no program of the caller's choice.
const TRANSPORTS: [&str; 7] = ["", "unix", "tcp", "tls", "ssh", "libssh", "libssh2"];
/// Parameters of a libvirt address that name no program and no file.
const PARAMETERS: [&str; 4] = ["no_verify", "no_tty", "sshauth", "known_hosts_verify"];

/// What plans may do.
#[derive(Clone, Debug, Default)]
pub struct PlanPolicy {
    /// Images are written below one of these; anywhere if there is none.
    pub targets: Vec<PathBuf>,
    /// Whether plans may name what is loaded or started: VDDK's folder and plugin, kubeconfigs, programs in libvirt addresses,
    /// hooks, programs in checks, and files for the first boot of guests.
    pub programs: bool,
}

impl PlanPolicy {
    /// Judges what a plan names, before anything of it is used.
    ///
    /// # Errors
    /// When the plan names what it may not.
    pub fn check_plan(&self, plan: &Plan) -> Result<(), ProviderError> {
        if let Some(named) = program_named(plan).filter(|_| !self.programs) {
            return Err(names_a_program(&named));
        }
        match is_here(plan) {
            true => self.check_place(&plan.target.folder),
            false => Ok(()),
        }
    }

    /// Judges where VMs would be written, once it is known.
    ///
    /// # Errors
    /// When they would be written elsewhere than they may.
    pub fn check_vms(&self, plan: &Plan, vms: &[PlannedVm]) -> Result<(), ProviderError> {
        for vm in vms {
            if let Some(uri) = vm.daemon.as_ref().filter(|uri| !self.programs && names_program(uri)) {
                return Err(names_a_program(&format!("uri {uri}")));
            }
            if is_here(plan) {
                self.check_place(&vm.folder)?;
                vm.disks.iter().try_for_each(|disk| self.check_place(&disk.path))?;
            }
        }
        Ok(())
    }

    fn check_place(&self, path: &Path) -> Result<(), ProviderError> {
        let below = |real: PathBuf| {
            self.targets.iter().filter_map(|it| real_place(it)).any(|allowed| real.starts_with(allowed))
        };
        if self.targets.is_empty() || real_place(path).is_some_and(below) {
            return Ok(());
        }
        let text =
            format!("the target folder {} is not among those that this daemon writes to", path.display());
        let allowed: Vec<String> = self.targets.iter().map(|it| it.display().to_string()).collect();
        Err(ProviderError::new(Cause::Plan, text)
            .advise(format!("use a folder below {}", allowed.join(", "))))
    }
}

fn names_a_program(named: &str) -> ProviderError {
    let text = format!("the plan names {named}, and this daemon loads and starts nothing that a plan names");
    ProviderError::new(Cause::Plan, text).advise(
        "leave it out and set it in the daemon's environment; or allow it with `plan_programs: true` in the daemon's settings",
    )
}

/// Whether images are files of this machine.
fn is_here(plan: &Plan) -> bool {
    plan.target.via.is_none() && plan.target.libvirt().is_none() && plan.target.kubevirt().is_none()
}

/// What a plan has loaded or started, if it names such a thing.
fn program_named(plan: &Plan) -> Option<String> {
    if let Source::Vsphere(source) = &plan.source {
        let vddk = &source.data.vddk;
        let named = [("plugin", &vddk.plugin), ("libdir", &vddk.libdir)];
        if let Some((key, _)) = named.into_iter().find(|(_, path)| path.is_some()) {
            return Some(format!("source.data.vddk.{key}"));
        }
    }
    if let Some(named) = called(plan) {
        return Some(named);
    }
    // A kubeconfig may have plug-ins that are run.
    if plan.target.kubevirt().is_some_and(|kubevirt| kubevirt.kubeconfig.is_some()) {
        return Some("target.kubeconfig".into());
    }
    let libvirt = plan.target.libvirt()?;
    if let Some(host) = libvirt.hosts.iter().find(|host| names_program(&host.uri)) {
        return Some(format!("target.hosts {} {}", host.name, host.uri));
    }
    let uri = &libvirt.uri;
    names_program(uri).then(|| format!("target.uri {uri}"))
}

/// What a plan has called on this machine, or from it with a secret of this machine: any hook, and checks that are programs.
fn called(plan: &Plan) -> Option<String> {
    let is_program = |check: &Check| matches!(check.probe, Probe::Command(_) | Probe::Shell(_));
    let asks = |checks: &CheckKeys| {
        [&checks.pre_cutover, &checks.post_start].into_iter().flatten().flatten().any(is_program)
    };
    let has_hooks = |hooks: &Hooks| hooks.values().any(|listed| !listed.is_empty());
    let over = plan.vms.iter().map(|it| &it.overrides);
    let of_waves = plan.waves.iter().flat_map(|it| it.hooks.lists());
    if has_hooks(&plan.hooks)
        || over.clone().any(|it| has_hooks(&it.hooks))
        || of_waves.into_iter().any(|(_, hooks)| !hooks.is_empty())
    {
        return Some("hooks".into());
    }
    // Files of this machine would be copied into guests.
    let has_files = |work: &mut FirstBoot| work.files_mut().next().is_some();
    if over.clone().map(|it| &it.first_boot).chain([&plan.first_boot]).any(|it| has_files(&mut it.clone())) {
        return Some("first_boot".into());
    }
    (asks(&plan.checks) || over.clone().any(|it| asks(&it.checks))).then(|| "programs in checks".into())
}

/// Whether a libvirt address could have a program started, or names a file: all that is not known to be harmless.
fn names_program(uri: &str) -> bool {
    let (kind, rest) = uri.split_once("://").unwrap_or((uri, ""));
    let transport = kind.split_once('+').map_or("", |(_, transport)| transport);
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let host = place.split('/').next().unwrap_or_default();
    let is_known = |part: &str| PARAMETERS.contains(&part.split('=').next().unwrap_or_default());
    !TRANSPORTS.contains(&transport)
        || host.split('@').any(|part| part.starts_with('-'))
        || query.split(['&', ';']).filter(|part| !part.is_empty()).any(|part| !is_known(part))
}

/// Where a path leads through the links that are there now. None where that is not plain: with `..`, or behind a link to nothing.
fn real_place(path: &Path) -> Option<PathBuf> {
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let (mut there, mut rest) = (path, Vec::new());
    while let Err(error) = std::fs::symlink_metadata(there) {
        if error.kind() != std::io::ErrorKind::NotFound {
            return None;
        }
        rest.push(there.file_name()?);
        there = there.parent()?;
    }
    let real = std::fs::canonicalize(there).ok()?;
    Some(rest.iter().rev().fold(real, |path, name| path.join(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use drover_plan::resolve;
    use drover_types::inventory::{Inventory, PowerState, Vm, VmDisk};

    use super::*;

    fn plan(source: &str, target: &str, vms: &str) -> Plan {
        let text = format!(
            "version: 1\nname: p\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P{source}}}\n\
             target: {{{target}}}\nvms: [{{name: web{vms}}}]\n"
        );
        Plan::parse(&text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
    }

    fn planned(plan: &Plan) -> Vec<PlannedVm> {
        let disk =
            VmDisk { key: 1, label: "Hard disk 1".into(), capacity_bytes: 1 << 20, ..VmDisk::default() };
        let vm = Vm {
            id: "vm-1".into(),
            name: "web".into(),
            power: PowerState::Off,
            disks: vec![disk],
            ..Vm::default()
        };
        resolve(plan, &Inventory { vms: vec![vm], ..Inventory::default() }).vms
    }

    #[test]
    fn no_place_of_a_vm_leads_out_of_the_folders_that_are_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        std::fs::create_dir_all(at("vms/in")).unwrap();
        std::fs::create_dir_all(at("away")).unwrap();
        symlink(at("away"), at("vms/link")).unwrap();
        symlink(at("away/none"), at("vms/nothing")).unwrap();
        symlink(at("vms"), at("alias")).unwrap();
        let policy = PlanPolicy { targets: vec![at("vms")], programs: false };
        let judge = |target_folder: &Path, over: &str| {
            let plan = plan("", &format!("type: qemu, folder: {}", target_folder.display()), over);
            policy.check_plan(&plan)?;
            let vms = planned(&plan);
            assert_eq!(vms.len(), 1);
            policy.check_vms(&plan, &vms)
        };
        for good in ["vms", "vms/in", "vms/new/deep", "alias/in"] {
            judge(&at(good), "").unwrap_or_else(|error| panic!("{good}: {}", error.what));
        }
        judge(&at("vms"), ", target_folder: in").unwrap();
        for bad in ["away", "vms/../away", "vms/link", "vms/nothing", "vmsx", "alias/link/x"] {
            let error = judge(&at(bad), "").unwrap_err();
            assert!(error.what.contains("is not among those"), "{bad}: {}", error.what);
        }
        for over in [
            "target_folder: /etc",
            "target_folder: ../away",
            "target_folder: link",
            "storage: {\"*\": /root}",
        ] {
            let error = judge(&at("vms"), &format!(", {over}")).unwrap_err();
            assert!(error.what.contains("is not among those"), "{over}: {}", error.what);
        }
        // Where the disk itself is a link that was planted.
        std::fs::create_dir(at("vms/web")).unwrap();
        symlink(at("away/passwd"), at("vms/web/web-0.qcow2")).unwrap();
        symlink(at("away/passwd"), at("vms/web/web-0.raw")).unwrap();
        assert!(judge(&at("vms"), "").is_err());
        let plan = plan("", "type: qemu, folder: /anywhere", "");
        assert!(PlanPolicy::default().check_plan(&plan).is_ok(), "without `targets` plans write anywhere");
    }

    #[test]
    fn a_plan_has_nothing_loaded_or_started_unless_that_is_allowed() {
        let qemu = "type: qemu, folder: /vms";
        let libvirt = |uri: &str| format!("type: libvirt, uri: \"{uri}\", pool: default");
        let several =
            |uri: &str| format!("type: libvirt, hosts: [{{name: b, uri: \"{uri}\", via: b}}], pool: default");
        let cases = [
            (plan(", data: {path: vddk, vddk: {plugin: /tmp/x.so}}", qemu, ""), true),
            (plan(", data: {path: vddk, vddk: {libdir: /tmp/x}}", qemu, ""), true),
            (plan("", qemu, ""), false),
            (plan("", &libvirt("qemu:///system"), ""), false),
            (plan("", &libvirt("qemu+ext:///system?command=/tmp/x"), ""), true),
            (plan("", &several("qemu+ssh://b/system?no_tty=1"), ""), false),
            (plan("", &several("qemu+ssh://b/system?command=/tmp/x"), ""), true),
        ];
        let calls = |more: &str| {
            let text = format!(
                "version: 1\nname: p\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\n\
                 target: {{{qemu}}}\nvms: [{{name: web}}]\n{more}\n"
            );
            Plan::parse(&text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
        };
        let cases = cases.into_iter().chain([
            (calls("hooks: {after_done: [{command: [/bin/true]}]}"), true),
            (calls("hooks: {after_done: [{url: 'https://x/', token_file: /etc/shadow}]}"), true),
            (calls("checks: {post_start: [{shell: 'true'}]}"), true),
            (calls("checks: {post_start: [{tcp: 'x:22'}]}"), false),
            (calls("first_boot: {scripts: [/etc/shadow]}"), true),
            (plan("", qemu, ", first_boot: {guest_agent: /root/x.deb}"), true),
            (plan("", qemu, ", hooks: {after_copy: [{command: [/bin/true]}]}"), true),
            (calls("waves: [{name: w, vms: [{name: web}], hooks: {after_wave: [{shell: 'true'}]}}]"), true),
            (calls("waves: [{name: w, vms: [{name: web}], hooks: {before_wave: []}}]"), false),
        ]);
        for (plan, is_refused) in cases {
            let judged = PlanPolicy::default().check_plan(&plan);
            assert_eq!(judged.is_err(), is_refused, "{:?}", plan.target);
            assert!(PlanPolicy { programs: true, ..PlanPolicy::default() }.check_plan(&plan).is_ok());
        }
        let addresses = [
            ("qemu:///system", false),
            ("qemu+ssh://root@host/system?no_verify=1", false),
            ("qemu+ext:///system", true),
            ("qemu+ssh://host/system?command=/tmp/x", true),
            ("qemu+ssh://host/system?no_tty=1&%63ommand=/tmp/x", true),
            ("qemu+ssh://host/system?no_tty=1;COMMAND=/tmp/x", true),
            ("qemu+ssh://-oProxyCommand=x/system", true),
        ];
        addresses.iter().for_each(|(uri, names)| assert_eq!(names_program(uri), *names, "{uri}"));
        let mut vms = planned(&plan("", qemu, ""));
        vms[0].daemon = Some("qemu+ext:///system?command=/tmp/x".into());
        let judged = PlanPolicy::default().check_vms(&plan("", qemu, ""), &vms);
        assert!(judged.is_err(), "an address of one VM");
    }
}
