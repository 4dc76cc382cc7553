//! The line with its two ends.

use std::io;

use crate::error::WanError;
use crate::keeper::Keeper;
use crate::line::{LineSpec, OUTAGES_MAX};
use crate::pump::{Handle, Pump};
use crate::report::Report;
use crate::site::{End, Site};

/// Smallest MTU: what IPv6 asks for.
pub const MTU_MIN: u32 = 1_280;

/// Largest MTU of a TUN device.
pub const MTU_MAX: u32 = 65_521;

/// Addresses of one end.
pub const ADDRESSES_MAX: u8 = 250;

/// A line and its ends.
#[derive(Clone, Debug)]
pub struct WanSpec {
    /// What happens to packets.
    pub line: LineSpec,
    /// Bytes of an IP packet at most, [`MTU_MIN`] to [`MTU_MAX`].
    pub mtu: u32,
    /// Addresses of the near end, 1 to [`ADDRESSES_MAX`].
    pub near_addresses: u8,
    /// Addresses of the far end.
    pub far_addresses: u8,
    /// Most bytes of TCP's buffers at both ends (`tcp_rmem`, `tcp_wmem`); `None` leaves what the kernel has.
    pub tcp_mem: Option<u64>,
    /// Congestion control of what the near end sends; `None` leaves what the kernel has.
    pub near_congestion: Option<String>,
    /// Congestion control of what the far end sends.
    pub far_congestion: Option<String>,
    /// Seed of all chance.
    pub seed: u64,
}

impl Default for WanSpec {
    fn default() -> Self {
        WanSpec {
            line: LineSpec::default(),
            mtu: 1_500,
            near_addresses: 1,
            far_addresses: 1,
            tcp_mem: None,
            near_congestion: None,
            far_congestion: None,
            seed: 1,
        }
    }
}

impl WanSpec {
    /// A line as the reference figures have it: five source and two target addresses, TCP buffers of 64 MiB, one congestion
    /// control at both ends.
    pub fn long(line: LineSpec, mtu: u32, congestion: &str, seed: u64) -> WanSpec {
        WanSpec {
            line,
            mtu,
            near_addresses: 5,
            far_addresses: 2,
            tcp_mem: Some(64 << 20),
            near_congestion: Some(congestion.to_string()),
            far_congestion: Some(congestion.to_string()),
            seed,
        }
    }

    pub(crate) fn addresses(&self, end: End) -> u8 {
        if end == End::Near { self.near_addresses } else { self.far_addresses }
    }

    pub(crate) fn congestion(&self, end: End) -> Option<&str> {
        if end == End::Near { self.near_congestion.as_deref() } else { self.far_congestion.as_deref() }
    }

    fn check(&self) -> Result<(), WanError> {
        let addresses = 1..=ADDRESSES_MAX;
        let wrong = if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            format!("an MTU of {}; {MTU_MIN} to {MTU_MAX} are possible", self.mtu)
        } else if !addresses.contains(&self.near_addresses) || !addresses.contains(&self.far_addresses) {
            format!("each end has 1 to {ADDRESSES_MAX} addresses")
        } else if [&self.line.up, &self.line.down].iter().any(|it| it.outages.len() > OUTAGES_MAX) {
            format!("more than {OUTAGES_MAX} outages")
        } else if let Some(name) =
            [&self.near_congestion, &self.far_congestion].into_iter().flatten().find(|it| !is_name(it))
        {
            format!("'{name}' is no name of a congestion control")
        } else {
            return Ok(());
        };
        Err(WanError::Misuse(wrong))
    }
}

/// It becomes a word of a script.
fn is_name(text: &str) -> bool {
    (1..16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A line in use. When it is dropped, the programs that are still at its ends are ended, and all is gone.
#[derive(Debug)]
pub struct Wan {
    /// One end: where the command of `drover-lab wan` runs.
    pub near: Site,
    /// The other.
    pub far: Site,
    pump: Pump,
    /// Ends what is left at the ends if this program cannot.
    keeper: Keeper,
    is_stopped: bool,
}

impl Wan {
    /// Lays a line.
    ///
    /// # Errors
    /// If this user may make no namespaces or devices, or the kernel has not what is asked for.
    pub fn start(spec: &WanSpec) -> Result<Wan, WanError> {
        spec.check()?;
        let (near, near_tun) = Site::lay(End::Near, spec)?;
        let (far, far_tun) = Site::lay(End::Far, spec)?;
        let keeper = Keeper::start(&near.namespace, &far.namespace)
            .map_err(WanError::of("starting the shell that looks after the ends"))?;
        let line = spec.line.clone().with_queues();
        let pump = Pump::start(&line, spec.seed, near_tun, far_tun)
            .map_err(WanError::of("starting the emulator"))?;
        Ok(Wan { near, far, pump, keeper, is_stopped: false })
    }

    /// Changes the line, and asks for its counts, from anywhere.
    pub fn handle(&self) -> Handle {
        self.pump.handle().clone()
    }

    /// What became of the packets so far.
    ///
    /// # Errors
    /// If the emulator has ended, or a namespace cannot be looked at.
    pub fn report(&self) -> Result<Report, WanError> {
        let report = self.pump.handle().report()?;
        self.with_unread(report)
    }

    /// Ends the programs that are left at the ends, and the line.
    ///
    /// # Errors
    /// If the emulator ended before, with the reason, or a namespace cannot be looked at.
    pub fn stop(mut self) -> Result<Report, WanError> {
        self.clear().map_err(WanError::of("ending what is left in the namespaces"))?;
        let report = self.pump.stop()?;
        self.with_unread(report)
    }

    fn with_unread(&self, mut report: Report) -> Result<Report, WanError> {
        let unread = |site: &Site| site.unread().map_err(WanError::of("counts of a device"));
        (report.up.unread, report.down.unread) = (unread(&self.near)?, unread(&self.far)?);
        Ok(report)
    }

    fn clear(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.is_stopped, true) {
            return Ok(());
        }
        let (near, far) = (self.near.namespace.clear(), self.far.namespace.clear());
        let cleared = near.and(far);
        if cleared.is_err() {
            self.keeper.take_over();
        }
        cleared
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        // Whoever wants to know whether it worked calls stop.
        let _ = self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_made() {
        let wrong = |spec: WanSpec| Wan::start(&spec).map(drop).unwrap_err().to_string();
        assert!(wrong(WanSpec { mtu: 576, ..WanSpec::default() }).contains("MTU of 576"));
        assert!(wrong(WanSpec { far_addresses: 0, ..WanSpec::default() }).contains("1 to 250"));
        let near_congestion = Some("bbr dev lo".to_string());
        assert!(wrong(WanSpec { near_congestion, ..WanSpec::default() }).contains("'bbr dev lo'"));
    }
}
