//! Which other files an image may name.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fault::{about, refused, unsupported};
use crate::open::OpenOptions;
use crate::source::FileSource;

/// Files that an image may name (backing files, extents, data files).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum References {
    /// None: whatever names another file is refused.
    None,
    /// Files in the folder of the image that was opened, or below it. Symbolic links count by
    /// where they lead. So an image from a stranger cannot have `/etc/shadow` read as its disk.
    #[default]
    SameFolder,
    /// Any file that this process may read. For images of one's own.
    Anywhere,
}

/// Files that one disk may consist of: 2 TB in pieces of 2 GB, and a usual limit of open files.
pub(crate) const FILES_MAX: usize = 1000;

/// Opens the files that an image names, under the rule.
pub(crate) struct Files {
    rule: References,
    /// The folder of the image that was opened.
    root: PathBuf,
    opened: usize,
    in_use: bool,
}

impl Files {
    /// # Errors
    /// When the image is in use, and that was not allowed.
    pub(crate) fn new(options: &OpenOptions, top: &FileSource) -> io::Result<Files> {
        if !options.in_use {
            top.check_no_writer()?;
        }
        let root = top.path().parent().unwrap_or(Path::new("/")).to_path_buf();
        let rule = match options.references {
            // The folder of a device holds all the host's disks.
            References::SameFolder if !top.is_regular() => References::None,
            rule => rule,
        };
        Ok(Files { rule, root, opened: 1, in_use: options.in_use })
    }

    /// For files that nothing but a folder names.
    pub(crate) fn below(rule: References, root: &Path) -> Files {
        Files { rule, root: root.to_path_buf(), opened: 0, in_use: false }
    }

    /// Opens what `name` means in an image that lies in `folder`.
    pub(crate) fn open(&mut self, what: &str, name: &str, folder: &Path) -> io::Result<Arc<FileSource>> {
        self.find(name, folder)
            .map(Arc::new)
            .map_err(|error| about(format!("{what} '{}'", shown(name)), error))
    }

    fn find(&mut self, name: &str, folder: &Path) -> io::Result<FileSource> {
        if self.rule == References::None {
            return Err(refused("an image opened this way may not name other files"));
        }
        if name.is_empty() || name.contains('\0') {
            return Err(unsupported("that is no file name"));
        }
        if has_scheme(name) {
            return Err(unsupported("only plain paths are followed, no URLs and no json:"));
        }
        if self.opened >= FILES_MAX {
            return Err(unsupported(format!("it consists of more than {FILES_MAX} files")));
        }
        let real = folder.join(name).canonicalize()?;
        self.check(&real)?;
        let source = FileSource::open(&real)?;
        // Once more, by where the open file is: a link may have been put there meanwhile.
        self.check(source.path())?;
        if !self.in_use {
            source.check_no_writer()?;
        }
        self.opened += 1;
        Ok(source)
    }

    fn check(&self, real: &Path) -> io::Result<()> {
        if self.rule == References::Anywhere || real.starts_with(&self.root) {
            return Ok(());
        }
        let root = self.root.display();
        Err(refused(format!(
            "it is {}, outside {root}; an image may only name files in its own folder or below, unless that is allowed",
            real.display()
        )))
    }
}

/// As QEMU tells a URL from a path: a colon before the first slash.
fn has_scheme(name: &str) -> bool {
    name.split('/').next().is_some_and(|first| first.contains(':'))
}

/// A name from an image, safe to print.
fn shown(name: &str) -> String {
    const SHOWN_MAX: usize = 200;
    name.chars().take(SHOWN_MAX).flat_map(char::escape_default).collect()
}
