//! NPP, NVIDIA's image library: `npp.cpp`, compiled where it is measured.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{Folder, Process, Ward};
use super::{Call, gaussian, joined, mean_weights};
use crate::axes::SampleType;
use crate::bench::child::Program;
use crate::bench::plan::{Case, Kind, sigma};
use crate::filter::Border;

/// Compiles and starts it on GPU `device`.
///
/// # Errors
/// Why there is none, in a word.
pub(super) fn start(device: usize, ward: &Ward) -> Result<Process, String> {
    start_with(&compiler(&|name| std::env::var_os(name))?, device, ward)
}

/// nvcc: in the toolkit that `CUDA_HOME` or `CUDA_PATH` names, on the path, or where the toolkit usually is.
fn compiler(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf, String> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(|root| Path::new(&root).join("bin"));
    let path = variable("PATH").unwrap_or_default();
    let folders = named.chain(std::env::split_paths(&path)).chain([PathBuf::from("/usr/local/cuda/bin")]);
    folders
        .map(|folder| folder.join("nvcc"))
        .find(|nvcc| nvcc.is_file())
        .ok_or_else(|| "nvcc is not installed (CUDA_HOME names a CUDA toolkit)".to_owned())
}

fn start_with(nvcc: &Path, device: usize, ward: &Ward) -> Result<Process, String> {
    let folder = Folder::new(&ward.custody)?;
    let (source, program) = (folder.path().join("npp.cpp"), folder.path().join("npp"));
    std::fs::write(&source, include_str!("npp.cpp")).map_err(|e| format!("cannot write its source: {e}"))?;
    let mut command = Command::new(nvcc);
    command.args(["-O2", "-std=c++17", "-o"]).arg(&program).arg(&source).args(["-lnppif", "-lnppim", "-lnppc"]);
    // The libraries lie beside the compiler, and not always where the loader looks.
    if let Some(root) = std::fs::canonicalize(nvcc).ok().as_deref().and_then(Path::parent).and_then(Path::parent) {
        for libraries in ["lib64", "lib"].map(|name| root.join(name)).into_iter().filter(|path| path.is_dir()) {
            let mut option = OsString::from("-Xlinker=-rpath,");
            option.push(&libraries);
            command.arg(option);
        }
    }
    let output = Program::new("nvcc", &ward.custody, ward.limit).output(command);
    let output = output.map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())?;
    if !output.status.success() {
        return Err(refusal(&output.stderr));
    }
    let mut server = Command::new(program);
    server.arg(device.to_string());
    Process::start("NPP", server, folder, ward)
}

/// What a failed compilation means.
fn refusal(complaints: &str) -> String {
    let mut lines = complaints.lines().map(str::trim).filter(|l| !l.is_empty());
    let error =
        lines.clone().find(|l| l.contains("error") || l.contains("cannot find")).or_else(|| lines.next()).unwrap_or("no reason given");
    if error.contains("npp.h") {
        "its headers are not beside nvcc".to_owned()
    } else if error.contains("-lnpp") {
        "its libraries are not beside nvcc".to_owned()
    } else {
        format!("nvcc cannot compile its program: {error}")
    }
}

/// NPP's calls for a case; it knows repeated edges alone.
pub(super) fn calls(case: &Case) -> Vec<Call> {
    let Some((kind, k)) = case.kind else { return Vec::new() };
    let odd = k % 2 == 1;
    // The program beside this file calls it for these types.
    let known = matches!(case.sample, SampleType::U8 | SampleType::F32);
    if !known || !odd || case.border.unwrap_or_default() != Border::Clamp {
        return Vec::new();
    }
    let plain = |name: &str| vec![Call::new(name, format!("{name} {k}"))];
    match kind {
        Kind::Gauss => {
            let taps = joined(&gaussian(k), " ");
            let mut calls = vec![Call::new("FilterGaussAdvancedBorder", format!("FilterGaussAdvancedBorder {k} {taps}"))];
            if k <= 15 {
                // A Gaussian whose width NPP chooses: the same work, another result, which is held to that width's.
                let own = (0.4 + k as f64 / 3.0 * 0.6, format!("gblur=radius={}:sigma={:.6}", k / 2, 0.4 + k as f64 / 3.0 * 0.6));
                let mut call = Call::new("FilterGaussBorder", format!("FilterGaussBorder {k}"));
                call.note = Some(format!("its own sigma {:.2} for ours of {}", own.0, sigma(k)));
                call.graph = Some(own.1);
                calls.push(call);
            }
            calls
        }
        Kind::Conv => {
            // NPP turns the weights round.
            let taps: Vec<f64> = mean_weights(k).into_iter().rev().collect();
            vec![Call::new("FilterBorder", format!("FilterBorder {k} {}", joined(&taps, " ")))]
        }
        Kind::Box => plain("FilterBoxBorder"),
        Kind::Max => plain("FilterMaxBorder"),
        Kind::Min => plain("FilterMinBorder"),
        Kind::Median => plain("FilterMedianBorder"),
        Kind::Sobel => plain("GradientVectorSobelBorder"),
        Kind::Unsharp | Kind::Maxpool | Kind::Avgpool => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::process::tests::{DOUBLES, ward};
    use super::*;
    use crate::bench::child::tests::LIMIT;

    /// A script that stands for nvcc: the program's path is its fourth argument.
    fn fake(folder: &Path, script: &str) -> PathBuf {
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        let path = folder.join("bin/nvcc");
        std::fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn what_is_compiled_is_started_and_speaks() {
        let folder = tempfile::tempdir().unwrap();
        // It compiles only what it was given: the real source, for the real libraries.
        let script = format!(
            "grep -q nppiFilterGaussAdvancedBorder_8u_C1R_Ctx \"$5\" || exit 1\n[ \"$6\" = -lnppif ] || exit 1\n\
             cat > \"$4\" <<'END'\n#!/bin/sh\n[ \"$1\" = 3 ] || exit 1\n{DOUBLES}\nEND\nchmod +x \"$4\""
        );
        let peer = start_with(&fake(folder.path(), &script), 3, &ward(LIMIT)).unwrap();
        assert_eq!((peer.name, peer.version.as_str()), ("NPP", "1.2"));
    }

    #[test]
    fn each_thing_that_is_missing_has_its_word() {
        let folder = tempfile::tempdir().unwrap();
        let why = |said: &str| start_with(&fake(folder.path(), &format!("echo \"{said}\" >&2; exit 1")), 0, &ward(LIMIT)).err().unwrap();
        assert_eq!(why("/tmp/npp.cpp:18:10: fatal error: npp.h: No such file or directory"), "its headers are not beside nvcc");
        assert_eq!(why("/usr/bin/ld: cannot find -lnppif: No such file"), "its libraries are not beside nvcc");
        assert_eq!(
            why("warning: old\\nx.cpp(3): error: no such thing\\nmore"),
            "nvcc cannot compile its program: x.cpp(3): error: no such thing"
        );
        let script = "printf '#!/bin/sh\\necho absent no CUDA-capable device' > \"$4\"; chmod +x \"$4\"";
        let absent = start_with(&fake(folder.path(), script), 0, &ward(LIMIT));
        assert_eq!(absent.err().unwrap(), "no CUDA-capable device");
    }

    #[test]
    fn the_compiler_is_looked_for_in_the_named_toolkit_first() {
        let (named, on_path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let wanted = fake(named.path(), "");
        let second = fake(on_path.path(), "");
        let path = on_path.path().join("bin").into_os_string();
        let both = |name: &str| match name {
            "CUDA_HOME" => Some(named.path().as_os_str().to_owned()),
            "PATH" => Some(path.clone()),
            _ => None,
        };
        assert_eq!(compiler(&both).unwrap(), wanted);
        assert_eq!(compiler(&|name| (name == "PATH").then(|| path.clone())).unwrap(), second);
        if !Path::new("/usr/local/cuda/bin/nvcc").exists() {
            assert!(compiler(&|_| None).unwrap_err().contains("CUDA_HOME"));
        }
    }
}
