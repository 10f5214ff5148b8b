//! PyTorch on the GPU: 32-bit floats and halves.

use super::process::{Process, Ward, start_python};
use super::{Call, gaussian, joined, mean_weights};
use crate::axes::SampleType;
use crate::bench::plan::{Case, Kind};
use crate::filter::Border;
use crate::tensor::{Pooling, Reduce};

/// Starts it on GPU `device`.
///
/// # Errors
/// Why there is none, in a word.
pub(super) fn start(device: usize, ward: &Ward) -> Result<Process, String> {
    start_python("PyTorch", include_str!("torch.py"), &[device.to_string()], ward)
}

/// PyTorch's calls for a frame of floats. Its layers know the border of zeros alone; edges are repeated by padding first.
pub(super) fn calls(case: &Case) -> Vec<Call> {
    let Some((kind, k)) = case.kind else { return Vec::new() };
    match case.sample {
        SampleType::F32 => {}
        // Its convolutions of halves round the weights to halves, which is another result; the others are comparable.
        SampleType::F16 if matches!(kind, Kind::Box | Kind::Max | Kind::Min | Kind::Maxpool | Kind::Avgpool) => {}
        SampleType::U8 | SampleType::U9 | SampleType::U10 | SampleType::U12 | SampleType::U14 | SampleType::U16 | SampleType::F16 => {
            return Vec::new();
        }
    }
    let border = case.border.unwrap_or_default();
    let (x, padding) = match border {
        Border::Clamp => (format!("padded(x,{k})"), 0),
        // Only odd windows have as much on both sides.
        Border::Zero if k % 2 == 1 => ("x".to_owned(), k / 2),
        Border::Zero | Border::Reflect | Border::Reflect101 | Border::Wrap => return Vec::new(),
    };
    let clamped = border == Border::Clamp;
    let call = |variant: &str, text: String| vec![Call::new(variant, text)];
    let general = |taps: &[f64]| format!("F.conv2d({x},weights('{}',1,1,{k},{k}),padding={padding})", joined(taps, ","));
    match kind {
        Kind::Gauss => {
            let taps = gaussian(k);
            let text = joined(&taps, ",");
            let rows = format!("F.conv2d({x},weights('{text}',1,1,1,{k}),padding=(0,{padding}))");
            let outer: Vec<f64> = taps.iter().flat_map(|a| taps.iter().map(move |b| a * b)).collect();
            vec![
                Call::new("conv2d twice", format!("F.conv2d({rows},weights('{text}',1,1,{k},1),padding=({padding},0))")),
                Call::new("conv2d", general(&outer)),
            ]
        }
        Kind::Conv => call("conv2d", general(&mean_weights(k))),
        Kind::Box => call("avg_pool2d", format!("F.avg_pool2d({x},{k},1,{padding})")),
        // At a repeated edge the extremum is that of the samples inside.
        Kind::Max if clamped => call("max_pool2d", format!("F.max_pool2d(x,{k},1,{})", k / 2)),
        Kind::Min if clamped => call("max_pool2d", format!("-F.max_pool2d(-x,{k},1,{})", k / 2)),
        Kind::Sobel => {
            let both = "-1,0,1,-2,0,2,-1,0,1,-1,-2,-1,0,0,0,1,2,1";
            call("conv2d", format!("torch.linalg.vector_norm(F.conv2d({x},weights('{both}',2,1,3,3),padding={padding}),dim=1)"))
        }
        Kind::Maxpool | Kind::Avgpool if clamped => match case.pooling() {
            // Its layers want no padding beyond half of the window, and windows that end inside.
            Some(layer) => vec![layer_call(&layer)],
            None => Vec::new(),
        },
        Kind::Max | Kind::Min | Kind::Median | Kind::Unsharp | Kind::Maxpool | Kind::Avgpool => Vec::new(),
    }
}

/// PyTorch's call for a layer over a tensor.
pub(super) fn layer_call(layer: &Pooling) -> Call {
    let pair = |[down, across]: [usize; 2]| format!("({down},{across})");
    let windows = &layer.windows;
    let [kernel, stride, pad] = [windows.kernel, windows.stride, windows.pad].map(pair);
    match layer.reduce {
        Reduce::Max => Call::new("max_pool2d", format!("F.max_pool2d(x,{kernel},{stride},{pad},{})", pair(windows.dilation))),
        Reduce::Min => Call::new("max_pool2d", format!("-F.max_pool2d(-x,{kernel},{stride},{pad},{})", pair(windows.dilation))),
        Reduce::Mean => {
            let count = if layer.count_pad { "True" } else { "False" };
            Call::new("avg_pool2d", format!("F.avg_pool2d(x,{kernel},{stride},{pad},count_include_pad={count})"))
        }
    }
}
