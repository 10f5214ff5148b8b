//! Compiled code: modules, their kernels, and launches.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::memory::upload_and_wait;
use super::stream::Stream;
use super::{Context, driver_error};
use crate::error::{Error, Result};

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
        unsafe { result::launch_kernel(self.raw, (grid.blocks, 1, 1), (grid.threads, 1, 1), grid.shared_bytes, stream.raw(), arguments) }
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
