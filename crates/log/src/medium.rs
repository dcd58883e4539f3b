//! What can be read: the segments of a log, wherever they lie.

use std::io;

use crate::record::{SEGMENT_HEADER_LEN, SegmentNo};

/// The readable side of a disk, real or simulated. Offsets and lengths are in bytes.
pub trait Medium {
    /// The segments that exist, in any order.
    ///
    /// # Errors
    /// What the device says.
    fn segments(&mut self) -> io::Result<Vec<SegmentNo>>;

    /// The length of a segment's file.
    ///
    /// # Errors
    /// What the device says; [`io::ErrorKind::NotFound`] if there is no such segment.
    fn len(&mut self, segment: SegmentNo) -> io::Result<u64>;

    /// Reads at most `buffer.len()` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// What the device says; [`io::ErrorKind::NotFound`] if there is no such segment.
    fn read_at(&mut self, segment: SegmentNo, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl<M: Medium + ?Sized> Medium for &mut M {
    fn segments(&mut self) -> io::Result<Vec<SegmentNo>> {
        (**self).segments()
    }

    fn len(&mut self, segment: SegmentNo) -> io::Result<u64> {
        (**self).len(segment)
    }

    fn read_at(&mut self, segment: SegmentNo, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(segment, offset, buffer)
    }
}

/// The first bytes of a segment, as many as there are of its header.
pub(crate) fn read_header<M: Medium>(medium: &mut M, segment: SegmentNo) -> io::Result<Vec<u8>> {
    let mut head = vec![0; SEGMENT_HEADER_LEN as usize];
    let len = medium.read_at(segment, 0, &mut head)?;
    head.truncate(len);
    Ok(head)
}
