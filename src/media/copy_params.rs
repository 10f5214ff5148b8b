//! `--codec copy-params`: the encoder, and the profile, that come closest to the input's.

use ffmpeg_next::ffi;

use super::info::SourceInfo;
use super::output::EncodeSpec;
use super::owned;
use crate::error::{Error, Result};

/// What the user writes instead of an encoder's name.
pub(super) const COPY_PARAMS: &str = "copy-params";

/// `spec` with the input's codec and profile in the place of [`COPY_PARAMS`].
///
/// # Errors
/// This FFmpeg cannot encode the input's codec.
pub(super) fn resolve(spec: &EncodeSpec, info: &SourceInfo) -> Result<EncodeSpec> {
    let mut spec = spec.clone();
    if spec.codec.as_deref() != Some(COPY_PARAMS) {
        return Ok(spec);
    }
    let Some(params) = info.video_stream().map(|s| s.params.get()) else { return Ok(spec) };
    let Some(encoder) = encoder_for(params.codec_id) else {
        return Err(Error::failed("cannot keep the input's codec", format!("this FFmpeg has no encoder for {}", info.codec))
            .hint("name one with -c:v; convoy doctor lists those found"));
    };
    let own = |(key, _): &(String, String)| key == "profile";
    if let Some(profile) = profile(&encoder, params.profile).filter(|_| !spec.options.iter().any(own)) {
        spec.options.push(("profile".to_owned(), profile.to_owned()));
    }
    spec.codec = Some(encoder);
    Ok(spec)
}

/// The encoder that writes a codec best.
fn encoder_for(id: ffi::AVCodecID) -> Option<String> {
    use ffi::AVCodecID::*;
    let preferred: &[&std::ffi::CStr] = match id {
        AV_CODEC_ID_H264 => &[c"libx264"],
        AV_CODEC_ID_HEVC => &[c"libx265"],
        AV_CODEC_ID_VP8 => &[c"libvpx"],
        AV_CODEC_ID_VP9 => &[c"libvpx-vp9"],
        AV_CODEC_ID_AV1 => &[c"libsvtav1", c"libaom-av1"],
        AV_CODEC_ID_PRORES => &[c"prores_ks"],
        _ => &[],
    };
    // SAFETY: lookups by terminated names and an id; results are null or static.
    unsafe {
        let named = preferred.iter().map(|name| ffi::avcodec_find_encoder_by_name(name.as_ptr())).find(|codec| !codec.is_null());
        let codec = named.unwrap_or_else(|| ffi::avcodec_find_encoder(id));
        codec.as_ref().and_then(|codec| owned::text(codec.name))
    }
}

/// What the encoder calls a profile number of FFmpeg's; None where it follows from the pixel format, or is unknown.
fn profile(encoder: &str, number: i32) -> Option<&'static str> {
    let names: &[(i32, &'static str)] = match encoder {
        "libx264" => &[
            (ffi::FF_PROFILE_H264_BASELINE, "baseline"),
            (ffi::FF_PROFILE_H264_CONSTRAINED_BASELINE, "baseline"),
            (ffi::FF_PROFILE_H264_MAIN, "main"),
            (ffi::FF_PROFILE_H264_HIGH, "high"),
            (ffi::FF_PROFILE_H264_HIGH_10, "high10"),
            (ffi::FF_PROFILE_H264_HIGH_422, "high422"),
            (ffi::FF_PROFILE_H264_HIGH_444_PREDICTIVE, "high444"),
        ],
        "libx265" => &[(ffi::FF_PROFILE_HEVC_MAIN, "main"), (ffi::FF_PROFILE_HEVC_MAIN_10, "main10")],
        "prores_ks" => &[(0, "proxy"), (1, "lt"), (2, "standard"), (3, "hq"), (4, "4444"), (5, "4444xq")],
        "dnxhd" => &[(0, "dnxhd"), (1, "dnxhr_lb"), (2, "dnxhr_sq"), (3, "dnxhr_hq"), (4, "dnxhr_hqx"), (5, "dnxhr_444")],
        _ => &[],
    };
    names.iter().find(|&&(known, _)| known == number).map(|&(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_find_their_best_encoder_and_profiles_their_names() {
        assert_eq!(encoder_for(ffi::AVCodecID::AV_CODEC_ID_H264).as_deref(), Some("libx264"));
        assert_eq!(encoder_for(ffi::AVCodecID::AV_CODEC_ID_FFV1).as_deref(), Some("ffv1"));
        assert_eq!(encoder_for(ffi::AVCodecID::AV_CODEC_ID_INDEO3), None);
        assert_eq!((profile("libx264", 110), profile("prores_ks", 4), profile("libx264", -99)), (Some("high10"), Some("4444"), None));
    }
}
