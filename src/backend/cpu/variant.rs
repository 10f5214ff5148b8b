//! The CPU's kernel variants by name.

use crate::error::{Error, Result};

/// How a step is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// One thread, plain loops.
    Scalar,
    /// One thread, SIMD.
    Simd,
    /// All threads, SIMD.
    Threads,
}

/// Names that belong to the CUDA backend, so that the message can say so.
const CUDA: [&str; 14] = [
    "naive",
    "constant",
    "tiled",
    "coarsened",
    "texture",
    "separable",
    "fused",
    "tensor",
    "tensor8",
    "winograd",
    "winograd4",
    "gemm",
    "fft",
    "running",
];

impl Variant {
    /// Every variant, plainest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Simd, Self::Threads];

    /// The name that `--variant` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "cpu-scalar",
            Self::Simd => "cpu-simd",
            Self::Threads => "cpu-threads",
        }
    }

    /// The variant that a user named; None and `auto` mean the fastest.
    ///
    /// # Errors
    /// A usage error that lists the names, and says when the name is one of the CUDA backend's.
    pub fn parse(name: Option<&str>, label: &str) -> Result<Self> {
        let Some(name) = name.filter(|&n| n != "auto") else { return Ok(Self::Threads) };
        if let Some(found) = Self::ALL.into_iter().find(|v| v.name() == name) {
            return Ok(found);
        }
        // Some take a block size: tiled:32x8.
        let plain = name.split([':', '-']).next().unwrap_or(name);
        let cause = if CUDA.contains(&plain) { format!("'{name}' is a CUDA variant") } else { format!("there is no variant '{name}'") };
        let names = Self::ALL.map(Self::name).join(", ");
        let hint = format!("the CPU's variants are {names}; CUDA's need --backend cuda");
        Err(Error::usage(format!("cannot run '{label}' on the CPU"), cause).hint(hint))
    }
}
