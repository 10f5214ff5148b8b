//! CUDA: device, compiler, variants, lanes.
//!
//! [`open`] either gives a working device or says what is missing; nothing here panics on a machine without a GPU.
//! All compilation, allocation and lookup happens in [`Cuda::build`]; frames then only enqueue (see [`lane`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{BuildOptions, Built, Device};
use crate::error::Result;
use crate::filter::Border;
use crate::filter::plan::{Plan, PlaneOp, Step};
use crate::pool::HostMem;

mod clock;
pub mod compile;
pub mod device;
pub mod geometry;
pub mod lane;
pub mod launch;
mod lower;
mod lower_windows;
pub mod measure;
pub mod pinned;
pub mod spec;
pub mod variants;

use compile::{Cache, Found, Nvrtc, Request};
use device::{Context, DeviceBuffer, DeviceInfo, Module};
use launch::Launch;
use pinned::Pinned;
use spec::Spec;
use variants::Task;

/// Bandwidth assumed where the driver does not tell, in bytes per second.
const USUAL_BANDWIDTH: u64 = 500_000_000_000;

/// An open GPU with its compiler.
pub struct Cuda {
    context: Arc<Context>,
    driver: (u32, u32),
    nvrtc: Nvrtc,
    cache: Cache,
    memory: Arc<Pinned>,
    modules: Mutex<HashMap<Request, Arc<Module>>>,
}

/// Opens GPU `index` and the kernel compiler.
///
/// # Errors
/// No driver, no such GPU or no NVRTC; the message says which, and how to get it.
pub fn open(index: usize) -> Result<Cuda> {
    open_with(index, Cache::user())
}

/// Like [`open`], with another kernel cache.
///
/// # Errors
/// As for [`open`].
pub fn open_with(index: usize, cache: Cache) -> Result<Cuda> {
    let context = Context::open(index)?;
    let driver = device::driver_version()?;
    let nvrtc = Nvrtc::open(Some(driver.0))?;
    let memory = Arc::new(Pinned::new(Arc::clone(&context)));
    Ok(Cuda { context, driver, nvrtc, cache, memory, modules: Mutex::new(HashMap::new()) })
}

/// What is there and what is missing, for `convoy doctor`.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whether the driver library was found.
    pub driver_present: bool,
    /// The CUDA version that the driver supports, or why it does not answer.
    pub driver: Result<(u32, u32), String>,
    /// The GPUs, or why none can be listed.
    pub devices: Result<Vec<DeviceInfo>, String>,
    /// Every NVRTC that was found.
    pub compilers: Vec<Found>,
    /// The NVRTC that would be used: path and version, or why none can be.
    pub compiler: Result<(std::path::PathBuf, (u32, u32)), String>,
    /// Where compiled kernels are kept; None if nowhere.
    pub cache: Option<std::path::PathBuf>,
}

/// Looks around; never fails, never panics.
pub fn probe() -> Report {
    let ready = device::init();
    let text = |e: &crate::error::Error| e.to_string();
    let driver = ready.as_ref().map_err(text).and_then(|()| device::driver_version().map_err(|e| text(&e)));
    let devices = ready.as_ref().map_err(text).and_then(|()| device::devices().map_err(|e| text(&e)));
    let compiler = Nvrtc::open(driver.as_ref().ok().map(|v| v.0)).map(|n| (n.path().to_owned(), n.version())).map_err(|e| text(&e));
    Report {
        driver_present: device::present(),
        driver,
        devices,
        compilers: Nvrtc::survey(),
        compiler,
        cache: Cache::user().folder().map(std::path::Path::to_owned),
    }
}

/// A plan, compiled: launches in order, with the step that each belongs to.
pub struct Program {
    /// The plan, with a copy step if it had none.
    plan: Plan,
    /// Launches.
    launches: Vec<(usize, Launch)>,
    /// One line per task: "gblur: fused (…)".
    notes: Vec<String>,
}

impl Program {
    /// Resources of each kernel, in order of execution, with its step's index.
    ///
    /// # Errors
    /// A driver error.
    pub fn kernels(&self) -> Result<Vec<(usize, device::KernelInfo)>> {
        self.launches.iter().map(|(step, launch)| Ok((*step, launch.kernel().info()?))).collect()
    }

    /// What runs, one line per group of planes.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Cuda {
    /// The GPU.
    pub fn info(&self) -> &DeviceInfo {
        self.context.info()
    }

    /// The context, for benchmarks.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Chooses variants for every step and compiles them.
    ///
    /// # Errors
    /// A forced variant does not fit, or a kernel does not compile or load.
    pub fn compile(&self, plan: &Plan, variant: Option<&str>) -> Result<Program> {
        let mut plan = plan.clone();
        if plan.steps.is_empty() {
            let planes = [PlaneOp::Copy, PlaneOp::Copy, PlaneOp::Copy, PlaneOp::Copy];
            let label = "copy".to_owned();
            plan.steps.push(Step { label, border: Border::Clamp, variant: None, input: plan.input, output: plan.input, planes });
        }
        let info = self.info();
        let bandwidth = if info.bandwidth > 0 { info.bandwidth } else { USUAL_BANDWIDTH };
        let mut launches = Vec::new();
        let mut notes = Vec::new();
        for (index, step) in plan.steps.iter().enumerate() {
            for task in Task::of_step(step) {
                let forced = step.variant.as_deref().or(variant);
                let (row, specs) = variants::choose(&task, &step.label, forced, info.multiprocessors, bandwidth)?;
                for spec in &specs {
                    launches.push((index, self.load(spec, step)?));
                }
                let planes: Vec<String> = task.planes.iter().map(ToString::to_string).collect();
                notes.push(format!("{}: {} (planes {}; {})", step.label, row.name, planes.join(","), row.about));
            }
        }
        Ok(Program { plan, launches, notes })
    }

    fn modules(&self) -> MutexGuard<'_, HashMap<Request, Arc<Module>>> {
        // An insertion cannot leave the map half-changed, so a poisoned lock is still sound.
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn module(&self, request: &Request) -> Option<Arc<Module>> {
        self.modules().get(request).map(Arc::clone)
    }

    fn load(&self, spec: &Spec, step: &Step) -> Result<Launch> {
        let request = Request { file: spec.file, defines: spec.defines.clone(), arch: self.info().arch() };
        let module = match self.module(&request) {
            Some(module) => module,
            None => {
                // Not under the lock: compilation takes long, and other threads may build other plans meanwhile.
                let (cubin, _) = self.cache.cubin(&self.nvrtc, &request)?;
                let module = Module::load(&self.context, &cubin)?;
                Arc::clone(self.modules().entry(request).or_insert(module))
            }
        };
        let kernel = module.kernel(spec.entry)?;
        let table = if spec.table.is_empty() { None } else { Some(DeviceBuffer::from_slice(&self.context, &spec.table)?) };
        Launch::new(spec, (step.input, step.output), kernel, table)
    }
}

impl Device for Cuda {
    fn describe(&self) -> String {
        let info = self.info();
        format!("{} ({}, driver {}.{})", info.name, info.arch(), self.driver.0, self.driver.1)
    }

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn host_memory(&self) -> Arc<dyn HostMem> {
        Arc::<Pinned>::clone(&self.memory)
    }

    fn variants(&self, plan: &Plan) -> Vec<&'static str> {
        variants::fitting(plan)
    }

    fn build(&self, plan: &Plan, options: &BuildOptions) -> Result<Built> {
        let program = self.compile(plan, options.variant.as_deref())?;
        lane::build(&self.context, self.host_memory(), program, options)
    }
}
