//! Holding a built backend to the reference: what `verify` runs on every variant and `bench` before every row.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::backend::Built;
use crate::error::{Error, Result};
use crate::filter::plan::Plan;
use crate::frame::{Frame, FrameMem};
use crate::pool::HostMem;
use crate::reference::{Comparison, Content, Judge, Picture, Tolerance};

/// Pictures with what a plan must make of them.
pub struct Trial {
    pictures: Vec<(Picture, Judge)>,
    tolerance: Tolerance,
}

impl Trial {
    /// Three pictures of different content.
    ///
    /// # Errors
    /// The reference would take too long.
    pub fn new(plan: &Plan) -> Result<Self, String> {
        Self::of(plan, &[Content::Random, Content::Extremes, Content::Impulse], f64::INFINITY)
    }

    /// Two pictures, looked at in patches where a frame is large: for `bench`, which has many rows to check.
    ///
    /// # Errors
    /// The reference would take too long, also in patches.
    pub fn quick(plan: &Plan) -> Result<Self, String> {
        Self::of(plan, &[Content::Random, Content::Extremes], 4e7)
    }

    fn of(plan: &Plan, contents: &[Content], reads: f64) -> Result<Self, String> {
        let reads = reads.min(crate::reference::AFFORDABLE);
        let seeds = (1u64..).step_by(7);
        let pictures = contents.iter().zip(seeds).map(|(&content, seed)| {
            let picture = Picture::new(plan.input, content, seed);
            let judge = Judge::within(plan, &picture, reads)?;
            Ok((picture, judge))
        });
        Ok(Self { pictures: pictures.collect::<Result<_, String>>()?, tolerance: Tolerance::of_plan(plan) })
    }

    /// Compares one result, of the picture with this index.
    ///
    /// # Errors
    /// The result does not hold: the first bad sample.
    pub fn judge(&self, index: usize, frame: &Frame, tolerance: Tolerance) -> Result<Comparison> {
        let wrong = |why: String| Error::failed("the result differs from the reference", why);
        let (_, judge) =
            self.pictures.get(index % self.pictures.len().max(1)).ok_or_else(|| wrong("nothing to compare with".to_owned()))?;
        let found = judge.compare(frame, tolerance).map_err(wrong)?;
        match found.failure(tolerance.for_few(found.samples)) {
            Some(failure) => Err(wrong(failure)),
            None => Ok(found),
        }
    }

    /// The pictures.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        self.pictures.iter().map(|(picture, _)| picture)
    }

    /// What is allowed.
    pub fn tolerance(&self) -> Tolerance {
        self.tolerance
    }

    /// Runs the pictures through `built`, twice over each of its `lanes`, and compares every result.
    ///
    /// Outputs are filled with 0xA5 beforehand, so that a sample that is never written shows; and no lane gets the same picture
    /// twice in a row, so that what it kept from the last frame shows.
    ///
    /// # Errors
    /// The backend's; frames out of order; or a result that does not hold, with the first bad sample.
    pub fn run(&self, built: &mut Built, lanes: usize, mem: &Arc<dyn HostMem>) -> Result<Comparison> {
        self.run_within(built, lanes, mem, self.tolerance)
    }

    /// Like [`Trial::run`], with the tolerance of a variant that states its own.
    ///
    /// # Errors
    /// As for [`Trial::run`].
    pub fn run_within(&self, built: &mut Built, lanes: usize, mem: &Arc<dyn HostMem>, tolerance: Tolerance) -> Result<Comparison> {
        let wrong = |why: String| Error::failed("the result differs from the reference", why);
        self.spoil_outputs(built, lanes, mem)?;
        let count = self.pictures.len().max(1);
        let mut waiting = VecDeque::new();
        let mut due = Vec::new();
        let mut found = Comparison::default();
        let mut collect = |built: &mut Built, waiting: &mut VecDeque<(u64, usize, crate::backend::Ticket)>| -> Result<()> {
            let Some((seq, index, ticket)) = waiting.pop_front() else { return Ok(()) };
            let frame = built.collector.wait(ticket)?;
            if frame.seq != seq {
                return Err(wrong(format!("frame {} came where frame {seq} was due", frame.seq)));
            }
            if let Some((_, judge)) = self.pictures.get(index) {
                found.add(&judge.compare(&frame, tolerance).map_err(wrong)?);
            }
            Ok(())
        };
        // A lane gets every `lanes`-th frame; an extra step per round keeps its pictures different when their number divides the lanes.
        let extra = usize::from(lanes.is_multiple_of(count));
        for turn in 0..(2 * lanes).max(count) {
            let index = (turn + extra * (turn / lanes.max(1))) % count;
            let Some((picture, _)) = self.pictures.get(index) else { break };
            let seq = turn as u64;
            built.submitter.submit(picture.frame(Arc::clone(mem), seq)?, &mut due)?;
            waiting.extend(due.drain(..).map(|ticket| (seq, index, ticket)));
            while waiting.len() >= lanes {
                collect(built, &mut waiting)?;
            }
        }
        while !waiting.is_empty() {
            collect(built, &mut waiting)?;
        }
        match found.failure(tolerance.for_few(found.samples)) {
            Some(failure) => Err(wrong(failure)),
            None => Ok(found),
        }
    }

    fn spoil_outputs(&self, built: &mut Built, lanes: usize, mem: &Arc<dyn HostMem>) -> Result<()> {
        let Some((first, _)) = self.pictures.first() else { return Ok(()) };
        let mut due = Vec::new();
        let mut spoiled = Vec::new();
        for seq in 0..lanes as u64 {
            built.submitter.submit(first.frame(Arc::clone(mem), seq)?, &mut due)?;
            for ticket in due.drain(..) {
                let mut frame = built.collector.wait(ticket)?;
                // A frame that passes by is its own output.
                if let FrameMem::Slab(lease) = &mut frame.mem {
                    lease.bytes_mut().fill(0xA5);
                }
                spoiled.push(frame);
            }
        }
        Ok(())
    }
}
