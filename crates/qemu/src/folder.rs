use std::path::{Path, PathBuf};

/// The folder that holds a machine's own files. Only names: nothing is made or read here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VmFolder(PathBuf);

impl VmFolder {
    /// The folder at an absolute path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        VmFolder(path.into())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Domain XML for libvirt.
    pub fn domain_xml(&self) -> PathBuf {
        self.0.join("domain.xml")
    }

    /// Script that runs the machine without libvirt.
    pub fn run_script(&self) -> PathBuf {
        self.0.join("run.sh")
    }

    /// The machine's own copy of the UEFI variables.
    pub fn nvram(&self) -> PathBuf {
        self.0.join("nvram.fd")
    }

    /// Socket of the QEMU monitor.
    pub fn qmp_socket(&self) -> PathBuf {
        self.0.join("qmp.sock")
    }

    /// Socket of the screen (VNC).
    pub fn vnc_socket(&self) -> PathBuf {
        self.0.join("vnc.sock")
    }

    /// What the guest wrote to its first serial port since the last start.
    pub fn serial_log(&self) -> PathBuf {
        self.0.join("serial.log")
    }

    /// What QEMU said.
    pub fn qemu_log(&self) -> PathBuf {
        self.0.join("qemu.log")
    }

    /// Process id of QEMU.
    pub fn pid_file(&self) -> PathBuf {
        self.0.join("qemu.pid")
    }
}
