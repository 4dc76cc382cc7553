//! The guest's bytes, with its settings in them, and the wall around how they come into this program.
//!
//! [`GUEST`] is assembled with this crate and lies among its constants. QEMU loads it as a multiboot kernel (`-kernel`); `guest.s` says where
//! its settings are and what it does.
#![allow(unsafe_code)]

use crate::error::PulseError;
use crate::machine::PulseSpec;

/// Beats in a second.
pub const BEATS_PER_SECOND: u64 = 100;

/// Bytes of a page that the guest fills and writes to.
pub const PAGE_BYTES: u64 = 4096;

/// The least memory of a machine with this guest.
pub const MEMORY_MIB_MIN: u64 = 16;

/// The most: pages that are written to at random are chosen by 24 bits.
pub const MEMORY_MIB_MAX: u64 = 64 << 10;

/// Of a machine's memory, what is not pages that a guest fills: the 4 MiB before them (the firmware's memory, the guest, what it counts, its
/// page tables), and tables of the firmware behind.
const REST_MIB: u64 = 8;
const SETTINGS_AT: usize = 0x20;
const BYTES: usize = 4096;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(include_str!("guest.s"), options(raw));

// SAFETY: `guest.s` defines this symbol as exactly `BYTES` bytes (its last `.org`, without which it does not assemble) in a section
// that nobody writes to; any bytes are a valid `[u8; BYTES]`, which needs no alignment.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    #[link_name = "drover_pulse_guest"]
    safe static GUEST: [u8; BYTES];
}

fn guest() -> Result<Vec<u8>, PulseError> {
    #[cfg(target_arch = "x86_64")]
    return Ok(GUEST.to_vec());
    #[cfg(not(target_arch = "x86_64"))]
    Err(PulseError::NoGuest)
}

/// Pages that a guest of so much memory can fill.
pub fn pages_max(memory_mib: u64) -> u32 {
    let mib = memory_mib.min(MEMORY_MIB_MAX).saturating_sub(REST_MIB);
    // The cast: 64 GiB are 2^24 pages of 4 KiB.
    (mib << 8) as u32
}

impl PulseSpec {
    /// The guest as a file that QEMU loads, with its settings in it.
    ///
    /// # Errors
    /// If its pages do not fit its memory, or this program was built without it.
    pub fn image(&self) -> Result<Vec<u8>, PulseError> {
        let mut image = guest()?;
        if !(1..=pages_max(self.memory_mib)).contains(&self.pages) {
            let (pages, memory) = (self.pages, self.memory_mib);
            return Err(PulseError::Misuse(format!("{pages} pages in a guest of {memory} MiB")));
        }
        let settings =
            [self.pages, self.pages_per_beat, u32::from(self.at_random), u32::from(self.disk.is_some())];
        for (place, setting) in image[SETTINGS_AT..].chunks_exact_mut(4).zip(settings) {
            place.copy_from_slice(&setting.to_le_bytes());
        }
        Ok(image)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_a_multiboot_kernel_with_its_settings() {
        let spec = PulseSpec { pages: 0x1234, pages_per_beat: 20, at_random: false, ..PulseSpec::default() };
        let image = spec.image().unwrap();
        let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), 0x1bad_b002);
        assert_eq!(word(0).wrapping_add(word(4)).wrapping_add(word(8)), 0, "its check");
        assert_eq!([word(0x20), word(0x24), word(0x28), word(0x2c)], [0x1234, 20, 0, 0]);
    }

    #[test]
    fn pages_that_do_not_fit_are_refused_and_those_that_do_not() {
        for memory_mib in [MEMORY_MIB_MIN, 64, MEMORY_MIB_MAX] {
            let pages = pages_max(memory_mib);
            let with = |pages| PulseSpec { memory_mib, pages, ..PulseSpec::default() }.image();
            assert!(with(pages).is_ok() && pages > 0);
            assert!(with(pages + 1).is_err() && with(0).is_err(), "{memory_mib}");
        }
    }
}
