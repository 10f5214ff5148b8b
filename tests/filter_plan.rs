//! Lowered filters, executed by a plain loop in f64, against FFmpeg and against the formulas.

// A test fails by panicking; clippy knows that of test functions only, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use std::io::Write;
use std::process::{Command, Stdio};

use convoy::filter::plan::{Extreme, Extremum, Median, Morphology, Pixelate, Plan, PlaneOp, Pool, PoolKind};
use convoy::filter::{parse, plan};
use convoy::frame::{Packing, PixelFormat, Sample, Shape};
use reference::{Content, Picture};

const W: usize = 97;
const H: usize = 65;
const GRAY: PixelFormat = PixelFormat::gray(8);
const YUV420: PixelFormat = PixelFormat::yuv(8, 1, 1);
const GRAY10: PixelFormat = PixelFormat::gray(10);

fn lowered(graph: &str, shape: Shape) -> Plan {
    plan(&parse(graph).unwrap_or_else(|e| panic!("{e}")), shape).unwrap_or_else(|e| panic!("{e}"))
}

/// Noise, smooth shapes and extremes, a third of the width each.
fn picture(format: PixelFormat) -> Picture {
    let shape = Shape { format, width: W, height: H };
    let mut picture = Picture::new(shape, Content::Random, 7);
    let (smooth, extremes) = (Picture::new(shape, Content::Ramp, 1), Picture::new(shape, Content::Extremes, 2));
    for (index, plane) in picture.planes.iter_mut().enumerate() {
        let width = shape.plane_size(index).0;
        for (i, value) in plane.iter_mut().enumerate() {
            match i % width * 3 / width {
                0 => {}
                1 => *value = smooth.planes[index][i],
                _ => *value = extremes.planes[index][i],
            }
        }
    }
    picture
}

/// What the reference makes of the lowered graph, before the last rounding.
fn exact(graph: &str, input: &Picture) -> Picture {
    reference::expect(&lowered(graph, input.shape), input)
}

fn convoy(graph: &str, input: &Picture) -> Picture {
    let mut picture = exact(graph, input);
    reference::round(&mut picture);
    picture
}

/// FFmpeg's result, or None where it is not installed.
fn ffmpeg(graph: &str, input: &Picture) -> Option<Picture> {
    let shape = input.shape;
    let name = [(GRAY, "gray"), (YUV420, "yuv420p"), (GRAY10, "gray10le")].into_iter().find(|(f, _)| *f == shape.format).unwrap().1;
    let size = format!("{}x{}", shape.width, shape.height);
    let raw = ["-f", "rawvideo", "-pix_fmt", name];
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
    let wide = shape.format.sample() == Sample::U16;
    let samples = input.planes.iter().flatten().map(|v| *v as u16);
    let bytes: Vec<u8> = samples.flat_map(|v| v.to_le_bytes().into_iter().take(if wide { 2 } else { 1 })).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ffmpeg refuses {graph}");
    assert_eq!(output.stdout.len(), bytes.len());
    let mut values = output.stdout.chunks(if wide { 2 } else { 1 }).map(|b| f64::from(b[0]) + 256.0 * f64::from(*b.get(1).unwrap_or(&0)));
    let planes = input.planes.iter().map(|p| values.by_ref().take(p.len()).collect()).collect();
    Some(Picture { shape, planes })
}

/// Largest difference, and where: plane, x, y, first value, second value.
fn worst(a: &Picture, b: &Picture, margin: usize) -> (f64, String) {
    let mut found = (-1.0, String::new());
    for (index, (p, q)) in a.planes.iter().zip(&b.planes).enumerate() {
        let (width, height) = a.shape.plane_size(index);
        assert_eq!((p.len(), q.len()), (width * height, width * height));
        for y in margin..height - margin {
            for x in margin..width - margin {
                let (p, q) = (p[y * width + x], q[y * width + x]);
                if (p - q).abs() > found.0 {
                    found = ((p - q).abs(), format!("plane {index}, x {x}, y {y}: {p} and {q}"));
                }
            }
        }
    }
    found
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
        ("sobel=planes=14".to_string(), 2, 1),
        ("prewitt=scale=1.5".to_string(), 2, 1),
        ("scharr".to_string(), 2, 1),
        ("roberts=scale=2".to_string(), 2, 1),
        ("kirsch".to_string(), 2, 0),
        ("kirsch=scale=0.07:delta=3".to_string(), 2, 1),
        ("kirsch=planes=5:scale=0.1".to_string(), 2, 1),
        // All eight neighbours: FFmpeg's mirrored border has the same extremum as ours.
        ("erosion".to_string(), 0, 0),
        ("dilation".to_string(), 0, 0),
        ("erosion=coordinates=90".to_string(), 1, 0),
        ("dilation=1".to_string(), 1, 0),
        ("dilation=coordinates=128:threshold0=40:threshold1=7".to_string(), 1, 0),
        ("erosion=threshold0=5:threshold1=0:threshold2=300".to_string(), 0, 0),
        ("dilation=threshold0=254".to_string(), 0, 0),
        ("erosion=0".to_string(), 0, 0),
        // FFmpeg's median clamps.
        ("median".to_string(), 0, 0),
        ("median=5".to_string(), 0, 0),
        ("median=2:5:4:.3".to_string(), 0, 0),
        ("median=1:percentile=0".to_string(), 0, 0),
        ("median=1:percentile=1".to_string(), 0, 0),
        ("median=3:radiusV=1:percentile=.77".to_string(), 0, 0),
        ("convolution=1 1 1 1 1 1 1 1 1,sobel@second=15:0.5,unsharp=3:3:1".to_string(), 5, 2),
    ] {
        // FFmpeg's unsharp is 256 times too weak above 8 bits.
        let formats = if graph.contains("unsharp") { &[GRAY, YUV420][..] } else { &[GRAY, YUV420, GRAY10] };
        for &format in formats {
            let input = picture(format);
            let Some(theirs) = ffmpeg(&graph, &input) else {
                eprintln!("skipped: no ffmpeg");
                return;
            };
            let (difference, place) = worst(&convoy(&graph, &input), &theirs, margin);
            assert!(difference <= f64::from(tolerance), "{graph} on {format}: {place}");
        }
    }
    // The comparison sees a difference where there is one.
    let input = picture(GRAY);
    for (ours, theirs) in [("sobel", "sobel=scale=1.1"), ("erosion", "erosion=coordinates=254"), ("median", "median=percentile=.7")] {
        if let Some(theirs) = ffmpeg(theirs, &input) {
            assert!(worst(&convoy(ours, &input), &theirs, 2).0 > 2.0, "{ours}");
        }
    }
}

/// Filters that FFmpeg knows under another name or truncates: floor of what our formula gives is exactly what it writes.
#[test]
fn what_ffmpeg_truncates_is_the_floor_of_ours() {
    for (ours, theirs, margin) in [
        ("pixelate", "pixelize", 0),
        ("pixelate=7", "pixelize=7:7", 0),
        ("pixelate=1", "pixelize=1:1", 0),
        ("pixelate=50", "pixelize=50:50", 0),
        ("pixelate=1024:6", "pixelize=1024:1024:planes=6", 0),
        ("emboss", "convolution='M:M:M':0m='-2 -1 0 -1 1 1 0 1 2'", 1),
        ("sharpen", "convolution='M:M:M':0m='0 -1 0 -1 5 -1 0 -1 0'", 1),
        ("edge", "convolution='M:M:M':0m='-1 -1 -1 -1 8 -1 -1 -1 -1'", 1),
        ("laplacian=delta=40", "convolution='M:M:M':0m='0 1 0 1 -4 1 0 1 0':0bias=40:1bias=40:2bias=40", 1),
    ] {
        let matrix = theirs.split("0m='").nth(1).and_then(|m| m.split('\'').next());
        let theirs = matrix.map_or(theirs.to_string(), |m| theirs.replace('M', m));
        for format in [GRAY, YUV420, GRAY10] {
            let input = picture(format);
            let Some(want) = ffmpeg(&theirs, &input) else {
                eprintln!("skipped: no ffmpeg");
                return;
            };
            let mut got = exact(ours, &input);
            got.planes.iter_mut().flatten().for_each(|v| *v = v.floor().clamp(0.0, f64::from(format.max_value())));
            let (difference, place) = worst(&got, &want, margin);
            assert!(difference == 0.0, "{ours} on {format}: {place}");
        }
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
        // FFmpeg's own limit, half of the shorter side, is not ours.
        let within = |radius: &usize| *radius <= shape.height / 2;
        let ours = parse(&graph).and_then(|f| plan(&f, shape)).ok().map(|plan| match plan.steps.first().map(|s| &s.planes[0]) {
            Some(PlaneOp::Box(b)) => b.radius_x,
            _ => 0,
        });
        let ours = ours.filter(within);
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
        let input = picture(GRAY);
        let blurred = |plane: &[f64], sigma: f64, (dx, dy): (i64, i64)| -> Vec<f64> {
            let radius = (4.0 * sigma + 0.5) as i64;
            let taps: Vec<(i64, f64)> = (-radius..=radius).map(|i| (i, (-((i * i) as f64) / (2.0 * sigma * sigma)).exp())).collect();
            let total: f64 = taps.iter().map(|t| t.1).sum();
            let at = |x: i64, y: i64| plane[y.clamp(0, H as i64 - 1) as usize * W + x.clamp(0, W as i64 - 1) as usize];
            let places = (0..H as i64).flat_map(|y| (0..W as i64).map(move |x| (x, y)));
            places.map(|(x, y)| taps.iter().map(|(i, w)| w * at(x + i * dx, y + i * dy)).sum::<f64>() / total).collect()
        };
        let rows = blurred(&input.planes[0], sigma_x, (1, 0));
        let mut want = Picture { shape: input.shape, planes: vec![blurred(&rows, sigma_y, (0, 1))] };
        reference::round(&mut want);
        let (difference, place) = worst(&convoy(graph, &input), &want, 0);
        assert!(difference <= 1.0, "{graph}: {place}");
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
        "kirsch=0",
        "sharpen=0",
        "erosion=coordinates=0",
        "erosion=planes=8",
        "dilation=255:0:0:0",
        "median=planes=0",
        "maxpool=1",
        "pixelate=1:planes=6",
        "convolution=1 1 1 1 1 1 1 1 1:0m=1:0mode=row",
    ] {
        assert!(lowered(graph, Shape { format: PixelFormat::yuv(8, 1, 1), width: 64, height: 48 }).steps.is_empty(), "{graph}");
    }
    assert_eq!(lowered("gblur,boxblur=0,sobel", Shape { format: GRAY, width: W, height: H }).steps.len(), 2);
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
fn boxes_may_be_larger_than_the_plane() {
    let shape = |width, height| Shape { format: YUV420, width, height };
    let run = |graph: &str, shape| plan(&parse(graph).unwrap(), shape);
    let radius = |graph: &str, shape, plane: usize| match &run(graph, shape).unwrap().steps[0].planes[plane] {
        PlaneOp::Box(b) => (b.radius_x, b.radius_y),
        other => panic!("{other:?}"),
    };
    assert_eq!(radius("boxblur=11:cr=700", shape(20, 30), 0), (11, 11));
    assert_eq!(radius("boxblur=11:cr=700", shape(20, 30), 1), (700, 700));
    assert_eq!(radius("boxblur=32767", shape(1, 1), 2), (32767, 32767));
    let error = run("gblur,boxblur=w*2000:cr=1", shape(20, 30)).unwrap_err().to_string();
    assert!(error.contains("boxblur=luma_radius=") && error.contains("luma radius") && error.contains("<= 32767"), "{error}");
    assert!(run("boxblur=2:cr=1/0", shape(21, 30)).unwrap_err().to_string().contains("chroma radius"));
    assert!(run("boxblur=w-w-1", shape(20, 30)).unwrap_err().to_string().contains("-1"));
    assert!(run("boxblur=0/0", shape(20, 30)).unwrap_err().to_string().contains("NaN"));
    assert!(run("boxblur=hsub*2:cr=cw/5", shape(20, 30)).is_ok());
    // The mean over a window that holds the whole plane many times is near the plane's mean.
    let mut input = Picture::new(Shape { format: GRAY, width: 5, height: 3 }, Content::Random, 3);
    let mean = input.planes[0].iter().sum::<f64>() / 15.0;
    let blurred = exact("boxblur=2000:1:border=wrap", &input);
    assert!(blurred.planes[0].iter().all(|v| (v - mean).abs() < 0.5), "{mean}: {blurred:?}");
    input.planes[0].fill(9.0);
    assert!(exact("boxblur=2000:1:border=zero", &input).planes[0].iter().all(|v| *v < 0.01));
}

#[test]
fn windows_lower_to_their_numbers() {
    let only = |graph: &str, format| ops(graph, format).remove(0);
    let min = |radius| PlaneOp::Extremum(Extremum { kind: Extreme::Min, radius_x: radius, radius_y: radius });
    let near = |threshold| PlaneOp::Morphology(Morphology { kind: Extreme::Max, coordinates: 255, threshold });
    assert_eq!(only("erosion", GRAY), min(1));
    assert_eq!(only("erosion=radius=7", GRAY), min(7));
    // What a sample cannot exceed is no limit; the limit is the format's own.
    assert_eq!(only("erosion=threshold0=255", GRAY), min(1));
    assert_eq!(only("dilation=threshold0=255", GRAY10), near(Some(255.0)));
    assert_eq!(only("dilation=threshold0=13107", PixelFormat::gray(32)), near(Some(0.2)));
    assert_eq!(only("erosion=radius=3:threshold0=1023", GRAY10), min(3));
    let median = |x, y, rank| PlaneOp::Median(Median { radius_x: x, radius_y: y, rank });
    assert_eq!(only("median", GRAY), median(1, 1, 4));
    assert_eq!(only("median=3:radiusV=2", GRAY), median(3, 2, 17));
    assert_eq!(only("median=127:percentile=1", GRAY), median(127, 127, 255 * 255 - 1));
    // 8 · 0.2 · 2 truncates, as in FFmpeg.
    assert_eq!(only("median=1:percentile=.2", GRAY), median(1, 1, 1));
    let block = |x, y| PlaneOp::Pixelate(Pixelate { block_x: x, block_y: y });
    assert_eq!(ops("pixelate=7", YUV420), [block(6, 6), block(3, 3), block(3, 3)]);
    assert_eq!(ops("pixelate=7", PixelFormat::yuv(8, 1, 0)), [block(6, 7), block(3, 7), block(3, 7)]);
    assert_eq!(ops("pixelate=1", YUV420), [block(2, 2), PlaneOp::Copy, PlaneOp::Copy]);
    assert_eq!(ops("pixelate=7", PixelFormat::gbr(8)), [block(7, 7), block(7, 7), block(7, 7)]);

    let run = |graph: &str, format| plan(&parse(graph).unwrap(), Shape { format, width: 64, height: 48 }).map_err(|e| e.to_string());
    let refused = run("dilation=radius=2:threshold1=9", YUV420).unwrap_err();
    assert!(refused.contains("threshold1 limits the 3x3 window only"), "{refused}");
    let nv12 = PixelFormat { packing: Packing::SemiPlanar, ..YUV420 };
    assert!(run("dilation=threshold1=9", nv12).unwrap_err().contains("share a plane"));
    assert!(run("dilation=threshold1=9:threshold2=9", nv12).is_ok());
    assert!(parse("erosion=coordinates=3:radius=2").unwrap_err().to_string().contains("larger radius takes the whole window"));
    assert!(parse("maxpool=3:pad=2").unwrap_err().to_string().contains("at most half the kernel of 3"));
}

/// torch.nn.MaxPool2d's sizes, and what follows for chroma.
#[test]
fn pooling_changes_the_shape_of_what_follows() {
    for (graph, size, want) in [
        ("maxpool", (64, 48), (32, 24)),
        ("maxpool", (65, 49), (32, 24)),
        ("maxpool=3:1:1", (65, 49), (65, 49)),
        ("maxpool=3:2:1", (65, 49), (33, 25)),
        ("maxpool=3:1", (65, 49), (63, 47)),
        ("avgpool=3:1:0:4", (65, 49), (57, 41)),
        ("minpool=2:1:1", (5, 5), (6, 6)),
        ("minpool=127", (5, 300), (1, 2)),
        ("maxpool=1:3", (7, 6), (3, 2)),
        ("maxpool=2,avgpool=2,minpool=2", (65, 49), (8, 6)),
    ] {
        let shape = Shape { format: YUV420, width: size.0, height: size.1 };
        let plan = lowered(graph, shape);
        assert_eq!((plan.output().width, plan.output().height), want, "{graph}");
        assert!(plan.steps.windows(2).all(|pair| pair[0].output == pair[1].input), "{graph}");
        // The reference counts windows in another way.
        let ops: Vec<_> = plan.steps.iter().map(|s| (s.border, s.planes[0].clone())).collect();
        assert_eq!(reference::chain(shape, &ops).output(), plan.output(), "{graph}");
    }
    let plan = lowered("boxblur=lr=w:lp=1:cr=1,avgpool=4,boxblur=lr=w:lp=1:cr=1,pixelate", Shape { format: YUV420, width: 65, height: 50 });
    let radii: Vec<_> =
        plan.steps.iter().filter_map(|s| if let PlaneOp::Box(b) = &s.planes[0] { Some(b.radius_x) } else { None }).collect();
    assert_eq!(radii, [65, 16], "expressions see the size that the pooling before them left");
    assert_eq!((plan.output().plane_size(0), plan.output().plane_size(1)), ((16, 12), (8, 6)));
    let PlaneOp::Pool(pool) = &plan.steps[1].planes[2] else { panic!() };
    assert_eq!(*pool, Pool { kind: PoolKind::Mean, kernel: 4, stride: 4, pad: 0, dilation: 1 });
}
