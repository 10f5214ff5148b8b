//! Frames so small that handing them to a GPU costs more than filtering them on one CPU thread.
//!
//! A rough model on purpose: near the crossing both are fast, and far from it a factor of two does not matter.

use crate::filter::plan::{Plan, PlaneOp};

/// Host time that a frame on the GPU costs whatever its size: two transfers, a launch, events, a wake-up. Microseconds.
const GPU_FRAME_US: f64 = 20.0;
/// Bytes per microsecond over the bus, one way.
const BUS: f64 = 20_000.0;

/// Why `plan` runs faster on the CPU than on a GPU, if it does.
pub fn too_small_for_gpu(plan: &Plan) -> Option<String> {
    let cpu_us = cpu_us(plan);
    let gpu_us = GPU_FRAME_US + (plan.input.payload_bytes() + plan.output().payload_bytes()) as f64 / BUS;
    (cpu_us < gpu_us).then(|| {
        let (width, height) = (plan.input.width, plan.input.height);
        format!("frames of {width}x{height} are too small for the GPU: an estimated {cpu_us:.0} us each on the CPU, {gpu_us:.0} us there")
    })
}

/// Time of one frame on one thread.
fn cpu_us(plan: &Plan) -> f64 {
    let planes = plan.steps.iter().flat_map(|step| {
        let format = step.input.format;
        step.planes.iter().enumerate().take(format.plane_count()).map(move |(index, op)| {
            let (width, height) = step.input.plane_size(index);
            (width * height * format.components(index)) as f64 * nanoseconds(op)
        })
    });
    planes.sum::<f64>() / 1e3
}

/// Per sample on one thread, from docs/measurements.md.
fn nanoseconds(op: &PlaneOp) -> f64 {
    match op {
        PlaneOp::Copy => 0.1,
        PlaneOp::Separable(op) => 1.0 + 0.05 * (op.row.len() + op.col.len()) as f64,
        PlaneOp::Direct(op) => 1.0 + 0.02 * (op.width * op.height) as f64,
        PlaneOp::Box(op) => 2.0 * op.power as f64,
        PlaneOp::Unsharp(op) => 2.0 + 0.1 * (op.size_x + op.size_y) as f64,
        PlaneOp::Gradient(_) | PlaneOp::Compass(_) | PlaneOp::Morphology(_) => 1.0,
        PlaneOp::Extremum(_) | PlaneOp::Pool(_) | PlaneOp::Pixelate(_) => 2.0,
        // Networks up to 5x5, counting beyond.
        PlaneOp::Median(op) => 1.0 + 0.3 * ((2 * op.radius_x + 1) * (2 * op.radius_y + 1)) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter;
    use crate::frame::{PixelFormat, Shape};

    #[test]
    fn thumbnails_stay_on_the_cpu_and_videos_do_not() {
        let reason = |graph: &str, width, height| {
            let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width, height };
            too_small_for_gpu(&filter::plan(&filter::parse(graph).unwrap(), shape).unwrap())
        };
        assert!(reason("sobel", 64, 48).unwrap().contains("64x48"));
        assert!(reason("gblur=2", 32, 32).is_some());
        for (width, height) in [(320, 240), (640, 360), (1920, 1080), (7680, 4320)] {
            for graph in ["sobel", "gblur=2", "median", "avgblur=7"] {
                assert_eq!(reason(graph, width, height), None, "{graph} {width}x{height}");
            }
        }
        assert_eq!(reason("median=60", 64, 48), None, "a slow filter pays even so");
    }
}
