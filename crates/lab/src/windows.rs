//! Disks as those of Windows, made without mounting anything: an NTFS with the folders of Windows, and hives of its registry. No Windows
//! boots from them.
//!
//! ```text
//! hive   0 "regf", sequence numbers at 4 and 8 (equal), version 1.5 at 20 and 24, place of the root key at 36, bytes of the rest at
//!        40, sum of the first 127 words at 508
//!        4096 "hbin", its bytes at 8; from 32 on cells, each behind its size (negative: in use), the last one free
//! ```
//!
//! Source of the layout: hivex `lib/hivex-internal.h`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// What a Windows is by its registry, in the form that [`hive`] reads, and by its files.
#[derive(Clone, Debug)]
pub struct Windows {
    /// The hive SOFTWARE.
    pub software: String,
    /// The hive SYSTEM.
    pub system: String,
    /// Other files, in folders that are there: `Windows/System32/drivers`, `Windows/inf`, the root.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Windows {
    /// A Windows Server 2019 that knows only VMware's hardware, and has a fixed address.
    pub fn server() -> Windows {
        Windows { software: SOFTWARE.into(), system: SYSTEM.into(), files: Vec::new() }
    }

    /// With more in the hive SYSTEM.
    pub fn and_system(mut self, registry: &str) -> Windows {
        self.system += registry;
        self
    }

    /// With this driver of virtio, which starts at boot.
    pub fn and_driver(self, name: &str) -> Windows {
        let key = format!(
            "[ControlSet001\\Services\\{name}]\n\"Start\"=dword:00000000\n\"ImagePath\"=\"\\SystemRoot\\System32\\drivers\\{name}.sys\"\n"
        );
        self.and_system(&key).and_file(&format!("Windows/System32/drivers/{name}.sys"), b"MZ")
    }

    /// With one more file.
    pub fn and_file(mut self, path: &str, content: &[u8]) -> Windows {
        self.files.push((path.into(), content.to_vec()));
        self
    }

    /// Its file system, of [`PART_BYTES`]; `None`, after a printed line, without `ntfscp`.
    ///
    /// # Errors
    /// If a program fails.
    pub fn part(&self, work: &Path) -> Result<Option<Vec<u8>>> {
        let hives = [("SOFTWARE", &self.software), ("SYSTEM", &self.system)];
        let hives = hives.map(|(name, text)| (format!("Windows/System32/config/{name}"), hive(text)));
        let part = work.join("windows.part");
        fs::write(&part, ntfs()?)?;
        for (path, content) in hives.iter().chain(&self.files) {
            let from = work.join("windows.file");
            fs::write(&from, content)?;
            let mut copy = Command::new("ntfscp");
            copy.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH")?));
            let Ok(copied) = copy.args(["-q", "-f"]).arg(&part).arg(&from).arg(path).output() else {
                println!("skipped: no ntfscp (package ntfs-3g)");
                return Ok(None);
            };
            ensure!(copied.status.success(), "{copy:?}: {}", String::from_utf8_lossy(&copied.stderr));
        }
        Ok(Some(fs::read(&part)?))
    }
}

/// An NTFS with the folders of Windows and without its files; beside them a file in 300 pieces (`pieces`), one that is a hole for the most
/// part (`sparse`), and a folder of three levels (`many`). The script beside it made it.
///
/// # Errors
/// If it cannot be unpacked.
pub fn ntfs() -> Result<Vec<u8>> {
    let packed = workspace().join("crates/inspect/fixtures/ntfs-windows.gz");
    let unpacked = Command::new("gzip").arg("-dc").arg(&packed).output().context("gzip")?;
    ensure!(unpacked.stdout.len() as u64 == PART_BYTES, "{} is of another size", packed.display());
    Ok(unpacked.stdout)
}

/// Bytes of [`ntfs`].
pub const PART_BYTES: u64 = 30 << 20;

/// A hive of this registry: keys as `[A\B]` without the hive's own name, values as `"name"="text"`, `=dword:0000000a`, `=hex:00,50` or
/// `=multi:"one" "two"`.
pub fn hive(registry: &str) -> Vec<u8> {
    hive_with(registry, Lists { kind: *b"lh", keys_max: 400 })
}

/// The same with its lists of keys in another form.
pub fn hive_with(registry: &str, lists: Lists) -> Vec<u8> {
    let mut cells = Cells { bytes: vec![0; 32], lists, security: 0, keys: 0 };
    let security = cells.put(&security());
    cells.security = security;
    let root = cells.key("ROOT", &Node::of(registry), u32::MAX);
    let keys = cells.keys;
    cells.set(security, 12, &keys.to_le_bytes());
    for place in [4, 8] {
        cells.set(security, place, &security.to_le_bytes());
    }
    cells.hive(root)
}

/// How lists of keys are written.
#[derive(Clone, Copy, Debug)]
pub struct Lists {
    /// `lh`, `lf` or `li`.
    pub kind: [u8; 2],
    /// Keys of a list; of more there is a list of lists.
    pub keys_max: usize,
}

#[derive(Default)]
struct Node {
    name: String,
    /// By their names in capital letters.
    children: BTreeMap<String, Node>,
    values: Vec<(String, u32, Vec<u8>)>,
}

impl Node {
    fn of(registry: &str) -> Node {
        let mut root = Node::default();
        let mut path = Vec::new();
        for line in registry.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(key) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                path = key.split('\\').map(str::to_string).collect();
                root.below(&path);
                continue;
            }
            let (name, value) = line.split_once('=').expect("a value has a =");
            let (kind, data) = data(value);
            root.below(&path).values.push((name.trim_matches('"').into(), kind, data));
        }
        root
    }

    fn below(&mut self, path: &[String]) -> &mut Node {
        path.iter().fold(self, |node, name| {
            let new = || Node { name: name.clone(), ..Node::default() };
            node.children.entry(name.to_uppercase()).or_insert_with(new)
        })
    }
}

fn data(value: &str) -> (u32, Vec<u8>) {
    let utf16 =
        |text: &str| -> Vec<u8> { text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect() };
    if let Some(number) = value.strip_prefix("dword:") {
        (4, u32::from_str_radix(number, 16).expect("a number").to_le_bytes().to_vec())
    } else if let Some(bytes) = value.strip_prefix("hex:") {
        (3, bytes.split(',').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect())
    } else if let Some(texts) = value.strip_prefix("multi:") {
        let texts = texts.split('"').skip(1).step_by(2).flat_map(utf16);
        (7, texts.chain([0, 0]).collect())
    } else {
        (1, utf16(value.trim_matches('"')))
    }
}

/// Cells of a hive, behind the head of their bin.
struct Cells {
    bytes: Vec<u8>,
    lists: Lists,
    security: u32,
    keys: u32,
}

impl Cells {
    /// Adds a cell, and gives its place.
    fn put(&mut self, content: &[u8]) -> u32 {
        let at = self.bytes.len();
        let size = (content.len() + 4).next_multiple_of(8);
        self.bytes.extend((-(size as i32)).to_le_bytes());
        self.bytes.extend(content);
        self.bytes.resize(at + size, 0);
        at as u32
    }

    fn set(&mut self, cell: u32, offset: usize, bytes: &[u8]) {
        self.bytes[cell as usize + 4 + offset..][..bytes.len()].copy_from_slice(bytes);
    }

    fn key(&mut self, name: &str, node: &Node, parent: u32) -> u32 {
        self.keys += 1;
        let mut content = vec![0; 76];
        content.extend(name.as_bytes());
        let at = self.put(&content);
        let children: Vec<(&str, u32)> = node
            .children
            .values()
            .map(|child| (child.name.as_str(), self.key(&child.name, child, at)))
            .collect();
        let values: Vec<u32> = node.values.iter().map(|value| self.value(value)).collect();
        let value_list = (!values.is_empty())
            .then(|| self.put(&values.iter().flat_map(|place| place.to_le_bytes()).collect::<Vec<u8>>()));
        let list = (!children.is_empty()).then(|| self.list(&children));
        // The root of a hive, not to be removed; a name in ASCII.
        let flags: u16 = if parent == u32::MAX { 0x2c } else { 0x20 };
        self.set(at, 0, b"nk");
        self.set(at, 2, &flags.to_le_bytes());
        for (offset, word) in [
            (16, if parent == u32::MAX { 0 } else { parent }),
            (20, children.len() as u32),
            (28, list.unwrap_or(u32::MAX)),
            (32, u32::MAX),
            (36, values.len() as u32),
            (40, value_list.unwrap_or(u32::MAX)),
            (44, self.security),
            (48, u32::MAX),
            (72, name.len() as u32),
        ] {
            self.set(at, offset, &word.to_le_bytes());
        }
        at
    }

    fn list(&mut self, children: &[(&str, u32)]) -> u32 {
        let Lists { kind, keys_max } = self.lists;
        if children.len() > keys_max {
            let lists: Vec<u32> = children.chunks(keys_max).map(|some| self.list(some)).collect();
            let places = lists.iter().flat_map(|place| place.to_le_bytes());
            let head = [&b"ri"[..], &(lists.len() as u16).to_le_bytes()].concat();
            return self.put(&head.into_iter().chain(places).collect::<Vec<u8>>());
        }
        let mut list = [&kind[..], &(children.len() as u16).to_le_bytes()].concat();
        for (name, place) in children {
            list.extend(place.to_le_bytes());
            match &kind {
                b"lh" => {
                    let add = |sum: u32, byte: u8| {
                        sum.wrapping_mul(37).wrapping_add(byte.to_ascii_uppercase().into())
                    };
                    let sum = name.bytes().fold(0, add);
                    list.extend(sum.to_le_bytes());
                }
                b"lf" => list.extend((0..4).map(|at| name.as_bytes().get(at).copied().unwrap_or(0))),
                _ => {}
            }
        }
        self.put(&list)
    }

    fn value(&mut self, (name, kind, data): &(String, u32, Vec<u8>)) -> u32 {
        let (bytes, place) = match data.len() {
            length @ ..=4 => {
                let mut here = [0; 4];
                here[..length].copy_from_slice(data);
                (1 << 31 | length as u32, u32::from_le_bytes(here))
            }
            length => (length as u32, self.put(data)),
        };
        let mut content = [&b"vk"[..], &(name.len() as u16).to_le_bytes()].concat();
        for word in [bytes, place, *kind, 1] {
            content.extend(word.to_le_bytes());
        }
        content.extend(name.as_bytes());
        self.put(&content)
    }

    fn hive(mut self, root: u32) -> Vec<u8> {
        let used = self.bytes.len();
        self.bytes.resize((used + 8).next_multiple_of(4096), 0);
        let bytes = self.bytes.len();
        self.bytes[used..used + 4].copy_from_slice(&((bytes - used) as i32).to_le_bytes());
        self.bytes[..4].copy_from_slice(b"hbin");
        self.bytes[8..12].copy_from_slice(&(bytes as u32).to_le_bytes());
        let mut head = vec![0; 4096];
        head[..4].copy_from_slice(b"regf");
        for (at, word) in [(4, 1), (8, 1), (20, 1), (24, 5), (32, 1), (36, root), (40, bytes as u32), (44, 1)]
        {
            head[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
        }
        let sum = head[..508].as_chunks::<4>().0.iter().fold(0, |sum, word| sum ^ u32::from_le_bytes(*word));
        head[508..512].copy_from_slice(&sum.to_le_bytes());
        [head, self.bytes].concat()
    }
}

/// A descriptor of revision 1 that refers to itself and names nobody.
fn security() -> Vec<u8> {
    let mut security = vec![0; 40];
    security[..2].copy_from_slice(b"sk");
    security[16] = 20;
    security[20] = 1;
    security[23] = 0x80;
    security
}

const SOFTWARE: &str = r#"
[Microsoft\Windows NT\CurrentVersion]
"ProductName"="Windows Server 2019 Standard"
"CurrentBuildNumber"="17763"
"InstallationType"="Server"
"SystemRoot"="C:\Windows"
[Microsoft\Windows\CurrentVersion\Uninstall]
"#;

const SYSTEM: &str = r#"
[Select]
"Current"=dword:00000001
"Default"=dword:00000001
[ControlSet001\Control\ProductOptions]
"ProductType"="ServerNT"
[ControlSet001\Control\Session Manager\Environment]
"PROCESSOR_ARCHITECTURE"="AMD64"
[ControlSet001\Control\Network\{4D36E972-E325-11CE-BFC1-08002BE10318}\{0F1E2D3C-0000-0000-0000-000000000001}\Connection]
"Name"="Ethernet0"
[ControlSet001\Control\NetworkSetup2\Interfaces\{0F1E2D3C-0000-0000-0000-000000000001}\Kernel]
"PermanentAddress"=hex:00,50,56,aa,00,01
[ControlSet001\Services\LSI_SAS]
"Start"=dword:00000000
[ControlSet001\Services\pvscsi]
"Start"=dword:00000000
[ControlSet001\Services\VGAuthService]
"Start"=dword:00000002
[ControlSet001\Services\VMTools]
"Start"=dword:00000002
[ControlSet001\Services\Tcpip\Parameters\Interfaces\{0F1E2D3C-0000-0000-0000-000000000001}]
"EnableDHCP"=dword:00000000
"IPAddress"=multi:"192.0.2.7"
"SubnetMask"=multi:"255.255.255.0"
"DefaultGateway"=multi:"192.0.2.1"
"NameServer"="192.0.2.53,192.0.2.54"
[ControlSet001\Services\Tcpip\Parameters\Interfaces\{0F1E2D3C-0000-0000-0000-000000000002}]
"EnableDHCP"=dword:00000001
"DhcpIPAddress"="192.0.2.99"
"#;
