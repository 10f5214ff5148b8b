//! The backend's whole interface: a device gives host memory and builds a submitter and a collector for a plan.

use std::sync::Arc;

use crate::error::Result;
use crate::filter::plan::Plan;
use crate::frame::Frame;
use crate::pool::{Budget, HostMem};
use crate::stats::DeviceStats;

pub mod cpu;
pub mod cuda;
pub mod fields;
pub mod small;

/// What the user asked for with `--backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// CUDA when it works, else the CPU with a notice.
    #[default]
    Auto,
    /// CUDA or an error.
    Cuda,
    /// The CPU.
    Cpu,
}

/// Options of [`Device::build`].
#[derive(Clone)]
pub struct BuildOptions {
    /// Frames in flight; None lets the backend choose.
    pub lanes: Option<usize>,
    /// CPU threads; None means all.
    pub threads: Option<usize>,
    /// Kernel variant to force for every step.
    pub variant: Option<String>,
    /// Memory that the output pool may take.
    pub budget: Arc<Budget>,
}

/// Something that can execute plans.
pub trait Device: Send + Sync {
    /// One line for humans: "NVIDIA H200 (sm_90, driver 13.0)".
    fn describe(&self) -> String;

    /// "cuda" or "cpu".
    fn name(&self) -> &'static str;

    /// The host memory that frames should be decoded into.
    fn host_memory(&self) -> Arc<dyn HostMem>;

    /// Names of the kernel variants that can run every step of `plan`, plainest first; for `--variant` and [`BuildOptions::variant`].
    fn variants(&self, plan: &Plan) -> Vec<&'static str>;

    /// How far a variant's sums may be off before they are rounded, relative to the sample's range times the sum of its weights' sizes; 0 if
    /// it is as exact as the plain sum of products.
    fn slack(&self, plan: &Plan, variant: &str) -> f64 {
        let _ = (plan, variant);
        0.0
    }

    /// Builds lanes for `plan`. All compilation and allocation happens here.
    ///
    /// # Errors
    /// When a step or a forced variant is not supported, or memory is missing.
    fn build(&self, plan: &Plan, options: &BuildOptions) -> Result<Built>;
}

/// What [`Device::build`] returns.
pub struct Built {
    /// For the filter thread.
    pub submitter: Box<dyn Submitter>,
    /// For the encode thread.
    pub collector: Box<dyn Collector>,
    /// Counted while running: device time per phase, transfers, bytes.
    pub stats: Arc<DeviceStats>,
    /// Which variant each step runs, for `-v` and `--stats`: "gblur: fused (…)".
    pub notes: Vec<String>,
}

/// A frame in flight; collect tickets in the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The lane that carries it.
    pub lane: usize,
    /// The frame's position in the stream.
    pub seq: u64,
}

/// Takes frames; lives in the filter thread.
pub trait Submitter: Send {
    /// Enqueues all work for `frame`. Waits only for a free lane, never for the device. Pushes the tickets that became
    /// due (none while a temporal step holds the frame back).
    ///
    /// # Errors
    /// A device error, or the collector is gone.
    fn submit(&mut self, frame: Frame, due: &mut Vec<Ticket>) -> Result<()>;

    /// Releases what is still held back at the end of the stream.
    ///
    /// # Errors
    /// As for [`Submitter::submit`].
    fn finish(&mut self, due: &mut Vec<Ticket>) -> Result<()>;
}

/// Gives finished frames; lives in the encode thread.
pub trait Collector: Send {
    /// Waits for the ticket's lane and returns its frame; the lane is free again afterwards. The submitter is dropped as soon
    /// as it has submitted the last frame, so the last tickets are collected without it.
    ///
    /// # Errors
    /// A device error, or the submitter is gone before it submitted this ticket.
    fn wait(&mut self, ticket: Ticket) -> Result<Frame>;
}

/// Opens what the user chose. The second value is a notice for stderr when `auto` fell back to the CPU.
///
/// # Errors
/// `cuda` was demanded and is not available: why, and what to do.
pub fn open(choice: Choice, index: usize) -> Result<(Box<dyn Device>, Option<String>)> {
    let on_cpu = || Box::new(cpu::Cpu::new()) as Box<dyn Device>;
    match choice {
        Choice::Cpu => Ok((on_cpu(), None)),
        Choice::Cuda => Ok((Box::new(cuda::open(index)?), None)),
        Choice::Auto => match cuda::open(index) {
            Ok(device) => Ok((Box::new(device), None)),
            Err(error) => {
                let reason = error.to_string();
                let first = reason.lines().next().unwrap_or_default();
                Ok((on_cpu(), Some(format!("filtering on the CPU ({first})"))))
            }
        },
    }
}
