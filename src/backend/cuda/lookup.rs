//! Where NVIDIA's libraries may lie: usual names of several versions, CUDA folders, the `nvidia` wheels of Python environments.
//!
//! Each library is looked up here by its own versions, rather than by cudarc, whose lookup is tied to one CUDA version.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Paths and names to try, each once. `variable` names the only candidate (a file, or a folder to look in), if it is set. `file` is the
/// name without version ("libcublas.so"), `versions` those that the loader is asked for by name, newest first.
pub(super) fn candidates(variable: &str, file: &str, versions: &[&str]) -> Vec<PathBuf> {
    if let Some(explicit) = env::var_os(variable).filter(|v| !v.is_empty()) {
        let path = PathBuf::from(explicit);
        return if path.is_dir() { libraries_in(&path, file) } else { vec![path] };
    }
    let mut found: Vec<PathBuf> = versions.iter().map(|version| PathBuf::from(format!("{file}.{version}"))).collect();
    found.push(PathBuf::from(file));
    for folder in folders() {
        found.extend(libraries_in(&folder, file));
    }
    // The same file under several names (links) is loaded once.
    let mut seen = BTreeSet::new();
    found.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    found
}

fn libraries_in(folder: &Path, file: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // Not libnvrtc-builtins, not the `.alt` twin, not the static archive.
    let is_it = |path: &PathBuf| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(file));
    let mut found: Vec<PathBuf> = names.filter(is_it).collect();
    found.sort();
    found
}

fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for variable in ["CUDA_PATH", "CUDA_HOME"] {
        if let Some(root) = env::var_os(variable).filter(|v| !v.is_empty()) {
            toolkit(Path::new(&root), &mut folders);
        }
    }
    for parent in ["/usr/local", "/opt"] {
        for entry in entries(Path::new(parent)).filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cuda"))) {
            toolkit(&entry, &mut folders);
        }
    }
    folders.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"].map(PathBuf::from));
    wheels(&mut folders);
    folders
}

fn toolkit(root: &Path, folders: &mut Vec<PathBuf>) {
    for below in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"] {
        folders.push(root.join(below));
    }
}

/// The `nvidia` wheels of Python environments: the active one, the user's and the system's.
fn wheels(folders: &mut Vec<PathBuf>) {
    let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(env::var_os).map(PathBuf::from).collect();
    if let Ok(home) = etcetera::home_dir() {
        roots.push(home.join(".local"));
    }
    // The interpreter that PATH finds: its prefix is two levels up.
    for folder in env::var_os("PATH").iter().flat_map(env::split_paths) {
        if folder.join("python3").exists()
            && let Some(prefix) = folder.parent()
        {
            roots.push(prefix.to_owned());
        }
    }
    roots.push(PathBuf::from("/usr/local"));
    let mut packages: Vec<PathBuf> = env::var_os("PYTHONPATH").iter().flat_map(env::split_paths).collect();
    for root in roots {
        for python in entries(&root.join("lib")).filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3"))) {
            packages.extend([python.join("site-packages"), python.join("dist-packages")]);
        }
    }
    for site in packages {
        let nvidia = site.join("nvidia");
        // CUDA 11 and 12 wheels: nvidia/cuda_nvrtc/lib; CUDA 13: nvidia/cu13/lib.
        for package in entries(&nvidia) {
            folders.push(package.join("lib"));
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
