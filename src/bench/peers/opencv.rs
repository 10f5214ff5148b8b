//! OpenCV's CPU filters, on one thread.

use super::process::{Process, Ward, start_python};
use super::{Call, joined, mean_weights};
use crate::axes::SampleType;
use crate::bench::plan::{Case, Kind, sigma};
use crate::filter::Border;

/// Starts it.
///
/// # Errors
/// Why there is none, in a word.
pub(super) fn start(ward: &Ward) -> Result<Process, String> {
    start_python("OpenCV", include_str!("opencv.py"), &[], ward)
}

/// OpenCV's call for a case, if it has one that means the same.
pub(super) fn calls(case: &Case) -> Vec<Call> {
    // Its filters take no halves.
    let Some((kind, k)) = case.kind.filter(|_| case.sample != SampleType::F16) else { return Vec::new() };
    let border = match case.border.unwrap_or_default() {
        Border::Clamp => "cv2.BORDER_REPLICATE",
        Border::Reflect => "cv2.BORDER_REFLECT",
        Border::Reflect101 => "cv2.BORDER_REFLECT_101",
        Border::Zero => "cv2.BORDER_CONSTANT",
        Border::Wrap => return Vec::new(),
    };
    let replicated = border == "cv2.BORDER_REPLICATE";
    let call = match kind {
        Kind::Gauss => Some(format!("cv2.GaussianBlur(x,({k},{k}),{},borderType={border})", sigma(k))),
        Kind::Conv => Some(format!(
            "cv2.filter2D(x,-1,np.array([{}],np.float32).reshape({k},{k}),borderType={border})",
            joined(&mean_weights(k), ",")
        )),
        Kind::Box => Some(format!("cv2.blur(x,({k},{k}),borderType={border})")),
        // At a repeated edge the extremum is that of the samples inside.
        Kind::Max => replicated.then(|| format!("cv2.dilate(x,np.ones(({k},{k}),np.uint8),borderType={border})")),
        Kind::Min => replicated.then(|| format!("cv2.erode(x,np.ones(({k},{k}),np.uint8),borderType={border})")),
        Kind::Median => (replicated && (k <= 5 || case.sample == SampleType::U8)).then(|| format!("cv2.medianBlur(x,{k})")),
        Kind::Unsharp | Kind::Sobel | Kind::Maxpool | Kind::Avgpool => None,
    };
    call.map(|call| Call::new("one thread", call)).into_iter().collect()
}
