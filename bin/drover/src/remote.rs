//! A daemon elsewhere, or here: `--server URL`.

use std::net::IpAddr;
use std::time::Duration;

use drover_engine::chain;
use drover_http::{Client, Endpoint, HttpError, HttpErrorKind, Request, Response, Timeouts, Trust};
use drover_server::{Problem, random_hex};
use drover_types::{Bytes, Secret};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cli::RunArgs;
use crate::exit::{Exit, Failure};
use crate::files::read_text;

/// JWTs with many groups are long.
const TOKEN_BYTES_MAX: u64 = 16 << 10;
const TOKEN_VARIABLE: &str = "DROVER_TOKEN";
/// A stream of events ends by itself before that.
const STREAM_TIME: Duration = Duration::from_secs(30 * 60);
/// Bytes of one event.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// A daemon, and the right to ask it.
pub struct Remote {
    client: Client,
    token: Secret,
    pub url: String,
    pub project: Option<String>,
}

/// The daemon that a command names, if it names one.
pub fn daemon(args: &RunArgs) -> Result<Option<Remote>, Failure> {
    let Some(url) = args.server.server.clone().filter(|url| !url.is_empty()) else { return Ok(None) };
    let wrong = |text: String| Failure::new(Exit::Usage, text);
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err(wrong(format!("--server {url}: it begins with https:// or http://")));
    }
    let endpoint: Endpoint =
        url.parse().map_err(|error: HttpError| wrong(format!("--server {url}: {}", chain(&error))))?;
    if !endpoint.https && !is_here(&endpoint) {
        return Err(wrong(format!("--server {url}: the token would go over the network in the clear"))
            .advise(
                "give the daemon a certificate (tls in its settings), or go through a tunnel to 127.0.0.1",
            ));
    }
    let trust = args.server.server_ca_file.clone().map_or(Trust::System, Trust::CaFile);
    let timeouts = Timeouts { answer: STREAM_TIME, ..Timeouts::default() };
    let client = Client::new(endpoint, &trust, timeouts).map_err(|error| unreachable(&url, &error))?;
    let (token, project) = (token(args)?, args.server.project.clone());
    Ok(Some(Remote { client, token, url: url.trim_end_matches('/').to_string(), project }))
}

/// Whether an endpoint is on this machine, so that nothing goes over a network.
pub fn is_here(endpoint: &Endpoint) -> bool {
    endpoint.host == "localhost" || endpoint.host.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
}

/// Refuses a command that daemons do not take.
pub fn is_absent(args: &RunArgs, advice: &str) -> Result<(), Failure> {
    match &args.server.server {
        Some(url) if !url.is_empty() => {
            Err(Failure::new(Exit::Usage, "a daemon does not take this command").advise(advice))
        }
        _ => Ok(()),
    }
}

fn token(args: &RunArgs) -> Result<Secret, Failure> {
    let failed = |why: String| {
        Failure::new(Exit::Usage, why).advise("make one with `drover serve token add NAME --role operator`")
    };
    let text = match &args.server.token_file {
        Some(path) => read_text(path, TOKEN_BYTES_MAX)
            .map_err(|error| failed(format!("token file {}: {error}", path.display())))?,
        None => std::env::var(TOKEN_VARIABLE).map_err(|_| {
            failed(format!("no token: neither --token-file nor the variable {TOKEN_VARIABLE} is given"))
        })?,
    };
    Ok(Secret::new(text.trim()))
}

fn unreachable(url: &str, error: &HttpError) -> Failure {
    if let HttpErrorKind::TooLong(bytes) = error.kind {
        let text =
            format!("the daemon at {url}: its answer is larger than the {} that are read", Bytes(bytes));
        return Failure::new(Exit::Connection, text).advise(
            "run the command on the daemon's host, without --server; or ask for pages: GET /v1/plans/PLAN/vms?limit=1000",
        );
    }
    Failure::new(Exit::Connection, format!("the daemon at {url}: {}", chain(error)))
        .advise("look whether `drover serve` runs there")
}

/// A problem of the daemon's, as a command tells it.
fn failure(problem: Problem) -> Failure {
    let exit = Exit::of_code(problem.exit);
    Failure { exit, message: problem.detail, advice: problem.advice }
}

impl Remote {
    fn request(&self, request: Request) -> Request {
        request.with_header("Authorization", format!("Bearer {}", self.token.reveal()))
    }

    fn send(&self, request: Request) -> Result<Response, Failure> {
        let response =
            self.client.send(&self.request(request)).map_err(|error| unreachable(&self.url, &error))?;
        if (200..300).contains(&response.head.status) {
            return Ok(response);
        }
        Err(self.refused(response.head.status, &response.body))
    }

    fn refused(&self, status: u16, body: &[u8]) -> Failure {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => {
                let problems: Vec<drover_plan::Problem> = problem
                    .problems
                    .iter()
                    .filter_map(|it| serde_json::from_value(it.clone()).ok())
                    .collect();
                crate::out::problems(std::path::Path::new("plan"), &problems);
                failure(problem)
            }
            Err(_) => Failure::new(
                Exit::Connection,
                format!("the daemon at {} answered with status {status}", self.url),
            )
            .advise("look whether that is a drover"),
        }
    }

    fn parse<T: DeserializeOwned>(&self, response: &Response) -> Result<T, Failure> {
        serde_json::from_slice(&response.body).map_err(|error| {
            Failure::new(
                Exit::Connection,
                format!("the daemon at {} gave an answer that makes no sense: {error}", self.url),
            )
        })
    }

    /// Asks for JSON.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.parse(&self.send(Request::get(path))?)
    }

    /// Asks for a text.
    pub fn text(&self, path: &str) -> Result<String, Failure> {
        Ok(String::from_utf8_lossy(&self.send(Request::get(path))?.body).into_owned())
    }

    /// Orders something, once.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).unwrap_or_default();
        let request = Request::post(path, body).with_header("Content-Type", "application/json");
        let key = random_hex().ok_or_else(|| Failure::new(Exit::Internal, "no random bytes can be had"))?;
        self.parse(&self.send(request.with_header("Idempotency-Key", &key[..32]))?)
    }

    /// Watches what happens, until `event` (name and data) says that it is enough; gives whether it did. A stream that ends
    /// before that is the caller's to begin anew.
    pub fn watch(
        &self,
        mut event: impl FnMut(&str, &str) -> bool,
        began: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let lost = |error: HttpError| unreachable(&self.url, &error);
        let mut connection = self.client.connect().map_err(lost)?;
        connection.send(&self.request(Request::get("/v1/events"))).map_err(lost)?;
        let head = connection.read_head().map_err(lost)?;
        if head.status != 200 {
            let body = connection.read_body(EVENT_BYTES_MAX).map_err(lost)?;
            return Err(self.refused(head.status, &body));
        }
        began()?;
        let (mut text, mut bytes) = (Vec::new(), [0; 16 << 10]);
        loop {
            let count = match connection.read_some(&mut bytes) {
                Ok(0) | Err(_) => return Ok(false),
                Ok(count) => count,
            };
            text.extend_from_slice(&bytes[..count]);
            while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = text.drain(..end + 2).collect();
                let block = String::from_utf8_lossy(&block);
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
                if event(field("event: ").unwrap_or_default(), field("data: ").unwrap_or_default()) {
                    return Ok(true);
                }
            }
            if text.len() > EVENT_BYTES_MAX {
                return Ok(false);
            }
        }
    }
}

/// A name as a part of a path.
pub fn part(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use drover_http::HttpOp;

    use super::*;

    #[test]
    fn an_answer_that_is_too_long_says_how_to_get_it() {
        let kind = HttpErrorKind::TooLong(64 << 20);
        let error = HttpError { kind, op: HttpOp::Answer, peer: "d:8420".into(), source: None };
        let failure = unreachable("https://d:8420", &error);
        assert_eq!(
            failure.message,
            "the daemon at https://d:8420: its answer is larger than the 64 MiB that are read"
        );
        assert!(failure.advice.unwrap_or_default().contains("/v1/plans/PLAN/vms?limit="));
    }
}
