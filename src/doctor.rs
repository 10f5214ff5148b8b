//! `convoy doctor`: what this machine offers, and how to get what is missing.

use std::fmt::Write;

use crate::backend::{Device, cpu, cuda};
use crate::media;

/// The report, for stdout.
pub fn report() -> String {
    let mut text = format!("convoy {}\n\nFilters\n", env!("CARGO_PKG_VERSION"));
    line(&mut text, true, "CPU backend", &cpu::Cpu::new().describe());
    cuda_lines(&mut text, &cuda::probe());
    let ffmpeg = media::doctor();
    text.push_str("\nFFmpeg\n");
    line(&mut text, true, "FFmpeg", &format!("{} ({})", ffmpeg.version, ffmpeg.license));
    for (library, built, loaded) in &ffmpeg.libraries {
        let detail = if built == loaded { loaded.clone() } else { format!("{loaded} (built against {built})") };
        line(&mut text, true, library, &detail);
    }
    for part in &ffmpeg.parts {
        let detail = if part.found { part.purpose.to_owned() } else { format!("{}: this FFmpeg was built without it", part.purpose) };
        line(&mut text, part.found, &format!("{} {}", part.kind, part.name), &detail);
    }
    text.push_str("\nCameras\n");
    if ffmpeg.cameras.is_empty() {
        line(&mut text, false, "camera", "none found (/dev/video*; is the user in the group video?)");
    }
    for (path, name) in &ffmpeg.cameras {
        line(&mut text, true, path, name);
    }
    text
}

fn cuda_lines(text: &mut String, report: &cuda::Report) {
    match &report.driver {
        Ok((major, minor)) => line(text, true, "CUDA driver", &format!("supports CUDA {major}.{minor}")),
        Err(why) => line(text, false, "CUDA driver", why),
    }
    match &report.devices {
        Ok(devices) => {
            for d in devices {
                let gib = d.memory_bytes as f64 / f64::from(1 << 30);
                line(
                    text,
                    true,
                    &format!("GPU {}", d.index),
                    &format!("{} ({}, {gib:.0} GiB, {} multiprocessors)", d.name, d.arch(), d.multiprocessors),
                );
            }
        }
        // Without a driver the line above says all there is to say.
        Err(why) if report.driver.is_ok() => line(text, false, "GPU", why),
        Err(_) => {}
    }
    match &report.compiler {
        Ok((path, (major, minor))) => line(text, true, "NVRTC", &format!("{major}.{minor} at {}", path.display())),
        Err(why) => line(text, false, "NVRTC", why),
    }
    match &report.pack {
        Ok(Some((path, kernels))) => {
            let place = path.as_ref().map_or("embedded".to_owned(), |p| p.display().to_string());
            line(text, true, "kernel pack", &format!("{kernels} kernels, {place}"));
        }
        // Only needed where there is no NVRTC.
        Ok(None) if report.compiler.is_ok() => {}
        Ok(None) => line(text, false, "kernel pack", "none; `convoy kernels pack` makes one on a machine with NVRTC"),
        Err(why) => line(text, false, "kernel pack", why),
    }
    for (index, store) in report.tuning.iter().enumerate() {
        let place = store.path().map_or(String::new(), |path| format!(", {}", path.display()));
        let detail =
            if store.is_empty() { "none; `convoy bench --tune` makes some".to_owned() } else { format!("{} cases{place}", store.len()) };
        let detail = store.note().map_or(detail.clone(), |note| format!("{detail}\n{note}"));
        line(text, !store.is_empty(), &format!("measured times, GPU {index}"), &detail);
    }
    match &report.cache {
        Some(folder) => line(text, true, "kernel cache", &folder.display().to_string()),
        None => line(text, false, "kernel cache", "no writable cache folder: kernels are compiled in every run"),
    }
}

fn line(text: &mut String, found: bool, what: &str, detail: &str) {
    let mark = if found { "found  " } else { "missing" };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  {mark} {what:<28} {}", detail.replace('\n', "\n                                       "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::tuning::Tuning;

    #[test]
    fn measured_times_are_listed_and_those_of_other_kernels_said_to_be_void() {
        let folder = tempfile::tempdir().unwrap();
        let device = cuda::device::DeviceInfo::made_up("GPU-1");
        let old = r#"{"format": 1, "gpu": "GPU-1", "name": "a GPU", "driver": "13.0", "tasks": {"x": {"tiled": 9.5}}}"#;
        std::fs::write(folder.path().join("GPU-1.json"), old).unwrap();
        let report = cuda::Report { tuning: vec![Tuning::open_in(Some(folder.path()), &device, (13, 0))], ..cuda::probe() };
        let mut text = String::new();
        cuda_lines(&mut text, &report);
        assert!(text.contains("missing measured times, GPU 0") && text.contains("time of 1 case is not used"), "{text}");
    }
}
