use drover_disk::Slice;

/// Zeros are sent from here to servers without `WRITE_ZEROES`.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Data of a request.
pub(super) enum Payload {
    None,
    Bytes(Slice),
    Zeros(usize),
}

impl Payload {
    pub(super) fn len(&self) -> usize {
        match self {
            Payload::None => 0,
            Payload::Bytes(slice) => slice.len(),
            Payload::Zeros(length) => *length,
        }
    }

    /// A run of bytes from `at` on, empty only at the end.
    pub(super) fn from(&self, at: usize) -> &[u8] {
        match self {
            Payload::None => &[],
            Payload::Bytes(slice) => &slice[at..],
            Payload::Zeros(length) => &ZEROS[..ZEROS.len().min(length - at)],
        }
    }
}
