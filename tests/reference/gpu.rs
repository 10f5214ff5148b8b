//! The GPU of the tests that need one, and how they tell what they found.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use convoy::backend::Device;
use convoy::backend::cuda::{self, Cuda};

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Whether a missing GPU, or a missing library of NVIDIA's, is a failure and not a skip.
pub fn required() -> bool {
    std::env::var_os("CONVOY_REQUIRE_GPU").is_some_and(|v| v == "1")
}

/// The first GPU; None without one, where each test that asks prints a skip.
pub fn gpu() -> Option<&'static Cuda> {
    static GPU: OnceLock<Option<Cuda>> = OnceLock::new();
    let gpu = GPU.get_or_init(|| match cuda::open(0) {
        Ok(cuda) => {
            println!("{}", cuda.describe());
            Some(cuda)
        }
        Err(error) => {
            assert!(!required(), "CONVOY_REQUIRE_GPU=1, but {error}");
            println!("{error}");
            None
        }
    });
    if gpu.is_none() {
        println!("SKIPPED: no GPU ({} skipped so far)", 1 + SKIPPED.fetch_add(1, Ordering::Relaxed));
    }
    gpu.as_ref()
}

/// Says it past the test runner's capture, which shows nothing of a test that is ended.
pub fn tell(failure: &str) {
    let _ = writeln!(std::io::stderr(), "FAILURE: {failure}");
}
