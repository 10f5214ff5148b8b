//! The reference itself, judged from outside: SciPy and NumPy on whole planes, under every border.
//!
//! What FFmpeg has is compared in `filter_plan.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use std::process::{Command, Stdio};

use convoy::filter::{Border, parse, plan};
use convoy::frame::{PixelFormat, Shape};
use reference::{Content, Picture};

/// Reads planes and parameters, prints the largest difference to what SciPy makes of them.
const JUDGE: &str = r#"
import sys, json, numpy as np
from scipy import ndimage as nd
worst = 0.0
for job in json.load(sys.stdin):
    a = np.array(job["in"], np.float64).reshape(job["in_size"][::-1])
    b = np.array(job["out"], np.float64).reshape(job["out_size"][::-1])
    how = {"mode": {"clamp": "nearest", "zero": "constant", "reflect": "reflect", "reflect101": "mirror", "wrap": "wrap"}[job["border"]]}
    p = job["p"]
    def pool(f):
        k, s, pad, d = p
        span = d * (k - 1) + 1
        grow = max(pad, span * s + s * max(b.shape))
        c = np.pad(a, ((pad, grow), (pad, grow)), constant_values=np.nan)
        w = np.lib.stride_tricks.sliding_window_view(c, (span, span))[::s, ::s, ::d, ::d][: b.shape[0], : b.shape[1]]
        assert np.isfinite(w).any(axis=(2, 3)).all()
        return f(w, axis=(2, 3))
    def blocks(bx, by):
        y, x = np.arange(a.shape[0]) // by, np.arange(a.shape[1]) // bx
        label = y[:, None] * (x.max() + 1) + x[None, :]
        return nd.mean(a, label, np.arange(label.max() + 1))[label]
    def kirsch():
        ring, best = [0, 1, 2, 3, 5, 6, 7, 8], None
        for k in range(8):
            m = np.full(9, -3.0); m[4] = 0
            m[[ring[k], ring[(k + 1) % 8], ring[(k + 2) % 8]]] = 5
            r = nd.correlate(a, m.reshape(3, 3), **how)
            best = r if best is None else np.maximum(best, r)
        return np.abs(best)
    def cross(mask):
        m = [bool(mask >> i & 1) for i in range(8)]
        return np.array(m[:4] + [True] + m[4:]).reshape(3, 3)
    want = {
        "rank": lambda: nd.rank_filter(a, p[2], size=(2 * p[1] + 1, 2 * p[0] + 1), **how),
        "median": lambda: nd.median_filter(a, size=(2 * p[1] + 1, 2 * p[0] + 1), **how),
        "erosion": lambda: nd.grey_erosion(a, size=(2 * p[0] + 1, 2 * p[0] + 1), **how),
        "dilation": lambda: nd.grey_dilation(a, size=(2 * p[0] + 1, 2 * p[0] + 1), **how),
        "near_min": lambda: np.maximum(nd.minimum_filter(a, footprint=cross(p[0]), **how), a - p[1]),
        "near_max": lambda: np.minimum(nd.maximum_filter(a, footprint=cross(p[0]), **how), a + p[1]),
        "laplace": lambda: nd.laplace(a, **how),
        "correlate": lambda: nd.correlate(a, np.array(p, np.float64).reshape(3, 3), **how),
        "kirsch": kirsch,
        "maxpool": lambda: pool(np.nanmax),
        "minpool": lambda: pool(np.nanmin),
        "avgpool": lambda: pool(np.nanmean),
        "blocks": lambda: blocks(*p),
    }[job["judge"]]()
    assert want.shape == b.shape, (job["graph"], want.shape, b.shape)
    worst = max(worst, np.abs(want - b).max())
print(worst)
"#;

/// One graph on one shape: `p` is what SciPy is told of it.
struct Case {
    graph: &'static str,
    judge: &'static str,
    p: Vec<i64>,
}

fn case(graph: &'static str, judge: &'static str, p: &[i64]) -> Case {
    Case { graph, judge, p: p.to_vec() }
}

/// The jobs of a case as JSON, one per plane.
fn jobs(case: &Case, border: Border, shape: Shape, content: Content) -> Vec<serde_json::Value> {
    let graph = format!("{}{}border={}", case.graph, if case.graph.contains('=') { ":" } else { "=" }, border.name());
    let plan = plan(&parse(&graph).unwrap(), shape).unwrap();
    assert_eq!(plan.steps.len(), 1, "{graph}");
    let input = Picture::new(shape, content, 11);
    let output = reference::expect(&plan, &input);
    let planes = input.planes.iter().zip(&output.planes).enumerate();
    planes
        .map(|(index, (a, b))| {
            serde_json::json!({
                "graph": graph, "judge": case.judge, "border": border.name(), "p": case.p,
                "in": a, "in_size": shape.plane_size(index), "out": b, "out_size": plan.output().plane_size(index),
            })
        })
        .collect()
}

/// Largest difference between the reference and SciPy.
fn disagreement(jobs: &[serde_json::Value]) -> f64 {
    let python = std::env::var("CONVOY_PYTHON").unwrap_or_else(|_| "python3".into());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.json");
    std::fs::write(&path, serde_json::to_vec(jobs).unwrap()).unwrap();
    let mut command = Command::new(&python);
    command.args(["-c", JUDGE]).stdin(Stdio::from(std::fs::File::open(&path).unwrap()));
    let output = command.output().unwrap_or_else(|e| panic!("{python}: {e}"));
    assert!(output.status.success(), "SciPy is missing? run `make test`\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

/// Planes smaller than the windows among them; what SciPy is told must hold on every plane, so 4:4:4 or gray.
const SHAPES: [(PixelFormat, usize, usize); 5] = [
    (PixelFormat::gray(8), 41, 29),
    (PixelFormat::gray(8), 3, 2),
    (PixelFormat::gray(10), 17, 23),
    (PixelFormat::gbr(8), 13, 9),
    (PixelFormat::gray(32), 19, 7),
];

fn holds(case: &Case) {
    let mut all = Vec::new();
    for border in Border::ALL {
        for (format, width, height) in SHAPES {
            // A threshold is in code values: of 8 bits here.
            if case.judge.starts_with("near") && format.depth != 8 {
                continue;
            }
            for content in [Content::Random, Content::Extremes, Content::Impulse] {
                all.extend(jobs(case, border, Shape { format, width, height }, content));
            }
        }
    }
    let worst = disagreement(&all);
    assert!(worst < 1e-6, "{}: {worst}", case.graph);
}

#[test]
fn ranks_are_scipys() {
    holds(&case("median", "median", &[1, 1]));
    holds(&case("median=4:radiusV=2", "median", &[4, 2]));
    holds(&case("median=2:percentile=0.3", "rank", &[2, 2, 7]));
    holds(&case("median=1:radiusV=3:percentile=1", "rank", &[1, 3, 20]));
}

#[test]
fn extrema_are_scipys() {
    holds(&case("erosion", "erosion", &[1]));
    holds(&case("dilation", "dilation", &[1]));
    holds(&case("erosion=radius=5", "erosion", &[5]));
    holds(&case("dilation=radius=4", "dilation", &[4]));
    holds(&case("erosion=coordinates=90:threshold0=30:threshold1=30:threshold2=30", "near_min", &[90, 30]));
    holds(&case("dilation=coordinates=7:threshold0=200:threshold1=200:threshold2=200", "near_max", &[7, 200]));
}

#[test]
fn kernels_are_scipys() {
    holds(&case("laplacian", "laplace", &[]));
    holds(&case("kirsch", "kirsch", &[]));
    holds(&case("emboss", "correlate", &[-2, -1, 0, -1, 1, 1, 0, 1, 2]));
    holds(&case("sharpen", "correlate", &[0, -1, 0, -1, 5, -1, 0, -1, 0]));
    holds(&case("edge", "correlate", &[-1, -1, -1, -1, 8, -1, -1, -1, -1]));
}

#[test]
fn pooling_is_numpys() {
    holds(&case("pixelate=4", "blocks", &[4, 4]));
    for shape in [(41, 29), (8, 8), (7, 5), (64, 3)] {
        let mut all = Vec::new();
        for (graph, judge, p) in [
            ("maxpool", "maxpool", [2, 2, 0, 1]),
            ("maxpool=3:1:1", "maxpool", [3, 1, 1, 1]),
            ("minpool=3:2:1", "minpool", [3, 2, 1, 1]),
            ("avgpool=3:2", "avgpool", [3, 2, 0, 1]),
            ("avgpool=5:3:2", "avgpool", [5, 3, 2, 1]),
            ("maxpool=3:2:0:2", "maxpool", [3, 2, 0, 2]),
        ] {
            // Subsampled chroma: half of luma's windows, rounded up, cut off at the edge.
            for format in [PixelFormat::gray(8), PixelFormat::yuv(8, 1, 1), PixelFormat::yuv(10, 1, 0), PixelFormat::gray(32)] {
                let shape = Shape { format, width: shape.0, height: shape.1 };
                all.extend(jobs(&case(graph, judge, &p), Border::Clamp, shape, Content::Random));
            }
        }
        let worst = disagreement(&all);
        assert!(worst < 1e-6, "{shape:?}: {worst}");
    }
}

/// Chroma of a wide dilation may have no sample under its window: the nearest one stands in.
#[test]
fn a_window_beside_the_plane_takes_the_nearest_sample() {
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 4, height: 4 };
    let plan = plan(&parse("maxpool=2:1:1:3").unwrap(), shape).unwrap();
    assert_eq!((plan.output().width, plan.output().height), (3, 3));
    let input = Picture::new(shape, Content::Random, 5);
    let output = reference::expect(&plan, &input);
    // Chroma is 2x2 and becomes 2x2: columns −1 and 2, then 0 and 3; of the first, 2 is nearest to the plane's 1.
    let (u, pooled) = (&input.planes[1], &output.planes[1]);
    assert_eq!(pooled, &[u[3], u[2], u[1], u[0]]);
}

#[test]
fn the_judge_sees_another_window() {
    let shape = Shape { format: PixelFormat::gray(8), width: 20, height: 20 };
    for (graph, judge, p) in [
        ("median=2", "median", &[1, 1][..]),
        ("erosion=radius=3", "erosion", &[2]),
        ("pixelate=5", "blocks", &[4, 5]),
        ("avgpool=3:1:1", "avgpool", &[3, 1, 1, 2]),
    ] {
        // A wrong size is an assertion of the script's, a wrong value a difference.
        let jobs = jobs(&case(graph, judge, p), Border::Clamp, shape, Content::Random);
        assert!(disagreement(&jobs) > 1.0, "{graph}");
    }
}
