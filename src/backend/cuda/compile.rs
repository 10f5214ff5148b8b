//! Kernel source, defines and architecture to a cubin, by NVRTC at run time, kept in a disk cache.
//!
//! libnvrtc is looked up here rather than by cudarc, whose lookup is tied to one CUDA version and panics when it finds none.
//! A cache entry is trusted only if its checksum and its full key match; anything else is recompiled. Writes are atomic.
//! A cache that cannot be read or written costs time, never correctness.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, ptr};

use libloading::Library;
use sha2::{Digest, Sha256};

use super::lookup;
use super::pack::Pack;
use crate::error::{Error, Result};

/// One embedded kernel file.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// File name, "separable.cu".
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// SHA-256 of the text together with `plane.cuh`, hexadecimal.
    pub hash: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The embedded file of that name.
pub fn source(name: &str) -> Option<&'static Source> {
    SOURCES.iter().find(|s| s.name == name)
}

/// What to compile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Embedded file.
    pub file: &'static str,
    /// Preprocessor definitions, in the order given.
    pub defines: Vec<(&'static str, i64)>,
    /// Architecture: "sm_90".
    pub arch: String,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} for {}", self.file, self.arch)?;
        self.defines.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// What the assembler says of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Entry point.
    pub entry: String,
    /// Registers per thread.
    pub registers: usize,
    /// Static shared memory per block in bytes.
    pub shared_bytes: usize,
    /// Bytes per thread that did not fit in registers.
    pub spilled_bytes: usize,
    /// Bytes per thread that are read back of them.
    pub reloaded_bytes: usize,
    /// Bytes of stack per thread.
    pub stack_bytes: usize,
}

/// Reads the log of a compilation with `verbose` ([`Nvrtc::compile`]).
pub fn resources(log: &str) -> Vec<Resources> {
    // The number that stands before `what`.
    let number = |line: &str, what: &str| -> usize {
        let before = line.split(what).next().filter(|b| b.len() < line.len()).unwrap_or_default();
        before.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let mut found = Vec::new();
    let mut current = Resources::default();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            current = Resources { entry: rest.split('\'').next().unwrap_or_default().to_owned(), ..Resources::default() };
        }
        if line.contains("bytes spill stores") {
            current.spilled_bytes = number(line, " bytes spill stores");
            current.reloaded_bytes = number(line, " bytes spill loads");
            current.stack_bytes = number(line, " bytes stack frame");
        }
        if line.contains("Used ") && line.contains(" registers") {
            let (registers, shared_bytes) = (number(line, " registers"), number(line, " bytes smem"));
            found.push(Resources { registers, shared_bytes, ..current.clone() });
        }
    }
    found
}

type Program = *mut c_void;

/// The loaded NVRTC library.
pub struct Nvrtc {
    library: Library,
    path: PathBuf,
    version: (u32, u32),
}

/// An NVRTC that was found, loaded or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where.
    pub path: PathBuf,
    /// Its version, or why it cannot be used.
    pub version: Result<(u32, u32), String>,
}

const HOW_TO_GET: &str =
    "install NVIDIA's CUDA toolkit, or `pip install nvidia-cuda-nvrtc-cu12`, or set CONVOY_NVRTC to libnvrtc.so's path";

impl Nvrtc {
    /// Loads the newest NVRTC whose major version is at most `driver_major`; None takes the newest of all (no driver).
    /// `CONVOY_NVRTC` names the only candidate.
    ///
    /// # Errors
    /// None found, or none that fits the driver; the message lists what was found.
    pub fn open(driver_major: Option<u32>) -> Result<Self> {
        let candidates = candidates();
        let mut best: Option<Self> = None;
        let mut rejected = String::new();
        for path in candidates {
            match Self::load(&path) {
                Ok(found) if driver_major.is_some_and(|major| found.version.0 > major) => {
                    // Writing to a String cannot fail.
                    let _ = write!(rejected, "; {} is version {}.{}, too new", path.display(), found.version.0, found.version.1);
                }
                Ok(found) => {
                    if best.as_ref().is_none_or(|b| found.version > b.version) {
                        best = Some(found);
                    }
                }
                Err(error) if is_explicit(&path) => return Err(error),
                Err(_) => {}
            }
        }
        best.ok_or_else(|| {
            let driver = driver_major.map_or(String::new(), |major| format!(" for a driver of CUDA {major}"));
            let error =
                Error::failed("cannot compile CUDA kernels", format!("no usable NVRTC library (libnvrtc.so) was found{driver}{rejected}"));
            error.hint(HOW_TO_GET)
        })
    }

    /// Every NVRTC on this machine that the lookup sees.
    pub fn survey() -> Vec<Found> {
        candidates()
            .into_iter()
            .filter_map(|path| match Self::load(&path) {
                Ok(loaded) => Some(Found { path: loaded.path, version: Ok(loaded.version) }),
                // A bare name that the loader does not know is no find.
                Err(_) if path.components().count() == 1 => None,
                Err(error) => Some(Found { path, version: Err(error.to_string()) }),
            })
            .collect()
    }

    /// Loads one library.
    ///
    /// # Errors
    /// It cannot be opened or is no NVRTC.
    pub fn load(path: &Path) -> Result<Self> {
        let failed = |e: &dyn std::fmt::Display| Error::failed(format!("cannot load NVRTC '{}'", path.display()), e).hint(HOW_TO_GET);
        // SAFETY: NVRTC's initialisers are sound to run; a file of that name that is no NVRTC is the user's choice.
        let library = unsafe { Library::new(path) }.map_err(|e| failed(&e))?;
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        {
            // SAFETY: nvrtcVersion has had this signature since CUDA 7.
            let version = unsafe { library.get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(b"nvrtcVersion\0") }
                .map_err(|e| failed(&e))?;
            // SAFETY: writes two ints.
            let code = unsafe { version(&mut major, &mut minor) };
            if code != 0 {
                return Err(failed(&format!("nvrtcVersion failed with code {code}")));
            }
        }
        Ok(Self { library, path: path.to_owned(), version: (major.unsigned_abs(), minor.unsigned_abs()) })
    }

    /// (major, minor).
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Where it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles to a cubin. Returns it with the compiler's log (with `verbose`, registers and spills of every kernel).
    ///
    /// # Errors
    /// The source does not compile or the architecture is unknown: the log is in the message.
    pub fn compile(&self, request: &Request, verbose: bool) -> Result<(Vec<u8>, String)> {
        let what = || format!("cannot compile the kernel {request}");
        let missing = || Error::failed(what(), "no such kernel file is embedded");
        let (file, header) = (source(request.file).ok_or_else(missing)?, source("plane.cuh").ok_or_else(missing)?);
        let text = |s: &str| CString::new(s).map_err(|e| Error::failed(what(), e));
        let (code, name) = (text(file.text)?, text(file.name)?);
        let (header_code, header_name) = (text(header.text)?, text(header.name)?);

        let mut options = vec![text(&format!("--gpu-architecture={}", request.arch))?, text("--std=c++17")?];
        // 8-bit kernels never use some defines; warnings would only hide in a log that nobody reads.
        options.push(text("--disable-warnings")?);
        if verbose {
            options.push(text("--ptxas-options=-v")?);
        }
        for (key, value) in &request.defines {
            options.push(text(&format!("-D{key}={value}"))?);
        }
        // `options` keeps the strings that `pointers` point at until the call is over.
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let program = self.program(&code, &name, &header_code, &header_name).map_err(|cause| Error::failed(what(), cause))?;
        let outcome = program.build(&pointers);
        let log = program.log();
        if let Err(cause) = outcome {
            return Err(Error::failed(what(), format!("{cause}\n{}", log.trim())).hint(format!(
                "NVRTC {}.{} at {}",
                self.version.0,
                self.version.1,
                self.path.display()
            )));
        }
        let cubin = program.cubin().map_err(|cause| Error::failed(what(), cause))?;
        Ok((cubin, log))
    }

    fn program(&self, code: &CStr, name: &CStr, header: &CStr, header_name: &CStr) -> Result<Handle<'_>, String> {
        type Create =
            unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int;
        let create: Create = self.symbol(b"nvrtcCreateProgram\0")?;
        let mut raw: Program = ptr::null_mut();
        let (headers, names) = ([header.as_ptr()], [header_name.as_ptr()]);
        // SAFETY: all strings are NUL-terminated and live through the call, which copies them.
        let code = unsafe { create(&mut raw, code.as_ptr(), name.as_ptr(), 1, headers.as_ptr(), names.as_ptr()) };
        self.check(code, "nvrtcCreateProgram")?;
        Ok(Handle { nvrtc: self, raw })
    }

    fn symbol<T: Copy>(&self, name: &[u8]) -> Result<T, String> {
        // SAFETY: callers name a function of NVRTC's C interface with its documented signature, unchanged since CUDA 11.
        unsafe { self.library.get::<T>(name) }.map(|s| *s).map_err(|e| e.to_string())
    }

    fn check(&self, code: c_int, call: &str) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let text = self.symbol::<unsafe extern "C" fn(c_int) -> *const c_char>(b"nvrtcGetErrorString\0").map(|get| {
            // SAFETY: returns a static NUL-terminated string for any code.
            unsafe { CStr::from_ptr(get(code)) }.to_string_lossy().into_owned()
        });
        Err(format!("{call}: {}", text.unwrap_or_else(|_| format!("error {code}"))))
    }
}

/// A program being compiled; destroyed on drop.
struct Handle<'a> {
    nvrtc: &'a Nvrtc,
    raw: Program,
}

type Sized1 = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Fill = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

impl Handle<'_> {
    fn build(&self, options: &[*const c_char]) -> Result<(), String> {
        let compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int = self.nvrtc.symbol(b"nvrtcCompileProgram\0")?;
        let count = c_int::try_from(options.len()).map_err(|e| e.to_string())?;
        // SAFETY: the program is alive; `options` holds `count` NUL-terminated strings.
        let code = unsafe { compile(self.raw, count, options.as_ptr()) };
        self.nvrtc.check(code, "nvrtcCompileProgram")
    }

    fn read(&self, size: &[u8], fill: &[u8]) -> Result<Vec<u8>, String> {
        let (size, fill): (Sized1, Fill) = (self.nvrtc.symbol(size)?, self.nvrtc.symbol(fill)?);
        let mut bytes = 0usize;
        // SAFETY: the program is alive; writes one size.
        self.nvrtc.check(unsafe { size(self.raw, &mut bytes) }, "reading NVRTC's output size")?;
        let mut data = vec![0u8; bytes];
        // SAFETY: `data` has as many bytes as NVRTC asked for.
        self.nvrtc.check(unsafe { fill(self.raw, data.as_mut_ptr().cast()) }, "reading NVRTC's output")?;
        Ok(data)
    }

    fn log(&self) -> String {
        let log = self.read(b"nvrtcGetProgramLogSize\0", b"nvrtcGetProgramLog\0").unwrap_or_default();
        String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let cubin = self.read(b"nvrtcGetCUBINSize\0", b"nvrtcGetCUBIN\0")?;
        if cubin.is_empty() { Err("NVRTC produced no cubin".into()) } else { Ok(cubin) }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if let Ok(destroy) = self.nvrtc.symbol::<unsafe extern "C" fn(*mut Program) -> c_int>(b"nvrtcDestroyProgram\0") {
            // SAFETY: created once, destroyed once.
            unsafe { destroy(&mut self.raw) };
        }
    }
}

fn is_explicit(path: &Path) -> bool {
    env::var_os("CONVOY_NVRTC").is_some_and(|v| Path::new(&v) == path)
}

/// Paths and names to try, each once.
fn candidates() -> Vec<PathBuf> {
    lookup::candidates("CONVOY_NVRTC", "libnvrtc.so", &["13", "12", "11.2"])
}

/// Where cubins come from: the kernel pack, the disk cache, NVRTC, in that order.
pub struct Compiler {
    pack: Option<Pack>,
    cache: Cache,
    /// The compiler, or why there is none.
    nvrtc: Result<Nvrtc, Error>,
}

impl Compiler {
    /// The user's pack and the NVRTC that suits a driver of `driver_major`.
    ///
    /// # Errors
    /// There is neither a pack nor a compiler, or the pack that the user names is none.
    pub fn open(driver_major: u32, cache: Cache) -> Result<Self> {
        let pack = Pack::open()?;
        let nvrtc = Nvrtc::open(Some(driver_major));
        match (&pack, nvrtc) {
            (None, Err(error)) => Err(error),
            (_, nvrtc) => Ok(Self { pack, cache, nvrtc }),
        }
    }

    /// Whether there is an NVRTC, so that every kernel can be had.
    pub fn compiles(&self) -> bool {
        self.nvrtc.is_ok()
    }

    /// Whether [`Compiler::cubin`] can succeed.
    pub fn can(&self, request: &Request) -> bool {
        self.nvrtc.is_ok() || self.pack.as_ref().is_some_and(|pack| pack.contains(request))
    }

    /// The cubin for `request`.
    ///
    /// # Errors
    /// It is not in the pack and does not compile, or there is no compiler.
    pub fn cubin(&self, request: &Request) -> Result<Vec<u8>> {
        if let Some(cubin) = self.pack.as_ref().and_then(|pack| pack.cubin(request)) {
            return Ok(cubin);
        }
        match &self.nvrtc {
            Ok(nvrtc) => self.cache.cubin(nvrtc, request).map(|(cubin, _)| cubin),
            Err(error) => {
                let first = error.to_string().lines().next().unwrap_or_default().to_owned();
                Err(Error::failed(format!("cannot get the kernel {request}"), format!("the kernel pack does not have it ({first})"))
                    .hint(HOW_TO_GET))
            }
        }
    }

    /// One line for humans.
    pub fn describe(&self) -> String {
        match (&self.nvrtc, &self.pack) {
            (Ok(nvrtc), _) => format!("NVRTC {}.{}", nvrtc.version().0, nvrtc.version().1),
            (Err(_), Some(pack)) => format!("kernel pack of {} kernels", pack.len()),
            (Err(_), None) => "no compiler".to_owned(),
        }
    }
}

/// Compiled kernels on disk.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

const MAGIC: &[u8; 8] = b"CONVOYK1";
const DIGEST: usize = 32;

impl Cache {
    /// The user's cache directory; `CONVOY_CACHE` names another, and empty turns the cache off.
    pub fn user() -> Self {
        if let Some(folder) = env::var_os("CONVOY_CACHE") {
            return Self { folder: (!folder.is_empty()).then(|| PathBuf::from(folder)) };
        }
        use etcetera::BaseStrategy;
        let folder = etcetera::choose_base_strategy().ok().map(|strategy| strategy.cache_dir().join("convoy").join("kernels"));
        Self { folder }
    }

    /// A cache in `folder`.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// Where the entries lie; None when there is no cache.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The cubin for `request`, from disk or compiled (and then stored). The flag says whether it was compiled.
    ///
    /// # Errors
    /// The compiler's.
    pub fn cubin(&self, nvrtc: &Nvrtc, request: &Request) -> Result<(Vec<u8>, bool)> {
        let key = key(request, nvrtc.version());
        if let Some(cubin) = self.read(&key) {
            return Ok((cubin, false));
        }
        let (cubin, _) = nvrtc.compile(request, false)?;
        self.write(&key, &cubin);
        Ok((cubin, true))
    }

    fn entry(&self, key: &[u8; DIGEST]) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{}.cubin", hex(key))))
    }

    /// A stored cubin, if it is whole and of exactly this key.
    fn read(&self, key: &[u8; DIGEST]) -> Option<Vec<u8>> {
        let data = fs::read(self.entry(key)?).ok()?;
        let rest = data.strip_prefix(MAGIC.as_slice())?;
        let (stored_key, rest) = rest.split_at_checked(DIGEST)?;
        let (digest, cubin) = rest.split_at_checked(DIGEST)?;
        (stored_key == key && digest == Sha256::digest(cubin).as_slice() && !cubin.is_empty()).then(|| cubin.to_vec())
    }

    /// Stores atomically; a folder that cannot be written only costs the next run's time.
    fn write(&self, key: &[u8; DIGEST], cubin: &[u8]) {
        let Some(path) = self.entry(key) else { return };
        let Some(folder) = path.parent() else { return };
        let store = || -> std::io::Result<()> {
            use std::io::Write as _;
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            for part in [MAGIC.as_slice(), key, Sha256::digest(cubin).as_slice(), cubin] {
                file.write_all(part)?;
            }
            file.persist(&path)?;
            Ok(())
        };
        // Nothing was promised: the kernel is in memory and the run goes on.
        let _ = store();
    }
}

/// Everything that decides the machine code.
fn key(request: &Request, version: (u32, u32)) -> [u8; DIGEST] {
    let hash = source(request.file).map_or("", |s| s.hash);
    let text = format!("{request}\n{hash}\nnvrtc {}.{}\nconvoy kernel format 1", version.0, version.1);
    Sha256::digest(text.as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
