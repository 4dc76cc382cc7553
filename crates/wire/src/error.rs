//! What is wrong with bytes of a peer.

/// Bytes that an honest peer would not have sent, or that were damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header of a frame fails its check.
    #[error("the header of a frame fails its check")]
    HeaderCheck,
    /// The payload of a frame fails its check.
    #[error("the payload of frame {sequence} ({kind:?}) fails its check")]
    PayloadCheck {
        /// Kind of frame.
        kind: crate::Kind,
        /// Its sequence number.
        sequence: u64,
    },
    /// A kind of frame that this version does not have.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// A payload or a head longer or shorter than its kind allows.
    #[error("{kind:?} frame with {bytes} bytes")]
    Length {
        /// Kind of frame.
        kind: crate::Kind,
        /// Bytes of its payload, or of its head.
        bytes: usize,
    },
    /// A field that must be something else in a frame of this kind.
    #[error("{kind:?} frame with a wrong {field}")]
    Field {
        /// Kind of frame.
        kind: crate::Kind,
        /// The field's name.
        field: &'static str,
    },
    /// Ranges of an acknowledgement that are empty, out of order or too far away.
    #[error("acknowledgement with wrong ranges")]
    Ranges,
    /// A greeting that cannot be understood.
    #[error("greeting: {0}")]
    Greeting(&'static str),
}
