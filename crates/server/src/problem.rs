//! Errors as RFC 9457 problem details; `exit` is the exit code the same failure has on the command line.

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An error, as the caller sees it. It goes through every result of the API, so it is kept small.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// `urn:drover:problem:` and a word.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// The same in words.
    pub title: Box<str>,
    /// HTTP status.
    pub status: u16,
    /// What failed on what, and why.
    pub detail: String,
    /// What to try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The exit code of a command that fails so.
    pub exit: u8,
    /// What is wrong with a plan file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Value>,
    /// Seconds to wait before the next try.
    #[serde(skip)]
    pub retry_after: Option<u32>,
}

/// Kinds of problems: a word, its title, its status, and the exit code it is by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The daemon, or the state it keeps.
    Internal,
    /// The request makes no sense.
    BadRequest,
    /// No token, or one that is not known.
    Unauthorized,
    /// The token's role is not enough.
    Forbidden,
    /// There is no such thing, or none that the caller may see.
    NotFound,
    /// There is, but it takes another method.
    MethodNotAllowed,
    /// Not in the state the thing is in.
    Conflict,
    /// The body is too large.
    TooLarge,
    /// The plan has errors, or an order cannot be carried out.
    Refused,
    /// Too many at once, or too often.
    TooMany,
    /// The source, the target or a link between failed.
    Upstream,
    /// It took too long.
    Timeout,
    /// The daemon ends, or is not ready.
    Unavailable,
}

impl Kind {
    fn facts(self) -> (&'static str, &'static str, u16, u8) {
        match self {
            Kind::Internal => ("internal", "internal error", 500, 1),
            Kind::BadRequest => ("bad-request", "the request makes no sense", 400, 2),
            Kind::Unauthorized => ("unauthorized", "a token is needed", 401, 4),
            Kind::Forbidden => ("forbidden", "the token's role does not allow it", 403, 4),
            Kind::NotFound => ("not-found", "there is no such thing", 404, 3),
            Kind::MethodNotAllowed => ("method-not-allowed", "another method is needed", 405, 2),
            Kind::Conflict => ("conflict", "not in this state", 409, 3),
            Kind::TooLarge => ("too-large", "the body is too large", 413, 2),
            Kind::Refused => ("refused", "the plan or order is refused", 422, 3),
            Kind::TooMany => ("too-many", "too many at once", 429, 5),
            Kind::Upstream => ("upstream", "source or target failed", 502, 6),
            Kind::Timeout => ("timeout", "it took too long", 504, 5),
            Kind::Unavailable => ("unavailable", "not ready", 503, 5),
        }
    }
}

impl Problem {
    /// A problem of a kind.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Problem {
        let (word, title, status, exit) = kind.facts();
        Problem {
            kind: format!("urn:drover:problem:{word}").into(),
            title: title.into(),
            status,
            detail: detail.into(),
            advice: None,
            exit,
            problems: Vec::new(),
            retry_after: None,
        }
    }

    /// Adds what to try.
    pub fn advise(mut self, advice: impl Into<String>) -> Problem {
        self.advice = Some(advice.into());
        self
    }

    /// The failure of a command with this exit code (docs/exit-codes.md).
    pub fn of_exit(exit: u8, detail: impl Into<String>, advice: Option<String>) -> Problem {
        let kind = match exit {
            2 | 3 | 11 => Kind::Refused,
            4..=9 => Kind::Upstream,
            130 => Kind::Conflict,
            _ => Kind::Internal,
        };
        Problem { exit, advice, ..Problem::new(kind, detail) }
    }

    /// Adds after how many seconds to try again.
    pub fn retry_after(mut self, seconds: u32) -> Problem {
        self.retry_after = Some(seconds);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_string(&self).unwrap_or_default();
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        let mut add = |name: HeaderName, value: &str| {
            if let Ok(value) = value.parse() {
                response.headers_mut().insert(name, value);
            }
        };
        if let Some(seconds) = self.retry_after {
            add(header::RETRY_AFTER, &seconds.to_string());
        }
        if status == StatusCode::UNAUTHORIZED {
            add(header::WWW_AUTHENTICATE, "Bearer realm=\"drover\"");
        }
        response
    }
}
