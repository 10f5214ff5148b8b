//! What is measured by default: every filter, with the graph that ffmpeg gets for the same result.

/// A name for the table, our graph, and ffmpeg's.
#[derive(Debug)]
pub(super) struct Case {
    pub name: String,
    pub graph: String,
    /// ffmpeg's graph for the same job; equal to ours except where ffmpeg has no such parameter.
    pub peer: String,
}

impl Case {
    /// A graph that both programs understand.
    pub fn same(name: &str, graph: impl Into<String>) -> Self {
        let graph = graph.into();
        Self { name: name.to_owned(), peer: graph.clone(), graph }
    }
}

/// Integer weights without structure: neither separable nor symmetric, no plane left out.
fn square(n: usize) -> String {
    let taps: Vec<String> = (0..n * n).map(|i| ((i * 7 + i / n * 3) % 5 + 1).to_string()).collect();
    let taps = taps.join(" ");
    format!("convolution='{taps}:{taps}:{taps}'")
}

/// The table of `make bench`.
pub(super) fn default_cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [1, 2, 5, 20].iter().map(|s| Case::same(&format!("gblur sigma {s}"), format!("gblur=sigma={s}"))).collect();
    cases.extend([3, 5, 7].iter().map(|&n| Case::same(&format!("convolution {n}x{n}"), square(n))));
    cases.extend([
        Case::same("boxblur", "boxblur"),
        Case::same("boxblur 5, once", "boxblur=5:1"),
        Case::same("avgblur 7", "avgblur=7"),
        Case::same("unsharp", "unsharp"),
        Case::same("sobel", "sobel"),
        Case::same("prewitt", "prewitt"),
        Case::same("scharr", "scharr"),
        Case::same("roberts", "roberts"),
        Case::same("kirsch", "kirsch"),
        Case::same("erosion", "erosion"),
        Case { name: "dilation 15x15".into(), graph: "dilation=radius=7".into(), peer: ["dilation"; 7].join(",") },
        Case::same("median", "median"),
        Case::same("median 15x15", "median=radius=7"),
        Case::same("blur, sobel, unsharp", "gblur=sigma=1,sobel,unsharp"),
        Case::same("four extremes", "erosion,dilation,erosion,dilation"),
        Case { name: "pixelate 16".into(), graph: "pixelate=16".into(), peer: "pixelize=16:16".into() },
    ]);
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_graph_is_understood() {
        for case in default_cases() {
            assert!(crate::filter::parse(&case.graph).is_ok(), "{case:?}");
        }
    }
}
