//! Checks an image by its bytes alone, without drover's own code for the format.

use std::collections::HashMap;

/// What a check found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Clusters with more users than counted, used twice, or outside the file.
    pub errors: Vec<String>,
    /// Clusters counted and not used.
    pub leaks: u64,
}

fn be(bytes: &[u8], at: u64, length: u64) -> u64 {
    (at..at + length)
        .fold(0, |word, index| word << 8 | u64::from(bytes.get(index as usize).copied().unwrap_or_default()))
}

/// Checks an image of version 3 with 16-bit refcounts.
pub fn check(bytes: &[u8]) -> Report {
    let mut report = Report::default();
    if bytes.get(..8) != Some(b"QFI\xfb\0\0\0\x03") {
        report.errors.push("no header".into());
        return report;
    }
    let bits = be(bytes, 20, 4);
    let cluster = 1u64 << bits;
    let mut uses: HashMap<u64, u64> = HashMap::new();
    let mut take = |at: u64, length: u64| {
        for index in at / cluster..(at + length).div_ceil(cluster) {
            *uses.entry(index).or_default() += 1;
        }
    };
    let (l1, l1_entries) = (be(bytes, 40, 8), be(bytes, 36, 4));
    let (reftable, reftable_bytes) = (be(bytes, 48, 8), be(bytes, 56, 4) * cluster);
    take(0, 1);
    take(l1, (l1_entries * 8).max(1));
    take(reftable, reftable_bytes);
    let mut sole = Vec::new();
    for index in 0..l1_entries {
        let word = be(bytes, l1 + index * 8, 8);
        if word == 0 {
            continue;
        }
        let l2 = word & 0x00ff_ffff_ffff_fe00;
        take(l2, cluster);
        sole.push((l2, word >> 63 == 1));
        for entry in 0..cluster / 8 {
            let word = be(bytes, l2 + entry * 8, 8);
            if word >> 62 & 1 == 1 {
                let shift = 62 - (bits - 8);
                let at = word & ((1 << shift) - 1);
                let sectors = (word & !(3 << 62)) >> shift;
                let start = at / 512 * 512;
                take(start, (sectors + 1) * 512);
            } else if word & 0x00ff_ffff_ffff_fe00 != 0 {
                let at = word & 0x00ff_ffff_ffff_fe00;
                take(at, cluster);
                sole.push((at, word >> 63 == 1));
            }
        }
    }
    let mut counted: HashMap<u64, u64> = HashMap::new();
    for index in 0..reftable_bytes / 8 {
        let block = be(bytes, reftable + index * 8, 8);
        if block == 0 {
            continue;
        }
        take(block, cluster);
        for entry in 0..cluster / 2 {
            let count = be(bytes, block + entry * 2, 2);
            if count != 0 {
                counted.insert(index * (cluster / 2) + entry, count);
            }
        }
    }
    for (at, copied) in sole {
        if at % cluster != 0 || !copied || uses[&(at / cluster)] != 1 {
            report.errors.push(format!("cluster at {at:#x} is odd, shared or not marked as sole"));
        }
    }
    for (index, used) in &uses {
        let count = counted.get(index).copied().unwrap_or_default();
        if count < *used {
            report.errors.push(format!("cluster {index} has {used} users and a count of {count}"));
        }
        if (index + 1) * cluster > bytes.len() as u64 {
            report.errors.push(format!("cluster {index} lies behind the end"));
        }
    }
    report.leaks = counted
        .iter()
        .filter(|(index, count)| uses.get(index).copied().unwrap_or_default() < **count)
        .count() as u64;
    report
}
