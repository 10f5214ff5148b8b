//! Lowered filters, executed by a plain loop in f64, against FFmpeg and against the formulas.

// A test fails by panicking; clippy knows that of test functions only, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::process::{Command, Stdio};

use convoy::filter::math::border_index;
use convoy::filter::plan::{Plan, PlaneOp, Step};
use convoy::filter::{Border, parse, plan};
use convoy::frame::{Packing, PixelFormat, Shape};

const W: usize = 97;
const H: usize = 65;
const GRAY: Shape = Shape { format: PixelFormat::gray(8), width: W, height: H };

fn lowered(graph: &str, shape: Shape) -> Plan {
    plan(&parse(graph).unwrap_or_else(|e| panic!("{e}")), shape).unwrap_or_else(|e| panic!("{e}"))
}

/// A plane of f64 samples.
#[derive(Clone)]
struct Image(Vec<f64>);

impl Image {
    fn at(&self, x: i64, y: i64, border: Border) -> f64 {
        match (border_index(x, W as i64, border), border_index(y, H as i64, border)) {
            (Some(x), Some(y)) => self.0[y as usize * W + x as usize],
            _ => 0.0,
        }
    }

    fn map(&self, f: impl Fn(i64, i64) -> f64) -> Self {
        Self((0..H as i64).flat_map(|y| (0..W as i64).map(move |x| (x, y))).map(|(x, y)| f(x, y)).collect())
    }

    fn filtered(&self, width: usize, height: usize, border: Border, weight: impl Fn(usize, usize) -> f64) -> Self {
        let anchor = ((width / 2) as i64, (height / 2) as i64);
        self.map(|x, y| {
            let taps = (0..height).flat_map(|j| (0..width).map(move |i| (i, j)));
            taps.map(|(i, j)| weight(i, j) * self.at(x + i as i64 - anchor.0, y + j as i64 - anchor.1, border)).sum()
        })
    }
}

/// The step on plane 0, as `plan.rs` words it; binomials by Pascal's rule, not by the code under test.
fn execute(step: &Step, input: &Image) -> Image {
    let border = step.border;
    let round = |v: f64| (v + 0.5).floor().clamp(0.0, 255.0);
    match &step.planes[0] {
        PlaneOp::Copy => input.clone(),
        PlaneOp::Direct(d) => {
            let sum = input.filtered(d.width, d.height, border, |i, j| f64::from(d.taps[j * d.width + i]));
            sum.map(|x, y| round(sum.at(x, y, border) * f64::from(d.scale) + f64::from(d.bias)))
        }
        PlaneOp::Separable(s) => {
            let rows = input.filtered(s.row.len(), 1, border, |i, _| f64::from(s.row[i]));
            let sum = rows.filtered(1, s.col.len(), border, |_, j| f64::from(s.col[j]));
            sum.map(|x, y| round(sum.at(x, y, border) * f64::from(s.scale) + f64::from(s.bias)))
        }
        PlaneOp::Box(b) => {
            let (w, h) = (2 * b.radius_x + 1, 2 * b.radius_y + 1);
            let mut image = input.clone();
            for _ in 0..b.power {
                image = image.filtered(w, 1, border, |_, _| 1.0 / w as f64);
            }
            for _ in 0..b.power {
                image = image.filtered(1, h, border, |_, _| 1.0 / h as f64);
            }
            image.map(|x, y| round(image.at(x, y, border)))
        }
        PlaneOp::Unsharp(u) => {
            let pascal = |n: usize| {
                (1..n).fold(vec![1.0f64], |row, _| std::iter::once(1.0).chain(row.windows(2).map(|w| w[0] + w[1])).chain([1.0]).collect())
            };
            let (row, col) = (pascal(u.size_x), pascal(u.size_y));
            let total = row.iter().sum::<f64>() * col.iter().sum::<f64>();
            let sum = input.filtered(u.size_x, u.size_y, border, |i, j| row[i] * col[j]);
            input.map(|x, y| {
                let (original, blur) = (input.at(x, y, border), (sum.at(x, y, border) / total + 0.5).floor());
                (original + ((original - blur) * f64::from(u.amount) / 65536.0).floor()).clamp(0.0, 255.0)
            })
        }
        PlaneOp::Gradient(g) => {
            let gx = input.filtered(3, 3, border, |i, j| f64::from(g.x[j * 3 + i]));
            let gy = input.filtered(3, 3, border, |i, j| f64::from(g.y[j * 3 + i]));
            input.map(|x, y| round(gx.at(x, y, border).hypot(gy.at(x, y, border)) * f64::from(g.scale) + f64::from(g.delta)))
        }
    }
}

/// Smooth shapes, noise and extremes.
fn picture() -> Vec<u8> {
    let mut state = 12345u32;
    (0..W * H)
        .map(|i| {
            let (x, y) = (i % W, i / W);
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match x * 3 / W {
                0 => (state >> 24) as u8,
                1 => ((x * y) % 256) as u8,
                _ => {
                    if (x / 5 + y / 7) % 2 == 0 {
                        255
                    } else {
                        0
                    }
                }
            }
        })
        .collect()
}

fn convoy(graph: &str) -> Vec<u8> {
    let image = Image(picture().into_iter().map(f64::from).collect());
    lowered(graph, GRAY).steps.iter().fold(image, |image, step| execute(step, &image)).0.into_iter().map(|v| v as u8).collect()
}

/// FFmpeg's result, or None where it is not installed.
fn ffmpeg(graph: &str) -> Option<Vec<u8>> {
    let size = format!("{W}x{H}");
    let raw = ["-f", "rawvideo", "-pix_fmt", "gray"];
    let mut child = Command::new("ffmpeg")
        .args(["-v", "error"])
        .args(raw)
        .args(["-s", &size, "-i", "-", "-vf", graph])
        .args(raw)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    child.stdin.take().unwrap().write_all(&picture()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ffmpeg refuses {graph}");
    assert_eq!(output.stdout.len(), W * H);
    Some(output.stdout)
}

fn worst(a: &[u8], b: &[u8], margin: usize) -> (u8, usize, usize) {
    let inside = |i: usize| (margin..W - margin).contains(&(i % W)) && (margin..H - margin).contains(&(i / W));
    let differences = a.iter().zip(b).enumerate().filter(|(i, _)| inside(*i)).map(|(i, (a, b))| (a.abs_diff(*b), i % W, i / W));
    differences.max_by_key(|d| d.0).unwrap()
}

#[test]
fn graphs_mean_what_they_mean_to_ffmpeg() {
    let binomial = "1 4 6 4 1 4 16 24 16 4 6 24 36 24 6 4 16 24 16 4 1 4 6 4 1";
    let sevens = (0..49).map(|i| (i * 37 % 11 - 3).to_string()).collect::<Vec<_>>().join(" ");
    for (graph, margin, tolerance) in [
        ("convolution=0 -1 0 -1 5 -1 0 -1 0".to_string(), 2, 1),
        ("convolution=1 2 3 4 5 6 7 8 10".to_string(), 2, 1),
        ("convolution=-2 -1 0 -1 0 1 0 1 2:0bias=128".to_string(), 2, 1),
        (format!("convolution={binomial}"), 3, 1),
        (format!("convolution=0m='{sevens}'"), 4, 1),
        ("convolution=1|2|3|4|5|6|7|8|10".to_string(), 2, 1),
        ("convolution=0m=1 2 3 4 9:0mode=row".to_string(), 4, 1),
        ("convolution=0m=1 2 3 4 9:0mode=column".to_string(), 4, 1),
        ("boxblur=1:1".to_string(), 3, 1),
        ("boxblur=3".to_string(), 8, 2),
        ("boxblur=lr='min(w,h)/10+hsub':lp=1".to_string(), 10, 1),
        ("boxblur=lr=2+floor(PI)^2/3-1:lp=1".to_string(), 10, 1),
        ("avgblur=2".to_string(), 6, 1),
        ("avgblur=3:15:1".to_string(), 6, 1),
        ("unsharp".to_string(), 0, 0),
        ("unsharp=7:3:2.5".to_string(), 0, 0),
        ("unsharp=13:13:-1.3".to_string(), 0, 0),
        ("unsharp=la=.7".to_string(), 0, 0),
        ("sobel".to_string(), 2, 1),
        ("sobel=scale=0.3:delta=5".to_string(), 2, 1),
        ("sobel=planes=14".to_string(), 0, 0),
        ("prewitt=scale=1.5".to_string(), 2, 1),
        ("scharr".to_string(), 2, 1),
        ("roberts=scale=2".to_string(), 2, 1),
        ("convolution=1 1 1 1 1 1 1 1 1,sobel@second=15:0.5,unsharp=3:3:1".to_string(), 5, 2),
    ] {
        let Some(theirs) = ffmpeg(&graph) else {
            eprintln!("skipped: no ffmpeg");
            return;
        };
        let ours = convoy(&graph);
        let (difference, x, y) = worst(&ours, &theirs, margin);
        let at = y * W + x;
        assert!(difference <= tolerance, "{graph}: at ({x}, {y}) got {}, FFmpeg has {}", ours[at], theirs[at]);
    }
    // The comparison sees a difference where there is one.
    if let Some(theirs) = ffmpeg("sobel=scale=1.1") {
        assert!(worst(&convoy("sobel"), &theirs, 2).0 > 2);
    }
}

/// Radii that FFmpeg computes, from its verbose log: quoting, numbers, operators, functions, truncation.
#[test]
fn radius_expressions_evaluate_as_in_ffmpeg() {
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 2001, height: 1001 };
    let mut accepted = 0;
    for radius in [
        "7",
        "7.99",
        "-0.9",
        "0x1F",
        "-0x3+9",
        "0.2k",
        "0.1Ki",
        "12dB",
        "+3",
        "--5",
        "2^3^2",
        "-2^2+99",
        "2^-1*9",
        "1-2-3+9",
        "9/2/2*5",
        "cw/10",
        "ch-hsub*100",
        "w/hsub/vsub/2",
        "PHI*PI*E",
        "min(w\\,h)/9",
        "'max(cw,ch)/7'",
        "'if(gt(w,h),11,22)'",
        "'if(0,3)'",
        "'ifnot(0,3)'",
        "'clip(w,3,40)'",
        "'between(w,1,3000)*8'",
        "'mod(-7,5)*3'",
        "'gcd(24,36)'",
        "'hypot(3,4)'",
        "'lerp(10,20,.25)'",
        "'trunc(2.7);9'",
        "'st'*0+1",
        "sqrt(81)+cos(0)",
        "'atan2(1,1)*40'",
        "'pow(2,5)+eq(1,1)+not(3)'",
        "'bitand(13,7)+bitor(8,1)'",
        "sgn(-3)+9",
        "squish(0)*30",
        "gauss(0)*100",
        "ceil(2.1)+floor(2.9)+round(2.5)",
        "5*(2+(3))",
        " 1 + 2 ",
        "3e1",
        "1e1*.5",
        "5.",
        "2h",
        "1M/20000",
        "3B",
        "'\\w/100'",
        "1'2'",
        "1\\2",
        "abs(-4)*exp(1)*log(9)",
    ] {
        let radius = radius.replace("\\\\", "\\");
        let graph = format!("boxblur=lr={radius}:lp=1:cr=1:ar=1");
        let size = format!("color=s={}x{}:r=1:d=1,format=yuv420p", shape.width, shape.height);
        let run = Command::new("ffmpeg").args(["-v", "verbose", "-f", "lavfi", "-i", &size, "-vf", &graph, "-f", "null", "-"]).output();
        let Ok(run) = run else {
            eprintln!("skipped: no ffmpeg");
            return;
        };
        let log = String::from_utf8_lossy(&run.stderr);
        let theirs: Option<usize> = log
            .split_once("luma_radius:")
            .filter(|_| run.status.success())
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .and_then(|word| word.parse().ok());
        let ours = parse(&graph).and_then(|f| plan(&f, shape)).ok().map(|plan| match plan.steps.first().map(|s| &s.planes[0]) {
            Some(PlaneOp::Box(b)) => b.radius_x,
            _ => 0,
        });
        assert_eq!(ours, theirs, "{graph}: {:?}", parse(&graph).err().map(|e| e.to_string()));
        accepted += usize::from(ours.is_some());
    }
    assert!(accepted > 45, "{accepted}");
}

/// scipy.ndimage.gaussian_filter(truncate=4): radius ⌊4σ + ½⌋, one direction after the other.
#[test]
fn gblur_is_the_true_gaussian() {
    for (graph, sigma_x, sigma_y) in [
        ("gblur=0.5", 0.5, 0.5),
        ("gblur=sigma=1", 1.0, 1.0),
        ("gblur=2", 2.0, 2.0),
        ("gblur=sigma=5:sigmaV=1.5", 5.0, 1.5),
        ("gblur=8", 8.0, 8.0),
    ] {
        let image = Image(picture().into_iter().map(f64::from).collect());
        let taps = |sigma: f64| {
            let radius = (4.0 * sigma + 0.5) as i64;
            let raw: Vec<f64> = (-radius..=radius).map(|i| (-((i * i) as f64) / (2.0 * sigma * sigma)).exp()).collect();
            let sum: f64 = raw.iter().sum();
            raw.into_iter().map(|w| w / sum).collect::<Vec<_>>()
        };
        let (row, col) = (taps(sigma_x), taps(sigma_y));
        let rows = image.filtered(row.len(), 1, Border::Clamp, |i, _| row[i]);
        let want = rows.filtered(1, col.len(), Border::Clamp, |_, j| col[j]);
        let want: Vec<u8> = want.0.iter().map(|v| (v + 0.5).floor().clamp(0.0, 255.0) as u8).collect();
        let (difference, x, y) = worst(&convoy(graph), &want, 0);
        assert!(difference <= 1, "{graph}: {difference} at ({x}, {y})");
    }
}

fn ops(graph: &str, format: PixelFormat) -> Vec<PlaneOp> {
    let plan = lowered(graph, Shape { format, width: 64, height: 48 });
    plan.steps.first().map(|s| s.planes[..format.plane_count()].to_vec()).unwrap_or_default()
}

/// Which planes are changed, as a string of 0 and 1.
fn changed(graph: &str, format: PixelFormat) -> String {
    ops(graph, format).iter().map(|op| if *op == PlaneOp::Copy { '0' } else { '1' }).collect()
}

#[test]
fn planes_are_components_whatever_the_layout() {
    let yuv = PixelFormat::yuv(8, 1, 1);
    let alpha = |format: PixelFormat| PixelFormat { alpha: true, ..format };
    let nv12 = PixelFormat { packing: Packing::SemiPlanar, ..yuv };
    for (graph, format, want) in [
        ("gblur=planes=1", yuv, "100"),
        ("gblur=planes=6", yuv, "011"),
        ("gblur", alpha(yuv), "1111"),
        ("gblur=planes=8", alpha(yuv), "0001"),
        ("gblur=planes=8", alpha(PixelFormat::gray(8)), "01"),
        ("gblur=planes=6", nv12, "01"),
        ("gblur=planes=9", alpha(nv12), "101"),
        ("unsharp", yuv, "100"),
        ("unsharp", PixelFormat::gbr(8), "111"),
        ("unsharp=ca=1", yuv, "111"),
        ("unsharp=aa=1:la=0", alpha(yuv), "0001"),
        ("boxblur", alpha(yuv), "1111"),
        ("boxblur=2:1:cp=0", yuv, "100"),
        ("boxblur=2:1:0", yuv, "100"),
        ("convolution=1m=1 2 1:1mode=row", yuv, "010"),
        ("convolution=kernel=1 1 1 1 1 1 1 1 1:1m=0 0 0 0 1 0 0 0 0", yuv, "101"),
    ] {
        assert_eq!(changed(graph, format), want, "{graph} on {format}");
    }
    let refused = plan(&parse("gblur=planes=2").unwrap(), Shape { format: nv12, width: 64, height: 48 }).unwrap_err().to_string();
    assert!(refused.contains("gblur=planes=2") && refused.contains("share a plane"), "{refused}");
}

#[test]
fn what_changes_nothing_is_left_out() {
    for graph in [
        "gblur=0",
        "gblur=planes=0",
        "boxblur=0",
        "boxblur=2:0",
        "unsharp=la=0",
        "convolution",
        "convolution=0 0 0 0 1 0 0 0 0",
        "convolution=0 0 0 0 4 0 0 0 0",
        "convolution=0 0 0 0 4 0 0 0 0:0rdiv=0.25",
        "sobel=planes=8",
        "convolution=1 1 1 1 1 1 1 1 1:0m=1:0mode=row",
    ] {
        assert!(lowered(graph, Shape { format: PixelFormat::yuv(8, 1, 1), width: 64, height: 48 }).steps.is_empty(), "{graph}");
    }
    assert_eq!(lowered("gblur,boxblur=0,sobel", GRAY).steps.len(), 2);
}

#[test]
fn kernels_take_the_cheapest_exact_form() {
    let gray = PixelFormat::gray(8);
    let only = |graph: &str| ops(graph, gray).remove(0);
    let PlaneOp::Separable(s) = only("convolution=1 4 6 4 1 4 16 24 16 4 6 24 36 24 6 4 16 24 16 4 1 4 6 4 1") else { panic!() };
    assert_eq!((&s.row[..], &s.col[..], s.scale), (&[1., 4., 6., 4., 1.][..], &[1., 4., 6., 4., 1.][..], 1.0 / 256.0));
    // 3×3 stays whole, and so does a kernel of rank 2.
    assert!(matches!(only("convolution=1 2 1 2 4 2 1 2 1"), PlaneOp::Direct(_)));
    let laplacian = "0 0 1 0 0 0 1 2 1 0 1 2 -16 2 1 0 1 2 1 0 0 0 1 0 0";
    let PlaneOp::Direct(d) = only(&format!("convolution={laplacian}:0bias=128")) else { panic!() };
    assert_eq!((d.width, d.height, d.scale, d.bias), (5, 5, 1.0, 128.0));
    let PlaneOp::Separable(s) = only("convolution=0m=1 2 3:0mode=column:0rdiv=0.5") else { panic!() };
    assert_eq!((&s.row[..], &s.col[..], s.scale), (&[1.][..], &[1., 2., 3.][..], 0.5));
    // A row inside zeros is a row.
    let PlaneOp::Separable(s) = only("convolution=0 0 0 0 0 0 0 0 0 0 1 2 3 2 1 0 0 0 0 0 0 0 0 0 0") else { panic!() };
    assert_eq!((s.row.len(), &s.col[..]), (5, &[1.][..]));
    let PlaneOp::Direct(d) = only("convolution=0.1 0.2 -0.3 0 | 0 1e-3 0 0") else { panic!() };
    assert_eq!((d.width, d.height), (4, 2));
    let PlaneOp::Direct(d) = only("convolution=0.1 0.2 -0.3 0 0 0 0 0 0") else { panic!() };
    assert_eq!(d.scale, 1.0, "a sum that is 0 but for rounding");
}

#[test]
fn boxes_larger_than_the_plane_are_refused_as_in_ffmpeg() {
    let shape = |width, height| Shape { format: PixelFormat::yuv(8, 1, 1), width, height };
    let run = |graph: &str, shape| plan(&parse(graph).unwrap(), shape);
    assert!(run("boxblur=10:cr=5", shape(20, 30)).is_ok());
    let error = run("gblur,boxblur=11:cr=1", shape(20, 30)).unwrap_err().to_string();
    assert!(error.contains("boxblur=luma_radius=11") && error.contains("luma radius") && error.contains("<= 10"), "{error}");
    // Chroma inherits luma's radius and is checked against ⌊21/2⌋/2 = 5.
    assert!(run("boxblur=6", shape(21, 30)).unwrap_err().to_string().contains("chroma radius"));
    assert!(run("boxblur=6", Shape { format: PixelFormat::gray(8), ..shape(21, 30) }).is_ok());
    assert!(run("boxblur=w-w-1", shape(20, 30)).unwrap_err().to_string().contains("-1"));
    assert!(run("boxblur=0/0", shape(20, 30)).unwrap_err().to_string().contains("NaN"));
    assert!(run("boxblur=hsub*2:cr=cw/5", shape(20, 30)).is_ok());
}
