//! Reads a disk for a moment, and tells what limits the rate.

use std::time::{Duration, Instant};

use drover_disk::{Buffer, Disk, DiskError, Lane, Request, Work};
use drover_types::{ByteSpan, Extent, ExtentKind};

/// Requests that ask for the latency, one at a time.
const PROBES: u64 = 8;
const PROBE_BYTES: u64 = 64 << 10;
/// Requests in flight while the rate is measured.
const DEPTH: usize = 16;
const REQUEST_BYTES: u64 = 1 << 20;
const TIME_MAX: Duration = Duration::from_secs(5);
/// Where allocated data is looked for.
const MAP_BYTES_MAX: u64 = 64 << 30;

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Bytes read.
    pub bytes: u64,
    /// How long that took.
    pub time: Duration,
    /// Median time of a lone request of 64 KiB.
    pub latency: Duration,
    /// What the buffers allow at that latency, in bytes per second.
    pub buffers_allow: u64,
}

impl Measured {
    /// Bytes per second.
    pub fn rate(&self) -> u64 {
        (self.bytes as f64 / self.time.as_secs_f64().max(1e-9)) as u64
    }

    /// What limits it, in words.
    pub fn limit(&self, buffer_bytes: u64) -> String {
        let latency = format!("{:.1} ms", self.latency.as_secs_f64() * 1e3);
        if self.bytes == 0 {
            return "the disk holds no data to read".to_string();
        }
        if self.rate() as f64 >= 0.7 * self.buffers_allow as f64 {
            return format!(
                "the buffers: {} KiB in flight at {latency} allow no more; larger AIO buffers help cold copies",
                buffer_bytes >> 10
            );
        }
        format!(
            "not the buffers ({} KiB in flight at {latency} allow more): the host's NFC server, its datastore, the line \
             between, or this machine",
            buffer_bytes >> 10
        )
    }
}

/// Reads allocated data for a moment, and no more than `bytes_max`. `buffer_bytes` are those of the session.
pub(crate) fn measure(disk: &dyn Disk, bytes_max: u64, buffer_bytes: u64) -> Result<Measured, DiskError> {
    let data = data_spans(disk, bytes_max)?;
    let mut lane = disk.open_lane()?;
    let latency = latency(lane.as_mut(), &data)?;
    let started = Instant::now();
    let until = started + TIME_MAX;
    let step = disk.limits().bytes_max.min(REQUEST_BYTES);
    let pieces = data.iter().flat_map(|span| pieces(*span, step)).take_while(|_| Instant::now() < until);
    let (mut bytes, mut first_error) = (0, None);
    for (id, span) in pieces.enumerate() {
        let work = Work::Read(Buffer::zeroed(span.length as usize));
        lane.submit(Request { id: id as u64, span, work });
        if lane.in_flight() >= DEPTH {
            take(lane.as_mut(), &mut bytes, &mut first_error);
        }
    }
    while lane.in_flight() > 0 {
        take(lane.as_mut(), &mut bytes, &mut first_error);
    }
    if let Some(error) = first_error {
        return Err(error);
    }
    let buffers_allow = (buffer_bytes as f64 / latency.as_secs_f64().max(1e-6)) as u64;
    Ok(Measured { bytes, time: started.elapsed(), latency, buffers_allow })
}

fn take(lane: &mut dyn Lane, bytes: &mut u64, first_error: &mut Option<DiskError>) {
    let Some(done) = lane.complete() else { return };
    match done.result {
        Ok(()) => *bytes += done.span.length,
        Err(error) => *first_error = first_error.take().or(Some(error)),
    }
}

/// The first allocated spans, so many bytes of them.
fn data_spans(disk: &dyn Disk, bytes_max: u64) -> Result<Vec<ByteSpan>, DiskError> {
    let (mut spans, mut found, mut at) = (Vec::new(), 0, 0);
    let end = disk.size().min(MAP_BYTES_MAX);
    while at < end && found < bytes_max {
        let extents = disk.extents(ByteSpan::from_bounds(at, end))?;
        let Some(last) = extents.last() else { break };
        at = last.span.end();
        for Extent { span, kind } in extents {
            if kind == ExtentKind::Allocated && found < bytes_max {
                let span = ByteSpan::new(span.offset, span.length.min(bytes_max - found));
                found += span.length;
                spans.push(span);
            }
        }
    }
    Ok(spans)
}

fn latency(lane: &mut dyn Lane, data: &[ByteSpan]) -> Result<Duration, DiskError> {
    let mut times = Vec::new();
    for (id, span) in
        data.iter().flat_map(|span| pieces(*span, PROBE_BYTES)).take(PROBES as usize).enumerate()
    {
        let started = Instant::now();
        let work = Work::Read(Buffer::zeroed(span.length as usize));
        lane.submit(Request { id: id as u64, span, work });
        if let Some(done) = lane.complete() {
            done.result?;
            times.push(started.elapsed());
        }
    }
    times.sort();
    Ok(times.get(times.len() / 2).copied().unwrap_or_default())
}

fn pieces(span: ByteSpan, bytes: u64) -> impl Iterator<Item = ByteSpan> {
    let count = span.length.div_ceil(bytes.max(1));
    (0..count).map(move |number| {
        let offset = span.offset + number * bytes;
        ByteSpan::from_bounds(offset, (offset + bytes).min(span.end()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rate_mib: u64, latency_ms: u64, buffer_bytes: u64) -> String {
        let latency = Duration::from_millis(latency_ms);
        let buffers_allow = (buffer_bytes as f64 / latency.as_secs_f64()) as u64;
        let bytes = rate_mib << 20;
        Measured { bytes, time: Duration::from_secs(1), latency, buffers_allow }.limit(buffer_bytes)
    }

    #[test]
    fn buffers_are_blamed_when_they_explain_the_rate() {
        assert!(measured(48, 5, 256 << 10).starts_with("the buffers: 256 KiB in flight at 5.0 ms"));
        assert!(measured(100, 1, 256 << 10).starts_with("not the buffers"));
        assert_eq!(measured(0, 1, 256 << 10), "the disk holds no data to read");
    }

    #[test]
    fn reads_what_is_allocated_and_no_more_than_asked() {
        let disk = drover_disk::MemDisk::new("m", vec![1; 4 << 20]);
        let measured = measure(&disk, 1 << 20, 256 << 10).unwrap();
        assert_eq!(measured.bytes, 1 << 20);
    }
}
