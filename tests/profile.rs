//! NVTX ranges, heard by a listener that stands for NVIDIA's profilers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use support::{convoy, finish_within, path_str, stderr};

const FRAMES: usize = 5;

#[test]
fn a_profiler_hears_every_stage_and_frame_and_nobody_else_anything() {
    let folder = tempfile::tempdir().unwrap();
    let (library, log) = (folder.path().join("listener.so"), folder.path().join("log"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/listener.c");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", path_str(&library), source]).status();
    assert!(compiled.unwrap().success());
    let run = |listened: bool| {
        let mut command = convoy();
        command.args(["run", "synth:64x48", "-o", "null:", "--vf", "gblur=1", "--backend", "cpu", "--progress", "none", "--frames"]);
        command
            .arg(FRAMES.to_string())
            .env("LISTENER_LOG", &log)
            .env_remove("NSYS_PROFILING_SESSION_ID")
            .env_remove("NVTX_INJECTION64_PATH");
        if listened {
            command.env("NVTX_INJECTION64_PATH", &library);
        }
        let output = finish_within(command, Duration::from_secs(60));
        assert!(output.status.success(), "{}", stderr(&output));
    };
    run(false);
    assert!(!log.exists());
    run(true);
    let text = std::fs::read_to_string(&log).unwrap();
    // Every range ends, on the thread that began it, and ranges nest.
    let mut open: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut closed: Vec<(String, Option<usize>)> = Vec::new();
    let mut marked: HashMap<&str, Option<usize>> = HashMap::new();
    for line in text.lines() {
        let (thread, rest) = line.split_once(' ').unwrap();
        let (what, rest) = rest.split_once(' ').unwrap();
        let (name, payload) = rest.rsplit_once(' ').unwrap();
        match what {
            "push" => open.entry(thread).or_default().push(name),
            "mark" => {
                assert_eq!(name, format!("frame {payload}"));
                marked.insert(thread, Some(payload.parse().unwrap()));
            }
            "pop" => {
                let name = open.get_mut(thread).and_then(Vec::pop).expect("a range that was begun");
                closed.push((name.to_owned(), marked.remove(thread).flatten()));
            }
            other => panic!("{other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    let count = |name: &str, frame: Option<usize>| closed.iter().filter(|c| c.0 == name && c.1 == frame).count();
    for frame in 0..FRAMES {
        for stage in ["decode", "submit", "encode"] {
            assert_eq!(count(stage, Some(frame)), 1, "{stage} {frame}\n{text}");
        }
        assert_eq!(closed.iter().filter(|c| c.0 == format!("kernels {frame}")).count(), 1, "{text}");
    }
    assert!(closed.iter().any(|c| c.0 == "wait"));
}
