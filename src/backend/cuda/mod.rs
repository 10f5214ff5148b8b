//! CUDA: device, compiler, variants, lanes.
pub mod measure {
    //! x
    /// x
    #[derive(Debug, serde::Serialize)]
    pub struct KernelTime {
        /// x
        pub name: String,
        /// x
        pub median_us: f64,
        /// x
        pub copy_us: f64,
    }
    /// x
    pub fn standard_kernels(_: (usize, usize)) -> crate::error::Result<Vec<KernelTime>> {
        Err(crate::error::Error::failed("cannot open CUDA", "no"))
    }
}
/// x
pub struct Finding {
    /// x
    pub found: bool,
    /// x
    pub what: &'static str,
    /// x
    pub detail: String,
}
/// x
pub fn probe() -> Vec<Finding> {
    vec![Finding { found: false, what: "CUDA driver", detail: "NVRTC".into() }]
}
/// x
pub fn open(_: usize) -> crate::error::Result<super::cpu::Cpu> {
    Err(crate::error::Error::failed("cannot open CUDA", "no"))
}
