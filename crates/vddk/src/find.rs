//! Where VDDK's library, nbdkit and its plugin are, and whether they fit together.

use std::fs;
use std::path::{Path, PathBuf};

use crate::child;
use crate::error::{VddkError, VddkErrorKind};
use drover_child::Kind;

/// Releases of the library that plugins look for, the newest first.
const LIBRARY_MAJORS: &[u32] = &[9, 8, 7, 6];
/// A folder has far fewer files beside the library.
const FILES_MAX: usize = 10_000;

/// A library and a plugin that were found. Whether they work together is told by [`Installation::versions`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// VDDK's folder, absolute.
    pub libdir: PathBuf,
    /// The library in it.
    pub library: PathBuf,
    /// Version by the library's file name (`8.0.2`).
    pub library_version: String,
    /// nbdkit's plugin, absolute.
    pub plugin: PathBuf,
}

/// Versions of what reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// nbdkit (`1.42.3`).
    pub nbdkit: String,
    /// Its plugin.
    pub plugin: String,
    /// The library, by its file name.
    pub library: String,
    /// Transport modes that the library names, where the plugin asks for them.
    pub transports: String,
}

impl Installation {
    /// Looks for both. Without a plugin the installed one is taken.
    ///
    /// # Errors
    /// With what is missing and where it can be had.
    pub fn find(libdir: &Path, plugin: Option<&Path>) -> Result<Installation, VddkError> {
        let libdir = std::path::absolute(libdir).map_err(|error| no_library(libdir, &error.to_string()))?;
        let library = library(&libdir)?;
        let real = library.canonicalize().map_err(|error| no_library(&libdir, &error.to_string()))?;
        let plugin = match plugin {
            Some(plugin) => std::path::absolute(plugin).unwrap_or_else(|_| plugin.to_path_buf()),
            None => installed_plugin()?,
        };
        if !plugin.is_file() {
            let what = format!("there is no nbdkit plugin {}", plugin.display());
            return Err(VddkError::new(VddkErrorKind::Missing, what).advise(PLUGIN_ADVICE));
        }
        Ok(Installation { library_version: version_of(&real), libdir, library, plugin })
    }

    /// Loads the library into nbdkit and asks for versions.
    ///
    /// # Errors
    /// When nbdkit is not there or the library cannot be loaded.
    pub fn versions(&self) -> Result<Versions, VddkError> {
        let mut libdir = std::ffi::OsString::from("libdir=");
        libdir.push(&self.libdir);
        let told = child::ask(
            drover_child::command("nbdkit", Kind::Plain).arg(&self.plugin).arg(libdir).arg("--dump-plugin"),
        )?;
        let version = child::ask(drover_child::command("nbdkit", Kind::Plain).arg("--version"))?;
        let value = |key: &str| told.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        if value("vddk_library_version").is_none() {
            let what =
                format!("nbdkit's plugin {} cannot load {}", self.plugin.display(), self.library.display());
            return Err(VddkError::new(VddkErrorKind::Missing, what).advise(
                "a plugin before 1.44 knows VDDK 6 to 8; VDDK 9 needs a newer nbdkit-plugin-vddk, and VDDK 8.0.2 and later need a \
                 system as new as RHEL 9",
            ));
        }
        Ok(Versions {
            nbdkit: version.split_whitespace().nth(1).unwrap_or("unknown").to_string(),
            plugin: value("version").unwrap_or("unknown").to_string(),
            library: self.library_version.clone(),
            transports: value("vddk_transport_modes").unwrap_or_default().to_string(),
        })
    }
}

const PLUGIN_ADVICE: &str = "install nbdkit and its vddk plugin (Debian 13 and Ubuntu 25.04: nbdkit-plugin-vddk, in contrib or universe; \
                             Fedora, RHEL: nbdkit-vddk-plugin), or name the file with `plugin`";

/// `lib64/libvixDiskLib.so.N`, the newest there is.
fn library(libdir: &Path) -> Result<PathBuf, VddkError> {
    let folder = libdir.join("lib64");
    let names = LIBRARY_MAJORS.iter().map(|major| folder.join(format!("libvixDiskLib.so.{major}")));
    names.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let found = fs::read_dir(&folder).map_or(0, |entries| entries.take(FILES_MAX).count());
        no_library(libdir, &format!("lib64 has {found} files and no libvixDiskLib.so.6 to .9"))
    })
}

fn no_library(libdir: &Path, why: &str) -> VddkError {
    let what = format!("no VDDK in {}: {why}", libdir.display());
    VddkError::new(VddkErrorKind::Missing, what).advise(
        "VDDK is VMware's own and is got from Broadcom's developer portal with a login; unpack it and name the folder \
         vmware-vix-disklib-distrib",
    )
}

fn installed_plugin() -> Result<PathBuf, VddkError> {
    let told = child::ask(drover_child::command("nbdkit", Kind::Plain).arg("--dump-config"))?;
    let folder = told.lines().find_map(|line| line.strip_prefix("plugindir="));
    let folder = folder.ok_or_else(|| {
        VddkError::new(VddkErrorKind::Missing, "nbdkit does not tell where its plugins are")
            .advise(PLUGIN_ADVICE)
    })?;
    Ok(Path::new(folder).join("nbdkit-vddk-plugin.so"))
}

/// `libvixDiskLib.so.8.0.2` is 8.0.2.
fn version_of(library: &Path) -> String {
    let name = library.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.split_once(".so.").map_or(String::new(), |(_, version)| version.to_string())
}

/// Whether a release of VDDK reads a release of vSphere, if both are known: two major steps back and one ahead, where
/// the steps are 6.0, 6.5, 6.7, 7.0, 8.0 and 9.0. VMware's release notes say so ("N-2 and N+1").
pub fn supported(library: &str, vsphere: &str) -> Option<bool> {
    const STEPS: &[(u32, u32)] = &[(6, 0), (6, 5), (6, 7), (7, 0), (8, 0), (9, 0)];
    let step = |text: &str| {
        let mut parts = text.split('.').map_while(|part| part.parse::<u32>().ok());
        let version = (parts.next()?, parts.next().unwrap_or(0));
        STEPS.iter().rposition(|step| *step <= version)
    };
    let (library, vsphere) = (step(library)?, step(vsphere)?);
    Some(vsphere + 2 >= library && vsphere <= library + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_reads_two_steps_back_and_one_ahead() {
        let reads = |library: &str, vsphere: &[&str]| -> Vec<bool> {
            vsphere.iter().map(|vsphere| supported(library, vsphere).unwrap()).collect()
        };
        assert_eq!(
            reads("8.0.2", &["6.5.0", "6.7.0", "7.0.3", "8.0.3", "9.0.0"]),
            [false, true, true, true, true]
        );
        assert_eq!(reads("9.0.0", &["6.7.0", "7.0.3", "8.0.2", "9.0.1"]), [false, true, true, true]);
        assert_eq!(reads("7.0.3", &["6.0.0", "6.5.0", "8.0.0", "9.0.0"]), [false, true, true, false]);
        assert_eq!((supported("", "8.0"), supported("8.0", "x")), (None, None));
    }

    #[test]
    fn a_folder_without_the_library_is_named_with_where_to_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = Installation::find(folder.path(), None).unwrap_err();
        assert_eq!(error.kind, VddkErrorKind::Missing);
        assert!(error.what.contains(&folder.path().display().to_string()), "{error}");
        assert!(error.advice.unwrap().contains("Broadcom"));
    }

    #[test]
    fn the_newest_library_is_taken_and_its_name_tells_the_version() {
        let folder = tempfile::tempdir().unwrap();
        let lib = folder.path().join("lib64");
        fs::create_dir(&lib).unwrap();
        for (file, link) in [
            ("libvixDiskLib.so.7.0.3", "libvixDiskLib.so.7"),
            ("libvixDiskLib.so.8.0.2", "libvixDiskLib.so.8"),
        ] {
            fs::write(lib.join(file), "").unwrap();
            std::os::unix::fs::symlink(file, lib.join(link)).unwrap();
        }
        let plugin = folder.path().join("plugin.so");
        fs::write(&plugin, "").unwrap();
        let found = Installation::find(folder.path(), Some(&plugin)).unwrap();
        assert_eq!((found.library_version.as_str(), found.plugin), ("8.0.2", plugin.clone()));
        let error = Installation::find(folder.path(), Some(&lib.join("no.so"))).unwrap_err();
        assert!(error.what.contains("no.so"), "{error}");
    }
}
