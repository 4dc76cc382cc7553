//! How fast a disk of a VM that is off can be read into memory:
//! `DROVER_PASSWORD=.. read_rate ENDPOINT USER VM [LANES [DEPTH [PIECE_KIB]]]`. Trusts any certificate.

use std::env;
use std::time::Instant;

use drover_disk::{Buffer, Disk, Request, Work};
use drover_types::{ByteSpan, Rate, Secret};
use drover_vsphere::{ConnectOptions, OpenDisk, Route, Session, Timeouts, Trust};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize, default: u64| args.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let [endpoint, user, name, ..] = args.as_slice() else { return Err("ENDPOINT USER VM".into()) };
    let (lanes, depth, piece) = (number(3, 1), number(4, 4) as usize, number(5, 1024) << 10);
    let session = Session::connect(ConnectOptions {
        endpoint: endpoint.clone(),
        user: user.clone(),
        password: Secret::new(env::var("DROVER_PASSWORD")?),
        trust: Trust::Insecure,
        timeouts: Timeouts::default(),
    })?;
    let inventory = session.inventory()?;
    let vm = inventory.vms.iter().find(|vm| vm.name == *name).ok_or("no such VM")?;
    let disk = vm.disks.first().ok_or("no disk")?;
    let open = OpenDisk { vm, disk, snapshot: None, route: &Route::Provider, datacenter: &vm.datacenter };
    let disk = session.open_disk(open)?.disk;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let disk = &*disk;
            scope.spawn(move || read_share(disk, lane, lanes, depth, piece));
        }
    });
    let took = started.elapsed();
    println!("{lanes} lanes, depth {depth}, {} KiB: {}", piece >> 10, Rate::of(disk.size(), took));
    Ok(())
}

/// Reads every `lanes`-th piece. A bench has no use for errors, so they end it.
#[allow(clippy::unwrap_used)]
fn read_share(disk: &dyn Disk, first: u64, lanes: u64, depth: usize, piece: u64) {
    let mut lane = disk.open_lane().unwrap();
    let mut buffers: Vec<Buffer> = (0..depth).map(|_| Buffer::zeroed(piece as usize)).collect();
    let mut spans = (first..disk.size().div_ceil(piece))
        .step_by(lanes as usize)
        .map(|i| ByteSpan::from_bounds(i * piece, ((i + 1) * piece).min(disk.size())));
    loop {
        while let Some(mut buffer) = buffers.pop() {
            let Some(span) = spans.next() else { break };
            buffer.set_len(span.length as usize);
            lane.submit(Request { id: 0, span, work: Work::Read(buffer) });
        }
        let Some(done) = lane.complete() else { return };
        done.result.unwrap();
        if let Work::Read(buffer) = done.work {
            buffers.push(buffer);
        }
    }
}
