//! What fuzzing needs of the private parts.

use crate::head;

/// Takes a head off the front of `bytes`. What was taken is a head by itself, and no less of it is.
pub fn head(bytes: &[u8]) {
    for answers_head in [false, true] {
        let Ok(Some((parsed, length))) = head::parse(bytes, answers_head) else { continue };
        let again = head::parse(&bytes[..length], answers_head);
        assert!(matches!(again, Ok(Some((again, same))) if again == parsed && same == length));
        assert!(!matches!(head::parse(&bytes[..length - 1], answers_head), Ok(Some(_))));
    }
}
