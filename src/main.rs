//! Parse, install the signal handlers, call one command, map the error to an exit code.

use std::process::ExitCode;

use convoy::cancel::Cancel;
use convoy::cli::{self, Command, KernelsCommand};
use convoy::error::Result;
use convoy::{bench, compare, doctor, filter, kernels, run, signals, status, variants, verify};

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
            status::say(error.to_string());
            ExitCode::from(error.exit_code())
        }
        Err(_) => {
            status::say("internal error; please report the command line");
            ExitCode::from(1)
        }
    }
}

fn dispatch(cli: cli::Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Run(args) => {
            let cancel = Cancel::new();
            signals::install(&cancel)?;
            return run::run(&args, &cancel);
        }
        Command::Filters { name: None } => status::print(&filter::list())?,
        Command::Filters { name: Some(name) } => status::print(&filter::describe(&name)?)?,
        Command::Bench(args) => {
            let custody = bench::child::Custody::default();
            let ends = custody.clone();
            signals::install_ending(move || ends.end())?;
            return bench::bench(&args, &custody);
        }
        Command::Variants(args) => status::print(&variants::report(&args)?)?,
        Command::Kernels { command: KernelsCommand::Pack(args) } => kernels::pack(&args)?,
        Command::Compare(args) => {
            let cancel = Cancel::new();
            signals::install(&cancel)?;
            return compare::compare(&args, &cancel);
        }
        Command::Verify(args) => return verify::verify(&args),
        Command::Doctor => status::print(&doctor::report())?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            cli::completions(shell, &mut script);
            status::print_bytes(&script)?;
        }
        Command::Man { command } => {
            let mut page = Vec::new();
            cli::man(command.as_deref(), &mut page)?;
            status::print_bytes(&page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
