//! `convoy bench` and `convoy verify` from outside: rows that are saved as they come, documents that compare, exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{convoy, finish_within, path_str, stderr, stdout, wait_until};

/// Little work: the point is what is written, not how fast it is.
const QUICK: [&str; 9] = ["bench", "--backend", "cpu", "--level", "kernel", "--runs", "5", "--warm-up", "0"];

fn run(args: &[&str]) -> Output {
    let mut command = convoy();
    // No Python: peers are not what is tested here.
    command.args(args).env("CONVOY_PYTHON", "/nonexistent");
    finish_within(command, Duration::from_secs(120))
}

fn quick(args: &[&str]) -> Output {
    run(&[&QUICK[..], args].concat())
}

fn rows(path: &Path) -> Vec<Value> {
    let document: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    document["rows"].as_array().unwrap().clone()
}

#[test]
fn stored_rows_are_shown_again_and_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let store = |name: &str, kernels: &str| {
        let json = format!("--json={}", path_str(&at(name)));
        let output = quick(&["--filter", "max", "--kernel", kernels, "--size", "33x17", "--type", "u8", &json]);
        assert!(output.status.success(), "{}", stderr(&output));
        rows(&at(name))
    };
    let (first, second) = (store("first.json", "3,5"), store("second.json", "5,9"));
    let from = format!("--from={},{}", path_str(&at("first.json")), path_str(&at("second.json")));
    let (json, page) = (at("both.json"), at("both.html"));
    let output = run(&["bench", &from, &format!("--json={}", path_str(&json)), "--html", path_str(&page)]);
    assert!(output.status.success(), "{}", stderr(&output));
    // The row that both have is the later one's.
    let both = rows(&json);
    let group = |rows: &[Value], name: &str| rows.iter().filter(|r| r["group"] == name).cloned().collect::<Vec<_>>();
    assert_eq!(both.len(), 3 * 4);
    assert_eq!(group(&both, "max 3x3"), group(&first, "max 3x3"));
    assert_eq!(group(&both, "max 5x5"), group(&second, "max 5x5"));
    assert_eq!(group(&both, "max 9x9"), group(&second, "max 9x9"));
    let table = stdout(&output);
    assert!(["max 3x3  33x17 gray u8", "max 9x9  33x17 gray u8"].iter().all(|title| table.contains(title)), "{table}");
    assert!(fs::read_to_string(&page).unwrap().contains("max 9x9"));
    // Two machines are two benches.
    let mut other: Value = serde_json::from_str(&fs::read_to_string(at("second.json")).unwrap()).unwrap();
    other["environment"]["cpu"] = "another".into();
    fs::write(at("second.json"), other.to_string()).unwrap();
    let output = run(&["bench", &from]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("put benches together") && stderr(&output).contains("another"), "{}", stderr(&output));
    let output = run(&["bench", &format!("--from={}", path_str(&at("none.json")))]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("none.json"), "{}", stderr(&output));
}

#[test]
fn every_variant_gets_a_row_with_its_check_and_its_environment() {
    let folder = tempfile::tempdir().unwrap();
    let (json, csv) = (folder.path().join("b.json"), folder.path().join("b.csv"));
    let output = quick(&[
        "--filter",
        "gauss,max",
        "--kernel",
        "3,5",
        "--size",
        "33x17",
        "--type",
        "u8",
        &format!("--json={}", path_str(&json)),
        &format!("--csv={}", path_str(&csv)),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = rows(&json);
    // Three variants and the copy.
    assert_eq!(found.len(), 2 * 2 * 4);
    for row in &found {
        assert!(row["time_us"]["median"].as_f64().unwrap() > 0.0 && row["time_us"]["count"] == 5, "{row}");
        if row["variant"] != "copy (1 thread)" {
            assert!(row["check"]["samples"].as_u64().unwrap() >= 2 * 33 * 17 && row["copy_share"].is_number(), "{row}");
        }
        assert!(row["error"].is_null(), "{row}");
        assert_eq!(row["bytes"], 2 * 33 * 17);
    }
    let speedups: Vec<f64> = found.iter().filter(|r| r["variant"] == "cpu-scalar").map(|r| r["speedup"].as_f64().unwrap()).collect();
    assert_eq!(speedups, [1.0; 4]);
    let document: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((document["complete"].as_bool(), document["schema"].as_u64()), (Some(true), Some(1)));
    assert!(document["environment"]["command"].as_str().unwrap().contains("gauss,max"));
    assert_eq!(fs::read_to_string(&csv).unwrap().lines().count(), 17);
    let table = stdout(&output);
    assert!(table.contains("gauss 5x5  33x17 gray u8") && table.contains("cpu cpu-threads"), "{table}");
}

#[test]
fn a_killed_bench_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("b.json");
    let mut command = convoy();
    // Seconds per case: it is not over when it is killed.
    command.args(["bench", "--backend", "cpu", "--level", "kernel", "--runs", "101", "--warm-up", "0", "--filter", "conv"]);
    command.args(["--kernel", "3,5,7,9,11,13,15,17,19,21,23,25,27,29,31", "--size", "96x64"]);
    command.arg(format!("--json={}", path_str(&json))).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let some =
        || fs::read_to_string(&json).is_ok_and(|text| serde_json::from_str::<Value>(&text).unwrap()["rows"].as_array().unwrap().len() >= 3);
    wait_until(Duration::from_secs(120), "the first rows", some);
    child.kill().unwrap();
    child.wait().unwrap();
    let document: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(document["complete"], false);
    let count = rows(&json).len();
    assert!((3..90).contains(&count), "{count}");
}

#[test]
fn an_old_bench_is_compared_and_a_regression_fails() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old.json"), folder.path().join("new.json"));
    let case = ["--filter", "box", "--kernel", "5", "--size", "64x48", "--type", "u8", "--variant", "cpu-scalar"];
    let bench = |extra: &[&str]| quick(&[&case[..], extra].concat());
    assert!(bench(&[&format!("--json={}", path_str(&old))]).status.success());
    // The old times, doctored: a hundred times slower, then a hundred times faster.
    let doctored = |factor: f64| {
        let mut document: Value = serde_json::from_str(&fs::read_to_string(&old).unwrap()).unwrap();
        for key in ["median", "p5", "p95"] {
            let time = &mut document["rows"][0]["time_us"][key];
            *time = Value::from(time.as_f64().unwrap() * factor);
        }
        fs::write(&new, document.to_string()).unwrap();
    };
    doctored(100.0);
    // The copy's row, of a tenth of a microsecond, is not doctored and may do what it likes within the threshold.
    let faster = bench(&["--compare", path_str(&new), "--threshold", "900"]);
    assert!(faster.status.success() && stdout(&faster).contains("faster"), "{}{}", stdout(&faster), stderr(&faster));
    doctored(0.01);
    let slower = bench(&["--compare", path_str(&new), "--threshold", "900"]);
    assert_eq!(slower.status.code(), Some(1));
    assert!(stdout(&slower).contains("SLOWER") && stderr(&slower).contains("1 regressions"), "{}", stdout(&slower));
    fs::write(&new, "nonsense").unwrap();
    let refused = bench(&["--compare", path_str(&new)]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("new.json"), "{}", stderr(&refused));
}

#[test]
fn json_on_stdout_is_nothing_but_json_and_files_are_tried_first() {
    let output = quick(&["--vf", "sobel", "--size", "32x32", "--type", "u8", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(document["rows"].as_array().unwrap().len(), 4);
    let output = quick(&["--vf", "sobel", "--json=/no/such/folder/x.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/no/such/folder/x.json") && stdout(&output).is_empty(), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_measured_is_said() {
    let output = quick(&["--vf", "sobel", "--variant", "tiled"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("nothing was measured"), "{}", stderr(&output));
    if convoy::backend::cuda::open(0).is_err() {
        let output =
            run(&["bench", "--level", "kernel", "--runs", "3", "--warm-up", "0", "--vf", "sobel", "--size", "8x8", "--type", "u8"]);
        assert!(output.status.success() && stderr(&output).contains("not measured: CUDA variants"), "{}", stderr(&output));
        assert_eq!(run(&["bench", "--backend", "cuda"]).status.code(), Some(1));
    }
}

/// A script in Python's place.
fn script(folder: &Path, text: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("python");
    fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_peer_is_compared_before_it_is_timed_and_its_absence_has_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("b.json");
    let bench = |python: &Path, backend: &str| {
        let mut command = convoy();
        command.args([
            "bench",
            "--backend",
            backend,
            "--level",
            "kernel",
            "--runs",
            "5",
            "--warm-up",
            "0",
            "--peers",
            "--filter",
            "box,unsharp",
        ]);
        command.args(["--kernel", "3", "--size", "33x17", "--type", "u8"]).arg(format!("--json={}", path_str(&json)));
        command.env("CONVOY_PYTHON", python);
        finish_within(command, Duration::from_secs(120))
    };
    // It hands back what it got, in 7 µs a frame.
    let idle = "echo ready 9.9; while read -r word a b c d; do case $word in load) cp \"$c\" x; echo ok 1;; check) cp x \"$a\"; echo ok;; \
                *) echo $((a * 7000));; esac; done";
    let output = bench(&script(folder.path(), idle), "cpu");
    assert!(output.status.success(), "{}", stderr(&output));
    let found = rows(&json);
    let peers: Vec<&Value> = found.iter().filter(|r| r["program"] == "opencv").collect();
    // It has no unsharp that means the same.
    assert_eq!(peers.len(), 1);
    let peer = peers[0];
    assert_eq!(
        (peer["group"].as_str(), peer["time_us"]["median"].as_f64(), peer["time_us"]["count"].as_u64()),
        (Some("box 3x3"), Some(7.0), Some(5))
    );
    let notes = peer["notes"].to_string();
    assert!(notes.contains("version 9.9") && notes.contains("not the same result: up to "), "{notes}");
    assert!(peer["check"]["max_error"].as_f64().unwrap() > 1.0 && stdout(&output).contains("opencv (one thread)"), "{peer}");
    // One that ends is an error of its row, and nobody else's.
    let output = bench(&script(folder.path(), "echo ready 1; read -r line; echo out of order >&2"), "cpu");
    assert!(output.status.success(), "{}", stderr(&output));
    let errors: Vec<String> = rows(&json).iter().filter(|r| !r["error"].is_null()).map(|r| r["error"].to_string()).collect();
    assert!(errors.len() == 1 && errors[0].contains("OpenCV does not answer: its process ended: out of order"), "{errors:?}");
    let absent = |text: &str| stderr(&bench(&script(folder.path(), text), "cpu"));
    assert!(absent("echo absent no module named cv2").contains("not measured: OpenCV: no module named cv2 (CONVOY_PYTHON"));
    assert!(absent("echo 'SyntaxError: so old' >&2").contains("its process ended: SyntaxError: so old"));
    if convoy::backend::cuda::open(0).is_err() {
        let output = bench(Path::new("/nonexistent"), "auto");
        assert!(stderr(&output).contains("NPP, PyTorch: they run on a GPU, and CUDA is not available"), "{}", stderr(&output));
    }
}

/// A bench of one small case with peers, in whose Python's place `text` stands.
fn with_peer(folder: &Path, text: &str, limit: &str) -> std::process::Command {
    let mut command = convoy();
    command.args(&QUICK[..]).args([
        "--peers",
        "--peer-limit",
        limit,
        "--filter",
        "box,max,min",
        "--kernel",
        "3",
        "--size",
        "33x17",
        "--type",
        "u8",
    ]);
    command.arg(format!("--json={}", path_str(&folder.join("b.json")))).env("CONVOY_PYTHON", script(folder, text));
    command
}

/// Whether process `id` runs still; one that was killed a moment ago is given time.
fn stays(id: &str) -> bool {
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    };
    let start = std::time::Instant::now();
    while runs() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    runs()
}

#[test]
fn a_peer_that_hangs_costs_its_row_its_limit_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let children = folder.path().join("children");
    // It loads, and never comes back from a call; its child would hold the pipes open.
    let hangs = format!("echo ready 1; read -r a; echo ok 1; read -r a; sleep 1000 & echo $! >> {}; wait", path_str(&children));
    let output = finish_within(with_peer(folder.path(), &hangs, "2"), Duration::from_secs(120));
    assert!(output.status.success(), "{}", stderr(&output));
    let found = rows(&folder.path().join("b.json"));
    let errors: Vec<&str> = found.iter().filter_map(|r| r["error"].as_str()).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors[..2].iter().all(|e| e.starts_with("OpenCV did not answer within 2 s: it was stopped")), "{errors:?}");
    assert!(errors[2].starts_with("OpenCV is left out: 2 times in a row it did not answer"), "{errors:?}");
    // Our own rows are all there.
    assert_eq!(found.iter().filter(|r| r["program"] == "convoy" && r["time_us"].is_object()).count(), 3 * 4);
    let children = fs::read_to_string(&children).unwrap();
    assert_eq!(children.lines().count(), 2);
    assert!(!children.lines().any(stays));
    // What floods is cut off, what dies in mid-answer has not answered, and each is started again for the next row.
    let odd = "echo ready 1; read -r a; echo ok 1; read -r a; ";
    for (does, says) in
        [("yes | tr -d '\\n'", "OpenCV floods"), ("printf o", "OpenCV does not answer: its process ended"), ("yes", "OpenCV")]
    {
        let output = finish_within(with_peer(folder.path(), &format!("{odd}{does}"), "60"), Duration::from_secs(120));
        assert!(output.status.success(), "{}", stderr(&output));
        let found = rows(&folder.path().join("b.json"));
        let errors: Vec<&str> = found.iter().filter_map(|r| r["error"].as_str()).collect();
        assert!(errors.len() == 3 && errors.iter().all(|e| e.contains(says)), "{does}: {errors:?}");
    }
}

#[test]
fn a_bench_that_is_interrupted_leaves_no_process_and_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (pids, room) = (folder.path().join("pids"), folder.path().join("room"));
    fs::create_dir(&room).unwrap();
    let hangs = format!("sleep 1000 & echo $$ $! > {0}.new; mv {0}.new {0}; trap '' INT TERM; echo ready 1; wait", path_str(&pids));
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let mut command = with_peer(folder.path(), &hangs, "600");
        let mut child = command.env("TMPDIR", &room).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until(Duration::from_secs(60), "the peer", || pids.exists());
        let started = fs::read_to_string(&pids).unwrap();
        // SAFETY: kill has no memory effects; the process is our child and has not been waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(!started.split_whitespace().any(stays), "{started}");
        assert_eq!(fs::read_dir(&room).unwrap().count(), 0);
        fs::remove_file(&pids).unwrap();
    }
}

#[test]
fn an_ffmpeg_that_hangs_is_stopped_and_then_left_out() {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "case $1 in -version) echo ffmpeg version 0;; *) sleep 1000;; esac");
    fs::rename(folder.path().join("python"), folder.path().join("ffmpeg")).unwrap();
    let json = folder.path().join("b.json");
    let mut command = convoy();
    command.args(["bench", "--backend", "cpu", "--level", "pipeline", "--vf", "sobel", "--vf", "erosion", "--vf", "dilation"]);
    command.args(["--size", "64x48", "--frames", "10", "--runs", "1", "--peer-limit", "3"]).arg(format!("--json={}", path_str(&json)));
    let path = std::env::join_paths([folder.path().into(), std::path::PathBuf::from("/usr/bin"), "/bin".into()]).unwrap();
    let output = finish_within(
        {
            command.env("PATH", path);
            command
        },
        Duration::from_secs(120),
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let found = rows(&json);
    let errors: Vec<&str> = found.iter().filter_map(|r| r["error"].as_str()).collect();
    assert!(errors.len() == 2 && errors.iter().all(|e| e.starts_with("ffmpeg did not answer within 3 s")), "{errors:?}");
    assert_eq!(found.iter().filter(|r| r["program"] == "convoy" && r["fps"].is_number()).count(), 3);
    assert!(stderr(&output).contains("ffmpeg beside further runs"), "{}", stderr(&output));
}

#[test]
fn whole_runs_stand_beside_ffmpegs_and_name_the_stage_that_limits() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("b.json");
    let output = run(&[
        "bench",
        "--backend",
        "cpu",
        "--level",
        "pipeline,loop",
        "--vf",
        "erosion",
        "--size",
        "160x90",
        "--frames",
        "200",
        "--runs",
        "2",
        "--lanes",
        "2",
        &format!("--json={}", path_str(&json)),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found = rows(&json);
    let by = |program: &str| found.iter().find(|r| r["program"] == program && r["level"] == "pipeline").unwrap();
    assert!(by("convoy")["limited_by"].is_string() && by("convoy")["stages"].as_array().unwrap().len() == 3, "{}", by("convoy"));
    assert_eq!(by("convoy")["check"]["max_error"], 0.0);
    let timeline = by("convoy")["timeline"].as_array().unwrap();
    assert!(timeline.iter().any(|s| s["name"] == "kernels") && timeline.iter().any(|s| s["track"] == "encode thread"), "{timeline:?}");
    // ffmpeg's erosion is the reference's.
    assert!(
        by("ffmpeg")["check"]["max_error"].as_f64().unwrap() <= 1.0 && by("ffmpeg")["notes"].as_array().unwrap().is_empty(),
        "{}",
        by("ffmpeg")
    );
    // Both did the same, and the start of each is told.
    assert!(by("convoy")["frames"] == 200 && by("ffmpeg")["frames"] == 200, "{}", by("ffmpeg"));
    for program in ["convoy", "ffmpeg"] {
        let row = by(program);
        // On a busy machine a start may take longer than a whole run did: then there is no net rate.
        let net = row["net_fps"].as_f64();
        assert!(row["start_up_ms"].as_f64().unwrap() > 0.0 && net.is_none_or(|net| net > row["fps"].as_f64().unwrap()), "{row}");
        assert_eq!(row["time_us"]["count"], 2, "{row}");
    }
    let looped = found.iter().find(|r| r["level"] == "loop").unwrap();
    assert!(looped["fps"].as_f64().unwrap() > 0.0 && looped["lanes"] == 2);
}

#[test]
fn verify_passes_on_this_machine_and_refuses_what_is_not_there() {
    let output =
        run(&["verify", "--backend", "cpu", "--vf", "gblur=2", "--vf", "erosion", "--size", "33x17", "--type", "u8,f16,f32", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table: Value = serde_json::from_str(&stdout(&output)).unwrap();
    // Two graphs × (gray u8, gray f16, gray f32, 4:2:0 u8) × three variants; five borders each.
    assert_eq!(table.as_array().unwrap().len(), 2 * 4 * 3);
    assert_eq!(table.as_array().unwrap().iter().filter(|r| r["type"] == "f16").count(), 2 * 3);
    assert!(table.as_array().unwrap().iter().all(|r| r["cases"] == 5 && r["failures"].as_array().unwrap().is_empty()));
    let output = run(&["verify", "--backend", "cpu", "--vf", "gblur=2", "--variant", "tiled"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("'tiled' is a CUDA variant"), "{}", stderr(&output));
    // Sums of floats are not exact, and nothing but exact was asked for; integers are.
    let exact = |sample: &str| {
        run(&["verify", "--backend", "cpu", "--vf", "gblur=2", "--size", "33x17", "--type", sample, "--planes", "gray", "--tolerance", "0"])
    };
    let output = exact("f32");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("FAILED (5 of 5)") && stdout(&output).contains("33x17 border clamp: "), "{}", stdout(&output));
    assert!(stderr(&output).contains("15 combinations compared with the reference, 15 failed"), "{}", stderr(&output));
    assert!(exact("u8").status.success());
    assert_eq!(run(&["verify", "--tolerance", "2"]).status.code(), Some(2));
    let output = run(&["run", "synth:64x48", "-o", "null:", "--frames", "9", "--backend", "cpu", "--vf", "gblur=2,sobel", "--verify", "4"]);
    assert!(output.status.success() && stderr(&output).contains("verified 3 frames"), "{}", stderr(&output));
}
