//! A device as a contender: frames go through its lanes as in a run, from host memory to host memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::race::{Subject, wrong_result};
use crate::backend::{BuildOptions, Built, Device};
use crate::error::{Error, Result};
use crate::filter::plan::Plan;
use crate::frame::{Frame, FrameLayout, FrameMem, FrameTime};
use crate::pool::{HostMem, Lease, Pool};
use crate::reference::{Comparison, Content, Picture};
use crate::verify::Trial;

/// One plan on one device, with inputs that were filled once and rotate.
pub struct FrameSubject<'a> {
    device: &'a dyn Device,
    options: BuildOptions,
    small: Option<Plan>,
    name: String,
    plan: Plan,
    built: Built,
    lanes: usize,
    mem: Arc<dyn HostMem>,
    pool: Pool,
    layout: FrameLayout,
    /// Slabs in the order of their use; each keeps its picture.
    slabs: VecDeque<Lease>,
    inputs: usize,
    sent: u64,
}

/// Bytes of inputs beyond what caches hold, where the caller does not know better.
const BEYOND_CACHES: usize = 96 << 20;

impl<'a> FrameSubject<'a> {
    /// Builds `plan` on `device`, with `inputs` input frames in the device's own host memory.
    ///
    /// # Errors
    /// The variant does not fit, or memory is missing.
    pub fn new(device: &'a dyn Device, plan: &Plan, options: &BuildOptions, inputs: usize) -> Result<Self> {
        Self::with_memory(device, plan, options, inputs, device.host_memory())
    }

    /// Like [`FrameSubject::new`], with inputs in other memory (pageable beside pinned).
    ///
    /// # Errors
    /// As for [`FrameSubject::new`].
    pub fn with_memory(device: &'a dyn Device, plan: &Plan, options: &BuildOptions, inputs: usize, mem: Arc<dyn HostMem>) -> Result<Self> {
        let built = device.build(plan, options)?;
        let layout = FrameLayout::packed(plan.input)?;
        let pool = Pool::new(Arc::clone(&mem), layout.slab_bytes, Arc::clone(&options.budget));
        let lanes = options.lanes.unwrap_or(1).max(1);
        let inputs = inputs.max(lanes + 1);
        // A few pictures, repeated: enough that no two neighbours are equal.
        let pictures: Vec<Picture> =
            [(Content::Random, 11), (Content::Ramp, 12), (Content::Random, 13)].map(|(c, seed)| Picture::new(plan.input, c, seed)).into();
        let mut slabs = VecDeque::with_capacity(inputs);
        for index in 0..inputs {
            let mut lease = pool.lease()?;
            if let Some(picture) = pictures.get(index % pictures.len().max(1)) {
                picture.write(lease.bytes_mut(), &layout.planes);
            }
            slabs.push_back(lease);
        }
        let name = built.notes.join("; ");
        Ok(Self {
            device,
            options: options.clone(),
            small: None,
            name,
            plan: plan.clone(),
            built,
            lanes,
            mem,
            pool,
            layout,
            slabs,
            inputs,
            sent: 0,
        })
    }

    /// The same filters on a smaller frame, verified instead where the reference would take too long on the whole one.
    #[must_use]
    pub fn or_verify(mut self, small: Plan) -> Self {
        self.small = Some(small);
        self
    }

    /// Input frames of `bytes` each that lie beyond the caches together.
    pub fn inputs_beyond_caches(bytes: usize) -> usize {
        BEYOND_CACHES.div_ceil(bytes.max(1)).clamp(3, 64)
    }

    /// Which kernels run.
    pub fn notes(&self) -> &[String] {
        &self.built.notes
    }

    /// Mean device time per frame so far in microseconds: upload, kernels, download.
    pub fn device_us(&self) -> [f64; 3] {
        let frames = self.built.stats.frames.load(std::sync::atomic::Ordering::Relaxed);
        self.built.stats.device_us(frames)
    }

    fn submit(&mut self, waiting: &mut VecDeque<crate::backend::Ticket>, due: &mut Vec<crate::backend::Ticket>) -> Result<()> {
        let lease = self.slabs.pop_front().ok_or_else(|| Error::failed("cannot time frames", "no input is free (a defect)"))?;
        let frame =
            Frame { layout: self.layout, time: FrameTime::default(), seq: self.sent, born: Instant::now(), mem: FrameMem::Slab(lease) };
        self.sent += 1;
        self.built.submitter.submit(frame, due)?;
        waiting.extend(due.drain(..));
        Ok(())
    }

    /// Waits for the oldest frame; its input is free then and goes to the end of the row.
    fn collect(&mut self, waiting: &mut VecDeque<crate::backend::Ticket>) -> Result<()> {
        if let Some(ticket) = waiting.pop_front() {
            drop(self.built.collector.wait(ticket)?);
            self.slabs.push_back(self.pool.lease()?);
        }
        Ok(())
    }
}

impl Subject for FrameSubject<'_> {
    fn verify(&mut self) -> Result<Comparison> {
        let named = |e: Error| e.context(&self.name);
        match (Trial::quick(&self.plan), &self.small) {
            (Ok(trial), _) => trial.run(&mut self.built, self.lanes, &self.mem).map_err(named),
            (Err(why), None) => Err(wrong_result(&self.name, why)),
            (Err(_), Some(small)) => {
                let trial = Trial::quick(small).map_err(|why| wrong_result(&self.name, why))?;
                let mut built = self.device.build(small, &self.options)?;
                trial.run(&mut built, self.lanes, &self.mem).map_err(named)
            }
        }
    }

    fn inputs(&self) -> usize {
        self.inputs
    }

    fn run(&mut self, _first: usize, frames: usize) -> Result<Option<f64>> {
        let mut waiting = VecDeque::with_capacity(self.lanes + 1);
        let mut due = Vec::with_capacity(2);
        for _ in 0..frames {
            while waiting.len() >= self.lanes {
                self.collect(&mut waiting)?;
            }
            self.submit(&mut waiting, &mut due)?;
        }
        while !waiting.is_empty() {
            self.collect(&mut waiting)?;
        }
        Ok(None)
    }
}
