//! Persistent worker threads that share the tasks of one phase; the caller works along and returns when all are done.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::{Error, Result};

/// What a crew executes. `Order` says what all workers do now; tasks are numbered from 0.
pub(super) trait Work: Send + Sync + 'static {
    /// Copied to every worker.
    type Order: Copy + Send + 'static;
    /// Memory of one worker, allocated once.
    type Scratch: Send + 'static;
    /// A worker's memory.
    fn scratch(&self) -> Self::Scratch;
    /// Executes task `task` of `order`. Tasks of one order write disjoint memory.
    fn run(&self, order: &Self::Order, task: usize, scratch: &mut Self::Scratch);
}

/// Threads and the caller's own scratch. Dropping it ends and joins the threads.
pub(super) struct Crew<W: Work> {
    work: Arc<W>,
    scratch: W::Scratch,
    next: Arc<AtomicUsize>,
    orders: Vec<Sender<(W::Order, usize)>>,
    /// One answer per worker and order: whether it panicked.
    done: Receiver<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl<W: Work> Crew<W> {
    /// A crew of `size` in all, the caller included.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(work: Arc<W>, size: usize) -> Result<Self> {
        let helpers = size.saturating_sub(1);
        let next = Arc::new(AtomicUsize::new(0));
        let (answer, done) = bounded(helpers.max(1));
        let mut crew = Self { scratch: work.scratch(), work, next, orders: Vec::new(), done, threads: Vec::new() };
        for index in 0..helpers {
            let (order, inbox) = bounded::<(W::Order, usize)>(1);
            let (work, next, answer) = (Arc::clone(&crew.work), Arc::clone(&crew.next), answer.clone());
            let body = move || {
                let mut scratch = work.scratch();
                for (order, tasks) in inbox {
                    let panicked = catch_unwind(AssertUnwindSafe(|| drain(&*work, &order, tasks, &next, &mut scratch))).is_err();
                    if answer.send(panicked).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new()
                .name(format!("cpu-{}", index + 1))
                .spawn(body)
                .map_err(|e| Error::failed(format!("cannot start CPU worker {} of {helpers}", index + 1), e).hint("lower --threads"))?;
            crew.orders.push(order);
            crew.threads.push(thread);
        }
        Ok(crew)
    }

    /// Workers, the caller included.
    pub fn size(&self) -> usize {
        self.threads.len() + 1
    }

    /// Executes `tasks` tasks of `order` on the whole crew (`solo`: on the caller alone) and returns when all are finished.
    ///
    /// # Errors
    /// When a task panicked; every worker has stopped touching the order's memory by then.
    pub fn run(&mut self, order: W::Order, tasks: usize, solo: bool) -> Result<()> {
        self.next.store(0, Ordering::Relaxed);
        // A single task would only wake the others for nothing.
        let wanted = if solo { 0 } else { tasks.saturating_sub(1).min(self.orders.len()) };
        let told = self.orders.iter().take(wanted).filter(|to| to.send((order, tasks)).is_ok()).count();
        let mut panicked = catch_unwind(AssertUnwindSafe(|| drain(&*self.work, &order, tasks, &self.next, &mut self.scratch))).is_err();
        let mut lost = wanted - told;
        for _ in 0..told {
            match self.done.recv() {
                Ok(failed) => panicked |= failed,
                Err(_) => lost += 1,
            }
        }
        if panicked || lost > 0 {
            return Err(Error::failed("cannot filter the frame on the CPU", "a worker thread panicked")
                .hint("this is a defect in convoy; please report it with the filter graph and the frame size"));
        }
        Ok(())
    }
}

impl<W: Work> Drop for Crew<W> {
    fn drop(&mut self) {
        self.orders.clear();
        for thread in self.threads.drain(..) {
            // Workers catch their panics; a join error has nothing to add.
            drop(thread.join());
        }
    }
}

fn drain<W: Work>(work: &W, order: &W::Order, tasks: usize, next: &AtomicUsize, scratch: &mut W::Scratch) {
    loop {
        // Relaxed: the channel's send and receive order the frame's memory; the counter only deals out numbers.
        let task = next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return;
        }
        work.run(order, task, scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    struct Sum {
        total: AtomicU64,
        panic_at: usize,
    }

    impl Work for Sum {
        type Order = u64;
        type Scratch = u64;
        fn scratch(&self) -> u64 {
            0
        }
        fn run(&self, order: &u64, task: usize, scratch: &mut u64) {
            assert_ne!(task, self.panic_at, "on purpose");
            *scratch += 1;
            self.total.fetch_add(order * task as u64, Ordering::Relaxed);
        }
    }

    #[test]
    fn every_task_runs_once_and_crews_can_be_reused() {
        for size in 1..5 {
            let work = Arc::new(Sum { total: AtomicU64::new(0), panic_at: usize::MAX });
            let mut crew = Crew::new(Arc::clone(&work), size).unwrap();
            for round in 0..100 {
                crew.run(2, 10, round % 3 == 0).unwrap();
            }
            assert_eq!(work.total.load(Ordering::Relaxed), 100 * 2 * 45);
        }
    }

    #[test]
    fn a_panicking_task_is_an_error_and_the_crew_survives() {
        let work = Arc::new(Sum { total: AtomicU64::new(0), panic_at: 3 });
        let mut crew = Crew::new(work, 3).unwrap();
        assert!(crew.run(1, 8, false).unwrap_err().to_string().contains("panicked"));
        crew.run(1, 3, false).unwrap();
    }
}
