//! PSNR and SSIM, as FFmpeg's filters of these names define them, so that figures can be compared with theirs.

use serde::Serialize;

/// How alike one plane of two clips is, over all frames so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlaneScore {
    /// Sum over frames of the mean squared error.
    mse: f64,
    ssim: f64,
    /// Frames whose plane was large enough for SSIM.
    ssim_frames: u64,
    frames: u64,
    max_difference: f64,
    samples: u64,
}

/// The figures of one plane.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Peak signal-to-noise ratio in dB over the mean squared error of all frames; infinite (null in JSON) if identical.
    pub psnr: f64,
    /// Mean structural similarity; None for planes below 8×8.
    pub ssim: Option<f64>,
    /// Largest difference of two samples, in code values.
    pub max_difference: f64,
}

impl PlaneScore {
    /// Adds one frame's plane: `width` values per row, of which the largest possible is `peak`.
    pub fn add(&mut self, a: &[f64], b: &[f64], width: usize, peak: f64) {
        let mut squares = 0.0;
        for (a, b) in a.iter().zip(b) {
            let difference = (a - b).abs();
            self.max_difference = self.max_difference.max(difference);
            squares += difference * difference;
        }
        self.frames += 1;
        self.samples = a.len() as u64;
        self.mse += squares / (a.len() as f64).max(1.0);
        if let Some(ssim) = ssim(a, b, width, peak) {
            self.ssim += ssim;
            self.ssim_frames += 1;
        }
    }

    /// The figures so far.
    pub fn figures(&self, peak: f64) -> Figures {
        Figures {
            psnr: psnr(self.mse / (self.frames as f64).max(1.0), peak),
            ssim: (self.ssim_frames > 0).then(|| self.ssim / self.ssim_frames as f64),
            max_difference: self.max_difference,
        }
    }
}

/// The figures of all planes together, each weighted by its number of samples.
pub fn overall(planes: &[PlaneScore], peak: f64) -> Figures {
    let samples: f64 = planes.iter().map(|p| p.samples as f64).sum::<f64>().max(1.0);
    let weighted = |value: &dyn Fn(&PlaneScore) -> f64| planes.iter().map(|p| value(p) * p.samples as f64 / samples).sum::<f64>();
    let mse = weighted(&|p| p.mse / (p.frames as f64).max(1.0));
    let all_have = !planes.is_empty() && planes.iter().all(|p| p.ssim_frames > 0);
    Figures {
        psnr: psnr(mse, peak),
        ssim: all_have.then(|| weighted(&|p| p.ssim / p.ssim_frames as f64)),
        max_difference: planes.iter().map(|p| p.max_difference).fold(0.0, f64::max),
    }
}

fn psnr(mse: f64, peak: f64) -> f64 {
    if mse > 0.0 { 10.0 * (peak * peak / mse).log10() } else { f64::INFINITY }
}

/// Sums over a 4×4 block: a, b, a² + b², a·b.
type Block = [f64; 4];

/// Mean over windows of 8×8 samples, 4 apart (`libavfilter/vf_ssim.c`): each window is four blocks of 4×4. Rows and columns
/// that do not fill a block are left out.
fn ssim(a: &[f64], b: &[f64], width: usize, peak: f64) -> Option<f64> {
    let height = a.len() / width.max(1);
    let (columns, rows) = (width / 4, height / 4);
    if columns < 2 || rows < 2 {
        return None;
    }
    // FFmpeg rounds the constants for integer samples; float samples (peak 1) need them as they are.
    let whole = |value: f64| if peak > 1.0 { (value + 0.5).floor() } else { value };
    let c1 = whole(0.01 * 0.01 * peak * peak * 64.0);
    let c2 = whole(0.03 * 0.03 * peak * peak * 64.0 * 63.0);
    let line = |row: usize| -> Vec<Block> {
        let mut blocks = vec![[0.0; 4]; columns];
        for y in 4 * row..4 * row + 4 {
            let span = y * width..y * width + 4 * columns;
            let (Some(a), Some(b)) = (a.get(span.clone()), b.get(span)) else { continue };
            for ((block, a), b) in blocks.iter_mut().zip(a.chunks_exact(4)).zip(b.chunks_exact(4)) {
                for (&a, &b) in a.iter().zip(b) {
                    block[0] += a;
                    block[1] += b;
                    block[2] += a * a + b * b;
                    block[3] += a * b;
                }
            }
        }
        blocks
    };
    let mut sum = 0.0;
    let mut above = line(0);
    for row in 1..rows {
        let below = line(row);
        for (above, below) in above.windows(2).zip(below.windows(2)) {
            let [s1, s2, ss, s12] = std::array::from_fn(|i| above.iter().chain(below).map(|block| block[i]).sum::<f64>());
            let variances = ss * 64.0 - s1 * s1 - s2 * s2;
            let covariance = s12 * 64.0 - s1 * s2;
            sum += (2.0 * s1 * s2 + c1) * (2.0 * covariance + c2) / ((s1 * s1 + s2 * s2 + c1) * (variances + c2));
        }
        above = below;
    }
    Some(sum / ((rows - 1) * (columns - 1)) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identical_planes_are_perfect_and_a_known_error_gives_its_figure() {
        let plane: Vec<f64> = (0..256).map(f64::from).collect();
        let mut same = PlaneScore::default();
        same.add(&plane, &plane, 16, 255.0);
        assert_eq!(same.figures(255.0), Figures { psnr: f64::INFINITY, ssim: Some(1.0), max_difference: 0.0 });
        // Every sample 5 off: MSE 25.
        let off: Vec<f64> = plane.iter().map(|v| v + 5.0).collect();
        let mut score = PlaneScore::default();
        score.add(&plane, &off, 16, 255.0);
        let figures = score.figures(255.0);
        assert!((figures.psnr - 10.0 * (255.0f64 * 255.0 / 25.0).log10()).abs() < 1e-12);
        assert_eq!(figures.max_difference, 5.0);
        assert!(figures.ssim.is_some_and(|s| s > 0.9 && s < 1.0));
        // The mean of the errors counts, not of the figures: one perfect frame halves the MSE.
        score.add(&plane, &plane, 16, 255.0);
        assert!((score.figures(255.0).psnr - figures.psnr - 10.0 * 2f64.log10()).abs() < 1e-12);
        let mut small = PlaneScore::default();
        small.add(&plane[..49], &plane[..49], 7, 255.0);
        assert_eq!(small.figures(255.0).ssim, None);
    }
}
