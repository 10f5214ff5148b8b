//! The clock of a GPU's multiprocessors, from the driver's management library (NVML), loaded at run time.
//!
//! Benches ask it before and after a row, so that a clock that moved shows. Everything here answers None where something is
//! missing: no figure depends on it.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::{result, sys};
use libloading::Library;

/// `nvmlClockType_t`: the multiprocessors.
const NVML_CLOCK_SM: c_uint = 1;
/// "00000000:3B:00.0" and its end.
const BUS_ID_BYTES: usize = 32;

type Initialise = unsafe extern "C" fn() -> c_uint;
type ByBusId = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_uint;
type ClockInfo = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_uint) -> c_uint;

struct Nvml {
    by_bus_id: ByBusId,
    clock_info: ClockInfo,
    /// Keeps the functions loaded.
    _library: Library,
}

impl Nvml {
    fn load() -> Option<Self> {
        // SAFETY: the driver's own library, whose initialisers have no preconditions.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        // SAFETY: the signatures are those of nvml.h, and stable since NVML 2.
        let (initialise, by_bus_id, clock_info) = unsafe {
            (
                *library.get::<Initialise>(b"nvmlInit_v2\0").ok()?,
                *library.get::<ByBusId>(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?,
                *library.get::<ClockInfo>(b"nvmlDeviceGetClockInfo\0").ok()?,
            )
        };
        // SAFETY: no preconditions; a count of initialisations is kept by the library.
        (unsafe { initialise() } == 0).then_some(Self { by_bus_id, clock_info, _library: library })
    }

    fn clock(&self, bus_id: &[c_char; BUS_ID_BYTES]) -> Option<c_uint> {
        let mut device = std::ptr::null_mut();
        // SAFETY: a terminated string, and a place for the handle.
        if unsafe { (self.by_bus_id)(bus_id.as_ptr(), &mut device) } != 0 {
            return None;
        }
        let mut mhz = 0;
        // SAFETY: a handle that the library just gave, and a place for the answer.
        (unsafe { (self.clock_info)(device, NVML_CLOCK_SM, &mut mhz) } == 0).then_some(mhz)
    }
}

/// The clock of the GPU that the driver numbers `index`. The driver must have been initialised.
pub(super) fn multiprocessors_mhz(index: usize) -> Option<f64> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = NVML.get_or_init(Nvml::load).as_ref()?;
    let device = result::device::get(c_int::try_from(index).ok()?).ok()?;
    let mut bus_id: [c_char; BUS_ID_BYTES] = [0; BUS_ID_BYTES];
    // SAFETY: the buffer's size is passed less one, so that it stays terminated.
    let code = unsafe { sys::cuDeviceGetPCIBusId(bus_id.as_mut_ptr(), BUS_ID_BYTES as c_int - 1, device) };
    code.result().ok()?;
    nvml.clock(&bus_id).map(f64::from)
}
