//! Texture objects over planes of device buffers: unfiltered reads with the hardware's border modes.

use std::sync::Arc;

use cudarc::driver::sys;

use super::device::{Context, DevicePtr, driver_error};
use crate::error::{Error, Result};
use crate::filter::Border;
use crate::frame::Sample;

/// First bytes of a plane that is read as a texture must be a multiple of this; the largest that any GPU asks for.
pub(super) const BASE_ALIGN: u64 = 512;
/// Its pitch too.
pub(super) const PITCH_ALIGN: usize = 32;

/// What a texture object shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) ptr: DevicePtr,
    pub(super) pitch: usize,
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) components: usize,
    pub(super) sample: Sample,
    pub(super) border: Border,
}

/// A texture object. The memory that it shows is its owner's to keep.
#[derive(Debug)]
pub(super) struct Texture {
    raw: sys::CUtexObject,
    view: View,
    context: Arc<Context>,
}

impl Texture {
    pub(super) fn new(context: &Arc<Context>, view: View) -> Result<Self> {
        use sys::{CUaddress_mode_enum as Mode, CUarray_format_enum as Format};
        let what = format!("cannot read a {}x{} plane through a texture", view.width, view.height);
        context.bind()?;
        let (mode, normalised) = match view.border {
            Border::Clamp => (Mode::CU_TR_ADDRESS_MODE_CLAMP, false),
            Border::Zero => (Mode::CU_TR_ADDRESS_MODE_BORDER, false),
            Border::Wrap => (Mode::CU_TR_ADDRESS_MODE_WRAP, true),
            Border::Reflect => (Mode::CU_TR_ADDRESS_MODE_MIRROR, true),
            Border::Reflect101 => return Err(Error::failed(what, "the hardware has no border mode 'reflect101'")),
        };
        let (format, read) = match view.sample {
            // CU_TRSF_READ_AS_INTEGER
            Sample::U8 => (Format::CU_AD_FORMAT_UNSIGNED_INT8, 1),
            Sample::U16 => (Format::CU_AD_FORMAT_UNSIGNED_INT16, 1),
            // Read as floats of 32 bits.
            Sample::F16 => (Format::CU_AD_FORMAT_HALF, 0),
            Sample::F32 => (Format::CU_AD_FORMAT_FLOAT, 0),
        };
        // SAFETY: a plain C structure for which zeros are valid.
        let mut resource: sys::CUDA_RESOURCE_DESC = unsafe { std::mem::zeroed() };
        resource.resType = sys::CUresourcetype_enum::CU_RESOURCE_TYPE_PITCH2D;
        resource.res.pitch2D = sys::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4 {
            devPtr: view.ptr,
            format,
            numChannels: view.components as u32,
            width: view.width,
            height: view.height,
            pitchInBytes: view.pitch,
        };
        // SAFETY: as above.
        let mut texture: sys::CUDA_TEXTURE_DESC = unsafe { std::mem::zeroed() };
        texture.addressMode = [mode; 3];
        texture.filterMode = sys::CUfilter_mode_enum::CU_TR_FILTER_MODE_POINT;
        // CU_TRSF_NORMALIZED_COORDINATES
        texture.flags = read | if normalised { 2 } else { 0 };
        let mut raw = 0;
        // SAFETY: both descriptions live through the call, which copies them.
        unsafe { sys::cuTexObjectCreate(&mut raw, &resource, &texture, std::ptr::null()) }.result().map_err(|e| driver_error(what, e))?;
        Ok(Self { raw, view, context: Arc::clone(context) })
    }

    pub(super) fn handle(&self) -> u64 {
        self.raw
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }
}

impl Drop for Texture {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once; the owner waited for the stream.
            let _ = unsafe { sys::cuTexObjectDestroy(self.raw) };
        }
    }
}
