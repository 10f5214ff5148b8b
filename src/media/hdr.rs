//! What a picture says about its brightness: HDR10's fixed metadata, which is passed on, and the changing kinds, which are
//! named when they are lost.

use ffmpeg_next::ffi;

use super::owned::AvFrame;

/// Why the changing kinds are left out.
pub(super) const DYNAMIC: &str = "metadata is left out: it describes the unfiltered pictures one by one, and no encoder here writes it";

/// Metadata for high dynamic range, as the stream or its first picture carries it.
#[derive(Clone, Debug, Default)]
pub(super) struct Hdr {
    /// AVMasteringDisplayMetadata, byte for byte: the display on which the picture was graded.
    pub mastering: Option<Vec<u8>>,
    /// AVContentLightMetadata, byte for byte: brightest sample and brightest mean.
    pub light: Option<Vec<u8>>,
    /// Kinds that change with every picture, which no encoder here can write, as the container says: "Dolby Vision", "HDR10+".
    /// (The pictures' own word is in `riders`.)
    pub dynamic: Vec<&'static str>,
}

impl Hdr {
    /// What the container says.
    pub(super) fn of_stream(side_data: &[(ffi::AVPacketSideDataType, Vec<u8>)]) -> Self {
        use ffi::AVPacketSideDataType::*;
        let find = |kind| side_data.iter().find(|(k, _)| *k == kind).map(|(_, bytes)| bytes.clone());
        let mut hdr = Self {
            mastering: find(AV_PKT_DATA_MASTERING_DISPLAY_METADATA),
            light: find(AV_PKT_DATA_CONTENT_LIGHT_LEVEL),
            dynamic: Vec::new(),
        };
        if find(AV_PKT_DATA_DOVI_CONF).is_some() {
            hdr.changes("Dolby Vision");
        }
        if find(AV_PKT_DATA_DYNAMIC_HDR10_PLUS).is_some() {
            hdr.changes("HDR10+");
        }
        hdr
    }

    /// Adds what the first picture says; it knows better than the container.
    pub(super) fn refine(&mut self, frame: &AvFrame) {
        use ffi::AVFrameSideDataType::*;
        self.mastering = frame.side_data(AV_FRAME_DATA_MASTERING_DISPLAY_METADATA).map(<[u8]>::to_vec).or(self.mastering.take());
        self.light = frame.side_data(AV_FRAME_DATA_CONTENT_LIGHT_LEVEL).map(<[u8]>::to_vec).or(self.light.take());
    }

    fn changes(&mut self, name: &'static str) {
        if !self.dynamic.contains(&name) {
            self.dynamic.push(name);
        }
    }

    /// Whether there is anything that a bit stream or a container should carry.
    pub(super) fn is_static(&self) -> bool {
        self.mastering.is_some() || self.light.is_some()
    }

    /// What is lost whatever the encoder, for the user.
    pub(super) fn losses(&self) -> impl Iterator<Item = String> {
        self.dynamic.iter().map(|name| format!("the video's {name} {DYNAMIC}"))
    }

    /// `G(x,y)B(x,y)R(x,y)WP(x,y)L(max,min)` as x264 and x265 take it (ITU-T H.265 D.3.28: chromaticities in units of
    /// 0.00002, luminances in 0.0001 cd/m²); None when the metadata is incomplete.
    fn display(&self) -> Option<String> {
        let words = words(self.mastering.as_deref()?);
        // Ten ratios (R, G, B, white point, each x and y; least and most luminance), then two flags that say which are set.
        let ratio = |index: usize, units: f64| {
            let (num, den) = (*words.get(2 * index)?, *words.get(2 * index + 1)?);
            (den > 0).then(|| (f64::from(num) / f64::from(den) * units).round() as i64)
        };
        if words.get(20).copied().unwrap_or(0) == 0 || words.get(21).copied().unwrap_or(0) == 0 {
            return None;
        }
        let point = |index: usize| Some(format!("({},{})", ratio(index, 50_000.0)?, ratio(index + 1, 50_000.0)?));
        let (red, green, blue, white) = (point(0)?, point(2)?, point(4)?, point(6)?);
        Some(format!("G{green}B{blue}R{red}WP{white}L({},{})", ratio(9, 10_000.0)?, ratio(8, 10_000.0)?))
    }

    fn levels(&self) -> Option<(i32, i32)> {
        let words = words(self.light.as_deref()?);
        Some((*words.first()?, *words.get(1)?))
    }

    /// The encoder option that writes this into the bit stream, and its value; None where the encoder has none.
    pub(super) fn encoder_option(&self, encoder: &str) -> Option<(&'static str, String)> {
        let (option, display, light) = match encoder {
            "libx265" => ("x265-params", "master-display", "max-cll"),
            "libx264" => ("x264-params", "mastering-display", "cll"),
            _ => return None,
        };
        let mut parts = Vec::new();
        parts.extend(self.display().map(|text| format!("{display}={text}")));
        parts.extend(self.levels().map(|(most, mean)| format!("{light}={most},{mean}")));
        (!parts.is_empty()).then(|| (option, parts.join(":")))
    }

    /// The metadata as a container's side data.
    pub(super) fn for_stream(&self) -> impl Iterator<Item = (ffi::AVPacketSideDataType, &[u8])> {
        use ffi::AVPacketSideDataType::*;
        let mastering = self.mastering.as_deref().map(|bytes| (AV_PKT_DATA_MASTERING_DISPLAY_METADATA, bytes));
        let light = self.light.as_deref().map(|bytes| (AV_PKT_DATA_CONTENT_LIGHT_LEVEL, bytes));
        mastering.into_iter().chain(light)
    }
}

/// FFmpeg's structures of integers, in its own byte order.
fn words(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|c| i32::from_ne_bytes([c[0], c[1], c[2], c[3]])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_display_is_written_in_the_standards_units() {
        // BT.2020 primaries, D65, 0.005 to 1000 cd/m².
        let ratios = [(708, 1000), (292, 1000), (170, 1000), (797, 1000), (131, 1000), (46, 1000), (3127, 10_000), (329, 1000)];
        let mut all: Vec<i32> = ratios.iter().flat_map(|&(n, d)| [n, d]).collect();
        all.extend([5, 1000, 1000, 1, 1, 1]);
        let mut hdr = Hdr { mastering: Some(all.iter().flat_map(|w| w.to_ne_bytes()).collect()), ..Hdr::default() };
        hdr.light = Some([1000u32, 400].iter().flat_map(|w| w.to_ne_bytes()).collect());
        let text = "G(8500,39850)B(6550,2300)R(35400,14600)WP(15635,16450)L(10000000,50)";
        assert_eq!(hdr.encoder_option("libx265"), Some(("x265-params", format!("master-display={text}:max-cll=1000,400"))));
        assert_eq!(hdr.encoder_option("libx264"), Some(("x264-params", format!("mastering-display={text}:cll=1000,400"))));
        assert_eq!(hdr.encoder_option("ffv1"), None);
        // Without its flags the display is not known.
        hdr.mastering.as_mut().unwrap()[80..].fill(0);
        assert_eq!(hdr.encoder_option("libx265"), Some(("x265-params", "max-cll=1000,400".to_owned())));
    }
}
