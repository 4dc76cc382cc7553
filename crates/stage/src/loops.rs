use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A loop device over a file, gone when dropped.
pub struct Loop {
    pub device: String,
    pub file: PathBuf,
}

impl Loop {
    /// `None`, after a printed line, where there are none.
    pub fn over(file: &Path) -> Option<Loop> {
        let output = ran("losetup", &["--find", "--show", file.to_str().unwrap()]);
        match output.filter(|output| output.status.success()) {
            Some(output) => {
                let device = String::from_utf8(output.stdout).unwrap().trim().to_string();
                Some(Loop { device, file: file.to_path_buf() })
            }
            None => {
                println!("skipped: no loop devices here");
                None
            }
        }
    }

    pub fn blank(folder: &Path, name: &str, bytes: u64) -> Option<Loop> {
        let file = folder.join(name);
        std::fs::File::create(&file).unwrap().set_len(bytes).unwrap();
        Loop::over(&file)
    }

    pub fn starts_with(&self, source: &Path) -> bool {
        let (device, source) = (std::fs::read(&self.device).unwrap(), std::fs::read(source).unwrap());
        device[..source.len()] == source
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        ran("losetup", &["--detach", &self.device]);
    }
}

/// What a program said, if it is there.
pub fn ran(program: &str, args: &[&str]) -> Option<Output> {
    Command::new(program).args(args).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().ok()
}
