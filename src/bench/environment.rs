//! The machine that a bench ran on.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use super::child::Program;
use super::row::Environment;
use crate::backend::Device;
use crate::backend::cpu::Cpu;
use crate::backend::cuda;
use crate::pool::system_memory;

impl Environment {
    /// Looks around, and asks `ffmpeg`, the program, what it is.
    pub(super) fn survey(ffmpeg: &Program) -> Self {
        let report = cuda::probe();
        let gpu = report.devices.as_ref().ok().and_then(|d| d.first()).map(|d| format!("{} ({})", d.name, d.arch()));
        let dotted = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let model = file("/proc/cpuinfo").lines().find_map(|l| Some(l.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
        Self {
            convoy: env!("CARGO_PKG_VERSION").to_owned(),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            os: format!("{} {}", file("/proc/sys/kernel/ostype"), file("/proc/sys/kernel/osrelease")),
            cpu: format!("{}; {}", model.unwrap_or_else(|| "unknown model".to_owned()), Cpu.describe()),
            cpu_threads: Cpu::threads(),
            memory: system_memory("MemTotal"),
            gpu,
            driver: report.driver.ok().map(dotted),
            nvrtc: report.compiler.ok().map(|(_, version)| dotted(version)),
            ffmpeg: ffmpeg_version(ffmpeg),
            missing: Vec::new(),
        }
    }

    /// What the machine is, in a few lines.
    pub fn summary(&self) -> String {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        format!(
            "convoy {}, {}\ncpu    {}\ngpu    {} (driver {}, NVRTC {})\nffmpeg {}",
            self.convoy,
            self.date,
            self.cpu,
            or_none(&self.gpu),
            or_none(&self.driver),
            or_none(&self.nvrtc),
            or_none(&self.ffmpeg)
        )
    }
}

fn ffmpeg_version(ffmpeg: &Program) -> Option<String> {
    let mut command = Command::new("ffmpeg");
    command.arg("-version");
    let output = ffmpeg.output(command).ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next()?.split(" Copyright").next()?.to_owned())
}

/// Seconds since 1970 as ISO 8601, UTC, in the Gregorian calendar.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z", day + 1, rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::super::child::{Custody, tests::LIMIT};
    use super::*;

    #[test]
    fn dates_are_gregorian() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_799, "2024-02-28T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn the_survey_names_the_machine() {
        let environment = Environment::survey(&Program::new("ffmpeg", &Custody::default(), LIMIT));
        assert!(environment.cpu_threads > 0 && environment.cpu.contains("thread") && environment.date.starts_with("20"));
        assert!(environment.summary().contains("gpu"));
    }
}
