//! A `drover serve` on a free port, with a token of an admin.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use drover_http::{Client, Request, Timeouts, Trust};
use drover_lab::{Drover, Output};
use serde_json::{Value, json};

/// Nothing waits longer than this for something that has to come.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Daemon {
    pub url: String,
    pub token: String,
    /// Plans that it went on with when it began.
    pub went_on: Value,
    drover: Drover,
    client: Client,
    child: Child,
}

impl Daemon {
    pub fn start(drover: &Drover) -> Daemon {
        Daemon::start_with(drover, &[])
    }

    pub fn start_with(drover: &Drover, more: &[&str]) -> Daemon {
        let name = format!("test-{}", drover_server::random_hex().unwrap().split_at(8).0);
        let token = drover
            .run(&["serve", "token", "add", &name, "--role", "admin", "--json"])
            .unwrap()
            .json()
            .unwrap();
        let token = token["token"].as_str().unwrap().to_string();
        let args = [&["serve", "--listen", "127.0.0.1:0", "--json"][..], more].concat();
        let mut command = drover.command(&args);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let url = told["url"].as_str().unwrap().to_string();
        let client = Client::new(url.parse().unwrap(), &Trust::System, Timeouts::default()).unwrap();
        Daemon { url, token, went_on: told["went_on"].clone(), drover: drover.clone(), client, child }
    }

    /// Runs a command with `--server`.
    pub fn run(&self, args: &[&str]) -> Output {
        let args = [args, &["--server", &self.url]].concat();
        let output = self
            .drover
            .command(&args)
            .env("DROVER_TOKEN", &self.token)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Output {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn get(&self, path: &str) -> Value {
        let text = self.text(path);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {path}: {text}"))
    }

    pub fn text(&self, path: &str) -> String {
        self.send(Request::get(path)).1
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(path, body.to_string());
        let (status, text) = self.send(request);
        (status, serde_json::from_str(&text).unwrap())
    }

    fn send(&self, request: Request) -> (u16, String) {
        let response = self
            .client
            .send(&request.with_header("Authorization", format!("Bearer {}", self.token)))
            .unwrap();
        (response.head.status, String::from_utf8(response.body).unwrap())
    }

    /// Hands a plan file in.
    pub fn submit(&self, path: &str) -> Value {
        let text = std::fs::read_to_string(path).unwrap();
        let (status, plan) = self.post("/v1/plans", &json!({ "text": text, "path": path }));
        assert_eq!(status, 202, "{plan}");
        plan
    }

    pub fn order(&self, plan: &str, order: &str) -> Value {
        let (status, ordered) = self.post(&format!("/v1/plans/{plan}/orders"), &json!({ "order": order }));
        assert_eq!(status, 200, "{order}: {ordered}");
        ordered
    }

    pub fn plan(&self, name: &str) -> Value {
        self.get(&format!("/v1/plans/{name}"))
    }

    /// Waits until a plan is in this state.
    pub fn wait(&self, plan: &str, state: &str) -> Value {
        self.wait_for(state, || Some(self.plan(plan)).filter(|plan| plan["state"] == state))
    }

    pub fn wait_for<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < until, "{what} did not come: {:#}", self.get("/v1/plans"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Bytes of memory that it has in use.
    pub fn resident_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// Ends it at once.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
