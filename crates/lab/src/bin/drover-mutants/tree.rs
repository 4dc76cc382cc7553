//! A copy of the workspace, in which mutants are built.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use drover_lab::workspace;
use serde::Deserialize;

/// Set for building and running.
pub const ENVIRONMENT: [(&str, &str); 5] = [
    ("CARGO_PROFILE_DEV_DEBUG", "false"),
    ("CARGO_PROFILE_TEST_DEBUG", "false"),
    ("CARGO_TERM_COLOR", "never"),
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
    ("RUST_BACKTRACE", "0"),
];

pub struct Tree {
    package: String,
    place: PathBuf,
}

/// What came of building.
pub enum Built {
    /// The test program.
    Program(PathBuf),
    /// What the compiler says.
    Not(Vec<Message>),
}

/// A message of the compiler.
#[derive(Debug, Deserialize)]
pub struct Message {
    level: String,
    pub spans: Vec<MessageSpan>,
    #[serde(default)]
    pub rendered: String,
}

#[derive(Debug, Deserialize)]
pub struct MessageSpan {
    pub file_name: String,
    pub line_start: usize,
}

/// A line that cargo prints.
#[derive(Debug, Deserialize)]
struct Told {
    reason: String,
    executable: Option<PathBuf>,
    message: Option<Message>,
}

impl Tree {
    /// Brings the copy up to date with the workspace.
    pub fn new(package: &str) -> Result<Tree> {
        let place = workspace().join("target/mutants-together").join(package);
        let tree = Tree { package: package.to_string(), place };
        std::fs::create_dir_all(tree.work())?;
        let mut git = Command::new("git");
        let output = git.args(["ls-files", "-co", "--exclude-standard"]).current_dir(workspace()).output()?;
        if !output.status.success() {
            bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let names = String::from_utf8(output.stdout).context("names of files")?;
        // What was removed and is not committed yet is still listed.
        let names = names.lines().filter(|name| workspace().join(name).is_file());
        names.into_iter().try_for_each(|name| tree.restore(name))?;
        Ok(tree)
    }

    /// Where results and the copy lie.
    pub fn place(&self) -> &Path {
        &self.place
    }

    fn work(&self) -> PathBuf {
        self.place.join("tree")
    }

    /// The crate's folder in the workspace.
    fn folder(&self) -> String {
        format!("crates/{}", self.package.strip_prefix("drover-").unwrap_or(&self.package))
    }

    /// The file that the selector of mutants is added to.
    pub fn lib(&self) -> String {
        format!("{}/src/lib.rs", self.folder())
    }

    /// The crate's folder in the copy, in which its tests run.
    pub fn crate_folder(&self) -> PathBuf {
        self.work().join(self.folder())
    }

    /// Makes a file what it is in the workspace. One that is so already keeps its time.
    pub fn restore(&self, name: &str) -> Result<()> {
        let (source, copy) = (workspace().join(name), self.work().join(name));
        let wanted = std::fs::read(&source).with_context(|| source.display().to_string())?;
        if std::fs::read(&copy).is_ok_and(|there| there == wanted) {
            return Ok(());
        }
        let folder = copy.parent().context("a file without a folder")?;
        std::fs::create_dir_all(folder)?;
        std::fs::copy(&source, &copy).with_context(|| copy.display().to_string())?;
        // The program that a build before made is older than this.
        std::fs::File::open(&copy)?.set_modified(std::time::SystemTime::now())?;
        Ok(())
    }

    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.work().join(name);
        if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            return Ok(());
        }
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Builds the unit tests of the crate.
    pub fn build(&self) -> Result<Built> {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target = target.unwrap_or_else(|| workspace().join("target/mutants-together/target"));
        let output = Command::new("cargo")
            .args(["test", "--no-run", "--lib", "-p", &self.package, "--message-format", "json"])
            .current_dir(self.work())
            .envs(ENVIRONMENT)
            .env("CARGO_TARGET_DIR", target)
            .output()?;
        let lines = String::from_utf8_lossy(&output.stdout);
        let lines = lines.lines().filter(|line| line.starts_with('{'));
        let told =
            lines.map(serde_json::from_str).collect::<Result<Vec<Told>, _>>().context("what cargo says")?;
        if output.status.success() {
            let program = told.into_iter().filter_map(|it| it.executable).next_back();
            return Ok(Built::Program(program.context("cargo built no test program")?));
        }
        let messages =
            told.into_iter().filter(|it| it.reason == "compiler-message").filter_map(|it| it.message);
        let errors: Vec<Message> = messages.filter(|message| message.level == "error").collect();
        if errors.is_empty() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(Built::Not(errors))
    }
}
