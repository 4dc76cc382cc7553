//! Hooks and checks that go over the network.

use std::io::Read;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use drover_engine::{Answer, HookResult, chain};
use drover_http::{Client, HttpError, Request, Timeouts, Url};
use drover_mover::StopSignal;
use drover_plan::{HttpCall, Trust};
use drover_source::login;
use drover_view::plain;
use serde_json::Value;

use super::{Said, and, last_words};

/// Of an answer; a longer one is no answer to a hook.
const BODY_BYTES_MAX: usize = 64 << 10;
/// A stop is noticed this fast.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// Calls an address with a document.
pub(super) fn post(
    call: &HttpCall,
    document: &Value,
    folder: &Path,
    time_max: Duration,
    stop: &StopSignal,
) -> Answer {
    let prepared = url_of(&call.url).and_then(|url| {
        let trust = login::trust(&call.trust, folder).map_err(|error| error.what)?;
        let token = call.token.as_ref().map(|token| login::secret_of(token, folder));
        Ok((url, trust, token.transpose().map_err(|error| error.what)?))
    });
    let (url, trust, token) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => return Answer::new(HookResult::Failed, why),
    };
    let key = document["call"].as_str().unwrap_or_default();
    let mut request = Request::post(url.path.clone(), document.to_string())
        .with_header("Content-Type", "application/json")
        .with_header("Accept", "application/json")
        .with_header("Idempotency-Key", header_text(key));
    if let Some(token) = token {
        request = request.with_header("Authorization", format!("Bearer {}", token.reveal()));
    }
    match within(time_max, stop, move || exchange(&url, &trust, &request, time_max)) {
        Ok((status, body)) => judged(status, &body),
        Err(answer) => answer,
    }
}

/// Whether an address answers a GET with a good status.
pub(super) fn answers(
    url: &str,
    wanted: Option<u16>,
    trust: &Trust,
    folder: &Path,
    time_max: Duration,
    stop: &StopSignal,
) -> Answer {
    let prepared =
        url_of(url).and_then(|url| Ok((url, login::trust(trust, folder).map_err(|error| error.what)?)));
    let (url, trust) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => return Answer::new(HookResult::Failed, why),
    };
    let request = Request::get(url.path.clone());
    // What else it answers is not kept: a plan of somebody else must not read by way of a check.
    let status = match within(time_max, stop, move || exchange(&url, &trust, &request, time_max)) {
        Ok((status, _)) => status,
        Err(answer) => return answer,
    };
    let is_good = wanted.map_or((200..300).contains(&status), |wanted| status == wanted);
    let result = if is_good { HookResult::Passed } else { HookResult::Failed };
    Answer::new(result, format!("status {status}"))
}

/// Whether a TCP connection is taken.
pub(super) fn connects(host: &str, port: u16, time_max: Duration, stop: &StopSignal) -> Answer {
    let place = (host.to_string(), port);
    let connected = within(time_max, stop, move || {
        let addresses = place.to_socket_addrs().map_err(|error| error.to_string())?;
        let mut last = "its name has no address".to_string();
        for address in addresses {
            match TcpStream::connect_timeout(&address, time_max) {
                Ok(_) => return Ok(()),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    });
    match connected {
        Ok(()) => Answer::new(HookResult::Passed, ""),
        Err(answer) => answer,
    }
}

/// Whether something that takes a connection says anything by itself, as SSH and mail servers do.
pub fn speaks(host: &str, port: u16, time_max: Duration, stop: &StopSignal) -> Answer {
    let place = (host.to_string(), port);
    let heard = within(time_max, stop, move || {
        let heard = || -> std::io::Result<usize> {
            let mut stream = TcpStream::connect(place)?;
            stream.set_read_timeout(Some(time_max))?;
            stream.read(&mut [0; 64])
        };
        match heard() {
            Ok(0) => Err("nothing in the guest takes the connection".to_string()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the guest says nothing on it ({error})")),
        }
    });
    match heard {
        Ok(()) => Answer::new(HookResult::Passed, ""),
        Err(answer) => answer,
    }
}

/// Reads an address.
pub(super) fn url_of(text: &str) -> Result<Url, String> {
    text.parse().map_err(|error: HttpError| chain(&error))
}

fn exchange(
    url: &Url,
    trust: &drover_http::Trust,
    request: &Request,
    time_max: Duration,
) -> Result<(u16, Vec<u8>), String> {
    let timeouts = Timeouts { connect: time_max, stall: time_max, answer: time_max };
    let answered = || -> Result<(u16, Vec<u8>), HttpError> {
        let mut connection = Client::new(url.endpoint.clone(), trust, timeouts)?.connect()?;
        connection.send(request)?;
        let head = connection.read_head()?;
        Ok((head.status, connection.read_body(BODY_BYTES_MAX)?))
    };
    answered().map_err(|error| chain(&error))
}

/// What a server's answer means. It is not followed elsewhere: a redirection is no answer.
fn judged(status: u16, body: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(body);
    let output = plain(&text);
    let answer = |result, message: String| Answer { result, message, output: output.clone() };
    if !(200..300).contains(&status) {
        return answer(HookResult::Failed, format!("status {status}{}", and(&last_words(&output))));
    }
    match Said::of(text.trim()) {
        Some(Ok(Said { result, message })) => answer(result, message),
        Some(Err(why)) => answer(HookResult::Failed, why),
        None => answer(HookResult::Passed, String::new()),
    }
}

/// Does something that cannot be broken off in a thread of its own, and leaves it alone when the time is up or the run is
/// stopped: its own timeouts end it.
fn within<T: Send + 'static>(
    time_max: Duration,
    stop: &StopSignal,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Answer> {
    let (done, result) = mpsc::channel();
    let begun = thread::Builder::new().spawn(move || {
        // Nobody waits for it any more where this fails.
        let _ = done.send(work());
    });
    begun.map_err(|error| Answer::new(HookResult::Failed, format!("no thread for it: {error}")))?;
    let until = Instant::now() + time_max;
    loop {
        match result.recv_timeout(STOP_LOOK) {
            Ok(result) => return result.map_err(|why| Answer::new(HookResult::Failed, why)),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Answer::new(
                    HookResult::Failed,
                    "internal error: its thread ended without a word",
                ));
            }
            Err(mpsc::RecvTimeoutError::Timeout) if stop.is_set() => {
                return Err(Answer::new(HookResult::Interrupted, "the run was stopped"));
            }
            Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() >= until => {
                let text = format!("no answer after {} s", time_max.as_secs_f64());
                return Err(Answer::new(HookResult::Failed, text));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Text that a header field can hold.
fn header_text(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    const SHORT: Duration = Duration::from_secs(20);

    /// A server that answers one request so; gives its address, and what it was sent.
    fn server(answer: &'static str) -> (String, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let got = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            loop {
                let got = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..got]);
                let text = String::from_utf8_lossy(&request).into_owned();
                if got == 0 || text.ends_with('}') || text.starts_with("GET") && text.ends_with("\r\n\r\n") {
                    break;
                }
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        (address, got)
    }

    fn posted(answer: &'static str) -> (Answer, String) {
        let (address, got) = server(answer);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "s3cret\n").unwrap();
        let token = Some(drover_plan::SecretSource::File("token".into()));
        let call = HttpCall { url: format!("http://{address}/x?k=v"), token, trust: Trust::System };
        let document = json!({"call": "p/vm-1/after_done/1", "plan": "p"});
        let answer = post(&call, &document, folder.path(), SHORT, &StopSignal::default());
        (answer, got.join().unwrap())
    }

    #[test]
    fn a_document_is_posted_with_its_token_and_key_and_the_answer_decides() {
        let (answer, request) = posted(
            "HTTP/1.1 200 OK\r\nContent-Length: 39\r\n\r\n{\"result\": \"skip\", \"message\": \"not it\"}",
        );
        assert_eq!((answer.result, answer.message.as_str()), (HookResult::Skip, "not it"));
        assert!(request.starts_with("POST /x?k=v HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("Authorization: Bearer s3cret\r\n"));
        assert!(request.contains("Idempotency-Key: p/vm-1/after_done/1\r\n"));
        assert!(request.ends_with("{\"call\":\"p/vm-1/after_done/1\",\"plan\":\"p\"}"));
        let (answer, _) = posted("HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(answer.result, HookResult::Passed);
        let (answer, _) =
            posted("HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n");
        assert_eq!((answer.result, answer.message.as_str()), (HookResult::Failed, "status 302"));
        let (answer, _) = posted("HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nlater");
        assert_eq!((answer.result, answer.message.as_str()), (HookResult::Failed, "status 503: later"));
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up_in_time_and_when_the_run_is_stopped() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        let call = HttpCall { url, token: None, trust: Trust::System };
        let ask = |time: Duration, stop: &StopSignal| post(&call, &json!({}), Path::new("/"), time, stop);
        let late = ask(Duration::from_millis(300), &StopSignal::default());
        assert_eq!(late.result, HookResult::Failed);
        let stop = StopSignal::default();
        stop.stop();
        assert_eq!(ask(SHORT, &stop).result, HookResult::Interrupted);
    }

    #[test]
    fn a_check_wants_a_connection_or_a_status() {
        let stop = StopSignal::default();
        let (address, got) = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        let url = format!("http://{address}/");
        let answer = answers(&url, Some(404), &Trust::System, Path::new("/"), SHORT, &stop);
        assert_eq!((answer.result, answer.message.as_str()), (HookResult::Passed, "status 404"));
        got.join().unwrap();
        let (address, got) = server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        let url = format!("http://{address}/");
        assert_eq!(
            answers(&url, None, &Trust::System, Path::new("/"), SHORT, &stop).result,
            HookResult::Failed
        );
        got.join().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(connects("127.0.0.1", port, SHORT, &stop).result, HookResult::Passed);
        drop(listener);
        assert_eq!(connects("127.0.0.1", port, SHORT, &stop).result, HookResult::Failed);
    }
}
