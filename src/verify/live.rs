//! `run --verify N`: every Nth frame of a real run is kept as it came, filtered by the reference, and compared with what went out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Built, Collector, Submitter, Ticket};
use crate::error::{Error, Result};
use crate::filter::plan::Plan;
use crate::frame::Frame;
use crate::reference::{Comparison, Judge, Picture, Tolerance};

/// What was compared so far, and the inputs that are under way.
#[derive(Default)]
struct State {
    inputs: VecDeque<(u64, Picture)>,
    frames: u64,
    found: Comparison,
}

/// Shared between the two wrappers and whoever reports.
#[derive(Clone, Default)]
pub struct Watch {
    state: Arc<Mutex<State>>,
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        // Pushing and counting cannot leave the state half-changed in a way that matters: a poisoned run has failed anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line for humans; `float` says what the error's unit is.
    pub fn report(&self, float: bool) -> String {
        let state = self.state();
        let unit = if float { "of the range" } else { "code values" };
        format!(
            "verified {} frames against the reference: max error {} {unit}, {:.3} % of samples exact",
            state.frames,
            state.found.max_error,
            100.0 * state.found.exact_share()
        )
    }
}

/// Has every `every`th frame of `built` checked in the encode thread. A frame that does not hold ends the run with an error.
pub fn watch(built: Built, plan: &Plan, every: u64) -> (Built, Watch) {
    let watch = Watch::default();
    let submitter = Keeping { inner: built.submitter, every: every.max(1), watch: watch.clone() };
    let collector = Checking { inner: built.collector, plan: plan.clone(), tolerance: Tolerance::of_plan(plan), watch: watch.clone() };
    (Built { submitter: Box::new(submitter), collector: Box::new(collector), ..built }, watch)
}

struct Keeping {
    inner: Box<dyn Submitter>,
    every: u64,
    watch: Watch,
}

impl Submitter for Keeping {
    fn submit(&mut self, frame: Frame, due: &mut Vec<Ticket>) -> Result<()> {
        if frame.seq.is_multiple_of(self.every) {
            let input = Picture::read(&frame);
            self.watch.state().inputs.push_back((frame.seq, input));
        }
        self.inner.submit(frame, due)
    }

    fn finish(&mut self, due: &mut Vec<Ticket>) -> Result<()> {
        self.inner.finish(due)
    }
}

struct Checking {
    inner: Box<dyn Collector>,
    plan: Plan,
    tolerance: Tolerance,
    watch: Watch,
}

impl Collector for Checking {
    fn wait(&mut self, ticket: Ticket) -> Result<Frame> {
        let frame = self.inner.wait(ticket)?;
        let input = {
            let mut state = self.watch.state();
            if state.inputs.front().is_some_and(|(seq, _)| *seq == frame.seq) { state.inputs.pop_front() } else { None }
        };
        let Some((seq, picture)) = input else { return Ok(frame) };
        let failed = |why: String| {
            Error::failed(format!("frame {seq} differs from the reference"), why)
                .hint("run `convoy verify` with the same --vf, and try another --variant or --backend")
        };
        let too_long = |why: String| Error::failed(format!("cannot verify frame {seq}"), why);
        let found = Judge::new(&self.plan, &picture).map_err(too_long)?.compare(&frame, self.tolerance).map_err(failed)?;
        if let Some(failure) = found.failure(self.tolerance.for_few(found.samples)) {
            return Err(failed(failure));
        }
        let mut state = self.watch.state();
        state.frames += 1;
        state.found.add(&found);
        drop(state);
        Ok(frame)
    }
}
