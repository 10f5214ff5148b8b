//! The filter-graph language: what FFmpeg accepts means the same here, what is wrong is pointed at.

// A test fails by panicking; clippy knows that of test functions only, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use convoy::filter::catalog::{self, ENTRIES, Entry, Kind};
use convoy::filter::plan::PlaneOp;
use convoy::filter::{Border, Filter, Op, parse, plan};
use convoy::frame::{PixelFormat, Shape};
use proptest::prelude::*;

const HD: Shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 1920, height: 1080 };

fn one(graph: &str) -> Filter {
    let mut filters = parse(graph).unwrap_or_else(|e| panic!("{graph}: {e}"));
    assert_eq!(filters.len(), 1, "{graph}");
    filters.remove(0)
}

fn print(filters: &[Filter]) -> String {
    filters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The error's text and the part of the graph that stands above the carets.
fn pointed(graph: &str) -> (String, String) {
    let error = parse(graph).map(|f| print(&f)).expect_err(graph);
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    let lines: Vec<_> = text.lines().collect();
    let caret = lines.iter().position(|l| l.trim_start_matches(['|', ' ']).starts_with('^')).unwrap_or_else(|| panic!("no caret: {text}"));
    let columns: Vec<_> = lines[caret].chars().enumerate().filter(|(_, c)| *c == '^').map(|(i, _)| i).collect();
    let under = lines[caret - 1].chars().enumerate().filter(|(i, _)| columns.contains(i)).map(|(_, c)| c).collect();
    (text, under)
}

#[test]
fn equal_graphs_have_equal_values() {
    for same in [
        &[
            "gblur=3",
            "gblur=sigma=3",
            " gblur = sigma=3",
            "gblur=sigma = 3",
            "gblur='sigma=3'",
            "gblur=3:1",
            "gblur=sigma=1+2",
            "gblur=3:",
            "[in]gblur=3[out]",
            "[0:v] gblur=3 [v]",
            "gblur=sigma=2:sigma=3",
            "gblur=sigma=0x3",
            "gblur=3000m",
            "\n gblur=sigma=3 \n",
        ][..],
        &["unsharp=7:7:1.5:3:3:-1", "unsharp=lx=7:ly=7:la=1.5:cx=3:cy=3:ca=-1", "unsharp=7:luma_msize_y=7:la=3/2:cx=min:cy=min:ca=-1"],
        &["boxblur=2", "boxblur", "boxblur=luma_radius=2", "boxblur=lr=2:lp=2:cp=-1", "boxblur=lr=2:lp=default"],
        &["boxblur=min(w\\,h)/10:1", "boxblur='min(w,h)/10':1", "boxblur='min(w, h) / 10':1", "boxblur=lr='min(w,h)/10':lp=1"],
        &[
            "convolution=0 -1 0 -1 5 -1 0 -1 0",
            "convolution=0m=0 -1 0 -1 5 -1 0 -1 0:0mode=square",
            "convolution=0m='0|-1|0|-1|5|-1|0|-1|0'",
        ],
        &["convolution=0m=1 2 3:0mode=row", "convolution=0m=1 2 3:0mode=1"],
        &[
            "gblur,unsharp",
            "gblur , unsharp",
            "[a]gblur[b];[b]unsharp[c]",
            "[in]gblur[v];[v]unsharp[v]",
            "gblur[b],[b]unsharp",
            "[b]unsharp;gblur[b]",
            "gblur[x y] ; [x y]\nunsharp",
        ],
    ] {
        let first = parse(same[0]).unwrap();
        for other in same {
            assert_eq!(parse(other).unwrap_or_else(|e| panic!("{other}: {e}")), first, "{other}");
        }
    }
    assert_ne!(parse("gblur=3").unwrap(), parse("gblur=2").unwrap());
    let named = one("sobel@left=border=wrap:variant=tiled");
    assert_eq!((named.id.as_deref(), named.border, named.variant.as_deref()), (Some("left"), Border::Wrap, Some("tiled")));
}

#[test]
fn errors_point_at_the_fault() {
    for (graph, under, says) in [
        ("gblr=3", "gblr", "did you mean 'gblur'?"),
        ("gblur=sgma=3", "sgma", "did you mean 'sigma'?"),
        ("gblur=sigma=-3", "-3", "between 0 and 1024"),
        ("gblur=sigma=1e9", "1e9", "between 0 and 1024"),
        ("gblur=sigma=0/0", "0/0", "not a number"),
        ("gblur=sigma=1/0", "1/0", "between"),
        ("gblur=sigma=nan", "nan", "'nan'"),
        ("gblur=sigma=", "^", "missing"),
        ("gblur=sigma=3:2", "2", "has no name"),
        ("sobel=1:2:3:4", "4", "at most 3 positional"),
        ("gblur=sigma=3x", "x", "operator"),
        ("gblur=sigma=(3", "(", "never closed"),
        ("gblur='sigma=3", "'", "never closed"),
        ("gblur=enable='between(t,1,2)'", "enable", "not supported"),
        ("gblur=border=mirror", "mirror", "none of clamp"),
        ("unsharp=lx=4", "4", "odd"),
        ("boxblur=lr=mim(w\\,h)", "mim", "did you mean 'min'?"),
        ("boxblur=lr='q*2'", "q", "not a number or a name"),
        ("boxblur=lr=st(0\\,1)", "st", "not supported"),
        ("convolution=0m=1 2 x 4 5 6 7 8 9", "x", "'x'"),
        ("convolution=0m=1 2 3", "1 2 3", "no square"),
        ("convolution=kernel=@/nonexistent/k.txt", "@/nonexistent/k.txt", "No such file"),
        ("gblur,", "^", "missing"),
        ("gblur;unsharp", "u", "linear"),
        ("[a][b]gblur", "[b]", "linear"),
        ("gblur[a],unsharp", "[a]", "linear"),
        ("[a]gblur[a]", "[a]", "loop"),
        ("gblur[a];[a]unsharp;[a]sobel", "[a]", "[a] is written by no filter"),
        ("gblur;[a]unsharp[b];[b]sobel[a]", "[a]", "loop"),
        ("gblur=3]", "]", "expected ','"),
        ("[gblur", "[", "never closed"),
        ("sws_flags=bicubic;gblur", "sws_flags", "not supported"),
        ("gblur\n,unsharp=\n  lx=4", "4", "odd"),
    ] {
        let (text, found) = pointed(graph);
        if under == "^" {
            assert!(found.trim().is_empty(), "{graph}: {text}");
        } else {
            assert_eq!(found, under, "{text}");
        }
        assert!(text.contains(says), "{graph}: {text}");
    }
}

#[test]
fn what_is_too_much_is_refused() {
    let many = vec!["gblur"; 10_000].join(",");
    assert!(parse(&many).unwrap_err().to_string().contains("at most 100 filters"));
    let deep = format!("boxblur=lr={}1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert_eq!(parse(&deep).unwrap_err().exit_code(), 2);
    let signs = format!("boxblur=lr={}1", "max(1\\,".repeat(300));
    assert!(parse(&signs).unwrap_err().to_string().contains("nested"));
    assert!(parse(&"x".repeat(2 << 20)).unwrap_err().to_string().contains("bytes"));
    for long in [format!("{}=3", "g".repeat(500_000)), format!("gblur={}=3", "s".repeat(500_000)), format!("boxblur={}", "q".repeat(4000))]
    {
        let text = parse(&long).unwrap_err().to_string();
        assert!(text.len() < 1000, "{} bytes", text.len());
    }
    for empty in ["", "  ", "\n"] {
        assert!(parse(empty).unwrap_err().to_string().contains("empty"));
    }
    let big = format!("convolution=0m={}", "1 ".repeat(128 * 128));
    assert!(parse(&big).unwrap_err().to_string().contains("at most 127x127"));
}

#[test]
fn kernel_files_are_read_and_refused_with_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        format!("convolution=kernel=@{}", path.display())
    };
    let graph = write("ok.txt", b"# a kernel\n1 2 1\n\n2, 4, 2\n1 2 1 # end\n");
    let filter = one(&graph);
    assert_eq!(filter.to_string(), graph);
    let taps = |graph: &str| match &plan(&parse(graph).unwrap(), HD).unwrap().steps[0].planes[0] {
        PlaneOp::Direct(d) => (d.width, d.height, d.taps.to_vec()),
        other => panic!("{other:?}"),
    };
    assert_eq!(taps(&graph), (3, 3, vec![1., 2., 1., 2., 4., 2., 1., 2., 1.]));
    assert_eq!(taps(&write("wide.txt", b"1 2 3\n4 5 7\n")), (3, 2, vec![1., 2., 3., 4., 5., 7.]));
    for (name, bytes, says) in [
        ("ragged.txt", &b"1 2 3\n1 2\n"[..], "line 2 has 2 weights"),
        ("empty.txt", b"", "no weights"),
        ("comment.txt", b"# nothing\n", "no weights"),
        ("binary.bin", b"\x7fELF\0\0\0", "binary"),
        ("latin.txt", b"1 2 \xe4", "binary"),
        ("word.txt", b"1 2 3\n1 two 3\n", "line 2: 'two'"),
        ("long.txt", &b"1 1\n".repeat(200), "larger than 127"),
        ("huge.txt", &b"1 ".repeat(1 << 20), "longer than"),
        ("inf.txt", b"1/0", "between"),
    ] {
        let error = parse(&write(name, bytes)).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
    assert!(parse(&format!("convolution=kernel=@{}", dir.path().display())).is_err());
}

/// Filters that FFmpeg does not have.
const OURS: [&str; 8] = ["avgpool", "edge", "emboss", "laplacian", "maxpool", "minpool", "pixelate", "sharpen"];

/// `ffmpeg -h filter=NAME`: names (with aliases), order, and ranges are the catalogue's.
#[test]
fn the_installed_ffmpeg_has_the_same_parameters() {
    for entry in ENTRIES {
        let run = std::process::Command::new("ffmpeg").args(["-hide_banner", "-h", &format!("filter={}", entry.name)]).output();
        let Ok(run) = run else {
            eprintln!("skipped: no ffmpeg");
            return;
        };
        let text = String::from_utf8(run.stdout).unwrap();
        if OURS.contains(&entry.name) {
            assert!(!text.contains("Filter "), "FFmpeg has a {} by now", entry.name);
            continue;
        }
        assert!(text.contains(&format!("Filter {}", entry.name)), "{text}");
        let mut theirs = Vec::new();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            if words.len() > 2 && words[1].starts_with('<') && words[2].contains("FV") {
                let range = line.split_once("(from ").map(|(_, rest)| rest.split_once(')').unwrap().0.to_string());
                theirs.push((words[0].to_string(), range));
            }
        }
        let ours: Vec<_> = entry
            .params
            .iter()
            .filter(|p| !p.ours && p.name != "direction")
            .flat_map(|p| std::iter::once(p.name).chain(p.aliases.iter().copied()).map(move |n| (n, p)))
            .collect();
        assert_eq!(ours.iter().map(|o| o.0).collect::<Vec<_>>(), theirs.iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), "{}", entry.name);
        for ((name, param), (_, range)) in ours.iter().zip(&theirs) {
            let number = |n: f64| if n == f64::from(i32::MAX) { "INT_MAX".to_string() } else { n.to_string() };
            let expected = match param.kind {
                // Ours is lower: FFmpeg sets no limit to the passes.
                Kind::Int { min, max: catalog::MAX_BOX_POWER, .. } => Some(format!("{min} to INT_MAX")),
                Kind::Int { min, max, .. } => Some(format!("{min} to {max}")),
                Kind::Float { min, max, .. } => Some(format!("{} to {}", number(min), number(max))),
                Kind::Choice(names) => Some(format!("0 to {}", names.len() - 1)),
                Kind::Radius { .. } | Kind::Kernel | Kind::Name => None,
            };
            assert_eq!(&expected, range, "{} {name}", entry.name);
        }
    }
}

#[test]
fn every_example_runs_and_every_page_names_every_parameter() {
    let list = catalog::list();
    for entry in ENTRIES {
        let filters = parse(entry.example.0).unwrap();
        assert_eq!(filters[0].name(), entry.name);
        assert!(!plan(&filters, HD).unwrap().steps.is_empty());
        assert!(list.contains(entry.summary));
        let page = catalog::describe(entry.name).unwrap();
        for param in entry.all_params() {
            assert!(page.contains(param.name) && page.contains(param.help), "{}: {}", entry.name, param.name);
        }
    }
    assert!(ENTRIES.is_sorted_by_key(|e| e.name));
    assert!(catalog::describe("gblurr").unwrap_err().to_string().contains("did you mean 'gblur'"));
    assert!(catalog::describe("zzzz").is_err());
}

/// Any valid value for a parameter, as text.
fn value(kind: Kind) -> BoxedStrategy<String> {
    match kind {
        Kind::Int { min, max, .. } => (min..=max).prop_map(|v| v.to_string()).boxed(),
        Kind::Float { min, max, .. } => (min..=max).prop_map(|v| v.to_string()).boxed(),
        Kind::Choice(names) => proptest::sample::select(names).prop_map(str::to_string).boxed(),
        Kind::Radius { .. } => {
            let leaf = prop_oneof![Just("w".to_string()), Just("ch".to_string()), Just("PI".to_string()), "[0-9]{1,3}", "0x[0-9a-f]{1,2}"];
            leaf.prop_recursive(4, 16, 2, |e| {
                prop_oneof![
                    (e.clone(), e.clone()).prop_map(|(a, b)| format!("min({a},{b})")),
                    (e.clone(), "[-+*/^]", e.clone()).prop_map(|(a, op, b)| format!("({a}){op}({b})")),
                    (e.clone(), e).prop_map(|(a, b)| format!("-({a}); {b}")),
                ]
            })
            .boxed()
        }
        Kind::Kernel => prop_oneof![
            proptest::collection::vec(-1e3..1e3f64, 9).prop_map(|v| v.iter().map(f64::to_string).collect::<Vec<_>>().join(" ")),
            proptest::collection::vec(-9..9i32, 25).prop_map(|v| v.iter().map(i32::to_string).collect::<Vec<_>>().join("|")),
            proptest::collection::vec(proptest::collection::vec(any::<f32>().prop_filter("size", |w| w.abs() < 1e9), 4), 3).prop_map(
                |rows| rows.iter().map(|r| r.iter().map(f32::to_string).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("|")
            ),
        ]
        .boxed(),
        Kind::Name => "[a-z][a-z0-9-]{0,8}".boxed(),
    }
}

/// A filter with some of its parameters given, each value quoted.
fn filter() -> impl Strategy<Value = String> {
    proptest::sample::select((0..ENTRIES.len()).collect::<Vec<_>>()).prop_flat_map(|index| {
        let entry: &'static Entry = &ENTRIES[index];
        let params: Vec<_> =
            entry.all_params().map(|p| proptest::option::of(value(p.kind)).prop_map(move |v| v.map(|v| (p.name, v)))).collect();
        params.prop_map(move |values| {
            let odd = |name: &str, v: String| if name.contains("msize") { (v.parse::<i64>().unwrap() | 1).to_string() } else { v };
            let options: Vec<_> = values.into_iter().flatten().map(|(name, v)| format!("{name}='{}'", odd(name, v))).collect();
            format!("{}={}", entry.name, options.join(":")).replace(&format!("{}=:", entry.name), &format!("{}=", entry.name))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parse_print_parse_is_the_identity(graph in proptest::collection::vec(filter(), 1..4)) {
        // The quotes are for the inner level: one more level of escaping for the outer one.
        let graph: Vec<_> = graph.iter().map(|f| f.replace('\'', "\\'").replace(',', "\\,").replace(';', "\\;")).collect();
        let Ok(filters) = parse(&graph.join(",")) else {
            // Modes may not fit the weights, a pad the kernel, coordinates the radius; everything else must parse.
            prop_assert!(graph.iter().any(|f| ["mode=", "pad=", "coordinates="].iter().any(|p| f.contains(p))), "{}", parse(&graph.join(",")).unwrap_err());
            return Ok(());
        };
        let printed = print(&filters);
        let again = parse(&printed);
        prop_assert!(again.is_ok(), "{printed}\n{}", again.unwrap_err());
        prop_assert_eq!(&again.unwrap(), &filters);
        let _ = plan(&filters, HD);
    }

    #[test]
    fn no_text_panics(graph in ".{0,60}") {
        let _ = parse(&graph);
    }

    #[test]
    fn no_near_graph_panics(graph in "(gblur|boxblur|unsharp|convolution|sobel|erosion|median|maxpool|@|=|:|,|;|\\[a\\]|\\[|\\]|'|\\\\|[0-9]| |\n|\\(|\\)|min|w|0m|lr|e|\\.|-|\\^|ä|k|B|i|d|x){0,24}") {
        if let Ok(filters) = parse(&graph) {
            let printed = print(&filters);
            prop_assert_eq!(parse(&printed).map_err(|e| e.to_string()), Ok(filters.clone()));
            let _ = plan(&filters, HD);
        }
    }
}

#[test]
fn an_op_prints_what_differs_from_the_default() {
    assert_eq!(one("gblur").to_string(), "gblur");
    assert_eq!(one("gblur=0.5:1:15:-1").to_string(), "gblur");
    assert_eq!(one("gblur=2:planes=3").to_string(), "gblur=sigma=2:planes=3");
    assert_eq!(one("boxblur=lr='min(w, h)/10'").to_string(), "boxblur=luma_radius='min(w,h)/10'");
    assert!(matches!(one("roberts").op, Op::Roberts(_)));
}
