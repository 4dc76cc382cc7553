use crate::error::HttpErrorKind;

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status code, 200..=999.
    pub status: u16,
    /// Reason phrase, often empty.
    pub reason: String,
    /// Header fields in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// How the end of the body is told.
    pub body: BodyLength,
    /// Whether the connection may be used again after the body.
    pub keep_alive: bool,
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// That many bytes.
    Known(u64),
    /// Chunks, each with its length.
    Chunked,
    /// Until the connection closes.
    UntilClose,
}

impl Head {
    /// The first value of a header field; `name` in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a header field; `name` in lower case.
    pub fn header_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// `503 Service Unavailable`.
    pub fn status_line(&self) -> String {
        format!("{} {}", self.status, self.reason).trim_end().to_string()
    }
}

/// No head may be longer; servers send a few hundred bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;

/// Takes a head off the front of `bytes`: the head and its length, or `None` if more bytes are needed.
pub(crate) fn parse(bytes: &[u8], answers_head: bool) -> Result<Option<(Head, usize)>, HttpErrorKind> {
    let wrong = |why: String| HttpErrorKind::Protocol(why);
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    let length = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() >= HEAD_BYTES_MAX => {
            return Err(wrong(format!("head longer than {HEAD_BYTES_MAX} bytes")));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(wrong(format!("bad head ({error})"))),
    };
    let headers: Vec<(String, String)> = (parsed.headers.iter())
        .map(|field| {
            (field.name.to_ascii_lowercase(), String::from_utf8_lossy(field.value).trim().to_string())
        })
        .collect();
    let mut head = Head {
        status: parsed.code.unwrap_or(0),
        reason: parsed.reason.unwrap_or_default().to_string(),
        keep_alive: parsed.version == Some(1),
        body: BodyLength::Known(0),
        headers,
    };
    if head.header_all("connection").any(|value| value.to_ascii_lowercase().contains("close")) {
        head.keep_alive = false;
    }
    head.body = body_length(&head, answers_head)?;
    head.keep_alive &= head.body != BodyLength::UntilClose;
    Ok(Some((head, length)))
}

/// RFC 9112 section 6.3. Two different lengths are an attack or a defect, so they are refused.
fn body_length(head: &Head, answers_head: bool) -> Result<BodyLength, HttpErrorKind> {
    if answers_head || matches!(head.status, 100..=199 | 204 | 304) {
        return Ok(BodyLength::Known(0));
    }
    if let Some(coding) = head.header("transfer-encoding") {
        return match coding.eq_ignore_ascii_case("chunked") {
            true => Ok(BodyLength::Chunked),
            false => Err(HttpErrorKind::Protocol(format!("transfer coding '{}'", coding.escape_debug()))),
        };
    }
    let mut lengths = head.header_all("content-length");
    let Some(first) = lengths.next() else { return Ok(BodyLength::UntilClose) };
    let digits = first.bytes().all(|b| b.is_ascii_digit());
    match first.parse() {
        Ok(length) if digits && lengths.all(|other| other == first) => Ok(BodyLength::Known(length)),
        _ => Err(HttpErrorKind::Protocol("bad content length".to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<(Head, usize)>, HttpErrorKind> {
        parse(text.as_bytes(), false)
    }

    #[test]
    fn reads_status_fields_and_length() {
        let text = "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n\r\nhello";
        let (head, length) = head(text).unwrap().unwrap();
        assert_eq!((head.status, head.body, head.keep_alive), (206, BodyLength::Known(5), true));
        assert_eq!(&text[length..], "hello");
        assert_eq!(head.header_all("set-cookie").collect::<Vec<_>>(), ["a=1", "b=2"]);
    }

    #[test]
    fn waits_for_the_rest_of_a_head() {
        assert_eq!(head("HTTP/1.1 200 OK\r\nA: b\r\n").unwrap(), None);
    }

    #[test]
    fn without_length_the_body_ends_with_the_connection() {
        let (head, _) = head("HTTP/1.1 200 OK\r\n\r\n").unwrap().unwrap();
        assert_eq!((head.body, head.keep_alive), (BodyLength::UntilClose, false));
    }

    #[test]
    fn refuses_garbage_and_contradictions() {
        for text in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        ] {
            assert!(head(text).is_err(), "{text}");
        }
        assert!(parse(&vec![b'A'; HEAD_BYTES_MAX], false).is_err());
    }
}
