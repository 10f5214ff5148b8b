//! cuBLAS and cuFFT: found by version at run time, few functions of each. Without them only the variants that need them are missing.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library as Loaded;

use super::device::{self, Context, DeviceBuffer, DevicePtr, Stream, driver_error};
use super::lookup;
use super::spec::Tiles;
use crate::error::{Error, Result};

/// A library that a variant may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Matrix products.
    CuBlas,
    /// Fourier transforms.
    CuFft,
}

impl Library {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CuBlas => "cuBLAS",
            Self::CuFft => "cuFFT",
        }
    }

    /// Whether it can be used on this machine; loads it.
    ///
    /// # Errors
    /// Why not, and how to get it.
    pub fn available(self) -> Result<(), String> {
        match self {
            Self::CuBlas => blas().map(|_| ()),
            Self::CuFft => fft().map(|_| ()),
        }
    }

    /// Where it was found and its version, if it has been loaded or can be.
    ///
    /// # Errors
    /// As for [`Library::available`].
    pub fn found(self) -> Result<(&'static Path, (u32, u32)), String> {
        match self {
            Self::CuBlas => blas().map(|b| (b.path.as_path(), b.version)),
            Self::CuFft => fft().map(|f| (f.path.as_path(), f.version)),
        }
    }
}

/// The newest library of `file` whose version suits the driver: `lead` is how far the CUDA version is ahead of the library's own.
fn open(what: Library, variable: &str, file: &str, versions: &[&str], lead: u32) -> Result<(Loaded, PathBuf), String> {
    let how = format!("install the CUDA toolkit or NVIDIA's Python wheel of {}, or set {variable} to the library's path", what.name());
    let driver = device::init().and_then(|()| device::driver_version()).map_err(|e| e.to_string())?.0;
    let explicit = std::env::var_os(variable).is_some_and(|v| !v.is_empty());
    let major = |path: &Path| -> Option<u32> {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix(file)?.strip_prefix('.')?.split('.').next()?.parse().ok()
    };
    let mut candidates = lookup::candidates(variable, file, versions);
    candidates.retain(|path| explicit || major(path).is_none_or(|m| m + lead <= driver));
    candidates.sort_by_key(|path| std::cmp::Reverse(major(path).unwrap_or(0)));
    let mut last = String::new();
    for path in candidates {
        // SAFETY: NVIDIA's initialisers are sound to run; a file of that name that is something else is the user's choice.
        match unsafe { Loaded::new(&path) } {
            Ok(library) => return Ok((library, path)),
            Err(error) if explicit => last = format!(" ({error})"),
            Err(_) => {}
        }
    }
    Err(format!("{} was not found for a driver of CUDA {driver}{last}; {how}", what.name()))
}

/// A function of a library, by name.
///
/// # Safety
/// `T` is the function's documented type.
unsafe fn symbol<T: Copy>(library: &Loaded, name: &[u8]) -> Result<T, String> {
    // SAFETY: promised by the caller.
    unsafe { library.get::<T>(name) }.map(|s| *s).map_err(|e| e.to_string())
}

type Handle = *mut c_void;
type Sgemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    *const f32,
    *mut f32,
    c_int,
) -> c_int;

/// cuBLAS's functions.
struct Blas {
    create: unsafe extern "C" fn(*mut Handle) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    set_stream: unsafe extern "C" fn(Handle, *mut c_void) -> c_int,
    set_workspace: unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int,
    sgemm: Sgemm,
    path: PathBuf,
    version: (u32, u32),
    _library: Loaded,
}

fn blas() -> Result<&'static Blas, String> {
    static BLAS: OnceLock<Result<Blas, String>> = OnceLock::new();
    BLAS.get_or_init(|| {
        let (library, path) = open(Library::CuBlas, "CONVOY_CUBLAS", "libcublas.so", &["13", "12", "11"], 0)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: these signatures are unchanged since cuBLAS 11.
        let blas = unsafe {
            let property: unsafe extern "C" fn(c_int, *mut c_int) -> c_int = symbol(&library, b"cublasGetProperty\0")?;
            property(0, &mut major);
            property(1, &mut minor);
            Blas {
                create: symbol(&library, b"cublasCreate_v2\0")?,
                destroy: symbol(&library, b"cublasDestroy_v2\0")?,
                set_stream: symbol(&library, b"cublasSetStream_v2\0")?,
                set_workspace: symbol(&library, b"cublasSetWorkspace_v2\0")?,
                sgemm: symbol(&library, b"cublasSgemm_v2\0")?,
                path,
                version: (major.unsigned_abs(), minor.unsigned_abs()),
                _library: library,
            }
        };
        Ok(blas)
    })
    .as_ref()
    .map_err(Clone::clone)
}

type PlanMany =
    unsafe extern "C" fn(*mut c_int, c_int, *mut c_int, *mut c_int, c_int, c_int, *mut c_int, c_int, c_int, c_int, c_int) -> c_int;

/// cuFFT's functions.
struct Fft {
    plan_many: PlanMany,
    destroy: unsafe extern "C" fn(c_int) -> c_int,
    set_stream: unsafe extern "C" fn(c_int, *mut c_void) -> c_int,
    forward: unsafe extern "C" fn(c_int, *mut f32, *mut c_void) -> c_int,
    inverse: unsafe extern "C" fn(c_int, *mut c_void, *mut f32) -> c_int,
    path: PathBuf,
    version: (u32, u32),
    _library: Loaded,
}

fn fft() -> Result<&'static Fft, String> {
    static FFT: OnceLock<Result<Fft, String>> = OnceLock::new();
    FFT.get_or_init(|| {
        // cuFFT 12 belongs to CUDA 13.
        let (library, path) = open(Library::CuFft, "CONVOY_CUFFT", "libcufft.so", &["12", "11", "10"], 1)?;
        let mut version = 0;
        // SAFETY: these signatures are unchanged since cuFFT 10.
        let fft = unsafe {
            let get: unsafe extern "C" fn(*mut c_int) -> c_int = symbol(&library, b"cufftGetVersion\0")?;
            get(&mut version);
            Fft {
                plan_many: symbol(&library, b"cufftPlanMany\0")?,
                destroy: symbol(&library, b"cufftDestroy\0")?,
                set_stream: symbol(&library, b"cufftSetStream\0")?,
                forward: symbol(&library, b"cufftExecR2C\0")?,
                inverse: symbol(&library, b"cufftExecC2R\0")?,
                path,
                version: (version.unsigned_abs() / 1000, version.unsigned_abs() % 1000 / 100),
                _library: library,
            }
        };
        Ok(fft)
    })
    .as_ref()
    .map_err(Clone::clone)
}

fn failed(what: Library, call: &str, code: c_int) -> Error {
    Error::failed(format!("{} failed in {call}", what.name()), format!("error {code}"))
}

fn check(what: Library, call: &str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(failed(what, call, code)) }
}

fn unavailable(cause: String) -> Error {
    Error::failed("cannot run a kernel variant", cause)
}

/// Makes and destroys handles one at a time. NVIDIA promises that different threads may *execute* with different plans and handles; of
/// making them while others are destroyed it says nothing. With neither this nor [`settle`], and modules loaded twice, twelve threads that built
/// and dropped plans beside other work on the GPU lost its context within minutes (`docs/measurements.md`).
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static MAKING: Mutex<()> = Mutex::new(());
    // Nothing is guarded but the order of calls.
    MAKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until what a library uploaded for a new handle is there: our streams do not wait for the default one, on which it does that.
fn settle() -> Result<()> {
    device::wait_for_libraries().map_err(|e| driver_error("cannot prepare a library's tables on the GPU", e))
}

fn int(n: usize) -> Result<c_int> {
    c_int::try_from(n).map_err(|_| Error::failed("cannot run a kernel variant", format!("a matrix side of {n} is too long")))
}

/// What cuBLAS recommends for Hopper; less is enough elsewhere.
const WORKSPACE: usize = 32 << 20;

/// A cuBLAS handle with its workspace, for one stream at a time.
#[derive(Debug)]
pub struct Multiplier {
    raw: Handle,
    context: Arc<Context>,
    /// A handle that allocates for itself could do so while a graph is recorded.
    _workspace: DeviceBuffer,
}

// SAFETY: a handle may be used from any thread, one at a time; its owner is a lane, which moves as a whole.
unsafe impl Send for Multiplier {}
// SAFETY: calls through a shared reference are made by the one thread that enqueues for its stream.
unsafe impl Sync for Multiplier {}

/// A product for [`Multiplier::enqueue`]: column-major floats without gaps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
    pub(super) left: DevicePtr,
    pub(super) right: DevicePtr,
    pub(super) out: DevicePtr,
}

impl Multiplier {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        let blas = blas().map_err(unavailable)?;
        context.bind()?;
        let workspace = DeviceBuffer::new(context, WORKSPACE)?;
        let mut raw: Handle = std::ptr::null_mut();
        let turn = one_at_a_time();
        // SAFETY: the context is current; writes one handle.
        check(Library::CuBlas, "cublasCreate", unsafe { (blas.create)(&mut raw) })?;
        let made = Self { raw, context: Arc::clone(context), _workspace: workspace };
        drop(turn);
        settle()?;
        Ok(made)
    }

    /// Enqueues `out = left · right`.
    ///
    /// # Safety
    /// The matrices are live device memory of the sizes that `p` says, `out` untouched by others until the product is done.
    pub(super) unsafe fn enqueue(&self, stream: &Stream, p: &Product) -> Result<()> {
        let blas = blas().map_err(unavailable)?;
        let (m, n, k) = (int(p.rows)?, int(p.columns)?, int(p.depth)?);
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: handle, stream and workspace are alive. Setting the stream forgets the workspace, so that follows.
        unsafe {
            check(Library::CuBlas, "cublasSetStream", (blas.set_stream)(self.raw, stream.raw().cast()))?;
            let code = (blas.set_workspace)(self.raw, self._workspace.ptr() as *mut c_void, WORKSPACE);
            check(Library::CuBlas, "cublasSetWorkspace", code)?;
        }
        let (left, right, out) = (p.left as *const f32, p.right as *const f32, p.out as *mut f32);
        // SAFETY: the matrices are the caller's promise; 0 means "not transposed".
        let code = unsafe { (blas.sgemm)(self.raw, 0, 0, m, n, k, &one, left, m, right, k, &zero, out, m) };
        check(Library::CuBlas, "cublasSgemm", code)
    }
}

impl Drop for Multiplier {
    fn drop(&mut self) {
        if let Ok(blas) = blas()
            && self.context.bind().is_ok()
        {
            let _turn = one_at_a_time();
            // SAFETY: created in `new`, destroyed once; the owner waited for the stream.
            unsafe { (blas.destroy)(self.raw) };
        }
    }
}

/// Which way a [`Transformer`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Real planes to spectra.
    Forward,
    /// Spectra to real planes, not divided by their size.
    Inverse,
}

/// A cuFFT plan with its work area, for one stream at a time.
#[derive(Debug)]
pub struct Transformer {
    raw: c_int,
    direction: Direction,
    context: Arc<Context>,
}

impl Transformer {
    pub(super) fn new(context: &Arc<Context>, tiles: Tiles, direction: Direction) -> Result<Self> {
        let fft = fft().map_err(unavailable)?;
        context.bind()?;
        let mut sizes = [int(tiles.height)?, int(tiles.width)?];
        let count = int(tiles.count)?;
        // CUFFT_R2C, CUFFT_C2R.
        let kind = match direction {
            Direction::Forward => 0x2a,
            Direction::Inverse => 0x2c,
        };
        let (mut raw, none) = (0, std::ptr::null_mut());
        let turn = one_at_a_time();
        // SAFETY: the context is current; `sizes` holds two; without embeddings planes lie one behind the other.
        let code = unsafe { (fft.plan_many)(&mut raw, 2, sizes.as_mut_ptr(), none, 1, 0, none, 1, 0, kind, count) };
        check(Library::CuFft, "cufftPlanMany", code)
            .map_err(|e| e.hint(format!("{} planes of {}x{}", tiles.count, tiles.width, tiles.height)))?;
        let made = Self { raw, direction, context: Arc::clone(context) };
        drop(turn);
        settle()?;
        Ok(made)
    }

    /// Enqueues the transform. The inverse overwrites what it reads.
    ///
    /// # Safety
    /// Both are live device memory of the plan's size, untouched by others until the transform is done.
    pub(super) unsafe fn enqueue(&self, stream: &Stream, from: DevicePtr, to: DevicePtr) -> Result<()> {
        let fft = fft().map_err(unavailable)?;
        // SAFETY: plan and stream are alive; the buffers are the caller's promise.
        let code = unsafe {
            check(Library::CuFft, "cufftSetStream", (fft.set_stream)(self.raw, stream.raw().cast()))?;
            match self.direction {
                Direction::Forward => (fft.forward)(self.raw, from as *mut f32, to as *mut c_void),
                Direction::Inverse => (fft.inverse)(self.raw, from as *mut c_void, to as *mut f32),
            }
        };
        check(Library::CuFft, "cufftExec", code)
    }
}

impl Drop for Transformer {
    fn drop(&mut self) {
        if let Ok(fft) = fft()
            && self.context.bind().is_ok()
        {
            let _turn = one_at_a_time();
            // SAFETY: created in `new`, destroyed once; the owner waited for the stream.
            unsafe { (fft.destroy)(self.raw) };
        }
    }
}

/// The spectrum of one real plane, on the device.
///
/// # Errors
/// No cuFFT, or a device error.
pub(super) fn spectrum(context: &Arc<Context>, plane: &[u32], tiles: Tiles) -> Result<DeviceBuffer> {
    if plane.len() * 4 != tiles.real_bytes() {
        return Err(Error::failed("cannot transform a kernel", "its plane has another size than its spectrum (a defect in the variants)"));
    }
    let (from, to) = (DeviceBuffer::from_slice(context, plane)?, DeviceBuffer::new(context, tiles.complex_bytes())?);
    let stream = Stream::new(context)?;
    let transformer = Transformer::new(context, tiles, Direction::Forward)?;
    // SAFETY: both buffers are of the plan's size and live until the stream is idle.
    unsafe { transformer.enqueue(&stream, from.ptr(), to.ptr()) }?;
    stream.synchronize()?;
    Ok(to)
}
