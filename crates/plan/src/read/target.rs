//! What is read of where VMs go.

use std::path::{Path, PathBuf};

use super::{Fields, Reader};
use crate::keys;
use crate::model::*;
use crate::problem::{At, Problem};

/// An address of a daemon is not longer.
const URI_BYTES_MAX: usize = 1024;
/// Nor is a pool's name.
const POOL_BYTES_MAX: usize = 200;

impl Reader {
    pub(super) fn target(&mut self, plan: &Fields<'_>) -> Target {
        match self.kind_of(plan, "target", keys::TARGETS) {
            Some("libvirt") => self.domains(plan),
            Some("kubevirt") => self.claims(plan),
            _ => self.images(plan),
        }
    }

    fn images(&mut self, plan: &Fields<'_>) -> Target {
        let fields = self.map(plan, "target", &keys::TARGET);
        let uefi = fields.find("uefi").map(|_| {
            let files = self.map(&fields, "uefi", &keys::UEFI);
            let path =
                |reader: &mut Reader, name| PathBuf::from(reader.text(&files, name).unwrap_or_default());
            UefiFiles { code: path(self, "code"), vars: path(self, "vars") }
        });
        let via = self.via(&fields);
        let rate_limit = self.rate_limit(&fields);
        let folder = self.text(&fields, "folder").unwrap_or_default().into();
        Target { via, rate_limit, folder, uefi, ..self.common(&fields, TargetKind::Qemu) }
    }

    fn domains(&mut self, plan: &Fields<'_>) -> Target {
        let fields = self.map(plan, "target", &keys::LIBVIRT);
        let libvirt = Libvirt {
            uri: self.uri(&fields).unwrap_or("qemu:///system".into()),
            hosts: self.daemons(&fields),
            apart: self.texts(&fields, "apart").unwrap_or_default(),
            memory_reserve_bytes: self.size(&fields, "memory_reserve").unwrap_or(1 << 30),
            pool: self.pool(&fields).unwrap_or_default(),
            machine: self.word(&fields, "machine"),
            cpu: self.word(&fields, "cpu"),
            cpu_features: self.words(&fields, "cpu_features"),
            page_bytes: self.choice(&fields, "hugepages").map(|word| match word {
                "1GiB" => 1 << 30,
                _ => 2 << 20,
            }),
            numa_cpus: self.number(&fields, "numa_cpus").and_then(|most| most.try_into().ok()),
            cache: self.choice(&fields, "cache").map(|word| match word {
                "writeback" => DiskCache::Writeback,
                _ => DiskCache::None,
            }),
            io: self.choice(&fields, "io").map(|word| match word {
                "native" => DiskIo::Native,
                "io_uring" => DiskIo::IoUring,
                _ => DiskIo::Threads,
            }),
            discard: self.flag(&fields, "discard").unwrap_or(true),
            tpm: self.flag(&fields, "tpm").unwrap_or(true),
            autostart: self.flag(&fields, "autostart").unwrap_or(false),
        };
        let via = self.daemons_site(&fields);
        let rate_limit = self.rate_limit(&fields);
        Target { via, rate_limit, ..self.common(&fields, TargetKind::Libvirt(Box::new(libvirt))) }
    }

    fn claims(&mut self, plan: &Fields<'_>) -> Target {
        let fields = self.map(plan, "target", &keys::KUBEVIRT);
        let kubevirt = Kubevirt {
            kubeconfig: self.text(&fields, "kubeconfig").map(PathBuf::from),
            context: self.text(&fields, "context"),
            namespace: self.kube_name(&fields, "namespace").unwrap_or_default(),
            storage_class: self.kube_name(&fields, "storage_class"),
            volume_mode: match self.choice(&fields, "volume_mode") {
                Some("filesystem") => VolumeMode::Filesystem,
                _ => VolumeMode::Block,
            },
            access_mode: self.choice(&fields, "access_mode").map(|word| match word {
                "ReadWriteOncePod" => AccessMode::ReadWriteOncePod,
                "ReadWriteMany" => AccessMode::ReadWriteMany,
                _ => AccessMode::ReadWriteOnce,
            }),
            size_unit_bytes: self.size(&fields, "size_unit").unwrap_or(1 << 20),
            image: self.text(&fields, "image").unwrap_or_default(),
            image_pull: match self.choice(&fields, "image_pull") {
                Some("Always") => ImagePull::Always,
                Some("Never") => ImagePull::Never,
                _ => ImagePull::IfNotPresent,
            },
            machine: self.word(&fields, "machine"),
            cpu: self.word(&fields, "cpu"),
            instance_type: self.kube_name(&fields, "instance_type"),
            preference: self.kube_name(&fields, "preference"),
            run_strategy: match self.choice(&fields, "run_strategy") {
                Some("Always") => RunStrategy::Always,
                _ => RunStrategy::RerunOnFailure,
            },
            reach: match self.choice(&fields, "reach") {
                Some("pod") => Reach::Pod,
                Some("port-forward" | "forward") => Reach::Forward,
                Some("node-port") => Reach::NodePort,
                Some("load-balancer") => Reach::LoadBalancer,
                Some("route") => Reach::Route,
                Some("upload") => Reach::Upload,
                _ => Reach::Auto,
            },
            upload_url: self.text(&fields, "upload_url"),
            upload_ca: self.text(&fields, "upload_ca").map(PathBuf::from),
            worker_timeout_s: self.duration(&fields, "worker_timeout").map_or(300, |time| time.as_secs()),
        };
        Target {
            kind: TargetKind::Kubevirt(Box::new(kubevirt)),
            via: None,
            rate_limit: self.rate_limit(&fields),
            folder: PathBuf::new(),
            format: ImageFormat::Raw,
            qcow2: Qcow2 {
                cluster_bytes: 64 << 10,
                preallocation: Preallocation::Off,
                compressed: false,
                compression: Qcow2Compression::Zlib,
            },
            accelerator: Accelerator::Auto,
            disk_bus: self.bus(&fields).unwrap_or(DiskBusChoice::Virtio),
            nic_model: self.nic_model(&fields).unwrap_or_default(),
            uefi: None,
            overcommit: false,
        }
    }

    /// The name of an object of Kubernetes.
    fn kube_name(&mut self, fields: &Fields<'_>, name: &str) -> Option<String> {
        let (entry, word) = (fields.find(name)?, self.text(fields, name)?);
        if !is_kube_name(&word) {
            self.wrong(fields, entry, "is no name in Kubernetes: a-z, 0-9, - and .");
            return None;
        }
        Some(word)
    }

    /// What all kinds of target have.
    fn common(&mut self, fields: &Fields<'_>, kind: TargetKind) -> Target {
        Target {
            kind,
            via: None,
            rate_limit: Vec::new(),
            folder: PathBuf::new(),
            format: self.format(fields).unwrap_or(ImageFormat::Raw),
            qcow2: self.qcow2(fields),
            accelerator: match self.choice(fields, "accelerator") {
                Some("kvm") => Accelerator::Kvm,
                Some("tcg") => Accelerator::Tcg,
                _ => Accelerator::Auto,
            },
            disk_bus: self.bus(fields).unwrap_or(DiskBusChoice::Virtio),
            nic_model: self.nic_model(fields).unwrap_or_default(),
            uefi: None,
            overcommit: self.flag(fields, "overcommit").unwrap_or(false),
        }
    }

    /// Several hosts, each with a name of its own.
    fn daemons(&mut self, fields: &Fields<'_>) -> Vec<LibvirtHost> {
        let Some(entry) = fields.find("hosts") else {
            if let Some(entry) = fields.find("apart") {
                let problem = Problem::error(fields.path_of("apart"), "VMs of one host cannot be apart");
                self.problems.push(problem.at(entry.at).advise("list the `hosts`, or leave it out"));
            }
            return Vec::new();
        };
        for key in ["uri", "via"].into_iter().filter(|key| fields.find(key).is_some()) {
            let text = format!("it does not go with `hosts`, each of which has its own {key}");
            self.problems.push(Problem::error(fields.path_of(key), text).at(entry.at).advise("leave it out"));
        }
        let mut names: Vec<String> = Vec::new();
        self.list(fields, "hosts", |reader, fields| {
            let name = reader.text(fields, "name").unwrap_or_default();
            if let Some(entry) = fields.find("name") {
                reader.check_site(fields, entry, &name);
                if names.contains(&name) {
                    reader.wrong(fields, entry, "is the name of another host, too");
                }
            }
            names.push(name.clone());
            LibvirtHost {
                name,
                uri: reader.uri(fields).unwrap_or_default(),
                via: reader.daemons_site(fields),
                pool: reader.pool(fields),
            }
        })
    }

    /// The address of a libvirt daemon.
    pub(super) fn uri(&mut self, fields: &Fields<'_>) -> Option<String> {
        let (entry, uri) = (fields.find("uri")?, self.text(fields, "uri")?);
        let fits = |c: char| c.is_ascii_graphic();
        let is_qemu =
            uri.split_once("://").is_some_and(|(kind, _)| kind == "qemu" || kind.starts_with("qemu+"));
        if !is_qemu || uri.len() > URI_BYTES_MAX || !uri.chars().all(fits) {
            self.wrong(
                fields,
                entry,
                "is no address of a libvirt daemon, such as qemu:///system or qemu+ssh://host/system",
            );
            return None;
        }
        Some(uri)
    }

    /// The name of a storage pool.
    pub(super) fn pool(&mut self, fields: &Fields<'_>) -> Option<String> {
        let (entry, name) = (fields.find("pool")?, self.text(fields, "pool")?);
        if !is_pool(&name) {
            self.wrong(fields, entry, "is no name of a storage pool");
            return None;
        }
        Some(name)
    }

    /// A name of libvirt's own: letters, digits, `-`, `_` and `.`.
    fn word(&mut self, fields: &Fields<'_>, name: &str) -> Option<String> {
        let word = self.text(fields, name)?;
        self.check_word(fields, name, &word).then_some(word)
    }

    /// Names of libvirt's own.
    fn words(&mut self, fields: &Fields<'_>, name: &str) -> Vec<String> {
        let words = self.texts(fields, name).unwrap_or_default();
        words.into_iter().filter(|word| self.check_word(fields, name, word)).collect()
    }

    fn check_word(&mut self, fields: &Fields<'_>, name: &str, word: &str) -> bool {
        let is_word = (1..=64).contains(&word.len())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if let Some(entry) = fields.find(name).filter(|_| !is_word) {
            self.wrong(fields, entry, "is not made of letters, digits, - _ and .");
        }
        is_word
    }

    pub(super) fn qcow2(&mut self, target: &Fields<'_>) -> Qcow2 {
        let fields = self.map(target, "qcow2", &keys::QCOW2);
        let cluster_bytes = self.size(&fields, "cluster_size").unwrap_or(64 << 10);
        if let Some(entry) = fields.find("cluster_size").filter(|_| !cluster_bytes.is_power_of_two()) {
            self.wrong(&fields, entry, "is not a power of two");
        }
        let preallocation = match self.choice(&fields, "preallocation") {
            Some("metadata") => Preallocation::Metadata,
            Some("falloc") => Preallocation::Falloc,
            Some("full") => Preallocation::Full,
            _ => Preallocation::Off,
        };
        let compressed = self.flag(&fields, "compressed").unwrap_or(false);
        if let Some(entry) = fields.find("compressed")
            && compressed
            && preallocation != Preallocation::Off
        {
            self.wrong(
                &fields,
                entry,
                "does not go with preallocation: packed clusters have no place set aside",
            );
        }
        let compression = match self.choice(&fields, "compression_type") {
            Some("zstd") => Qcow2Compression::Zstd,
            _ => Qcow2Compression::Zlib,
        };
        Qcow2 { cluster_bytes, preallocation, compressed, compression }
    }

    pub(super) fn networks(&mut self, fields: &Fields<'_>) -> Vec<NetworkRule> {
        let mut rules = Vec::new();
        for (from, to, at) in self.pairs(fields, "networks") {
            match NetworkTarget::parse(&to) {
                Ok(to) => rules.push(NetworkRule { from, to, at }),
                Err(why) => {
                    let path = format!("{}.{from}", fields.path_of("networks"));
                    self.problems.push(Problem::error(path, format!("'{to}' {why}")).at(at));
                }
            }
        }
        // What names its data centre counts before the name alone.
        rules.sort_by_key(|rule| !rule.from.contains('/'));
        rules
    }

    pub(super) fn storage(&mut self, fields: &Fields<'_>) -> Vec<StorageRule> {
        let rule = |(from, to, at): (String, String, At)| StorageRule {
            from,
            to: (to != "default").then(|| PathBuf::from(to)),
            at,
        };
        let mut rules: Vec<StorageRule> = self.pairs(fields, "storage").into_iter().map(rule).collect();
        rules.sort_by_key(|rule| !rule.from.contains('/'));
        rules
    }

    /// The volumes that disks go to.
    pub(super) fn volumes(&mut self, fields: &Fields<'_>) -> Option<Vec<VolumeRule>> {
        fields.find("volumes")?;
        let rule = |(disk, text, at): (String, String, At)| {
            let (name, overwrite) = match text.strip_suffix(",overwrite") {
                Some(name) => (name.to_string(), true),
                None => (text, false),
            };
            VolumeRule { disk, volume: NamedVolume { name, overwrite }, at }
        };
        let rules: Vec<VolumeRule> = self.pairs(fields, "volumes").into_iter().map(rule).collect();
        for rule in rules.iter().filter(|rule| !is_volume(&rule.volume.name)) {
            let path = format!("{}.{}", fields.path_of("volumes"), rule.disk);
            let text = format!("'{}' is no name, path or key of a volume", rule.volume.name);
            self.problems.push(Problem::error(path, text).at(rule.at).advise("see `virsh vol-list POOL`"));
        }
        Some(rules)
    }

    /// What of the plan does not go with its kind of target.
    pub(super) fn check_target(&mut self, plan: &Plan) {
        let libvirt = plan.target.libvirt();
        self.check_kubevirt(plan);
        let rules = |path: String, networks: &[NetworkRule], storage: &[StorageRule]| {
            let is_libvirts = |rule: &&NetworkRule| matches!(rule.to, NetworkTarget::Libvirt(_));
            let networks = networks.iter().filter(is_libvirts).filter(|_| libvirt.is_none()).map(|rule| {
                let text = "only a target of the type libvirt attaches NICs to that";
                Problem::error(format!("{path}networks.{}", rule.from), text)
                    .at(rule.at)
                    .advise("name a bridge, or write `user` or `none`")
            });
            let is_folder =
                |rule: &&StorageRule| rule.to.as_ref().is_some_and(|to| !is_pool(&to.to_string_lossy()));
            let storage = storage.iter().filter(is_folder).filter(|_| libvirt.is_some()).map(|rule| {
                let text = "is no name of a storage pool, and disks go to pools of libvirt";
                Problem::error(format!("{path}storage.{}", rule.from), text)
                    .at(rule.at)
                    .advise("see `virsh pool-list`")
            });
            networks.chain(storage).collect::<Vec<_>>()
        };
        self.problems.extend(rules(String::new(), &plan.networks, &plan.storage));
        for vm in &plan.vms {
            let (over, path, at) = (&vm.overrides, &vm.selector.path, vm.selector.at);
            self.problems.extend(rules(format!("{path}."), &over.networks, &over.storage));
            let autostart = ("autostart", over.autostart.is_some());
            let volumes = ("volumes", over.volumes.is_some());
            let wrong: &[(&str, bool)] = match libvirt {
                Some(_) => &[("target_folder", over.target_folder.is_some())],
                None if plan.target.kubevirt().is_some() => &[
                    ("target_folder", over.target_folder.is_some()),
                    ("pool", over.pool.is_some()),
                    autostart,
                    volumes,
                ],
                None => &[("uri", over.uri.is_some()), ("pool", over.pool.is_some()), autostart, volumes],
            };
            for (key, _) in wrong.iter().filter(|(_, is_there)| *is_there) {
                let text = "does not go with this type of target";
                self.problems
                    .push(Problem::error(format!("{path}.{key}"), text).at(at).advise("leave it out"));
            }
            self.check_host(over, libvirt, path, at);
        }
    }

    /// The host that a selection names has to be one of the plan's.
    fn check_host(&mut self, over: &Overrides, libvirt: Option<&Libvirt>, path: &str, at: At) {
        let hosts = libvirt.map_or(&[][..], |libvirt| &libvirt.hosts);
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let mut wrong = |key: &str, text: String, advice: String| {
            self.problems.push(Problem::error(format!("{path}.{key}"), text).at(at).advise(advice));
        };
        match &over.target_host {
            Some(_) if names.is_empty() => {
                wrong("target_host", "the target has no `hosts`".into(), "leave it out".into());
            }
            Some(host) if !names.contains(&host.as_str()) => {
                let text = format!("'{host}' is none of the target's hosts");
                wrong("target_host", text, format!("they are: {}", names.join(", ")));
            }
            _ => {}
        }
        if over.uri.is_some() && !names.is_empty() {
            let text = "the target has `hosts`, which have addresses of their own";
            wrong("uri", text.into(), "name one of them by `target_host`".into());
        }
    }

    /// Networks that do not go with the cluster, or go with none else.
    fn check_kubevirt(&mut self, plan: &Plan) {
        let is_kubevirt = plan.target.kubevirt().is_some();
        if plan.target.kubevirt().is_some_and(|it| it.image.is_empty() && it.reach != Reach::Upload) {
            let problem = Problem::error("target.image", "'image' is missing, and worker pods run it");
            self.problems.push(problem.advise("name an image of drover, or write `reach: upload`"));
        }
        let overrides = plan.vms.iter().map(|vm| (format!("{}.", vm.selector.path), &vm.overrides.networks));
        let all = std::iter::once((String::new(), &plan.networks)).chain(overrides);
        for (path, rule) in all.flat_map(|(path, rules)| rules.iter().map(move |rule| (path.clone(), rule))) {
            let text = match (&rule.to, is_kubevirt) {
                (NetworkTarget::Kubevirt(_), false) => {
                    "only a target of the type kubevirt attaches NICs to that"
                }
                (NetworkTarget::Bridge(_), true) => "KubeVirt attaches NICs to no bridge by its name",
                _ => continue,
            };
            let advice = match is_kubevirt {
                true => {
                    "write pod:masquerade, pod:bridge, nad:NAMESPACE/NAME of a NetworkAttachmentDefinition, or none"
                }
                false => "name a bridge, or write `user` or `none`",
            };
            let path = format!("{path}networks.{}", rule.from);
            self.problems.push(Problem::error(path, text).at(rule.at).advise(advice));
        }
    }
}

/// One that `virsh` takes for no option.
fn is_volume(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= URI_BYTES_MAX
        && !name.starts_with('-')
        && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

fn is_pool(name: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || "-_. ".contains(c);
    !name.is_empty()
        && name.len() <= POOL_BYTES_MAX
        && name.chars().all(fits)
        && !name.starts_with(['.', '-', ' '])
        && Path::new(name).components().count() == 1
}
