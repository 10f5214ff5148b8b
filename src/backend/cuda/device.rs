//! The driver, its GPUs and their contexts; below, memory, streams, events and modules: owners that free what they hold.
//!
//! Built on cudarc's thin result layer, not on its safe one: that layer records an event per slice and launch, and a lane
//! is one stream in order, which needs none. Nothing here panics when the driver is absent: [`present`] is asked first.
//! An owner binds its context before it makes or frees anything, and holds it until then.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};

mod memory;
mod module;
mod stream;

pub use memory::DeviceBuffer;
pub(super) use memory::wait_for_libraries;
pub use module::{Grid, Kernel, KernelInfo, Module};
pub use stream::{Event, RowCopy, Stream, Waiting};

use crate::error::{Error, Result};

/// Address in device memory.
pub type DevicePtr = sys::CUdeviceptr;

/// Turns a driver error into ours; `operation` says what was tried on what.
pub fn driver_error(operation: impl Into<String>, error: DriverError) -> Error {
    let name = error.error_name().ok().and_then(|n| n.to_str().ok()).unwrap_or("unknown error");
    let text = error.error_string().ok().and_then(|n| n.to_str().ok()).unwrap_or("no description");
    Error::failed(operation, format!("{text} ({name})"))
}

/// Whether the driver library can be loaded. cudarc's own loader panics when it cannot, so this comes first.
pub fn present() -> bool {
    // SAFETY: only opens the library by its usual names; the driver's initialisers are sound to run.
    unsafe { sys::is_culib_present() }
}

fn missing_driver() -> Error {
    Error::failed("cannot use CUDA", "the NVIDIA driver's library (libcuda.so.1) was not found")
        .hint("install NVIDIA's driver (Debian: apt install nvidia-driver, firmware and a reboot), or use --backend cpu")
}

/// Initialises the driver; safe to repeat.
///
/// # Errors
/// No driver library, or it finds no usable device.
pub fn init() -> Result<()> {
    if !present() {
        return Err(missing_driver());
    }
    result::init().map_err(|e| {
        driver_error("cannot initialise the CUDA driver", e).hint("check `nvidia-smi`; in a container, pass the GPU through (--gpus all)")
    })
}

/// The CUDA version that the driver supports, as (major, minor).
///
/// # Errors
/// When the driver does not answer. Call [`init`] before.
pub fn driver_version() -> Result<(u32, u32)> {
    let mut version: c_int = 0;
    // SAFETY: writes one int.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| driver_error("cannot read the CUDA driver's version", e))?;
    let version = version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// What is known about one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Index for `--device`.
    pub index: usize,
    /// Marketing name.
    pub name: String,
    /// Its identity, "GPU-…" as `nvidia-smi -L` shows it; empty if the driver does not tell.
    pub uuid: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Memory in bytes.
    pub memory_bytes: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Level-2 cache in bytes.
    pub l2_bytes: usize,
    /// Shared memory that a block may have without asking, in bytes.
    pub shared_bytes: usize,
    /// Peak memory bandwidth in bytes per second, from clock and bus width; 0 if the driver no longer tells.
    pub bandwidth: u64,
}

impl DeviceInfo {
    /// Architecture as the compiler wants it: "sm_90".
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }
}

#[cfg(test)]
impl DeviceInfo {
    /// A GPU that does not exist, of this identity.
    pub(crate) fn made_up(uuid: &str) -> Self {
        Self {
            index: 0,
            name: "a GPU".into(),
            uuid: uuid.into(),
            capability: (9, 0),
            memory_bytes: 1,
            multiprocessors: 1,
            l2_bytes: 1,
            shared_bytes: 1,
            bandwidth: 1,
        }
    }
}

/// Sixteen bytes as 8-4-4-4-12 hexadecimal digits.
fn uuid_text(bytes: [u8; 16]) -> String {
    let dash = |i: usize| if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
    bytes.iter().enumerate().fold("GPU-".to_owned(), |text, (i, byte)| format!("{text}{}{byte:02x}", dash(i)))
}

fn attribute(device: sys::CUdevice, what: sys::CUdevice_attribute) -> Result<u32> {
    // SAFETY: `device` came from the driver.
    let value = unsafe { result::device::get_attribute(device, what) }.map_err(|e| driver_error("cannot read a property of the GPU", e))?;
    Ok(value.unsigned_abs())
}

/// Every GPU that the driver shows.
///
/// # Errors
/// When the driver does not answer. Call [`init`] before.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let count = result::device::get_count().map_err(|e| driver_error("cannot count the GPUs", e))?;
    (0..count.unsigned_abs() as usize).map(info).collect()
}

fn info(index: usize) -> Result<DeviceInfo> {
    use sys::CUdevice_attribute_enum as A;
    let ordinal = c_int::try_from(index).unwrap_or(c_int::MAX);
    let device = result::device::get(ordinal).map_err(|e| driver_error(format!("cannot open GPU {index}"), e))?;
    // SAFETY: `device` came from the driver.
    let memory =
        unsafe { result::device::total_mem(device) }.map_err(|e| driver_error(format!("cannot read the memory of GPU {index}"), e))?;
    // Kilohertz and bits; two transfers per clock.
    let clock = attribute(device, A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0);
    let bus = attribute(device, A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0);
    Ok(DeviceInfo {
        index,
        name: result::device::get_name(device).map_err(|e| driver_error(format!("cannot read the name of GPU {index}"), e))?,
        uuid: result::device::get_uuid(device).map(|id| uuid_text(id.bytes.map(|b| b as u8))).unwrap_or_default(),
        capability: (
            attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        memory_bytes: memory,
        multiprocessors: attribute(device, A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: attribute(device, A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        shared_bytes: attribute(device, A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)? as usize,
        bandwidth: u64::from(clock) * 1000 * 2 * u64::from(bus) / 8,
    })
}

/// A GPU's primary context, retained for as long as anything made in it lives.
#[derive(Debug)]
pub struct Context {
    raw: sys::CUcontext,
    device: sys::CUdevice,
    info: DeviceInfo,
}

// SAFETY: a CUDA context may be used from any thread once it is made current there; the handle itself is immutable.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's own calls are thread-safe.
unsafe impl Sync for Context {}

impl Context {
    /// Opens GPU `index`.
    ///
    /// # Errors
    /// No driver, no such GPU, or it cannot be used (in exclusive use, out of memory).
    pub fn open(index: usize) -> Result<Arc<Self>> {
        init()?;
        let found = devices()?;
        let count = found.len();
        let info = found.into_iter().nth(index).ok_or_else(|| {
            let error = Error::failed(format!("cannot open GPU {index}"), format!("the driver shows {count} of them"));
            if count == 0 {
                error.hint("check `nvidia-smi` and CUDA_VISIBLE_DEVICES")
            } else {
                error.hint("count from 0; `convoy doctor` lists them")
            }
        })?;
        let ordinal = c_int::try_from(index).unwrap_or(c_int::MAX);
        let failed = |e| driver_error(format!("cannot open GPU {index} ({})", info.name), e);
        let device = result::device::get(ordinal).map_err(failed)?;
        // SAFETY: `device` came from the driver; `drop` releases the context once.
        let raw = unsafe { result::primary_ctx::retain(device) }.map_err(failed)?;
        let context = Self { raw, device, info };
        context.bind()?;
        Ok(Arc::new(context))
    }

    /// Makes the context current in the calling thread.
    ///
    /// # Errors
    /// When the context is broken.
    pub fn bind(&self) -> Result<()> {
        // SAFETY: `raw` is retained until drop.
        unsafe { result::ctx::set_current(self.raw) }.map_err(|e| driver_error("cannot use the GPU in this thread", e))
    }

    /// The GPU's properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`; every object made in the context holds an Arc of it and is gone by now.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
