/// CRC-32C (Castagnoli), bytes of `zeroed` taken as zeros: VHDX checksums leave their own place out so.
pub(crate) fn crc32c(bytes: &[u8], zeroed: std::ops::Range<usize>) -> u32 {
    let mut crc = !0u32;
    for (at, byte) in bytes.iter().enumerate() {
        let byte = if zeroed.contains(&at) { 0 } else { *byte };
        crc = TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
    }
    !crc
}

/// The reversed polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_catalogues_comes_out() {
        assert_eq!(crc32c(b"123456789", 0..0), 0xe306_9283);
        assert_eq!(crc32c(b"12xxxx789", 2..6), crc32c(b"12\0\0\0\x00789", 0..0));
    }
}
