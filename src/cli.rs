//! The command line: flags to validated plans. Parsing does no work.

use std::ffi::OsString;

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

use crate::backend::Choice;
use crate::error::{Error, Result};

mod bench;
mod encoding;
mod inspect;
mod run;
mod selection;
mod values;

pub use bench::{BenchArgs, Level, Preset};
pub use encoding::{EncodingArgs, OddArg};
pub use inspect::{CompareArgs, KernelsCommand, PackArgs, VariantsArgs, VerifyArgs};
pub use run::{Progress, RunArgs, StatsForm};
pub use selection::{Fields, GapsArg, OnChangeArg, SelectionArgs};
pub use values::parse_size;

/// Filters video in real time, on CUDA or the CPU.
#[derive(Debug, Parser)]
#[command(name = "convoy", version, about, max_term_width = 110, propagate_version = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  convoy run in.mp4 -o out.mp4 --vf gblur=sigma=2      blur a video, keep its sound
  convoy run in.mkv -o out.mkv --vf unsharp,sobel -y   a chain of filters, overwrite out.mkv
  convoy run in.mp4 -o null: --vf gblur=2 --stats      measure, write nothing
  convoy filters gblur                                 parameters of one filter
  convoy variants --vf gblur=5                         the kernels that could run a graph, and which one would
  convoy doctor                                        what this machine offers

Results go to stdout, status to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130/143 interrupted (the output is
valid but partial).";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Filter a video.
    Run(Box<RunArgs>),
    /// List filters, or show one filter's parameters, formula and example.
    Filters {
        /// A filter's name.
        name: Option<String>,
    },
    /// Measure frames per second, beside ffmpeg and the device's copy rate.
    Bench(Box<BenchArgs>),
    /// List kernel variants: what each needs, moves and costs, and which one `auto` would choose.
    Variants(VariantsArgs),
    /// Compiled kernels for machines without NVRTC.
    Kernels {
        /// What to do.
        #[command(subcommand)]
        command: KernelsCommand,
    },
    /// Hold kernel variants to the reference: sizes, borders, sample types; exit code 1 if one fails.
    Verify(VerifyArgs),
    /// Compare two clips: PSNR and SSIM per plane, largest difference, frame count and times.
    Compare(CompareArgs),
    /// Report driver, GPU, NVRTC, FFmpeg, codecs and cameras: found, or how to get them.
    Doctor,
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print a manual page (roff): the program's, or one command's. View it with `convoy man run | man -l -`.
    Man {
        /// A command, e.g. run.
        command: Option<String>,
    },
}

/// `--backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// CUDA when it works, else the CPU.
    #[default]
    Auto,
    /// CUDA or an error.
    Cuda,
    /// The CPU.
    Cpu,
}

impl From<Backend> for Choice {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Auto => Self::Auto,
            Backend::Cuda => Self::Cuda,
            Backend::Cpu => Self::Cpu,
        }
    }
}

impl Backend {
    /// The name as typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        }
    }
}

/// Parses the process's arguments. ffmpeg's spellings `-c:v`, `-vf`, `-crf`, `-preset` are accepted for ours.
///
/// # Errors
/// Clap's: wrong usage, or help and version as text.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    const SINGLE_DASH: [&str; 10] = ["-c:v", "-vf", "-crf", "-preset", "-frames", "-pix_fmt", "-ss", "-to", "-map", "-re"];
    let args = args.into_iter().map(|arg| match arg.to_str() {
        Some("-pix_fmt") => "--pix-fmt".into(),
        Some(text) if SINGLE_DASH.contains(&text) => format!("-{text}").into(),
        _ => arg,
    });
    Cli::try_parse_from(args)
}

/// Writes the completion script for `shell`.
pub fn completions(shell: clap_complete::Shell, out: &mut dyn std::io::Write) {
    clap_complete::generate(shell, &mut Cli::command(), "convoy", out);
}

/// Writes the manual page of the program, or of one of its commands.
///
/// # Errors
/// There is no such command, or the write failed.
pub fn man(name: Option<&str>, out: &mut dyn std::io::Write) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    if let Some(name) = name {
        let found = command.find_subcommand(name).cloned();
        command =
            found.ok_or_else(|| Error::usage(format!("there is no command '{name}'"), "").hint("`convoy --help` lists the commands"))?;
    }
    clap_mangen::Man::new(command).render(out).map_err(|e| Error::failed("cannot write the manual page", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_args(args: &[&str]) -> RunArgs {
        let all = ["convoy", "run"].iter().chain(args).map(OsString::from);
        match parse(all).unwrap().command {
            Command::Run(run) => *run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clap_finds_the_definition_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ffmpegs_spellings_are_understood() {
        let args = run_args(&[
            "a", "-o", "b", "-c:v", "ffv1", "-vf", "sobel", "-crf", "20", "--stats", "--memory", "1.5G", "-ss", "1.5", "-map", "-a",
        ]);
        assert_eq!(
            (args.codec.as_deref(), args.vf.as_str(), args.crf, args.stats),
            (Some("ffv1"), "sobel", Some(20.0), Some(StatsForm::Text))
        );
        assert_eq!((args.memory, args.selection.ss, args.selection.map), (Some(3 << 29), Some(1_500_000), vec!["-a".to_owned()]));
        assert_eq!(run_args(&["a", "-o", "b", "--bitrate", "4M", "--two-pass"]).bitrate, Some(4_000_000));
        assert_eq!(run_args(&["a", "-o", "-", "--stats=json"]).stats, Some(StatsForm::Json));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (bad, word) in [
            ("--frames=0", "frames"),
            ("--lanes=0", "lanes"),
            ("--memory=x", "memory"),
            ("--enc-opt=x", "KEY=VALUE"),
            ("--backend=tpu", "backend"),
            ("--ss=x", "--ss"),
            ("--two-pass", "--bitrate"),
        ] {
            let error = parse(["convoy", "run", "a", "-o", "b", bad].iter().map(OsString::from)).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(parse_size("0x4").is_err() && parse_size("4").is_err());
    }
}
