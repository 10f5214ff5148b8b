//! The borders between the parts, as greps: who may name which library.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Lines of code (comments left out) under src that contain `word`, outside the allowed places.
fn trespassers(word: &str, allowed: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 20);
    let mut hits = Vec::new();
    for file in files {
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        if allowed.iter().any(|a| name.starts_with(a)) {
            continue;
        }
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let code = line.split("//").next().unwrap();
            if code.contains(word) {
                hits.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    hits
}

#[test]
fn each_library_stays_in_its_part() {
    for (word, allowed) in [
        ("cudarc", &["backend/cuda"][..]),
        ("ffmpeg_next", &["media"]),
        ("thread::spawn", &["pipeline.rs", "backend/cpu"]),
        ("thread::Builder", &["pipeline.rs", "backend/cpu"]),
    ] {
        assert_eq!(trespassers(word, allowed), Vec::<String>::new(), "{word}");
    }
}

#[test]
fn the_grep_finds_what_is_there() {
    assert!(!trespassers("ffmpeg_next", &["backend"]).is_empty());
    assert!(!trespassers("cudarc", &["media"]).is_empty());
}
