//! One error type: what was tried, on what, why it failed, what to do.

use std::fmt;

/// How the process ends for an error; see [`Error::exit_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The work failed: exit code 1.
    Failed,
    /// The command line or a filter graph is wrong: exit code 2.
    Usage,
    /// A neighbouring stage went away; never the first cause, dropped by the pipeline's join.
    Disconnected,
}

/// An error that a user can act on. Displays as `operation: cause` and, on a line of its own, the hint.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    kind: Kind,
    operation: String,
    cause: String,
    hint: Option<String>,
    also: Option<Box<Error>>,
}

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The work failed. `operation` says what was tried and on what ("cannot open input 'x.mp4'"), `cause` why.
    pub fn failed(operation: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { kind: Kind::Failed, operation: operation.into(), cause: cause.to_string(), hint: None, also: None }
    }

    /// The user asked for something impossible.
    pub fn usage(operation: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self { kind: Kind::Usage, ..Self::failed(operation, cause) }
    }

    /// The other end of a channel is gone; the reason is that neighbour's error.
    pub fn disconnected(stage: &str) -> Self {
        Self { kind: Kind::Disconnected, ..Self::failed(stage, "the neighbouring stage stopped") }
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds an error that came after this one, to be told after it.
    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        self.also = Some(Box::new(later));
        self
    }

    /// Prefixes the operation, for context that only the caller knows (a stage, a file).
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.operation = format!("{what}: {}", self.operation);
        self
    }

    /// What kind of end this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Process exit code: 1 failed, 2 usage.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Failed | Kind::Disconnected => 1,
            Kind::Usage => 2,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.operation.is_empty(), self.cause.is_empty()) {
            (true, _) => write!(f, "{}", self.cause)?,
            (_, true) => write!(f, "{}", self.operation)?,
            _ => write!(f, "{}: {}", self.operation, self.cause)?,
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        if let Some(also) = &self.also {
            write!(f, "\n  also: {also}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_operation_cause_and_hint() {
        let e = Error::failed("cannot open 'a.mp4'", "No such file").hint("check the name").context("decode");
        assert_eq!(e.to_string(), "decode: cannot open 'a.mp4': No such file\n  hint: check the name");
        assert_eq!(e.exit_code(), 1);
        let both = Error::failed("first", "a").and(Error::usage("second", "b"));
        assert_eq!((both.to_string().as_str(), both.exit_code()), ("first: a\n  also: second: b", 1));
        assert_eq!(Error::usage("bad graph", "x").exit_code(), 2);
    }
}
