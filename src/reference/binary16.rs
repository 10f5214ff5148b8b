//! IEEE 754's binary16 from its definition, in plain arithmetic: 11 significant bits, steps of 2⁻²⁴ below 2⁻¹⁴, nothing
//! beyond 65504.

/// The largest finite half.
const LARGEST: f64 = 65504.0;

/// Distance between the halves on both sides of `value`: 2^(e − 10) from 2^e on, 2⁻²⁴ at least.
pub(super) fn spacing(value: f64) -> f64 {
    let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32 - 1023).clamp(-14, 15);
    f64::from(exponent - 10).exp2()
}

/// The half nearest to `value`, of two the one whose last bit is 0; infinity from 65520 on.
pub(super) fn nearest(value: f64) -> f64 {
    if !value.is_finite() {
        return value;
    }
    let unit = spacing(value);
    let rounded = (value / unit).round_ties_even() * unit;
    if rounded.abs() > LARGEST { f64::INFINITY.copysign(value) } else { rounded }
}

/// How far `value` lies from the numbers whose nearest half is `half`; 0 if it is one of them.
pub(super) fn distance(half: f64, value: f64) -> f64 {
    if half.is_infinite() && value.is_finite() {
        // From here on numbers are rounded to infinity.
        return (LARGEST + spacing(LARGEST) / 2.0 - value * half.signum()).max(0.0);
    }
    let away_from_zero = (value > half) == (half >= 0.0);
    let gap = spacing(if away_from_zero { half } else { half * (1.0 - (-20f64).exp2()) });
    let off = (half - value).abs() - gap / 2.0;
    // Not `max`, which would make a number of a NaN.
    if off <= 0.0 || half == value { 0.0 } else { off }
}

/// The bits of the half nearest to `value`.
pub(super) fn bits(value: f64) -> u16 {
    let value = nearest(value);
    let sign = u16::from(value.is_sign_negative()) << 15;
    let size = value.abs();
    if value.is_nan() {
        return 0x7e00;
    }
    if size.is_infinite() {
        return sign | 0x7c00;
    }
    let unit = spacing(size);
    let steps = (size / unit) as u16;
    // Without the leading bit, which numbers below 2^-14 do not have, the exponent counts from 1 at 2^-14.
    let exponent = (unit.log2() as i32 + 24) as u16;
    sign | if steps < 1024 { steps } else { (exponent + 1) << 10 | (steps - 1024) }
}

/// The value of a half's bits.
pub(super) fn value(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size = match exponent {
        0 => fraction * (-24f64).exp2(),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * f64::from(exponent - 25).exp2(),
    };
    if sign == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_itself_and_the_crate_agrees() {
        for code in 0..=u16::MAX {
            let half = half::f16::from_bits(code);
            if half.is_nan() {
                assert!(value(code).is_nan() && half::f16::from_bits(bits(value(code))).is_nan(), "{code:04x}");
                continue;
            }
            assert_eq!(value(code), half.to_f64(), "{code:04x}");
            assert_eq!((nearest(value(code)), bits(value(code))), (value(code), code), "{code:04x}");
        }
    }

    #[test]
    fn what_lies_between_goes_to_the_nearest_and_ties_to_even() {
        for code in 0..0x7bffu16 {
            let (low, high) = (value(code), value(code + 1));
            let middle = (low + high) / 2.0;
            assert_eq!((high - low, spacing(middle)), (spacing(low), spacing(low)), "{code:04x}");
            assert_eq!(bits(middle), code + code % 2, "{code:04x}");
            assert_eq!((bits(middle - spacing(low) / 1024.0), bits(middle + spacing(low) / 1024.0)), (code, code + 1), "{code:04x}");
            assert_eq!(nearest(-middle), -nearest(middle));
        }
        assert_eq!((nearest(65519.9), nearest(65520.0), nearest(-1e9)), (LARGEST, f64::INFINITY, f64::NEG_INFINITY));
        for half in [1.0, 0.75, 1e-3, -1.0, 65504.0, -65504.0].map(nearest) {
            for other in [value(bits(half) - 1), value(bits(half) + 1)].into_iter().filter(|other| other.is_finite()) {
                let middle = (half + other) / 2.0;
                assert_eq!((distance(half, half), distance(half, middle)), (0.0, 0.0));
                assert_eq!(distance(half, other), (other - half).abs() / 2.0, "{half} {other}");
            }
        }
        assert_eq!(
            (distance(f64::INFINITY, 7e4), distance(f64::INFINITY, 65504.0), distance(-1.0, 1.0)),
            (0.0, 16.0, 2.0 - (-12f64).exp2())
        );
        assert!(distance(f64::NAN, 1.0).is_nan() && distance(1.0, f64::NAN).is_nan() && distance(1.0, f64::INFINITY).is_infinite());
        assert_eq!((nearest(1e-9), bits(0.0), bits(-0.0)), (0.0, 0, 0x8000));
    }
}
