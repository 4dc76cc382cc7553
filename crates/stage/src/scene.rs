//! A guest here, and a QEMU that waits for it at another site, with an agent between them.

use std::process::{Child, Command};
use std::time::Duration;

use drover_lab::{Output, Pulse, PulseOptions};
use drover_qemu::Qmp;
use serde_json::Value;

use crate::line::Line;
use crate::moves::{self, is_sending};
use crate::sites::Sites;

pub const PATIENCE: Duration = Duration::from_secs(120);

/// A guest that beats here, and a QEMU that waits for it at a site, behind a line that can be cut.
pub struct Scene {
    pub source: Pulse,
    pub target: Pulse,
    pub sites: Sites,
    pub line: Line,
}

impl Scene {
    pub fn new(options: &PulseOptions) -> Option<Scene> {
        Scene::allowing(options, options, "b/*")
    }

    pub fn allowing(here: &PulseOptions, there: &PulseOptions, allowed: &str) -> Option<Scene> {
        Pulse::qemu()?;
        let mut sites = Sites::not_started();
        let source = Pulse::start(&sites.path("a"), here).unwrap();
        let target = Pulse::waiting(&sites.path("b"), there).unwrap();
        source.beat(3).unwrap();
        let allowed = format!("unix:{}", sites.path(allowed).display());
        sites.more = vec!["--allow-connect".to_string(), allowed];
        sites.start();
        let line = Line::to(&sites.address);
        sites.pair_at(&line.address);
        Some(Scene { source, target, sites, line })
    }

    pub fn command(&self, more: &[&str]) -> Command {
        let mut command = self.sites.here.command(&["live"]);
        command
            .arg(self.source.monitor())
            .args(["--via", "site-b", "--to"])
            .arg(self.target.monitor())
            .arg("--json")
            .args(more);
        command
    }

    pub fn live(&self, more: &[&str]) -> Output {
        moves::run(self.command(more))
    }

    pub fn spawn(&self, more: &[&str]) -> Child {
        moves::spawn(self.command(more), &self.sites.path("out"))
    }

    /// Waits until drover has told such an event.
    pub fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        let told = self.sites.path("out");
        assert!(
            moves::is_told(&told, is_it),
            "{what}: it was never told: {}",
            std::fs::read_to_string(&told).unwrap()
        );
    }

    pub fn wait_until_sending(&self) {
        self.wait_for("memory is sent", is_sending);
    }

    pub fn ended(&self, child: Child) -> Output {
        moves::ended(child, &self.sites.path("out"))
    }

    /// How the move stands by the source's word.
    pub fn source_says(&self) -> String {
        let mut qmp = Qmp::connect(&self.source.monitor(), PATIENCE).unwrap();
        let told = qmp.execute("query-migrate", Value::Null).unwrap();
        told["status"].as_str().unwrap_or("none").to_string()
    }

    #[track_caller]
    pub fn has_moved(&mut self, output: &Output) -> Value {
        moves::has_moved(&mut self.source, &mut self.target, output);
        let moved = moves::moved(output);
        assert_eq!(moved["link"]["site"], "site-b");
        moves::went_over_the_link(&moved);
        moved
    }

    #[track_caller]
    pub fn has_stayed(&mut self) {
        moves::has_stayed(&mut self.source, &self.target);
    }
}
