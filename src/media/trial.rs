//! A muxer tried out in memory: what it refuses is known before the output is touched, and its own reader tells what it kept.

use ffmpeg_next::ffi;

use super::mux::Output;
use super::owned::Dict;
use super::{av_failed, log};
use crate::error::{Error, Result};

const BUFFER_BYTES: usize = 4096;

/// What came of writing a header.
pub(super) struct Written {
    /// FFmpeg's code; negative when the muxer refused.
    pub code: i32,
    /// The file so far.
    pub bytes: Vec<u8>,
}

/// Writes the header of a complete context into memory, and, with `trailer`, ends the file there.
pub(super) fn write(mut output: Output, options: &mut Dict, trailer: bool) -> Result<Written> {
    let mark = log::Mark::now();
    // SAFETY: a complete context writing into memory, which is freed here; the muxer cleans up in Output's drop.
    unsafe {
        let code = ffi::avio_open_dyn_buf(&mut output.get().pb);
        if code < 0 {
            return Err(av_failed("cannot set up the output", code, mark));
        }
        let mut code = ffi::avformat_write_header(output.get(), options.as_mut());
        if code >= 0 && trailer {
            code = ffi::av_write_trailer(output.get());
        }
        let mut buffer = std::ptr::null_mut();
        let size = usize::try_from(ffi::avio_close_dyn_buf(output.get().pb, &mut buffer)).unwrap_or(0);
        output.get().pb = std::ptr::null_mut();
        let bytes = if buffer.is_null() { Vec::new() } else { std::slice::from_raw_parts(buffer, size).to_vec() };
        ffi::av_free(buffer.cast());
        Ok(Written { code, bytes })
    }
}

/// The tags of a file in memory, as FFmpeg's reader finds them: of the file, and of each stream.
pub(super) struct Tags {
    pub file: Dict,
    pub streams: Vec<Dict>,
}

struct Memory {
    bytes: Vec<u8>,
    at: usize,
}

/// Reads the tags back; None when it is no file that FFmpeg opens.
pub(super) fn tags(bytes: Vec<u8>) -> Result<Option<Tags>> {
    let memory = Box::into_raw(Box::new(Memory { bytes, at: 0 }));
    // SAFETY: the buffer comes from FFmpeg's allocator, as avio_alloc_context demands; the memory outlives the context, and
    // both are freed here on every path. A failed open frees the demuxer's context and nulls the pointer.
    unsafe {
        let buffer = ffi::av_malloc(BUFFER_BYTES).cast::<u8>();
        let io = match buffer.is_null() {
            true => std::ptr::null_mut(),
            false => ffi::avio_alloc_context(buffer, BUFFER_BYTES as libc::c_int, 0, memory.cast(), Some(read), None, Some(seek)),
        };
        let mut context = ffi::avformat_alloc_context();
        let found = match (io.is_null(), context.as_mut()) {
            (false, Some(c)) => {
                c.pb = io;
                c.flags |= ffi::AVFMT_FLAG_CUSTOM_IO;
                let code = ffi::avformat_open_input(&mut context, std::ptr::null(), std::ptr::null(), std::ptr::null_mut());
                Ok((code >= 0).then(|| {
                    let c = &*context;
                    let streams = (0..c.nb_streams as usize).map(|n| Dict::copy_of((**c.streams.add(n)).metadata)).collect();
                    Tags { file: Dict::copy_of(c.metadata), streams }
                }))
            }
            _ => Err(Error::failed("cannot set up the output", "out of memory")),
        };
        ffi::avformat_close_input(&mut context);
        if !io.is_null() {
            ffi::av_freep((&raw mut (*io).buffer).cast());
            let mut io = io;
            ffi::avio_context_free(&mut io);
        }
        drop(Box::from_raw(memory));
        found
    }
}

unsafe extern "C" fn read(opaque: *mut libc::c_void, buffer: *mut u8, size: libc::c_int) -> libc::c_int {
    // SAFETY: `opaque` is the Memory that `tags` keeps alive; FFmpeg gives `size` writable bytes.
    unsafe {
        let memory = &mut *opaque.cast::<Memory>();
        let rest = memory.bytes.get(memory.at..).unwrap_or_default();
        let count = rest.len().min(usize::try_from(size).unwrap_or(0));
        if count == 0 {
            return ffi::AVERROR_EOF;
        }
        std::ptr::copy_nonoverlapping(rest.as_ptr(), buffer, count);
        memory.at += count;
        libc::c_int::try_from(count).unwrap_or(0)
    }
}

unsafe extern "C" fn seek(opaque: *mut libc::c_void, offset: i64, whence: libc::c_int) -> i64 {
    // SAFETY: as in `read`.
    let memory = unsafe { &mut *opaque.cast::<Memory>() };
    let size = i64::try_from(memory.bytes.len()).unwrap_or(i64::MAX);
    let from = match whence & 3 {
        _ if whence & ffi::AVSEEK_SIZE != 0 => return size,
        libc::SEEK_CUR => i64::try_from(memory.at).unwrap_or(0),
        libc::SEEK_END => size,
        _ => 0,
    };
    match usize::try_from(from.saturating_add(offset)) {
        Ok(at) => {
            memory.at = at;
            from.saturating_add(offset)
        }
        Err(_) => i64::from(ffi::AVERROR(libc::EINVAL)),
    }
}

/// Keys of `wanted` that `kept` lacks, whatever their case.
pub(super) fn missing(wanted: &Dict, kept: &Dict) -> Vec<String> {
    let kept = kept.keys();
    wanted.keys().into_iter().filter(|key| !kept.iter().any(|k| k.eq_ignore_ascii_case(key))).collect()
}
