//! Owned FFmpeg values: dictionaries, codec parameters, frames. Each frees itself; none is shared.

use std::ffi::{CStr, CString};

use ffmpeg_next::ffi;

use super::c_string;
use crate::error::{Error, Result};

/// Copies a C string; None for null.
///
/// # Safety
/// `raw` is null or a terminated string.
pub(super) unsafe fn text(raw: *const libc::c_char) -> Option<String> {
    // SAFETY: not null, terminated by the caller's promise.
    (!raw.is_null()).then(|| unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned())
}

/// An AVDictionary.
pub(super) struct Dict {
    raw: *mut ffi::AVDictionary,
}

// SAFETY: plain heap data with one owner.
unsafe impl Send for Dict {}
// SAFETY: shared access only reads.
unsafe impl Sync for Dict {}

impl Dict {
    pub(super) fn new() -> Self {
        Self { raw: std::ptr::null_mut() }
    }

    pub(super) fn from_pairs(pairs: &[(String, String)], what: &str) -> Result<Self> {
        let mut dict = Self::new();
        for (key, value) in pairs {
            dict.set(&c_string(key, what)?, &c_string(value, what)?);
        }
        Ok(dict)
    }

    /// # Safety
    /// `raw` is null or a valid dictionary.
    pub(super) unsafe fn copy_of(raw: *const ffi::AVDictionary) -> Self {
        let mut dict = Self::new();
        // SAFETY: the source is valid by the caller's promise; a failed copy leaves a shorter dictionary.
        unsafe { ffi::av_dict_copy(&mut dict.raw, raw, 0) };
        dict
    }

    pub(super) fn set(&mut self, key: &CStr, value: &CStr) {
        // SAFETY: both are terminated strings, which the dictionary copies.
        unsafe { ffi::av_dict_set(&mut self.raw, key.as_ptr(), value.as_ptr(), 0) };
    }

    /// Sets `key` unless it is there.
    pub(super) fn set_default(&mut self, key: &CStr, value: &CStr) {
        // SAFETY: as in `set`.
        unsafe { ffi::av_dict_set(&mut self.raw, key.as_ptr(), value.as_ptr(), ffi::AV_DICT_DONT_OVERWRITE) };
    }

    pub(super) fn remove(&mut self, key: &CStr) {
        // SAFETY: a null value deletes the entry.
        unsafe { ffi::av_dict_set(&mut self.raw, key.as_ptr(), std::ptr::null(), 0) };
    }

    pub(super) fn get(&self, key: &CStr) -> Option<String> {
        // SAFETY: the entry's value is a terminated string owned by the dictionary, copied here.
        unsafe {
            let entry = ffi::av_dict_get(self.raw, key.as_ptr(), std::ptr::null(), 0);
            if entry.is_null() { None } else { text((*entry).value) }
        }
    }

    /// The keys that are left: options that nobody consumed.
    pub(super) fn keys(&self) -> Vec<String> {
        let empty = CString::default();
        let mut keys = Vec::new();
        let mut entry = std::ptr::null();
        loop {
            // SAFETY: iteration with the previous entry of the same dictionary, as av_dict_get documents.
            unsafe {
                entry = ffi::av_dict_get(self.raw, empty.as_ptr(), entry, ffi::AV_DICT_IGNORE_SUFFIX);
                if entry.is_null() {
                    return keys;
                }
                keys.extend(text((*entry).key));
            }
        }
    }

    pub(super) fn as_mut(&mut self) -> *mut *mut ffi::AVDictionary {
        &mut self.raw
    }

    pub(super) fn as_ptr(&self) -> *const ffi::AVDictionary {
        self.raw
    }
}

impl Clone for Dict {
    fn clone(&self) -> Self {
        // SAFETY: `raw` is valid for the life of self.
        unsafe { Self::copy_of(self.raw) }
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        // SAFETY: owned; av_dict_free accepts null.
        unsafe { ffi::av_dict_free(&mut self.raw) }
    }
}

/// Codec parameters of one stream.
pub(super) struct Params {
    raw: *mut ffi::AVCodecParameters,
}

// SAFETY: plain heap data with one owner.
unsafe impl Send for Params {}
// SAFETY: shared access only reads.
unsafe impl Sync for Params {}

impl Params {
    /// # Safety
    /// `raw` is valid codec parameters.
    pub(super) unsafe fn copy_of(raw: *const ffi::AVCodecParameters) -> Result<Self> {
        // SAFETY: allocation is checked; the source is valid by the caller's promise.
        unsafe {
            let copy = Self { raw: ffi::avcodec_parameters_alloc() };
            if copy.raw.is_null() || ffi::avcodec_parameters_copy(copy.raw, raw) < 0 {
                return Err(Error::failed("cannot copy a stream's parameters", "out of memory"));
            }
            Ok(copy)
        }
    }

    /// Parameters of a video stream of which nothing is known.
    pub(super) fn empty_video() -> Result<Self> {
        // SAFETY: the allocation is checked before it is written.
        unsafe {
            let fresh = Self { raw: ffi::avcodec_parameters_alloc() };
            let Some(params) = fresh.raw.as_mut() else {
                return Err(Error::failed("cannot describe a stream", "out of memory"));
            };
            params.codec_type = ffi::AVMediaType::AVMEDIA_TYPE_VIDEO;
            Ok(fresh)
        }
    }

    pub(super) fn get(&self) -> &ffi::AVCodecParameters {
        // SAFETY: `copy_of` and `empty_video` never leaves a null pointer in a finished value.
        unsafe { &*self.raw }
    }
}

impl Drop for Params {
    fn drop(&mut self) {
        // SAFETY: owned; accepts null.
        unsafe { ffi::avcodec_parameters_free(&mut self.raw) }
    }
}

/// An AVFrame.
pub(super) struct AvFrame {
    raw: *mut ffi::AVFrame,
}

// SAFETY: plain data with counted buffers, used by one owner at a time.
unsafe impl Send for AvFrame {}

impl AvFrame {
    pub(super) fn alloc() -> Result<Self> {
        // SAFETY: allocates or returns null, which is checked.
        let raw = unsafe { ffi::av_frame_alloc() };
        if raw.is_null() {
            return Err(Error::failed("cannot allocate a frame", "out of memory"));
        }
        Ok(Self { raw })
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::AVFrame {
        self.raw
    }

    pub(super) fn get(&self) -> &ffi::AVFrame {
        // SAFETY: never null (`alloc`, `from_raw`).
        unsafe { &*self.raw }
    }

    pub(super) fn get_mut(&mut self) -> &mut ffi::AVFrame {
        // SAFETY: never null, and `&mut self` makes the access unique.
        unsafe { &mut *self.raw }
    }

    /// All side data with its kinds.
    pub(super) fn all_side_data(&self) -> impl Iterator<Item = (ffi::AVFrameSideDataType, &[u8])> {
        let frame = self.get();
        (0..usize::try_from(frame.nb_side_data).unwrap_or(0)).filter_map(|index| {
            // SAFETY: an array of the stated length; an entry's data has the stated size and lives as long as the frame.
            unsafe {
                let entry = (*frame.side_data.add(index)).as_ref()?;
                (!entry.data.is_null()).then(|| (entry.type_, std::slice::from_raw_parts(entry.data, entry.size)))
            }
        })
    }

    /// The side data of a kind, if the frame has some.
    pub(super) fn side_data(&self, kind: ffi::AVFrameSideDataType) -> Option<&[u8]> {
        // SAFETY: a valid frame; the entry's data has the stated size and lives as long as the frame.
        unsafe {
            let entry = ffi::av_frame_get_side_data(self.raw, kind).as_ref()?;
            (!entry.data.is_null()).then(|| std::slice::from_raw_parts(entry.data, entry.size))
        }
    }

    /// Adds side data of a kind; false when memory is short.
    pub(super) fn add_side_data(&mut self, kind: ffi::AVFrameSideDataType, bytes: &[u8]) -> bool {
        // SAFETY: a valid frame; the fresh entry has room for `bytes`.
        unsafe {
            let Some(entry) = ffi::av_frame_new_side_data(self.raw, kind, bytes.len()).as_mut() else { return false };
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), entry.data, bytes.len());
        }
        true
    }

    /// Gives the frame away, to be taken back with [`AvFrame::from_raw`].
    pub(super) fn into_raw(self) -> *mut ffi::AVFrame {
        std::mem::ManuallyDrop::new(self).raw
    }

    /// # Safety
    /// `raw` came from [`AvFrame::into_raw`] and is taken back once.
    pub(super) unsafe fn from_raw(raw: *mut ffi::AVFrame) -> Self {
        Self { raw }
    }

    /// Moves the content out, leaving this frame blank.
    pub(super) fn take(&mut self) -> Result<Self> {
        let taken = Self::alloc()?;
        // SAFETY: both frames are valid; the destination is blank.
        unsafe { ffi::av_frame_move_ref(taken.raw, self.raw) };
        Ok(taken)
    }
}

impl Drop for AvFrame {
    fn drop(&mut self) {
        // SAFETY: owned; accepts null.
        unsafe { ffi::av_frame_free(&mut self.raw) }
    }
}
