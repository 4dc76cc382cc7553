//! Bytes that nobody can guess, of the library that makes the keys too.

/// So many random bytes.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // It fails only where the kernel gives no randomness at all: nothing drover does could be trusted then.
    aws_lc_rs::rand::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

/// So many random bytes in hexadecimal digits.
pub(crate) fn hex(count: usize) -> String {
    let all = bytes::<32>();
    to_hex(&all[..count.min(all.len())])
}

/// Bytes as hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
