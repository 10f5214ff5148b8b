//! Conversion by swscale: what cannot be filtered or encoded as it is. Every byte it writes is a host copy and is counted.

use ffmpeg_next::ffi;

use super::describe;
use crate::error::{Error, Result};

/// A picture format as swscale needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Picture {
    pub format: ffi::AVPixelFormat,
    pub width: i32,
    pub height: i32,
    pub matrix: ffi::AVColorSpace,
    pub full_range: bool,
}

/// A swscale context for one pair of formats, rebuilt when either changes.
pub(super) struct Converter {
    context: *mut ffi::SwsContext,
    pair: Option<(Picture, Picture)>,
}

// SAFETY: a swscale context is plain heap data, used by one owner at a time.
unsafe impl Send for Converter {}

impl Converter {
    pub(super) fn new() -> Self {
        Self { context: std::ptr::null_mut(), pair: None }
    }

    fn prepare(&mut self, from: Picture, to: Picture) -> Result<()> {
        if self.pair == Some((from, to)) {
            return Ok(());
        }
        self.free();
        let flags = ffi::SWS_BICUBIC | ffi::SWS_ACCURATE_RND | ffi::SWS_FULL_CHR_H_INT | ffi::SWS_FULL_CHR_H_INP;
        // SAFETY: formats and sizes are plain values; null filters and parameters mean defaults. The tables are static.
        unsafe {
            self.context = ffi::sws_getContext(
                from.width,
                from.height,
                from.format,
                to.width,
                to.height,
                to.format,
                flags,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null(),
            );
            if self.context.is_null() {
                let name = super::format::name;
                return Err(Error::failed(
                    format!("cannot convert {} to {}", name(from.format), name(to.format)),
                    "swscale does not support it",
                ));
            }
            // Fails harmlessly between formats that have no range.
            ffi::sws_setColorspaceDetails(
                self.context,
                ffi::sws_getCoefficients(from.matrix as libc::c_int),
                from.full_range.into(),
                ffi::sws_getCoefficients(to.matrix as libc::c_int),
                to.full_range.into(),
                0,
                1 << 16,
                1 << 16,
            );
        }
        self.pair = Some((from, to));
        Ok(())
    }

    /// Converts one whole picture.
    ///
    /// # Safety
    /// `source` is planes and pitches of a picture `from`, `target` those of writable memory for a picture `to`.
    pub(super) unsafe fn run(
        &mut self,
        (from, source): (Picture, (&[*mut u8], &[i32])),
        (to, target): (Picture, (&[*mut u8], &[i32])),
    ) -> Result<()> {
        self.prepare(from, to)?;
        let four = |(planes, pitches): (&[*mut u8], &[i32])| {
            let mut out = ([std::ptr::null_mut::<u8>(); 4], [0i32; 4]);
            out.0.iter_mut().zip(planes).for_each(|(o, &p)| *o = p);
            out.1.iter_mut().zip(pitches).for_each(|(o, &p)| *o = p);
            out
        };
        let (source, target) = (four(source), four(target));
        // SAFETY: the context matches both pictures, whose memory the caller vouches for.
        let rows = unsafe {
            ffi::sws_scale(self.context, source.0.as_ptr().cast(), source.1.as_ptr(), 0, from.height, target.0.as_ptr(), target.1.as_ptr())
        };
        if rows < 0 { Err(Error::failed("cannot convert a frame", describe(rows))) } else { Ok(()) }
    }

    fn free(&mut self) {
        // SAFETY: owned; accepts null.
        unsafe { ffi::sws_freeContext(self.context) };
        self.context = std::ptr::null_mut();
        self.pair = None;
    }
}

impl Drop for Converter {
    fn drop(&mut self) {
        self.free();
    }
}
