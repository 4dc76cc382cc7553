//! How handlers read requests and write answers.

use axum::body::Bytes;
use axum::extract::Query;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::operations::{Document, ROWS_DEFAULT, ROWS_MAX};
use crate::problem::{Kind, Problem};

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => json_text(status, text),
        Err(error) => Problem::new(Kind::Internal, error.to_string()).into_response(),
    }
}

fn json_text(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

pub(crate) fn document(document: Document) -> Response {
    match document {
        Document::Json(text) => json_text(StatusCode::OK, text),
        Document::Text(text) => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response(),
        Document::Html(text) => {
            let policy = "default-src 'none'; style-src 'unsafe-inline'; sandbox";
            let fields = [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CONTENT_SECURITY_POLICY, policy),
            ];
            (fields, text).into_response()
        }
    }
}

pub(crate) fn body<T: DeserializeOwned>(bytes: Result<Bytes, BytesRejection>) -> Result<(T, Bytes), Problem> {
    let bytes = bytes.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(Kind::TooLarge, "the body is larger than the server takes")
        }
        _ => Problem::new(Kind::BadRequest, format!("the body did not arrive: {}", rejection.body_text())),
    })?;
    let value = serde_json::from_slice(&bytes).map_err(|error| {
        Problem::new(Kind::BadRequest, format!("the body is not what the API takes: {error}"))
    })?;
    Ok((value, bytes))
}

pub(crate) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(Problem::new(Kind::BadRequest, rejection.body_text())),
    }
}

pub(crate) fn limit(given: Option<usize>) -> Result<usize, Problem> {
    match given.unwrap_or(ROWS_DEFAULT) {
        limit @ 1..=ROWS_MAX => Ok(limit),
        other => {
            Err(Problem::new(Kind::BadRequest, format!("limit {other} is not between 1 and {ROWS_MAX}")))
        }
    }
}

pub(crate) fn cursor(given: Option<&str>) -> Result<Option<i64>, Problem> {
    let parse = |text: &str| {
        let number = text.parse::<i64>().ok().filter(|number| *number >= 0);
        number.ok_or_else(|| {
            Problem::new(Kind::BadRequest, "this is no cursor of this server")
                .advise("use `next` of an earlier answer")
        })
    };
    given.map(parse).transpose()
}
