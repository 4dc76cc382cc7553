use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A group of processes that get so much memory and no more: beyond it the kernel kills one of them.
pub struct MemoryGroup {
    folder: PathBuf,
    kind: Kind,
}

/// Which of the kernel's two interfaces the machine has.
#[derive(Clone, Copy)]
enum Kind {
    /// `memory.max`, `memory.events`.
    Two,
    /// `memory.limit_in_bytes`, `memory.oom_control`.
    One,
}

static MADE: AtomicU32 = AtomicU32::new(0);

impl MemoryGroup {
    /// `None`, after a printed line, where this user may make none.
    pub fn new(bytes: u64) -> Option<MemoryGroup> {
        let name = format!("drover-test-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let made = parents().into_iter().find_map(|(parent, kind)| {
            let folder = parent.join(&name);
            std::fs::create_dir(&folder).ok()?;
            let group = MemoryGroup { folder, kind };
            group.limit(bytes).ok()?;
            Some(group)
        });
        if made.is_none() {
            println!("skipped: no memory cgroup can be made here (needs root, or a delegated one)");
        }
        made
    }

    fn limit(&self, bytes: u64) -> std::io::Result<()> {
        let write = |file: &str| std::fs::write(self.folder.join(file), bytes.to_string());
        // Swap would only put the end off; not every kernel counts it.
        match self.kind {
            Kind::Two => {
                write("memory.max")?;
                let _ = std::fs::write(self.folder.join("memory.swap.max"), "0");
            }
            Kind::One => {
                write("memory.limit_in_bytes")?;
                let _ = write("memory.memsw.limit_in_bytes");
            }
        }
        Ok(())
    }

    /// A command that runs `command` in the group, the first to be killed there if `first_to_go`.
    pub fn around(&self, command: &Command, first_to_go: bool) -> Command {
        let score = if first_to_go { "echo 1000 >/proc/self/oom_score_adj && " } else { "" };
        let script = format!("{score}echo $$ >\"$0\" && exec \"$@\"");
        let mut within = Command::new("sh");
        within.args(["-c", &script]).arg(self.folder.join("cgroup.procs"));
        within.arg(command.get_program()).args(command.get_args());
        within.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        within
    }

    /// How many processes of the group the kernel has killed for want of memory.
    pub fn kills(&self) -> u64 {
        let file = match self.kind {
            Kind::Two => "memory.events",
            Kind::One => "memory.oom_control",
        };
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.unwrap_or_else(|| panic!("no oom_kill in {text}")).parse().unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Processes leave it some moments after they ended.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Where a group may be made: below the one this process is in, then at the top.
fn parents() -> Vec<(PathBuf, Kind)> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, kind) = match controllers {
            "" => ("/sys/fs/cgroup", Kind::Two),
            "memory" => ("/sys/fs/cgroup/memory", Kind::One),
            _ => continue,
        };
        let below = Path::new(root).join(path.trim_start_matches('/'));
        found.extend([below, PathBuf::from(root)].map(|folder| (folder, kind)));
    }
    let has_memory = |(folder, kind): &(PathBuf, Kind)| match kind {
        Kind::One => folder.is_dir(),
        Kind::Two => std::fs::read_to_string(folder.join("cgroup.subtree_control"))
            .is_ok_and(|list| list.split_whitespace().any(|name| name == "memory")),
    };
    found.into_iter().filter(has_memory).collect()
}
