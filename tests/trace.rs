//! `run --trace`: the file is a Chrome trace whose spans nest, overlap as a pipeline's do, and add up to what `--stats` says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;
use support::{convoy, finish_within, path_str, stderr, stdout};

/// Name, frame, begin and end in microseconds.
#[derive(Clone, Debug)]
struct Span {
    name: String,
    frame: Option<u64>,
    from: f64,
    to: f64,
}

struct Traced {
    /// By track name.
    tracks: BTreeMap<String, Vec<Span>>,
    depths: BTreeMap<String, Vec<u64>>,
    stats: Value,
}

fn traced(args: &[&str]) -> Traced {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.json");
    let mut command = convoy();
    command.args(["run"]).args(args).args(["--trace", path_str(&file), "--stats=json"]);
    let output = finish_within(command, Duration::from_secs(60));
    assert!(output.status.success(), "{}", stderr(&output));
    let json: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let name_of = |tid: &Value| {
        let event = events.iter().find(|e| e["ph"] == "M" && e["name"] == "thread_name" && e["tid"] == *tid).unwrap();
        event["args"]["name"].as_str().unwrap().to_owned()
    };
    let mut tracks: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    let mut depths: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for event in events {
        let text = |key: &str| event[key].as_str().unwrap().to_owned();
        match event["ph"].as_str().unwrap() {
            "X" => {
                let from = event["ts"].as_f64().unwrap();
                let to = from + event["dur"].as_f64().unwrap();
                let span = Span { name: text("name"), frame: event["args"]["frame"].as_u64(), from, to };
                tracks.entry(name_of(&event["tid"])).or_default().push(span);
            }
            "C" => depths.entry(text("name")).or_default().push(event["args"]["items"].as_u64().unwrap()),
            "M" => {}
            other => panic!("{other}"),
        }
    }
    Traced { tracks, depths, stats: serde_json::from_str(&stdout(&output)).unwrap() }
}

impl Traced {
    fn sum(&self, track: &str, pick: impl Fn(&str) -> bool) -> f64 {
        self.tracks[track].iter().filter(|s| pick(&s.name)).map(|s| s.to - s.from).sum::<f64>() / 1e6
    }

    fn stage(&self, name: &str, what: &str) -> f64 {
        let stages = self.stats["stages"].as_array().unwrap();
        stages.iter().find(|s| s["name"] == name).unwrap()[what].as_f64().unwrap()
    }

    fn spans(&self, track: &str, name: &str) -> Vec<Span> {
        self.tracks[track].iter().filter(|s| s.name == name).cloned().collect()
    }
}

fn near(a: f64, b: f64) -> bool {
    // Sums of the same nanoseconds in another order.
    (a - b).abs() < 1e-6
}

const FRAMES: u64 = 24;

#[test]
fn sums_are_those_of_the_statistics_and_spans_nest() {
    let t = traced(&["synth:320x180", "-o", "null:", "--frames", "24", "--backend", "cpu", "--vf", "gblur=2,sobel", "--lanes", "2"]);
    for (track, stage) in [("decode thread", "decode"), ("encode thread", "encode")] {
        assert!(near(t.sum(track, |n| n != "wait"), t.stage(stage, "busy_s")), "{stage}");
        assert!(near(t.sum(track, |n| n == "wait"), t.stage(stage, "wait_s")), "{stage}");
    }
    // Waiting for a lane happens inside of submit, and is no work.
    let lane_wait = t.sum("filter thread", |n| n == "wait for a lane");
    let submit = t.sum("filter thread", |n| n == "submit" || n == "finish");
    assert!(near(submit - lane_wait, t.stage("filter", "busy_s")), "{submit} {lane_wait} {}", t.stats);
    let kernels: f64 = ["lane 0", "lane 1"].iter().map(|lane| t.sum(lane, |n| n == "kernels")).sum();
    assert!(near(kernels * 1e6 / FRAMES as f64 / 1e6, t.stats["device_us_per_frame"][1].as_f64().unwrap() / 1e6), "{kernels} {}", t.stats);

    // On every thread spans nest or follow each other; they never cross.
    for (track, spans) in &t.tracks {
        let mut spans = spans.clone();
        spans.sort_by(|a, b| a.from.total_cmp(&b.from).then(b.to.total_cmp(&a.to)));
        let mut open: Vec<Span> = Vec::new();
        for span in spans {
            while open.last().is_some_and(|outer| outer.to <= span.from + 1e-3) {
                open.pop();
            }
            assert!(open.last().is_none_or(|outer| span.to <= outer.to + 1e-3), "{track}: {span:?} crosses {:?}", open.last());
            open.push(span);
        }
    }
    // Both steps, fused or not, within the kernels of every frame, in the frame's submit.
    let submits = t.spans("filter thread", "submit");
    for lane in ["lane 0", "lane 1"] {
        for kernels in t.spans(lane, "kernels") {
            let inside = |s: &&Span| s.name.starts_with("step ") && s.from >= kernels.from - 1e-3 && s.to <= kernels.to + 1e-3;
            let steps: Vec<&str> = t.tracks[lane].iter().filter(inside).map(|s| s.name.as_str()).collect();
            let text = steps.join("; ");
            assert!((1..=2).contains(&steps.len()) && text.contains("gblur") && text.contains("sobel"), "{text}");
            let submit = submits.iter().find(|s| s.frame == kernels.frame).unwrap();
            assert!(submit.from <= kernels.from && kernels.to <= submit.to);
        }
    }
}

#[test]
fn every_frame_passes_every_stage_in_order_and_stages_overlap() {
    let t = traced(&["synth:320x180", "-o", "null:", "--frames", "24", "--backend", "cpu", "--vf", "gblur=3"]);
    let by_frame = |track: &str, name: &str| -> BTreeMap<u64, Span> {
        // The last call of a source brings its end, not a frame.
        t.spans(track, name).into_iter().filter_map(|s| Some((s.frame?, s))).collect()
    };
    let (decode, submit, encode) =
        (by_frame("decode thread", "decode"), by_frame("filter thread", "submit"), by_frame("encode thread", "encode"));
    for frame in 0..FRAMES {
        assert!(decode[&frame].to <= submit[&frame].from && submit[&frame].to <= encode[&frame].from + 50.0, "frame {frame}");
    }
    assert_eq!((decode.len() as u64, submit.len() as u64, encode.len() as u64), (FRAMES, FRAMES, FRAMES));
    // Decoding runs ahead of filtering: some frame is decoded before the one before it has been filtered.
    assert!((1..FRAMES).any(|frame| decode[&frame].to < submit[&(frame - 1)].to), "nothing overlaps");
    assert!(t.depths["queue decode to filter"].iter().all(|&n| n <= 5) && t.depths.contains_key("queue filter to encode"));
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_before_the_run() {
    let mut command = convoy();
    command.args(["run", "synth:64x48", "-o", "null:", "--frames", "3", "--trace", "/no/such/folder/t.json"]);
    let output = finish_within(command, Duration::from_secs(10));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/no/such/folder/t.json"), "{}", stderr(&output));
}

#[test]
fn the_runs_own_error_comes_before_the_traces() {
    let mut command = convoy();
    command.args([
        "run",
        "synth:64x48",
        "-o",
        "/dev/full",
        "--format",
        "matroska",
        "--frames",
        "3",
        "--backend",
        "cpu",
        "--trace",
        "/dev/full",
    ]);
    let done = finish_within(command, Duration::from_secs(20));
    let said = stderr(&done);
    let place = |word: &str| said.find(word).unwrap_or_else(|| panic!("no '{word}' in {said}"));
    assert!(
        done.status.code() == Some(1) && place("cannot write '/dev/full'") < place("also: cannot write the trace '/dev/full'"),
        "{said}"
    );
    // A good run with a trace that fails fails with that.
    let mut command = convoy();
    command.args(["run", "synth:64x48", "-o", "null:", "--frames", "3", "--backend", "cpu", "--trace", "/dev/full"]);
    let done = finish_within(command, Duration::from_secs(20));
    assert!(done.status.code() == Some(1) && stderr(&done).contains("cannot write the trace '/dev/full'"), "{}", stderr(&done));
}
