//! The real virt-v2v-in-place for tests (`scripts/get-v2v`), and a disk that it takes for Windows.
//!
//! The disk is all of our own: an NTFS with two registry hives and a program of 64 bits. No Windows boots from it; what a
//! conversion writes into its registry is what it writes into any.
//!
//! ```text
//! hive   0 "regf", sequence numbers at 4 and 8 (equal), version 1.3 at 20 and 24, offset of the root key at 36, bytes of the
//!        rest at 40, sum of the first 127 words at 508
//!        4096 "hbin", its size at 8; then cells, each behind its size (negative: in use): the root key "nk", its security
//!        "sk", and one free cell for the rest
//! ```
//!
//! Source of the layout: hivex `lib/hivex-internal.h`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use crate::lab_folder;

/// The converter of the lab.
#[derive(Clone, Debug)]
pub struct V2v {
    folder: PathBuf,
}

impl V2v {
    /// The one that `make lab` made; `None`, after a printed line, without it.
    ///
    /// # Errors
    /// Without it where `DROVER_NEEDS_V2V` is set.
    pub fn find() -> Result<Option<V2v>> {
        let folder = lab_folder().join("v2v");
        if folder.join("bin/virt-v2v-in-place").is_file() {
            return Ok(Some(V2v { folder: folder.canonicalize()? }));
        }
        ensure!(std::env::var_os("DROVER_NEEDS_V2V").is_none(), "DROVER_NEEDS_V2V is set, and there is none");
        println!("skipped: no virt-v2v-in-place (`scripts/get-v2v target/lab/v2v`, as root)");
        Ok(None)
    }

    /// The folder of its program, for `PATH`.
    pub fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// The folder that has `rhsrvany.exe`.
    pub fn services(&self) -> PathBuf {
        self.folder.join("root/usr/share/virt-tools")
    }

    /// Runs a program of its Debian, which sees `/tmp` of this machine.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(&self, words: &[&str]) -> Result<Vec<u8>> {
        succeed(Command::new(self.bin().join("run")).args(words))
    }

    /// What a hive has below a key, as `hivexregedit` writes it.
    ///
    /// # Errors
    /// If there is no such key.
    pub fn key(&self, hive: &Path, key: &str) -> Result<String> {
        let text = self.run(&[
            "hivexregedit",
            "--unsafe-printable-strings",
            "--export",
            &hive.to_string_lossy(),
            key,
        ])?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Makes a disk of 1 GiB that virt-v2v takes for a Windows 10, below `/tmp`.
///
/// # Errors
/// If a program that it takes is missing or fails.
pub fn make_windows(v2v: &V2v, disk: &Path) -> Result<()> {
    let work = tempfile_folder(disk)?;
    for (name, registry) in [("SOFTWARE", SOFTWARE), ("SYSTEM", SYSTEM)] {
        let (hive, text) = (work.join(name), work.join(format!("{name}.reg")));
        fs::write(&hive, empty_hive())?;
        fs::write(&text, with_parents(registry))?;
        let prefix = format!("HKEY_LOCAL_MACHINE\\{name}");
        let (hive, text) = (hive.to_string_lossy(), text.to_string_lossy());
        v2v.run(&["hivexregedit", "--merge", "--prefix", &prefix, &hive, &text])?;
    }
    let part = work.join("part");
    fs::File::create(&part)?.set_len(PART_BYTES)?;
    succeed(Command::new("mkntfs").args(["-F", "-Q", "-q", "-p", "2048", "-L", "System"]).arg(&part))?;
    let mounted = Mounted::new(&part, &work.join("mounted"))?;
    let put = |path: &str, from: &Path| -> Result<()> {
        let path = mounted.0.join(path);
        fs::create_dir_all(path.parent().context("it is in a folder")?)?;
        fs::copy(from, &path).with_context(|| format!("{} to {}", from.display(), path.display()))?;
        Ok(())
    };
    put("Windows/System32/config/SOFTWARE", &work.join("SOFTWARE"))?;
    put("Windows/System32/config/SYSTEM", &work.join("SYSTEM"))?;
    put("Windows/System32/cmd.exe", Path::new(A_PROGRAM))?;
    for folder in ["Windows/System32/drivers", "Windows/inf", "Windows/Temp", "Program Files"] {
        fs::create_dir_all(mounted.0.join(folder))?;
    }
    fs::write(mounted.0.join("autoexec.bat"), "")?;
    drop(mounted);
    fs::File::create(disk)?.set_len(PART_BYTES + 2 * START)?;
    let script = "label: dos\nstart=1MiB size=1022MiB type=7 bootable\n";
    let table = format!("printf '{script}' | sfdisk -q --no-reread --no-tell-kernel '{}'", disk.display());
    succeed(Command::new("sh").args(["-c", &table]))?;
    copy(&part, disk, 0, START)?;
    fs::remove_dir_all(work)?;
    Ok(())
}

/// A registry text in which each key comes after those that it lies in, as `hivexregedit` wants it.
fn with_parents(registry: &str) -> String {
    let (mut text, mut known) = (String::new(), std::collections::BTreeSet::new());
    for line in registry.lines() {
        if let Some(key) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // The hive itself is named by the first two parts.
            let ends = key.match_indices('\\').map(|(at, _)| at).skip(2);
            for end in ends {
                if known.insert(&key[..end]) {
                    text += &format!("[{}]\n\n", &key[..end]);
                }
            }
            known.insert(key);
        }
        text += &format!("{line}\n");
    }
    text
}

/// A file of the Windows on a disk.
///
/// # Errors
/// If there is no such file.
pub fn windows_file(disk: &Path, path: &str) -> Result<Vec<u8>> {
    of_windows(disk, |part| succeed(Command::new("ntfscat").arg(part).arg(path)))
}

/// What a folder of it holds.
///
/// # Errors
/// If there is no such folder.
pub fn windows_folder(disk: &Path, path: &str) -> Result<Vec<String>> {
    let names = of_windows(disk, |part| succeed(Command::new("ntfsls").args(["-p", path]).arg(part)))?;
    Ok(String::from_utf8_lossy(&names).lines().map(str::to_string).collect())
}

fn of_windows(disk: &Path, look: impl FnOnce(&Path) -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let work = tempfile_folder(disk)?;
    let part = work.join("part");
    fs::File::create(&part)?.set_len(PART_BYTES)?;
    copy(disk, &part, START, 0)?;
    let content = look(&part);
    fs::remove_dir_all(work)?;
    content
}

/// A folder that looks like virtio-win, with these drivers for Windows 10 (`viostor`) or another system and machine
/// (`viostor/w7`, `viostor/w10/x86`).
///
/// # Errors
/// If it cannot be written.
pub fn make_virtio_win(folder: &Path, drivers: &[&str]) -> Result<()> {
    for driver in drivers {
        let mut parts = driver.split('/');
        let mut next = |usual| parts.next().unwrap_or(usual);
        let (name, system, machine) = (next(driver), next("w10"), next("amd64"));
        let at = folder.join(name).join(system).join(machine);
        fs::create_dir_all(&at)?;
        for ending in ["sys", "inf", "cat"] {
            fs::write(at.join(format!("{}.{ending}", name.to_lowercase())), format!("{name} of the lab"))?;
        }
    }
    Ok(())
}

fn succeed(command: &mut Command) -> Result<Vec<u8>> {
    let Output { status, stdout, stderr } = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    Ok(stdout)
}

fn tempfile_folder(beside: &Path) -> Result<PathBuf> {
    let folder = beside.with_extension("work");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Copies the partition, but its holes.
fn copy(from: &Path, to: &Path, from_offset: u64, to_offset: u64) -> Result<()> {
    let mib = |bytes: u64| (bytes >> 20).to_string();
    let mut dd = Command::new("dd");
    dd.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    dd.args(["bs=1M", "conv=sparse,notrunc", "status=none"]);
    dd.arg(format!("skip={}", mib(from_offset))).arg(format!("seek={}", mib(to_offset)));
    dd.arg(format!("count={}", mib(PART_BYTES)));
    succeed(&mut dd).map(drop)
}

/// An NTFS that is mounted until this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(part: &Path, at: &Path) -> Result<Mounted> {
        fs::create_dir_all(at)?;
        succeed(Command::new("ntfs-3g").arg(part).arg(at))?;
        Ok(Mounted(at.to_path_buf()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A hive without keys.
fn empty_hive() -> Vec<u8> {
    let mut hive = vec![0u8; 8192];
    let root = cell_of_root();
    let sk_at = 32 + root.len() as u32;
    let sk = cell_of_security(sk_at);
    let put = |hive: &mut Vec<u8>, at: usize, bytes: &[u8]| hive[at..at + bytes.len()].copy_from_slice(bytes);
    put(&mut hive, 0, b"regf");
    for (at, value) in [(4, 1u32), (8, 1), (20, 1), (24, 3), (32, 1), (36, 32), (40, 4096), (44, 1)] {
        put(&mut hive, at, &value.to_le_bytes());
    }
    put(&mut hive, 4096, b"hbin");
    put(&mut hive, 4096 + 8, &4096u32.to_le_bytes());
    let mut root = root;
    // The key's security lies behind it.
    root[4 + 44..4 + 48].copy_from_slice(&sk_at.to_le_bytes());
    put(&mut hive, 4096 + 32, &root);
    put(&mut hive, 4096 + sk_at as usize, &sk);
    let free_at = sk_at as usize + sk.len();
    put(&mut hive, 4096 + free_at, &((4096 - free_at) as i32).to_le_bytes());
    let sum = hive[..508]
        .chunks_exact(4)
        .fold(0u32, |sum, word| sum ^ u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    put(&mut hive, 508, &sum.to_le_bytes());
    hive
}

fn cell(mut content: Vec<u8>) -> Vec<u8> {
    content.resize((content.len() + 4).next_multiple_of(8) - 4, 0);
    let size = -((content.len() + 4) as i32);
    [size.to_le_bytes().to_vec(), content].concat()
}

fn cell_of_root() -> Vec<u8> {
    const NAME: &[u8] = b"ROOT";
    const NONE: [u8; 4] = [0xff; 4];
    let mut key = vec![0; 76];
    key[..2].copy_from_slice(b"nk");
    // The root of a hive, not to be removed, with a name in ASCII.
    key[2] = 0x2c;
    for at in [28, 32, 40, 48] {
        key[at..at + 4].copy_from_slice(&NONE);
    }
    key[72] = NAME.len() as u8;
    key.extend(NAME);
    cell(key)
}

fn cell_of_security(at: u32) -> Vec<u8> {
    let mut security = vec![0; 40];
    security[..2].copy_from_slice(b"sk");
    for place in [4, 8] {
        security[place..place + 4].copy_from_slice(&at.to_le_bytes());
    }
    security[12] = 1;
    security[16] = 20;
    // A descriptor of revision 1 that refers to itself and names nobody.
    security[20] = 1;
    security[23] = 0x80;
    cell(security)
}

const START: u64 = 1 << 20;
const PART_BYTES: u64 = 1022 << 20;
/// Any program of 64 bits in the format of Windows: its kind is looked at, and it never runs.
const A_PROGRAM: &str = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub";

const SOFTWARE: &str = r#"Windows Registry Editor Version 5.00

[HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\Windows NT\CurrentVersion]
"ProductName"="Windows 10 Pro"
"CurrentVersion"="6.3"
"CurrentMajorVersionNumber"=dword:0000000a
"CurrentMinorVersionNumber"=dword:00000000
"CurrentBuildNumber"="19045"
"InstallationType"="Client"
"SystemRoot"="C:\\Windows"

[HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\Windows\CurrentVersion]
"DevicePath"=str(2):"%SystemRoot%\\inf"

[HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\Windows\CurrentVersion\RunOnce]

[HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\Windows\CurrentVersion\Uninstall\VMwareTools]
"DisplayName"="VMware Tools"
"Publisher"="VMware, Inc."
"UninstallString"="MsiExec.exe /I{00000000-0000-0000-0000-000000000000}"
"#;

const SYSTEM: &str = r#"Windows Registry Editor Version 5.00

[HKEY_LOCAL_MACHINE\SYSTEM\Select]
"Current"=dword:00000001
"Default"=dword:00000001

[HKEY_LOCAL_MACHINE\SYSTEM\MountedDevices]

[HKEY_LOCAL_MACHINE\SYSTEM\ControlSet001\Control\CriticalDeviceDatabase]

[HKEY_LOCAL_MACHINE\SYSTEM\ControlSet001\Control\Class]

[HKEY_LOCAL_MACHINE\SYSTEM\ControlSet001\Control\Session Manager\Environment]

[HKEY_LOCAL_MACHINE\SYSTEM\ControlSet001\Enum]

[HKEY_LOCAL_MACHINE\SYSTEM\ControlSet001\Services\Tcpip\Parameters]
"Hostname"="win01"
"#;
