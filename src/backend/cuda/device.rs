//! Context, streams, events, device and pinned memory: the driver API with owners that free what they hold.
//!
//! Built on cudarc's thin result layer, not on its safe one: that layer records an event per slice and launch, and a lane
//! is one stream in order, which needs none. Nothing here panics when the driver is absent: [`present`] is asked first.
//! One file, since each owner is a few lines and they share the same rules for binding and freeing.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};

use crate::error::{Error, Result};

/// `CU_STREAM_PER_THREAD` of cuda.h, a macro there.
const CU_STREAM_PER_THREAD: usize = 2;

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

/// Copies a table, and waits until it is there. The driver's synchronous copy of a small one returns when the table has been staged, and only
/// streams that wait for the default one then wait for the rest: ours do not.
///
/// # Safety
/// `dst` has room for `data` in memory of the current context.
unsafe fn upload_and_wait<T: Copy>(dst: DevicePtr, data: &[T]) -> std::result::Result<(), result::DriverError> {
    let stream = std::ptr::without_provenance_mut(CU_STREAM_PER_THREAD);
    // SAFETY: promised by the caller; `data` outlives the copy, which is waited for; the driver knows the stream by this number.
    unsafe {
        sys::cuMemcpyHtoDAsync_v2(dst, data.as_ptr().cast(), std::mem::size_of_val(data), stream).result()?;
        result::stream::synchronize(stream)
    }
}

/// Device memory.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    ptr: DevicePtr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `bytes`, aligned to at least 256. The content is unspecified.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.bind()?;
        // SAFETY: freed once, in drop.
        let ptr = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(|e| {
            driver_error(format!("cannot allocate {} MiB of GPU memory", bytes.div_ceil(1 << 20)), e)
                .hint("lower --lanes, or free GPU memory")
        })?;
        Ok(Self { context: Arc::clone(context), ptr, bytes })
    }

    /// Allocates and fills from `data`.
    ///
    /// # Errors
    /// Out of device memory, or the copy failed.
    pub fn from_slice<T: Copy>(context: &Arc<Context>, data: &[T]) -> Result<Self> {
        let buffer = Self::new(context, std::mem::size_of_val(data))?;
        if !data.is_empty() {
            // SAFETY: the buffer was made as large as `data`.
            unsafe { upload_and_wait(buffer.ptr, data) }.map_err(|e| driver_error("cannot copy a table to the GPU", e))?;
        }
        Ok(buffer)
    }

    /// First byte.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills with one byte, and waits.
    ///
    /// # Errors
    /// A device error.
    pub fn fill(&self, byte: u8) -> Result<()> {
        self.context.bind()?;
        // This thread's own default stream: the shared one, and waiting for the whole context, fail while another thread records a graph.
        let stream = std::ptr::without_provenance_mut(CU_STREAM_PER_THREAD);
        // SAFETY: the range is the buffer; the driver knows the stream by this number.
        unsafe { result::memset_d8_async(self.ptr, byte, self.bytes, stream).and_then(|()| result::stream::synchronize(stream)) }
            .map_err(|e| driver_error("cannot fill GPU memory", e))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `new`, freed once; owners wait for the stream before they drop buffers.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}

/// An in-order queue of device work that does not synchronise with the default stream.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: stream handles may be used from any thread; the owner moves with its lane.
unsafe impl Send for Stream {}
// SAFETY: the driver's calls on a stream are thread-safe; nothing is mutated through a shared reference.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// A device error.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let raw =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(|e| driver_error("cannot create a CUDA stream", e))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// The context it lives in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits until everything enqueued has run.
    ///
    /// # Errors
    /// An error of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.raw) }.map_err(|e| driver_error("the GPU failed", e))
    }

    /// What is enqueued from here on runs after `event`, which was recorded on another stream.
    ///
    /// # Errors
    /// A device error.
    pub fn after(&self, event: &Event) -> Result<()> {
        // SAFETY: both are alive and of one context.
        unsafe { result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(|e| driver_error("cannot order two CUDA streams", e))
    }

    /// Enqueues a copy of `bytes` from the host.
    ///
    /// # Safety
    /// `src` has `bytes` readable bytes until the copy has run, `dst` that many in device memory.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn upload(&self, dst: DevicePtr, src: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { sys::cuMemcpyHtoDAsync_v2(dst, src.cast(), bytes, self.raw) }
            .result()
            .map_err(|e| driver_error("cannot upload a frame", e))
    }

    /// Enqueues a copy of `bytes` to the host.
    ///
    /// # Safety
    /// `dst` has `bytes` writable bytes that nobody else touches until the copy has run, `src` that many in device memory.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn download(&self, dst: *mut u8, src: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { sys::cuMemcpyDtoHAsync_v2(dst.cast(), src, bytes, self.raw) }
            .result()
            .map_err(|e| driver_error("cannot download a frame", e))
    }

    /// Enqueues a copy inside device memory.
    ///
    /// # Safety
    /// Both ranges are `bytes` of live device memory and do not overlap.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { result::memcpy_dtod_async(dst, src, bytes, self.raw) }.map_err(|e| driver_error("cannot copy on the GPU", e))
    }

    /// Enqueues a copy of `rows` rows of `row_bytes` from the host; pitches in bytes.
    ///
    /// # Safety
    /// As for [`Stream::upload`], for each row.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn upload_rows(&self, copy: RowCopy) -> Result<()> {
        let parameters = sys::CUDA_MEMCPY2D_st {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: copy.src.cast::<c_void>(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: copy.src_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: copy.dst,
            dstArray: std::ptr::null_mut(),
            dstPitch: copy.dst_pitch,
            WidthInBytes: copy.row_bytes,
            Height: copy.rows,
        };
        // SAFETY: promised by the caller; the structure lives through the call, which copies it.
        unsafe { sys::cuMemcpy2DAsync_v2(&parameters, self.raw) }.result().map_err(|e| driver_error("cannot upload a plane", e))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// Rows to upload; see [`Stream::upload_rows`].
#[derive(Clone, Copy, Debug)]
pub struct RowCopy {
    /// First byte on the host.
    pub src: *const u8,
    /// Bytes between rows on the host.
    pub src_pitch: usize,
    /// First byte on the device.
    pub dst: DevicePtr,
    /// Bytes between rows on the device.
    pub dst_pitch: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows.
    pub rows: usize,
}

/// How a thread waits for an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Watching memory: at once, and a core is busy meanwhile.
    Spins,
    /// Asleep until an interrupt: tens of microseconds late, and the core is free for codecs.
    Sleeps,
}

impl Waiting {
    fn flag(self) -> sys::CUevent_flags {
        match self {
            Self::Spins => sys::CUevent_flags::CU_EVENT_DEFAULT,
            Self::Sleeps => sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC,
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: event handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A new event with a time stamp.
    ///
    /// # Errors
    /// A device error.
    pub fn new(context: &Arc<Context>, waiting: Waiting) -> Result<Self> {
        Self::with(context, waiting.flag() as u32)
    }

    /// A new event without a time stamp: what is behind it in its stream need not wait until one is written.
    ///
    /// # Errors
    /// A device error.
    pub fn mark(context: &Arc<Context>, waiting: Waiting) -> Result<Self> {
        Self::with(context, waiting.flag() as u32 | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn with(context: &Arc<Context>, flags: u32) -> Result<Self> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; writes one handle.
        unsafe { sys::cuEventCreate(&mut raw, flags) }.result().map_err(|e| driver_error("cannot create a CUDA event", e))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Enqueues the event.
    ///
    /// # Errors
    /// A device error.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive and of one context.
        unsafe { result::event::record(self.raw, stream.raw) }.map_err(|e| driver_error("cannot record a CUDA event", e))
    }

    /// Waits for the event.
    ///
    /// # Errors
    /// An error of the work before it.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.raw) }.map_err(|e| driver_error("the GPU failed while it filtered a frame", e))
    }

    /// Nanoseconds from `self` to `later`, both having happened.
    ///
    /// # Errors
    /// When one has not happened, or has no time stamp.
    pub fn elapsed_ns(&self, later: &Self) -> Result<u64> {
        // SAFETY: both are alive.
        let ms = unsafe { result::event::elapsed(self.raw, later.raw) }.map_err(|e| driver_error("cannot read a GPU timer", e))?;
        Ok((f64::from(ms) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

/// A loaded cubin.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: module handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: nothing is mutated through a shared reference.
unsafe impl Sync for Module {}

/// Resources of a loaded kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Registers per thread.
    pub registers: u32,
    /// Static shared memory per block in bytes.
    pub shared_bytes: u32,
    /// Local memory per thread in bytes: more than 0 means spills or indexed arrays.
    pub local_bytes: u32,
}

/// A kernel of a module. Valid while the module lives.
#[derive(Clone, Debug)]
pub struct Kernel {
    raw: sys::CUfunction,
    /// Keeps the code loaded.
    _module: Arc<Module>,
}

// SAFETY: function handles may be used from any thread; the module is kept.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Module {
    /// Loads a cubin.
    ///
    /// # Errors
    /// When the driver rejects it.
    pub fn load(context: &Arc<Context>, cubin: &[u8]) -> Result<Arc<Self>> {
        context.bind()?;
        // SAFETY: a cubin is self-describing ELF; the driver copies it during the call.
        let raw =
            unsafe { result::module::load_data(cubin.as_ptr().cast()) }.map_err(|e| driver_error("cannot load a compiled kernel", e))?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    /// Fills a variable of the module.
    ///
    /// # Errors
    /// There is none of that name, or it is smaller than `data`.
    pub fn set(&self, name: &str, data: &[u32]) -> Result<()> {
        let what = || format!("cannot fill the variable '{name}' of a kernel");
        let symbol = CString::new(name).map_err(|e| Error::failed(what(), e))?;
        self.context.bind()?;
        // SAFETY: the module is loaded.
        let (ptr, bytes) = unsafe { result::module::get_global(self.raw, symbol) }.map_err(|e| driver_error(what(), e))?;
        if bytes < std::mem::size_of_val(data) {
            return Err(Error::failed(what(), format!("it has {bytes} bytes, and {} are wanted", std::mem::size_of_val(data))));
        }
        // SAFETY: the variable is as large as `data` and lives as long as the module.
        unsafe { upload_and_wait(ptr, data) }.map_err(|e| driver_error(what(), e))
    }

    /// Looks an entry point up.
    ///
    /// # Errors
    /// When the module has none of that name.
    pub fn kernel(self: &Arc<Self>, entry: &str) -> Result<Kernel> {
        let name = CString::new(entry).map_err(|e| Error::failed(format!("cannot find the kernel '{entry}'"), e))?;
        // SAFETY: the module is loaded.
        let raw = unsafe { result::module::get_function(self.raw, name) }
            .map_err(|e| driver_error(format!("cannot find the kernel '{entry}'"), e))?;
        Ok(Kernel { raw, _module: Arc::clone(self) })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded in `load`, unloaded once; kernels hold an Arc, so none is left.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

impl Kernel {
    /// Registers, shared and local memory.
    ///
    /// # Errors
    /// A driver error.
    pub fn info(&self) -> Result<KernelInfo> {
        use sys::CUfunction_attribute_enum as A;
        let read = |what| {
            // SAFETY: the function's module is loaded.
            let value = unsafe { result::function::get_function_attribute(self.raw, what) };
            value.map(c_int::unsigned_abs).map_err(|e| driver_error("cannot read a kernel's resources", e))
        };
        Ok(KernelInfo {
            registers: read(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            shared_bytes: read(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            local_bytes: read(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        })
    }

    /// Enqueues the kernel on a one-dimensional grid.
    ///
    /// # Safety
    /// `arguments` points at values of exactly the kernel's parameter types, and every device address in them stays valid,
    /// and unshared where the kernel writes, until the kernel has run.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn launch(&self, stream: &Stream, grid: Grid, arguments: &mut [*mut c_void]) -> Result<()> {
        // SAFETY: promised by the caller; the driver copies the arguments during the call.
        unsafe { result::launch_kernel(self.raw, (grid.blocks, 1, 1), (grid.threads, 1, 1), grid.shared_bytes, stream.raw, arguments) }
            .map_err(|e| driver_error("cannot start a kernel", e))
    }
}

/// Shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks; up to 2³¹ − 1, so that no frame is too high.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block in bytes.
    pub shared_bytes: u32,
}
