use drover_disk::{DiskError, HostFile};
use drover_types::ByteSpan;

/// What an image needs of the file below it. Offsets are the file's own.
///
/// Bytes between what was ever written and the file's end read as zeros, also after a power cut.
pub trait Host: Send + Sync {
    /// The file's name.
    fn name(&self) -> &str;

    /// Tells the file from another of its name.
    fn tag(&self) -> String;

    /// When it was last written.
    fn modified(&self) -> String;

    /// The file's length.
    ///
    /// # Errors
    /// When it cannot be told.
    fn length(&self) -> Result<u64, DiskError>;

    /// Cuts the file, or makes it longer by a hole.
    ///
    /// # Errors
    /// When it cannot be that long.
    fn set_length(&self, length: u64) -> Result<(), DiskError>;

    /// Fills `bytes`, which lie in the file.
    ///
    /// # Errors
    /// When reading fails.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError>;

    /// Writes `bytes`.
    ///
    /// # Errors
    /// When writing fails.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;

    /// Makes `span` read as zeros.
    ///
    /// # Errors
    /// When that fails.
    fn zero(&self, span: ByteSpan) -> Result<(), DiskError>;

    /// Sets room aside; false where that is not supported.
    ///
    /// # Errors
    /// When there is no room.
    fn allocate(&self, span: ByteSpan) -> Result<bool, DiskError>;

    /// Sets room aside for what will be written soon, where that gains something.
    ///
    /// # Errors
    /// When there is no room, or it cannot be done. Writing goes on without.
    fn reserve(&self, _span: ByteSpan) -> Result<(), DiskError> {
        Ok(())
    }

    /// Makes everything done before durable.
    ///
    /// # Errors
    /// When that cannot be promised.
    fn flush(&self) -> Result<(), DiskError>;

    /// Looks whether the file still is the one that was opened, see [`drover_disk::Disk::check_same`].
    ///
    /// # Errors
    /// When it is not.
    fn check_same(&self) -> Result<(), DiskError> {
        Ok(())
    }

    /// Makes everything done before durable and gives a file just made its name.
    ///
    /// # Errors
    /// When the name is taken, or that cannot be promised.
    fn publish(&self) -> Result<(), DiskError> {
        self.flush()
    }
}

impl Host for HostFile {
    fn name(&self) -> &str {
        HostFile::name(self)
    }

    fn tag(&self) -> String {
        HostFile::tag(self)
    }

    fn modified(&self) -> String {
        HostFile::modified(self)
    }

    fn length(&self) -> Result<u64, DiskError> {
        HostFile::length(self)
    }

    fn set_length(&self, length: u64) -> Result<(), DiskError> {
        HostFile::set_length(self, length)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        HostFile::read(self, offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        HostFile::write(self, offset, bytes)
    }

    fn zero(&self, span: ByteSpan) -> Result<(), DiskError> {
        HostFile::zero(self, span)
    }

    fn allocate(&self, span: ByteSpan) -> Result<bool, DiskError> {
        HostFile::allocate(self, span)
    }

    fn reserve(&self, span: ByteSpan) -> Result<(), DiskError> {
        HostFile::reserve(self, span)
    }

    fn flush(&self) -> Result<(), DiskError> {
        HostFile::flush(self)
    }

    fn check_same(&self) -> Result<(), DiskError> {
        HostFile::check_same(self)
    }

    fn publish(&self) -> Result<(), DiskError> {
        HostFile::publish(self)
    }
}
