//! A small client for QEMU's monitor (QMP): lines of JSON over a unix socket.
//!
//! ```text
//! <- {"QMP": {...}}                                  greeting, once
//! -> {"execute": "qmp_capabilities", "id": 1}             with "enable": ["oob"] where the greeting offers it
//! <- {"return": {}, "id": 1}
//! <- {"event": "STOP", "data": {...}, ...}           at any time
//! ```
//!
//! Answers stay `serde_json::Value`, so that a newer QEMU's new words break nothing.
//!
//! Source: QEMU `docs/interop/qmp-spec.rst`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::SocketAddrUnix;
use serde_json::{Value, json};

use crate::error::{QemuError, QemuErrorKind};

/// A connection to a monitor. QEMU serves one client at a time per socket.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    machine: String,
    received: Vec<u8>,
    events: VecDeque<Value>,
    last_id: u64,
    round_trips: u64,
    /// An answer came since something was said last.
    has_answered: bool,
    answer_time_max: Duration,
    /// It takes commands out of band.
    has_oob: bool,
}

impl Qmp {
    /// Whether a QEMU of this host is at the other end, and not what leads to another host.
    pub fn is_of_this_host(&self) -> bool {
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&self.stream) else { return false };
        let name = std::fs::read_to_string(format!("/proc/{}/comm", peer.pid.as_raw_nonzero()));
        name.is_ok_and(|name| name.starts_with("qemu"))
    }

    /// Connects to the socket and leaves the monitor's negotiation mode.
    ///
    /// # Errors
    /// [`QemuErrorKind::NotFound`] if nobody listens; [`QemuErrorKind::Timeout`] if there is no greeting in time,
    /// which is also what a second client sees.
    pub fn connect(socket: &Path, answer_time_max: Duration) -> Result<Qmp, QemuError> {
        Qmp::connect_greeted(socket, answer_time_max, answer_time_max)
    }

    /// The same, with a greeting that is waited for no longer than so: QEMU sends it at once to whom it serves.
    ///
    /// # Errors
    /// As [`Qmp::connect`].
    pub(crate) fn connect_greeted(
        socket: &Path,
        greeting_time_max: Duration,
        answer_time_max: Duration,
    ) -> Result<Qmp, QemuError> {
        let what = || format!("connection to the QEMU monitor {}", socket.display());
        let stream = connect_unix(socket, greeting_time_max).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                QemuError::new(QemuErrorKind::NotFound, what()).because(error)
            }
            _ => QemuError::io(what(), error),
        })?;
        let machine = socket.display().to_string();
        let (received, events) = (Vec::new(), VecDeque::new());
        let mut qmp = Qmp {
            stream,
            machine,
            received,
            events,
            last_id: 0,
            round_trips: 0,
            has_answered: true,
            answer_time_max: greeting_time_max,
            has_oob: false,
        };
        let offers_oob = qmp.read_greeting()?;
        qmp.answer_time_max = answer_time_max;
        let enable = if offers_oob { json!({"enable": ["oob"]}) } else { Value::Null };
        qmp.execute("qmp_capabilities", enable)?;
        qmp.has_oob = offers_oob;
        Ok(qmp)
    }

    /// Runs a command and gives what it returns. Events that arrive meanwhile are kept.
    ///
    /// # Errors
    /// With QEMU's own words if it refuses; [`QemuErrorKind::Timeout`] if it does not answer in time.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QemuError> {
        self.run("execute", command, arguments)
    }

    /// Runs a command once for each of these arguments, many at a time: over a long line one after the other would take a
    /// round trip each. What QEMU refuses is an error in its place.
    ///
    /// # Errors
    /// If the connection breaks, or an answer does not come in time.
    pub fn execute_each(
        &mut self,
        command: &str,
        arguments: &[Value],
    ) -> Result<Vec<Result<Value, QemuError>>, QemuError> {
        let commands: Vec<(&str, Value)> =
            arguments.iter().map(|arguments| (command, arguments.clone())).collect();
        self.execute_all(&commands)
    }

    /// Runs these commands, each with its arguments, in their order and many at a time. What QEMU refuses is an error in its
    /// place, and keeps those behind it from nothing.
    ///
    /// # Errors
    /// If the connection breaks, or an answer does not come in time.
    pub fn execute_all(
        &mut self,
        commands: &[(&str, Value)],
    ) -> Result<Vec<Result<Value, QemuError>>, QemuError> {
        let mut answers = Vec::with_capacity(commands.len());
        self.execute_into(commands, &mut answers)?;
        Ok(answers)
    }

    /// The same for who wants to know what was answered before it failed: those answers are added, in their order. What
    /// comes after them may have been done all the same.
    ///
    /// # Errors
    /// As [`Qmp::execute_all`].
    pub(crate) fn execute_into(
        &mut self,
        commands: &[(&str, Value)],
        answers: &mut Vec<Result<Value, QemuError>>,
    ) -> Result<(), QemuError> {
        for some in commands.chunks(AT_A_TIME) {
            let mut lines = String::new();
            let ids: Vec<u64> = some
                .iter()
                .map(|(command, arguments)| self.line(&mut lines, "execute", command, arguments.clone()))
                .collect();
            self.send(some[0].0, &lines)?;
            for ((command, _), id) in some.iter().zip(ids) {
                match self.take_answer(command, id) {
                    Err(error) if error.kind == QemuErrorKind::Timeout || error.is_of_connection() => {
                        return Err(error);
                    }
                    answer => answers.push(answer),
                }
            }
        }
        Ok(())
    }

    /// The same where each must be done: what is refused first is the error.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn execute_in_turn<const COUNT: usize>(
        &mut self,
        commands: [(&str, Value); COUNT],
    ) -> Result<[Value; COUNT], QemuError> {
        let answers: Result<Vec<Value>, QemuError> = self.execute_all(&commands)?.into_iter().collect();
        let mut answers = answers?.into_iter();
        Ok(std::array::from_fn(|_| answers.next().unwrap_or_default()))
    }

    /// Times that something was said after an answer was waited for: over a long line each takes a round trip.
    pub fn round_trips(&self) -> u64 {
        self.round_trips
    }

    /// As [`Qmp::execute`], for the few commands that may run out of band: QEMU runs them, where it offers that, although its main loop
    /// is stuck.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(crate) fn execute_oob(&mut self, command: &str, arguments: Value) -> Result<Value, QemuError> {
        self.run(if self.has_oob { "exec-oob" } else { "execute" }, command, arguments)
    }

    /// Answers are waited for so long from now on.
    pub(crate) fn set_answer_time_max(&mut self, time_max: Duration) {
        self.answer_time_max = time_max;
    }

    /// As [`Qmp::execute`], with an answer that is waited for no longer than so; one that comes later is passed over.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub(crate) fn execute_within(
        &mut self,
        command: &str,
        arguments: Value,
        time_max: Duration,
    ) -> Result<Value, QemuError> {
        let usual = std::mem::replace(&mut self.answer_time_max, time_max);
        let answer = self.execute(command, arguments);
        self.answer_time_max = usual;
        answer
    }

    fn run(&mut self, how: &str, command: &str, arguments: Value) -> Result<Value, QemuError> {
        let id = self.ask(how, command, arguments)?;
        self.take_answer(command, id)
    }

    fn ask(&mut self, how: &str, command: &str, arguments: Value) -> Result<u64, QemuError> {
        let mut line = String::new();
        let id = self.line(&mut line, how, command, arguments);
        self.send(command, &line)?;
        Ok(id)
    }

    /// Writes down a command, and gives the number by which its answer is known.
    fn line(&mut self, lines: &mut String, how: &str, command: &str, arguments: Value) -> u64 {
        self.last_id += 1;
        let mut message = json!({ how: command, "id": self.last_id });
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        lines.push_str(&message.to_string());
        lines.push('\n');
        self.last_id
    }

    fn take_answer(&mut self, command: &str, id: u64) -> Result<Value, QemuError> {
        let until = Instant::now() + self.answer_time_max;
        loop {
            let mut message = self.read_message(command, until)?;
            if message.get("event").is_some() {
                self.keep_event(message);
            } else if message.get("id").and_then(Value::as_u64) == Some(id) {
                self.has_answered = true;
                return self.answer(command, message);
            } else if message.get("error").is_some() && message.get("id").is_none() {
                return self.answer(command, message.take());
            }
        }
    }

    /// The machine's state in QEMU's word: `running`, `paused`, `shutdown` ...
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn status(&mut self) -> Result<String, QemuError> {
        let answer = self.execute("query-status", Value::Null)?;
        match answer.get("status").and_then(Value::as_str) {
            Some(status) => Ok(status.to_string()),
            None => Err(self.error(QemuErrorKind::Failed, "query-status", "no status in the answer")),
        }
    }

    /// Ends QEMU at once, as pulling the plug does.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn quit(&mut self) -> Result<(), QemuError> {
        self.execute("quit", Value::Null).map(drop)
    }

    /// Presses the power button: the guest may shut down.
    ///
    /// # Errors
    /// As [`Qmp::execute`].
    pub fn power_down(&mut self) -> Result<(), QemuError> {
        self.execute("system_powerdown", Value::Null).map(drop)
    }

    /// Ends the connection, so that the monitor serves the next one.
    pub fn hang_up(&self) {
        // What is gone already is as good.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// The next event, of those kept or within this time.
    ///
    /// # Errors
    /// If the connection breaks.
    pub fn next_event(&mut self, time_max: Duration) -> Result<Option<Value>, QemuError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let until = Instant::now() + time_max;
        loop {
            match self.read_message("event", until) {
                Ok(message) if message.get("event").is_some() => return Ok(Some(message)),
                Ok(_) => {}
                Err(error) if error.kind == QemuErrorKind::Timeout => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until an event is there, or for this time; it is not taken.
    ///
    /// # Errors
    /// If the connection breaks.
    pub(crate) fn wait_event(&mut self, time_max: Duration) -> Result<(), QemuError> {
        if let Some(event) = self.next_event(time_max)? {
            self.events.push_front(event);
        }
        Ok(())
    }

    /// Gives whether it offers to take commands out of band. What QEMU had not sent yet to somebody who went away comes
    /// first, and may begin in its middle.
    fn read_greeting(&mut self) -> Result<bool, QemuError> {
        let until = Instant::now() + self.answer_time_max;
        let mut left_over = 0;
        loop {
            let line = match self.read_line("greeting", until) {
                Err(_) if left_over > 0 => break,
                line => line?,
            };
            let message: Value = serde_json::from_slice(&line).unwrap_or_default();
            if let Some(words) = message.get("QMP") {
                return Ok(words["capabilities"].as_array().is_some_and(|all| all.contains(&json!("oob"))));
            }
            left_over += 1;
            if left_over > LEFT_OVER_MAX {
                break;
            }
        }
        Err(self.error(QemuErrorKind::Failed, "greeting", "this is no QEMU monitor"))
    }

    fn answer(&self, command: &str, mut message: Value) -> Result<Value, QemuError> {
        if let Some(error) = message.get("error") {
            let words = error.get("desc").and_then(Value::as_str).unwrap_or("refused without a reason");
            return Err(self.error(QemuErrorKind::of_words(words), command, words));
        }
        Ok(message.get_mut("return").map(Value::take).unwrap_or_default())
    }

    fn keep_event(&mut self, event: Value) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn send(&mut self, command: &str, lines: &str) -> Result<(), QemuError> {
        self.round_trips += u64::from(std::mem::take(&mut self.has_answered));
        let sent = self
            .stream
            .set_write_timeout(Some(self.answer_time_max))
            .and_then(|()| self.stream.write_all(lines.as_bytes()));
        sent.map_err(|error| QemuError::io(self.what(command), error))
    }

    fn read_message(&mut self, command: &str, until: Instant) -> Result<Value, QemuError> {
        let line = self.read_line(command, until)?;
        serde_json::from_slice(&line)
            .map_err(|error| self.error(QemuErrorKind::Failed, command, error.to_string()))
    }

    fn read_line(&mut self, command: &str, until: Instant) -> Result<Vec<u8>, QemuError> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.received[searched..].iter().position(|byte| *byte == b'\n') {
                return Ok(self.received.drain(..=searched + end).collect());
            }
            searched = self.received.len();
            if searched > LINE_BYTES_MAX {
                return Err(self.error(QemuErrorKind::Failed, command, "the answer does not end"));
            }
            self.read_some(until).map_err(|error| QemuError::io(self.what(command), error))?;
        }
    }

    fn read_some(&mut self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "QEMU closed the connection")),
            Ok(count) => {
                self.received.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn what(&self, command: &str) -> String {
        format!("{command} on the QEMU monitor {}", self.machine)
    }

    fn error(&self, kind: QemuErrorKind, command: &str, why: impl Into<String>) -> QemuError {
        QemuError::new(kind, self.what(command)).because(why.into())
    }
}

/// Connects to a socket whose path may be longer than the 107 bytes that a socket address has room for. A listener whose
/// queue is full is waited for so long, then it is [`io::ErrorKind::WouldBlock`].
pub(crate) fn connect_unix(socket: &Path, time_max: Duration) -> io::Result<UnixStream> {
    if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return connect_within(socket, time_max);
    }
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = File::open(folder)?;
    connect_within(&Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name), time_max)
}

fn connect_within(socket: &Path, time_max: Duration) -> io::Result<UnixStream> {
    let stream = UnixStream::from(drover_tcp::connect_unix(&SocketAddrUnix::new(socket)?, time_max)?);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Commands under way at once: a processor's properties, some 300, go in one round trip. They are written as one piece of some
/// 60 KB, which a socket's buffers hold; QEMU reads eight ahead, and keeps what it has answered until that is read.
/// More than its queue of eight is safe: a full one drops nothing, it only leaves the rest in the socket until there is room.
const AT_A_TIME: usize = 512;
/// `sockaddr_un` has 108, and Linux wants a zero at the end.
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The schema of QEMU 10 takes 250 KB.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Messages for somebody else before a greeting, at most.
const LEFT_OVER_MAX: usize = 64;
/// A migration sends some hundred; older ones have lost their meaning.
const EVENTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

    use super::*;

    /// Plays a monitor: says the greeting, then one of the given texts after each line that arrives.
    fn monitor(folder: &Path, texts: Vec<String>) -> std::path::PathBuf {
        let socket = folder.join("qmp.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"QMP\": {\"version\": {}}}\n").unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for text in texts {
                let Some(Ok(_)) = lines.next() else { return };
                let _ = stream.write_all(text.as_bytes());
            }
            let _ = lines.next();
        });
        socket
    }

    const READY: &str = "{\"return\": {}, \"id\": 1}\n";

    fn connected(texts: &[&str]) -> (tempfile::TempDir, Qmp) {
        let folder = tempfile::tempdir().unwrap();
        let texts = [READY].iter().chain(texts).map(|text| text.to_string()).collect();
        let socket = monitor(folder.path(), texts);
        let qmp = Qmp::connect(&socket, Duration::from_secs(60)).unwrap();
        (folder, qmp)
    }

    #[test]
    fn events_and_unknown_words_do_not_disturb_an_answer() {
        let (_folder, mut qmp) =
            connected(&["{\"event\": \"NEWS\", \"data\": {\"status\": \"failing\"}}\n{\"what\": 1}\n\
             {\"return\": {\"status\": \"running\", \"new\": []}, \"id\": 2}\n"]);
        assert_eq!(qmp.status().unwrap(), "running");
        assert_eq!(qmp.next_event(Duration::ZERO).unwrap().unwrap()["event"], "NEWS");
        assert!(qmp.next_event(Duration::from_millis(10)).unwrap().is_none());
    }

    #[test]
    fn what_may_run_out_of_band_does_where_it_is_offered() {
        for (offered, how) in [("[\"oob\"]", "exec-oob"), ("[]", "execute")] {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("qmp.sock");
            let listener = UnixListener::bind(&socket).unwrap();
            let greeting = format!("{{\"QMP\": {{\"capabilities\": {offered}}}}}\n");
            let monitor = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(greeting.as_bytes()).unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().take(2);
                let told = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
                let told = told.inspect(|told| {
                    let answer = format!("{{\"return\": {{}}, \"id\": {}}}\n", told["id"]);
                    stream.try_clone().unwrap().write_all(answer.as_bytes()).unwrap();
                });
                told.collect::<Vec<Value>>()
            });
            let mut qmp = Qmp::connect(&socket, Duration::from_secs(60)).unwrap();
            qmp.execute_oob("migrate-pause", Value::Null).unwrap();
            let told = monitor.join().unwrap();
            assert_eq!(told[1][how], "migrate-pause", "{told:?}");
            assert_eq!(told[0]["arguments"]["enable"] == json!(["oob"]), how == "exec-oob", "{told:?}");
        }
    }

    #[test]
    fn what_was_meant_for_somebody_who_went_away_is_no_greeting() {
        let greeting = "{\"QMP\": {\"version\": {}, \"capabilities\": [\"oob\"]}}\n";
        let left = "us\": \"active\"}, \"id\": 9}\n{\"event\": \"STOP\"}\n{\"return\": 5, \"id\": 2}\n";
        let noise = "{\"event\": \"STOP\"}\n".repeat(LEFT_OVER_MAX + 1);
        for (said, is_one) in
            [(left.to_string() + greeting, true), (noise, false), ("SSH-2.0\n".into(), false)]
        {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("qmp.sock");
            let listener = UnixListener::bind(&socket).unwrap();
            let serving = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(said.as_bytes()).unwrap();
                if is_one {
                    BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap();
                    stream.write_all(READY.as_bytes()).unwrap();
                }
            });
            match Qmp::connect(&socket, Duration::from_secs(60)) {
                Ok(_) => assert!(is_one),
                Err(error) => {
                    assert!(!is_one && error.chain().contains("no QEMU monitor"), "{}", error.chain())
                }
            }
            serving.join().unwrap();
        }
    }

    #[test]
    fn a_refusal_is_quoted() {
        let (_folder, mut qmp) =
            connected(&["{\"error\": {\"class\": \"X\", \"desc\": \"no such thing\"}, \"id\": 2}\n"]);
        let error = qmp.execute("frob", json!({"a": 1})).unwrap_err();
        assert!(
            error.chain().contains("frob on") && error.chain().ends_with("no such thing"),
            "{}",
            error.chain()
        );
    }

    #[test]
    fn many_are_asked_before_the_first_answers() {
        // Who waited for each answer would wait in vain.
        let answers = "{\"return\": 7, \"id\": 2}\n{\"event\": \"NEWS\"}\n\
             {\"error\": {\"class\": \"X\", \"desc\": \"can only be written\"}, \"id\": 3}\n{\"return\": true, \"id\": 4}\n";
        let (_folder, mut qmp) = connected(&["", "", answers]);
        let found =
            qmp.execute_each("qom-get", &[json!({"a": 1}), json!({"a": 2}), json!({"a": 3})]).unwrap();
        let found: Vec<Option<Value>> = found.into_iter().map(Result::ok).collect();
        assert_eq!(found, [Some(json!(7)), None, Some(json!(true))]);
        assert_eq!(qmp.next_event(Duration::ZERO).unwrap().unwrap()["event"], "NEWS");
    }

    #[test]
    fn more_than_go_at_once_are_all_answered_in_their_order() {
        let count = AT_A_TIME as u64 + 3;
        let texts: Vec<String> =
            (0..count).map(|n| format!("{{\"return\": {n}, \"id\": {}}}\n", n + 2)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (_folder, mut qmp) = connected(&texts);
        let asked: Vec<Value> = (0..count).map(|n| json!({ "n": n })).collect();
        let found = qmp.execute_each("qom-get", &asked).unwrap();
        let found: Vec<u64> = found.into_iter().map(|answer| answer.unwrap().as_u64().unwrap()).collect();
        assert_eq!(found, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn an_answer_that_is_missing_among_many_is_an_error() {
        let (_folder, mut qmp) = connected(&["", "{\"return\": 7, \"id\": 2}\n"]);
        qmp.answer_time_max = Duration::from_secs(2);
        assert!(
            qmp.execute_each("qom-get", &[json!({}), json!({})]).unwrap_err().kind == QemuErrorKind::Timeout
        );
    }

    #[test]
    fn an_answer_that_was_waited_for_no_longer_is_passed_over() {
        let (_folder, mut qmp) = connected(&["", "{\"return\": 1, \"id\": 2}\n{\"return\": 2, \"id\": 3}\n"]);
        let error = qmp.execute_within("first", Value::Null, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind, QemuErrorKind::Timeout);
        assert_eq!(qmp.execute("second", Value::Null).unwrap(), json!(2));
    }

    #[test]
    fn silence_ends_in_time() {
        let (_folder, mut qmp) = connected(&["{\"ret"]);
        qmp.answer_time_max = Duration::from_secs(2);
        assert_eq!(qmp.status().unwrap_err().kind, QemuErrorKind::Timeout);
    }

    #[test]
    fn a_monitor_that_says_nothing_is_told_so_and_not_in_the_words_of_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let short = Duration::from_millis(100);
        let error = Qmp::connect_greeted(&socket, short, Duration::from_secs(600)).unwrap_err();
        assert_eq!(error.kind, QemuErrorKind::Timeout);
        assert!(
            error.chain().contains("greeting on") && error.chain().ends_with("no answer in time"),
            "{}",
            error.chain()
        );
    }

    #[test]
    fn an_answer_that_never_ends_is_an_error() {
        let endless = "x".repeat(LINE_BYTES_MAX + (1 << 20));
        let (_folder, mut qmp) = connected(&[&endless]);
        assert!(qmp.status().unwrap_err().chain().contains("does not end"));
    }

    #[test]
    fn nobody_listening_is_told_from_silence() {
        let folder = tempfile::tempdir().unwrap();
        let error = Qmp::connect(&folder.path().join("qmp.sock"), Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.kind, QemuErrorKind::NotFound);
    }

    #[test]
    fn a_monitor_whose_queue_is_full_is_waited_for_in_vain_only_so_long() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("qmp.sock");
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        // One client may wait.
        rustix::net::listen(&listener, 0).unwrap();
        let _first = UnixStream::connect(&socket).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::spawn(move || sender.send(Qmp::connect(&socket, Duration::from_millis(200)).map(drop)));
        let ended = receiver.recv_timeout(Duration::from_secs(120)).unwrap();
        assert_eq!(ended.unwrap_err().kind, QemuErrorKind::Timeout);
    }

    #[test]
    fn a_socket_deep_down_is_reached() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let short = folder.path().join("short");
        std::os::unix::fs::symlink(&deep, &short).unwrap();
        let socket = monitor(&short, vec![READY.to_string()]);
        drop(socket);
        Qmp::connect(&deep.join("qmp.sock"), Duration::from_secs(60)).unwrap();
    }
}
