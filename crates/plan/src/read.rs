//! From a tree of YAML to a [`Plan`]: every mistake is noted, none stops the reading.

use std::path::PathBuf;
use std::time::Duration;

use drover_types::{Bytes, units};

use crate::keys::{self, Kind, SELECTORS, Table};
use crate::model::*;
use crate::node::{Entry, Node, Value};
use crate::problem::{At, Problem, sort};
use crate::resolve::safe_name;

/// Blocks of each disk that `verify: sampled` compares.
const SAMPLED_BLOCKS: u64 = 1000;
/// Buffers of all transfers: with what else ten disks need, drover stays below 300 MiB.
const MEMORY_BYTES: u64 = 96 << 20;

impl Plan {
    /// Reads a plan file.
    ///
    /// # Errors
    /// Every mistake in it, in the order of the file.
    pub fn parse(text: &str) -> Result<Plan, Vec<Problem>> {
        let root = crate::node::parse(text).map_err(|problem| vec![problem])?;
        let mut reader = Reader::default();
        let plan = reader.plan(&root);
        reader.check_aio(&plan);
        reader.check_warm(&plan, &root);
        reader.check_target(&plan);
        reader.check_waves(&plan);
        sort(&mut reader.problems);
        if reader.problems.iter().any(Problem::is_error) {
            return Err(reader.problems);
        }
        Ok(Plan { warnings: reader.problems, ..plan })
    }
}

#[derive(Default)]
struct Reader {
    problems: Vec<Problem>,
    /// Whether VMs come from files, by no network that the plan knows of.
    is_appliance: bool,
}

/// The entries of a map that belongs to a table, and where it is.
struct Fields<'a> {
    table: &'static Table,
    entries: &'a [Entry],
    path: String,
    at: At,
}

impl<'a> Fields<'a> {
    fn find(&self, name: &str) -> Option<&'a Entry> {
        debug_assert!(self.table.key(name).is_some(), "'{name}' is in no table");
        self.entries.iter().find(|entry| entry.key == name && entry.node.value != Value::Null)
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }
}

impl Reader {
    fn plan(&mut self, root: &Node) -> Plan {
        let fields = self.fields(root, "", &keys::PLAN);
        self.number(&fields, "version");
        let (name, source, target) = (self.plan_name(&fields), self.source(&fields), self.target(&fields));
        let via = target.is_far() && target.kubevirt().is_none();
        Plan {
            name,
            source,
            target,
            mode: self.mode(&fields).unwrap_or(Mode::Cold),
            warm: self.warm(&fields),
            vms: self.selections(&fields),
            exclude: self.list(&fields, "exclude", |reader, fields| reader.selector(fields)),
            networks: self.networks(&fields),
            storage: self.storage(&fields),
            power_off: self.power_off(&fields).unwrap_or(PowerOff::Refuse),
            shutdown_timeout: self.duration(&fields, "shutdown_timeout").unwrap_or(Duration::from_secs(300)),
            start: self.flag(&fields, "start").unwrap_or(false),
            convert: self.convert(&fields).unwrap_or(Convert::Auto),
            first_boot: self.first_boot(&fields),
            keep_addresses: self.flag(&fields, "keep_addresses").unwrap_or(false),
            verify: self.verify(&fields).unwrap_or(Verify::Full),
            hooks: self.hooks(&fields),
            checks: self.checks(&fields),
            limits: self.limits(&fields, via),
            waves: self.waves(&fields),
            warnings: Vec::new(),
        }
    }

    fn plan_name(&mut self, fields: &Fields<'_>) -> String {
        self.short_name(fields, "name").unwrap_or_default()
    }

    /// A name of a plan or wave.
    fn short_name(&mut self, fields: &Fields<'_>, key: &str) -> Option<String> {
        let name = self.text(fields, key)?;
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if let Some(entry) = fields.find(key)
            && (name.is_empty() || name.len() > 64 || name.starts_with('-') || !name.chars().all(fits))
        {
            self.wrong(fields, entry, "is not made of at most 64 lower-case letters, digits and '-'");
        }
        Some(name)
    }

    fn source(&mut self, plan: &Fields<'_>) -> Source {
        let kind = self.kind_of(plan, "source", keys::SOURCES);
        self.is_appliance = kind == Some("ova");
        if self.is_appliance {
            return Source::Ova(self.ova(plan));
        }
        let fields = self.map(plan, "source", &keys::SOURCE);
        let user = self.text(&fields, "user").unwrap_or_default();
        let password = self.password(&fields);
        if password.is_none() && !fields.entries.is_empty() {
            let problem =
                Problem::error(fields.path.clone(), "it does not say where the password is").at(fields.at);
            self.problems.push(problem.advise("add `password_file: FILE` or `password_env: VARIABLE`"));
        }
        Source::Vsphere(Box::new(VsphereSource {
            endpoint: self.endpoint(&fields),
            login: Login { user, password: password.unwrap_or(SecretSource::Env(String::new())) },
            trust: self.trust(&fields).unwrap_or(Trust::System),
            data: self.data(&fields),
        }))
    }

    /// The `type` that a map says it has; complains if it is none of those there are.
    fn kind_of(
        &mut self,
        plan: &Fields<'_>,
        name: &str,
        kinds: &[(&'static str, &'static Table)],
    ) -> Option<&'static str> {
        let Value::Map(entries) = &plan.find(name)?.node.value else { return None };
        let entry = entries.iter().find(|entry| entry.key == "type" && entry.node.value != Value::Null)?;
        if let Value::Scalar { text, .. } = &entry.node.value
            && let Some((word, _)) = kinds.iter().find(|(word, _)| word == text)
        {
            return Some(word);
        }
        let words: Vec<&str> = kinds.iter().map(|(word, _)| *word).collect();
        let shown = match &entry.node.value {
            Value::Scalar { text, .. } => format!("'{text}'"),
            _ => entry.node.describe().to_string(),
        };
        let text = format!("{shown} is not one of: {}", words.join(", "));
        self.problems.push(Problem::error(format!("{}.type", plan.path_of(name)), text).at(entry.node.at));
        None
    }

    fn ova(&mut self, plan: &Fields<'_>) -> OvaSource {
        let fields = self.map(plan, "source", &keys::OVA);
        OvaSource {
            path: self.text(&fields, "path").unwrap_or_default().into(),
            manifest: match self.choice(&fields, "manifest") {
                Some("ignore") => ManifestUse::Ignore,
                _ => ManifestUse::Check,
            },
        }
    }

    fn endpoint(&mut self, fields: &Fields<'_>) -> Endpoint {
        let nowhere = Endpoint { host: String::new(), port: 443 };
        let Some(entry) = fields.find("endpoint") else { return nowhere };
        let text = self.text(fields, "endpoint").unwrap_or_default();
        parse_endpoint(&text).unwrap_or_else(|| {
            if text.contains('@') {
                // What stands before the @ may hold a password, which no message repeats.
                let message = "a user or password does not belong into the endpoint";
                let problem = Problem::error(fields.path_of("endpoint"), message).at(entry.node.at);
                self.problems.push(problem.advise("give `user` and `password_file` or `password_env`"));
            } else {
                self.wrong(fields, entry, "is not host, host:port or an https URL");
            }
            nowhere
        })
    }

    fn password(&mut self, fields: &Fields<'_>) -> Option<SecretSource> {
        let file = self.text(fields, "password_file").map(|path| SecretSource::File(path.into()));
        let variable = self.text(fields, "password_env").map(SecretSource::Env);
        if let (Some(_), Some(_)) = (&file, &variable) {
            let problem =
                Problem::error(fields.path_of("password_env"), "the password is given twice").at(fields.at);
            self.problems.push(problem.advise("give either password_file or password_env"));
        }
        file.or(variable)
    }

    fn login(&mut self, fields: &Fields<'_>) -> Option<Login> {
        let (user, password) = (self.text(fields, "user"), self.password(fields));
        match (user, password) {
            (Some(user), Some(password)) => Some(Login { user, password }),
            (None, None) => None,
            _ => {
                let problem =
                    Problem::error(fields.path.clone(), "user and password belong together").at(fields.at);
                self.problems
                    .push(problem.advise("give user and password_file (or password_env), or neither"));
                None
            }
        }
    }

    fn trust(&mut self, fields: &Fields<'_>) -> Option<Trust> {
        let ca_file = self.text(fields, "ca_file").map(|path| Trust::CaFile(path.into()));
        let thumbprint = self.thumbprint(fields);
        let insecure = self.flag(fields, "insecure").unwrap_or(false).then_some(Trust::Insecure);
        let told: Vec<Trust> = [ca_file, thumbprint, insecure].into_iter().flatten().collect();
        if told.len() > 1 {
            let text = "ca_file, thumbprint and insecure exclude each other";
            self.problems.push(Problem::error(fields.path.clone(), text).at(fields.at));
        }
        if told.contains(&Trust::Insecure) {
            let text = "the certificate is not verified: anyone on the line can read and change everything";
            let problem = Problem::warning(fields.path_of("insecure"), text).at(fields.at);
            self.problems.push(problem.advise("give its thumbprint or a ca_file"));
        }
        told.into_iter().next()
    }

    fn thumbprint(&mut self, fields: &Fields<'_>) -> Option<Trust> {
        let entry = fields.find("thumbprint")?;
        let text = self.text(fields, "thumbprint")?;
        let digits: String = text.chars().filter(|c| *c != ':').collect();
        if !matches!(digits.len(), 40 | 64) || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            self.wrong(fields, entry, "is not 20 bytes (SHA-1) or 32 bytes (SHA-256) in hexadecimal");
            return None;
        }
        let pairs: Vec<String> = digits
            .to_ascii_uppercase()
            .as_bytes()
            .chunks(2)
            .map(|two| String::from_utf8_lossy(two).into_owned())
            .collect();
        Some(Trust::Thumbprint(pairs.join(":")))
    }

    fn data(&mut self, source: &Fields<'_>) -> DataPath {
        let fields = self.map(source, "data", &keys::DATA);
        let from = match self.choice(&fields, "from") {
            Some("hosts") => DataFrom::Hosts,
            _ => DataFrom::Provider,
        };
        let network = match self.text(&fields, "network") {
            Some(device) if device != "auto" => HostNetwork::Device(device),
            _ => HostNetwork::Auto,
        };
        let path = match self.choice(&fields, "path") {
            Some("vddk") => PathChoice::Vddk,
            Some("https") => PathChoice::Https,
            Some("nfc") => PathChoice::Nfc,
            Some("hotadd") => PathChoice::HotAdd,
            _ => PathChoice::Auto,
        };
        DataPath {
            from,
            port: self.number(&fields, "port").unwrap_or(443) as u16,
            network,
            login: self.login(&fields),
            hosts: self.hosts(&fields),
            path,
            proxies: self.proxies(&fields, path),
            nfc: self.nfc(&fields),
            vddk: self.vddk(&fields),
        }
    }

    fn hosts(&mut self, data: &Fields<'_>) -> Vec<HostOverride> {
        let Some(entry) = data.find("hosts") else { return Vec::new() };
        let path = data.path_of("hosts");
        let Value::Map(entries) = &entry.node.value else {
            self.mismatch(&path, &entry.node, "a map of host names");
            return Vec::new();
        };
        for (number, entry) in entries.iter().enumerate() {
            if entries[..number].iter().any(|earlier| earlier.key == entry.key) {
                self.double(format!("{path}.{}", entry.key), entry);
            }
        }
        let host = |entry: &Entry| {
            let fields = self.fields(&entry.node, &format!("{path}.{}", entry.key), &keys::HOST);
            HostOverride {
                host: entry.key.clone(),
                address: self.text(&fields, "address"),
                port: self.number(&fields, "port").map(|port| port as u16),
                login: self.login(&fields),
                trust: self.trust(&fields),
                at: entry.at,
            }
        };
        entries.iter().map(host).collect()
    }

    fn selections(&mut self, plan: &Fields<'_>) -> Vec<Selection> {
        let vms = self.list(plan, "vms", |reader, fields| Selection {
            selector: reader.selector(fields),
            overrides: reader.overrides(fields),
        });
        if let (Some(entry), true) = (plan.find("vms"), vms.is_empty()) {
            self.wrong(plan, entry, "selects nothing");
        }
        vms
    }

    fn selector(&mut self, fields: &Fields<'_>) -> Selector {
        let selector = Selector {
            name: self.text(fields, "name"),
            glob: self.text(fields, "glob"),
            folder: self.text(fields, "folder").map(|folder| folder.trim_matches('/').to_string()),
            tag: self.text(fields, "tag"),
            id: self.text(fields, "id"),
            host: self.text(fields, "host"),
            cluster: self.text(fields, "cluster"),
            datastore: self.text(fields, "datastore"),
            at: fields.at,
            path: fields.path.clone(),
        };
        let asks = [&selector.name, &selector.glob].into_iter().chain(selector.beside_name());
        if asks.into_iter().all(Option::is_none) {
            let problem = Problem::error(fields.path.clone(), "it does not say which VMs").at(fields.at);
            let keys = SELECTORS.join(", ");
            self.problems.push(problem.advise(format!("give one of {keys}; `glob: \"*\"` takes all")));
        }
        selector
    }

    fn overrides(&mut self, fields: &Fields<'_>) -> Overrides {
        Overrides {
            mode: self.mode(fields),
            warm: self.warm(fields),
            target_name: self.target_name(fields),
            target_folder: self.text(fields, "target_folder").map(PathBuf::from),
            uri: self.uri(fields),
            target_host: self.text(fields, "target_host"),
            pool: self.pool(fields),
            format: self.format(fields),
            disk_bus: self.bus(fields),
            nic_model: self.nic_model(fields),
            power_off: self.power_off(fields),
            shutdown_timeout: self.duration(fields, "shutdown_timeout"),
            verify: self.verify(fields),
            start: self.flag(fields, "start"),
            autostart: self.flag(fields, "autostart"),
            convert: self.convert(fields),
            first_boot: FirstBoot { addresses: self.addresses(fields), ..self.first_boot(fields) },
            keep_addresses: self.flag(fields, "keep_addresses"),
            exclude_disks: self.texts(fields, "exclude_disks"),
            networks: self.networks(fields),
            storage: self.storage(fields),
            volumes: self.volumes(fields),
            priority: self.priority(fields),
            hooks: self.hooks(fields),
            checks: self.checks(fields),
            wave: self.short_name(fields, "wave"),
            deadline_ms: self.moment(fields, "deadline"),
            group: self.short_name(fields, "group"),
            stage: self.number(fields, "stage").and_then(|stage| u32::try_from(stage).ok()),
            anti_affinity: self.short_name(fields, "anti_affinity"),
        }
    }

    fn target_name(&mut self, fields: &Fields<'_>) -> Option<String> {
        let (entry, name) = (fields.find("target_name")?, self.text(fields, "target_name")?);
        let safe = safe_name(&name);
        if safe != name {
            self.wrong(fields, entry, &format!("is not made of letters, digits, - _ and .; '{safe}' is"));
        }
        Some(name)
    }

    fn limits(&mut self, plan: &Fields<'_>, via: bool) -> Limits {
        let fields = self.map(plan, "limits", &keys::LIMITS);
        let small = |value: Option<u64>| value.map(|value| value as u32);
        let request = self.size(&fields, "request");
        let memory = self.size(&fields, "memory").unwrap_or(MEMORY_BYTES);
        if let Some(entry) = fields.find("request")
            && request.is_some_and(|request| request > memory)
        {
            self.wrong(&fields, entry, "is more than all the `memory` for buffers");
        }
        Limits {
            vms_per_host: small(self.number(&fields, "vms_per_host")).unwrap_or(20),
            disks: small(self.number(&fields, "disks")).unwrap_or(if via { 8 } else { 200 }),
            cutovers: small(self.number(&fields, "cutovers")).unwrap_or(20),
            lanes_per_disk: small(self.number(&fields, "lanes_per_disk")),
            depth: small(self.number(&fields, "depth")),
            request,
            memory,
            retries: small(self.number(&fields, "retries")).unwrap_or(5),
            retry_for: self.duration(&fields, "retry_for").unwrap_or(Duration::from_secs(600)),
        }
    }

    fn format(&mut self, fields: &Fields<'_>) -> Option<ImageFormat> {
        let word = self.choice(fields, "format")?;
        Some(if word == "qcow2" { ImageFormat::Qcow2 } else { ImageFormat::Raw })
    }

    fn bus(&mut self, fields: &Fields<'_>) -> Option<DiskBusChoice> {
        Some(match self.choice(fields, "disk_bus")? {
            "scsi" => DiskBusChoice::Scsi,
            "sata" => DiskBusChoice::Sata,
            "keep" => DiskBusChoice::Keep,
            _ => DiskBusChoice::Virtio,
        })
    }

    fn nic_model(&mut self, fields: &Fields<'_>) -> Option<NicChoice> {
        Some(match self.choice(fields, "nic_model")? {
            "virtio" => NicChoice::Virtio,
            "e1000e" => NicChoice::E1000e,
            "keep" => NicChoice::Keep,
            _ => NicChoice::Auto,
        })
    }

    fn power_off(&mut self, fields: &Fields<'_>) -> Option<PowerOff> {
        Some(match self.choice(fields, "power_off")? {
            "shutdown" => PowerOff::Shutdown,
            "force" => PowerOff::Force,
            _ => PowerOff::Refuse,
        })
    }

    fn convert(&mut self, fields: &Fields<'_>) -> Option<Convert> {
        Some(match self.choice(fields, "convert")? {
            "never" => Convert::Never,
            "always" => Convert::Always,
            _ => Convert::Auto,
        })
    }

    fn first_boot(&mut self, fields: &Fields<'_>) -> FirstBoot {
        let fields = self.map(fields, "first_boot", &keys::FIRST_BOOT);
        let scripts = self.texts(&fields, "scripts").unwrap_or_default();
        FirstBoot {
            scripts: scripts.into_iter().map(PathBuf::from).collect(),
            guest_agent: self.text(&fields, "guest_agent").map(PathBuf::from),
            addresses: Vec::new(),
        }
    }

    fn addresses(&mut self, fields: &Fields<'_>) -> Vec<StaticAddress> {
        let mut found = Vec::new();
        for (mac, text, at) in self.pairs(fields, "addresses") {
            match StaticAddress::parse(&mac, &text) {
                Some(addresses) => found.extend(addresses),
                None => {
                    let path = format!("{}.{mac}", fields.path_of("addresses"));
                    let problem = Problem::error(path, format!("'{mac}: {text}' is no fixed address")).at(at);
                    self.problems.push(problem.advise(
                        "write \"MAC\": ADDRESS/PREFIX GATEWAY NAMESERVER..., once or several times",
                    ));
                }
            }
        }
        found
    }

    fn verify(&mut self, fields: &Fields<'_>) -> Option<Verify> {
        let entry = fields.find("verify")?;
        let number = match &entry.node.value {
            Value::Scalar { text, .. } => match text.as_str() {
                "none" => return Some(Verify::None),
                "full" => return Some(Verify::Full),
                "sampled" => Some(SAMPLED_BLOCKS),
                _ => None,
            },
            Value::Map(entries) => match entries.as_slice() {
                [Entry { key, node: Node { value: Value::Scalar { text, .. }, .. }, .. }]
                    if key == "sampled" =>
                {
                    text.parse().ok()
                }
                _ => None,
            },
            _ => None,
        };
        match number {
            Some(blocks) if blocks > 0 => Some(Verify::Sampled { blocks }),
            _ => {
                self.wrong(fields, entry, "is not none, sampled, full or {sampled: NUMBER}");
                None
            }
        }
    }

    /// The map under a key, or an empty one with the complaint made.
    fn map<'a>(&mut self, fields: &Fields<'a>, name: &str, table: &'static Table) -> Fields<'a> {
        let path = fields.path_of(name);
        match fields.find(name) {
            Some(entry) => self.fields(&entry.node, &path, table),
            None => Fields { table, entries: &[], path, at: fields.at },
        }
    }

    /// The entries of a map, checked against its table: unknown, double and missing keys.
    fn fields<'a>(&mut self, node: &'a Node, path: &str, table: &'static Table) -> Fields<'a> {
        let mut fields = Fields { table, entries: &[], path: path.to_string(), at: node.at };
        match &node.value {
            Value::Map(entries) => fields.entries = entries,
            Value::Null => {}
            _ => {
                self.mismatch(path, node, "a map");
                return fields;
            }
        }
        for (number, entry) in fields.entries.iter().enumerate() {
            if table.key(&entry.key).is_none() {
                self.unknown(&fields, entry);
            } else if fields.entries[..number].iter().any(|earlier| earlier.key == entry.key) {
                self.double(fields.path_of(&entry.key), entry);
            }
        }
        for key in table.keys.iter().filter(|key| key.required && fields.find(key.name).is_none()) {
            let problem = Problem::error(path, format!("'{}' is missing", key.name)).at(node.at);
            self.problems.push(problem.advise(key.doc));
        }
        fields
    }

    fn unknown(&mut self, fields: &Fields<'_>, entry: &Entry) {
        let problem =
            Problem::error(fields.path_of(&entry.key), format!("unknown key '{}'", entry.key)).at(entry.at);
        let names = fields.table.keys.iter().map(|key| key.name);
        self.problems.push(match (entry.key.as_str(), crate::near::nearest(&entry.key, names)) {
            ("password", _) => problem.advise("a plan holds no secret; use password_file or password_env"),
            (_, Some(near)) => problem.advise(format!("did you mean '{near}'?")),
            (_, None) => {
                let known: Vec<&str> = fields.table.keys.iter().map(|key| key.name).collect();
                problem.advise(format!("known here: {}", known.join(", ")))
            }
        });
    }

    fn list<T>(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        mut read: impl FnMut(&mut Reader, &Fields<'_>) -> T,
    ) -> Vec<T> {
        let Some(entry) = fields.find(name) else { return Vec::new() };
        let path = fields.path_of(name);
        let Some(Kind::Many(table)) = fields.table.key(name).map(|key| key.kind) else { return Vec::new() };
        let Value::List(nodes) = &entry.node.value else {
            self.mismatch(&path, &entry.node, "a list");
            return Vec::new();
        };
        let mut items = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let fields = self.fields(node, &format!("{path}[{number}]"), table);
            items.push(read(self, &fields));
        }
        items
    }

    fn text(&mut self, fields: &Fields<'_>, name: &str) -> Option<String> {
        let entry = fields.find(name)?;
        match &entry.node.value {
            Value::Scalar { text, .. } if !text.is_empty() => Some(text.clone()),
            Value::Scalar { .. } => {
                self.wrong(fields, entry, "is empty");
                None
            }
            _ => {
                self.mismatch(&fields.path_of(name), &entry.node, "a single value");
                None
            }
        }
    }

    fn texts(&mut self, fields: &Fields<'_>, name: &str) -> Option<Vec<String>> {
        let entry = fields.find(name)?;
        let Value::List(nodes) = &entry.node.value else {
            self.mismatch(&fields.path_of(name), &entry.node, "a list of texts");
            return None;
        };
        let mut texts = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            match &node.value {
                Value::Scalar { text, .. } => texts.push(text.clone()),
                _ => self.mismatch(&format!("{}[{number}]", fields.path_of(name)), node, "a text"),
            }
        }
        Some(texts)
    }

    fn pairs(&mut self, fields: &Fields<'_>, name: &str) -> Vec<(String, String, At)> {
        let Some(entry) = fields.find(name) else { return Vec::new() };
        let path = fields.path_of(name);
        let Value::Map(entries) = &entry.node.value else {
            self.mismatch(&path, &entry.node, "a map");
            return Vec::new();
        };
        let mut pairs: Vec<(String, String, At)> = Vec::new();
        for entry in entries {
            let (Entry { key, at, node }, here) = (entry, format!("{path}.{}", entry.key));
            match &node.value {
                _ if pairs.iter().any(|(earlier, ..)| earlier == key) => self.double(here, entry),
                Value::Scalar { text, .. } if !text.is_empty() => {
                    pairs.push((key.clone(), text.clone(), *at))
                }
                _ => self.mismatch(&here, node, "a text"),
            }
        }
        pairs
    }

    fn flag(&mut self, fields: &Fields<'_>, name: &str) -> Option<bool> {
        let entry = fields.find(name)?;
        match &entry.node.value {
            Value::Scalar { text, quoted: false } if text == "true" => Some(true),
            Value::Scalar { text, quoted: false } if text == "false" => Some(false),
            _ => {
                self.wrong(fields, entry, "is neither true nor false");
                None
            }
        }
    }

    fn choice(&mut self, fields: &Fields<'_>, name: &str) -> Option<&'static str> {
        let entry = fields.find(name)?;
        let Some(Kind::Choice(words)) = fields.table.key(name).map(|key| key.kind) else { return None };
        if let Value::Scalar { text, .. } = &entry.node.value
            && let Some(word) = words.iter().find(|word| *word == text)
        {
            return Some(word);
        }
        self.wrong(fields, entry, &format!("is not one of: {}", words.join(", ")));
        None
    }

    fn number(&mut self, fields: &Fields<'_>, name: &str) -> Option<u64> {
        let entry = fields.find(name)?;
        let Some(Kind::Number(least, most)) = fields.table.key(name).map(|key| key.kind) else { return None };
        if let Value::Scalar { text, quoted: false } = &entry.node.value
            && let Some(number) = text.parse().ok().filter(|number| (least..=most).contains(number))
        {
            return Some(number);
        }
        let range = if least == most {
            format!("is not {least}")
        } else {
            format!("is not a number from {least} to {most}")
        };
        self.wrong(fields, entry, &range);
        None
    }

    fn priority(&mut self, fields: &Fields<'_>) -> Option<i32> {
        let entry = fields.find("priority")?;
        let number = match &entry.node.value {
            Value::Scalar { text, quoted: false } => text.parse().ok(),
            _ => None,
        };
        if number.is_none() {
            self.wrong(fields, entry, "is not a whole number");
        }
        number
    }

    fn size(&mut self, fields: &Fields<'_>, name: &str) -> Option<u64> {
        let entry = fields.find(name)?;
        let Some(Kind::Size(least, most)) = fields.table.key(name).map(|key| key.kind) else { return None };
        let size = match &entry.node.value {
            Value::Scalar { text, .. } => text.parse::<Bytes>().ok(),
            _ => None,
        };
        let fits = size.filter(|size| (least..=most).contains(&size.0));
        if fits.is_none() {
            let range = format!("is not a size from {} to {}, such as 16MiB", Bytes(least), Bytes(most));
            self.wrong(fields, entry, &range);
        }
        fits.map(|size| size.0)
    }

    fn duration(&mut self, fields: &Fields<'_>, name: &str) -> Option<Duration> {
        let entry = fields.find(name)?;
        let duration = match &entry.node.value {
            Value::Scalar { text, .. } => units::time(text).ok(),
            _ => None,
        };
        if duration.is_none() {
            self.wrong(fields, entry, "is not a time such as 500ms, 90s, 5m or 2h");
        }
        duration
    }

    /// `path: 'value' <what>`.
    fn wrong(&mut self, fields: &Fields<'_>, entry: &Entry, what: &str) {
        let shown = match &entry.node.value {
            Value::Scalar { text, .. } => format!("'{text}'"),
            _ => entry.node.describe().to_string(),
        };
        self.problems
            .push(Problem::error(fields.path_of(&entry.key), format!("{shown} {what}")).at(entry.node.at));
    }

    fn double(&mut self, path: String, entry: &Entry) {
        let text = format!("'{}' is there twice", entry.key);
        self.problems.push(Problem::error(path, text).at(entry.at));
    }

    fn mismatch(&mut self, path: &str, node: &Node, wanted: &str) {
        self.problems.push(
            Problem::error(path, format!("{} is here where {wanted} belongs", node.describe())).at(node.at),
        );
    }
}

/// Host and port of `host`, `host:port`, `[v6]:port`, or an https URL.
fn parse_endpoint(text: &str) -> Option<Endpoint> {
    let rest = text.strip_prefix("https://").unwrap_or(text);
    let rest = rest.strip_suffix("/sdk").unwrap_or(rest).trim_end_matches('/');
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':')?)),
        None => match rest.split_once(':') {
            Some((_, port)) if port.contains(':') => (rest, None),
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    let port = port.map_or(Some(443), |port| port.parse().ok().filter(|port| *port > 0))?;
    let fits = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?#[]".contains(c));
    fits.then(|| Endpoint { host: host.to_string(), port })
}

mod hooks;

mod target;

mod via;

mod warm;

mod waves;

pub use waves::WAVES_MAX;
pub(crate) use waves::{in_no_wave, in_two_waves};

mod nfc;

mod proxy;

mod vddk;

#[cfg(test)]
mod tests;
