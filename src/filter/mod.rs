//! Filters as values: what they are called, their parameters, and what they do to each plane ([`plan`]).

pub mod math;
pub mod plan;

/// What lies outside the plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Border {
    /// The edge sample repeated: `aaa|abcd|ddd`.
    #[default]
    Clamp,
    /// Zero.
    Zero,
    /// Mirrored with the edge sample: `cba|abcd|dcb`.
    Reflect,
    /// Mirrored without the edge sample: `dcb|abcd|cba`.
    Reflect101,
    /// Continued periodically: `bcd|abcd|abc`.
    Wrap,
}

impl Border {
    /// Every border, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Clamp, Self::Zero, Self::Reflect, Self::Reflect101, Self::Wrap];

    /// The name in a filter graph.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clamp => "clamp",
            Self::Zero => "zero",
            Self::Reflect => "reflect",
            Self::Reflect101 => "reflect101",
            Self::Wrap => "wrap",
        }
    }
}
