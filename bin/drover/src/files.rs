//! Small text files that a user names.

use std::fs::File;
use std::io::Result;
use std::path::Path;

/// The text of a file, or of a pipe, that is not larger than this.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    drover_types::read_text(File::open(path)?, bytes_max)
}
