//! A `drover serve` that plans are handed to.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use drover_http::{Client, Request, Timeouts, Trust};
use drover_lab::Drover;
use serde_json::{Value, json};

/// It ends with this program's use of it.
pub struct Daemon {
    client: Client,
    token: String,
    child: Child,
}

impl Daemon {
    pub fn start(drover: &Drover) -> Result<Daemon> {
        let added = drover.run(&["serve", "token", "add", "bench", "--role", "admin", "--json"])?.json()?;
        let token = added["token"].as_str().context("a token")?.to_string();
        let mut command = drover.command(&["serve", "--listen", "127.0.0.1:0", "--json"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("standard output is piped")?).read_line(&mut line)?;
        let told: Value = serde_json::from_str(&line)?;
        let url = told["url"].as_str().context("an address")?;
        let client = Client::new(url.parse()?, &Trust::System, Timeouts::default())?;
        Ok(Daemon { client, token, child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Hands a plan file in.
    pub fn submit(&self, path: &str) -> Result<()> {
        let body = json!({ "text": std::fs::read_to_string(path)?, "path": path }).to_string();
        let (status, text) = self.send(Request::post("/v1/plans", body))?;
        ensure!(status == 202, "{path}: {status} {text}");
        Ok(())
    }

    /// How many plans are in each of these states.
    pub fn count(&self, states: &[&str]) -> Result<usize> {
        let (status, text) = self.send(Request::get("/v1/plans"))?;
        ensure!(status == 200, "{status} {text}");
        let told: Value = serde_json::from_str(&text)?;
        let plans = told["items"].as_array().context("plans")?;
        let is_in = |plan: &&Value| states.iter().any(|state| plan["state"] == **state);
        Ok(plans.iter().filter(is_in).count())
    }

    fn send(&self, request: Request) -> Result<(u16, String)> {
        let request = request.with_header("Authorization", format!("Bearer {}", self.token));
        let response = self.client.send(&request)?;
        Ok((response.head.status, String::from_utf8(response.body)?))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
