//! Parse, install the signal handlers, call one command, map the error to an exit code.

use std::io::Write;
use std::process::ExitCode;

use convoy::cancel::Cancel;
use convoy::cli::{self, Command};
use convoy::error::{Error, Result};
use convoy::{bench, doctor, filter, run, signals};

fn main() -> ExitCode {
    // A stage's panic becomes that stage's error; the default hook would print a backtrace besides.
    std::panic::set_hook(Box::new(|_| {}));
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout, usage errors to stderr; a closed pipe there leaves nobody to tell.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match std::panic::catch_unwind(|| dispatch(cli)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            eprintln!("convoy: {error}");
            ExitCode::from(error.exit_code())
        }
        Err(_) => {
            eprintln!("convoy: internal error; please report the command line");
            ExitCode::from(1)
        }
    }
}

fn dispatch(cli: cli::Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Run(args) => {
            let cancel = Cancel::new();
            signals::install(&cancel)?;
            run::run(&args, &cancel)
        }
        Command::Filters { name: None } => print(&filter::list()),
        Command::Filters { name: Some(name) } => print(&filter::describe(&name)?),
        Command::Bench(args) => bench::bench(&args),
        Command::Doctor => print(&doctor::report()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            cli::completions(shell, &mut script);
            print_bytes(&script)
        }
        Command::Man => {
            let mut page = Vec::new();
            cli::man(&mut page)?;
            print_bytes(&page)
        }
    }
}

fn print(text: &str) -> Result<ExitCode> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    print_bytes(format!("{text}{end}").as_bytes())
}

/// Writes a result to stdout. A reader that has seen enough (`| head`) is no failure.
fn print_bytes(bytes: &[u8]) -> Result<ExitCode> {
    match std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::failed("cannot write to stdout", e)),
        _ => Ok(ExitCode::SUCCESS),
    }
}
