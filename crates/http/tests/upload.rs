//! Requests with large bodies: the server is asked first, may answer before the end, and may be silent for long.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use drover_http::{Client, Connection, Endpoint, HttpErrorKind, Request, Timeouts, Trust};

const BODY: usize = 8 << 20;
const PIECE: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of one connection; gives what it made of it.
fn serve<T: Send + 'static>(
    work: impl FnOnce(TcpStream, String) -> T + Send + 'static,
) -> (Client, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: Endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        work(stream, String::from_utf8(head).unwrap())
    });
    (Client::new(endpoint, &Trust::System, Timeouts::default()).unwrap(), server)
}

fn post() -> Request {
    Request::post("/upload", Vec::new()).with_header("Authorization", "Bearer t")
}

fn go_on() -> bool {
    true
}

/// Writes the body as far as the server takes it.
fn send(connection: &mut Connection) -> Result<(), HttpErrorKind> {
    let piece = vec![7; PIECE];
    (0..BODY / PIECE).try_for_each(|_| connection.write_body(&piece, &mut go_on).map_err(|error| error.kind))
}

#[test]
fn a_body_goes_once_the_server_says_so_and_its_answer_may_take_long() {
    let (client, server) = serve(|mut stream, head| {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        let mut body = vec![0; BODY];
        stream.read_exact(&mut body).unwrap();
        // Longer than a call looks up.
        std::thread::sleep(Duration::from_millis(1500));
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone").unwrap();
        (head, body)
    });
    let mut connection = client.connect_to_upload().unwrap();
    assert!(connection.begin(&post(), BODY as u64, PATIENCE, &mut go_on).unwrap().is_none());
    send(&mut connection).unwrap();
    let answer = connection.finish(PATIENCE, &mut go_on).unwrap();
    assert_eq!((answer.status, connection.read_body(100).unwrap()), (200, b"done".to_vec()));
    let (head, body) = server.join().unwrap();
    assert!(
        head.contains(&format!("Content-Length: {BODY}\r\n")) && head.contains("Expect: 100-continue"),
        "{head}"
    );
    assert!(body.iter().all(|byte| *byte == 7));
}

#[test]
fn a_server_that_refuses_is_sent_no_body_and_its_words_are_read() {
    let (client, server) = serve(|mut stream, _| {
        stream.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nnot ready").unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        rest.len()
    });
    let mut connection = client.connect_to_upload().unwrap();
    let refused = connection.begin(&post(), BODY as u64, PATIENCE, &mut go_on).unwrap().unwrap();
    assert_eq!((refused.status, connection.read_body(100).unwrap()), (503, b"not ready".to_vec()));
    drop(connection);
    assert_eq!(server.join().unwrap(), 0);
}

#[test]
fn a_server_that_answers_in_the_middle_is_heard() {
    let (client, server) = serve(|mut stream, _| {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        stream.read_exact(&mut vec![0; PIECE]).unwrap();
        stream.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\ndisk full").unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
    });
    let mut connection = client.connect_to_upload().unwrap();
    assert!(connection.begin(&post(), BODY as u64, PATIENCE, &mut go_on).unwrap().is_none());
    // As much as the kernel takes may go before it is seen; then the end would be waited for.
    let sent = send(&mut connection);
    let answer = connection.finish(PATIENCE, &mut go_on).unwrap();
    assert_eq!((answer.status, connection.read_body(100).unwrap()), (500, b"disk full".to_vec()));
    assert!(sent.is_ok() || sent == Err(HttpErrorKind::Closed), "{sent:?}");
    drop(connection);
    server.join().unwrap();
}

#[test]
fn a_server_that_says_nothing_first_gets_the_body_and_one_that_takes_none_is_left_when_that_is_asked() {
    let (client, server) = serve(|stream, _| stream);
    let mut connection = client.connect_to_upload().unwrap();
    assert!(connection.begin(&post(), BODY as u64, Duration::ZERO, &mut go_on).unwrap().is_none());
    // Nobody reads: what the kernel takes goes, and then it is asked whether to go on.
    let piece = vec![7; 64 << 20];
    let mut asked = 0;
    let stopped = connection.write_body(&piece, &mut || {
        asked += 1;
        false
    });
    assert!(matches!(stopped.unwrap_err().kind, HttpErrorKind::Stalled(_)));
    assert_eq!(asked, 1);
    drop(server.join().unwrap());
}
