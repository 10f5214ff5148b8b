//! Encoders and their defaults, passes, sequences, damage.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::time::Duration;

use support::clips::{Clips, H264, PICTURE, SOUND};
use support::{convoy, finish_within, stderr};

#[test]
fn gif_gets_a_palette_for_every_picture_and_few_colours_stay_exact() {
    let c = Clips::new();
    // testsrc has few colours, testsrc2 many.
    c.make("few.gif", "-f lavfi -i testsrc=size=64x48:rate=10:duration=0.6");
    c.run("few.gif", "o.gif", &[]);
    let rgba = |name: &str| support::ffmpeg(&["-i", &c.at(name), "-f", "rawvideo", "-pix_fmt", "rgba", "-"]);
    assert!(rgba("o.gif") == rgba("few.gif"), "a GIF changes without a filter");
    c.make("many.mkv", "-f lavfi -i testsrc2=size=64x48:rate=10:duration=0.6 -pix_fmt yuv444p -c:v ffv1");
    for vf in ["gblur=0.01", "gblur=2"] {
        let said = c.run("many.mkv", "o.gif", &["-v", "--vf", vf]);
        assert!(said.contains("every picture gets a palette of its own"), "{said}");
        c.run("many.mkv", "want.mkv", &["-c:v", "ffv1", "--vf", vf]);
        let psnr = support::ffmpeg(&[
            "-i",
            &c.at("o.gif"),
            "-i",
            &c.at("want.mkv"),
            "-lavfi",
            "[0:v]format=gbrp[a];[1:v]format=gbrp[b];[a][b]psnr=stats_file=-",
            "-f",
            "null",
            "-",
        ]);
        let text = String::from_utf8(psnr).unwrap();
        let worst =
            text.lines().filter_map(|l| l.split("psnr_avg:").nth(1)?.split(' ').next()?.parse::<f64>().ok()).fold(f64::MAX, f64::min);
        assert!(worst > 26.0, "{vf}: {worst}");
        assert_eq!(c.frame_hashes("o.gif", &[]).len(), 6);
    }
    // By name the old way is still there.
    c.run("few.gif", "o.gif", &["--pix-fmt", "rgb8"]);
}

#[test]
fn a_gif_goes_into_every_container() {
    let c = Clips::new();
    c.make("a.gif", &format!("{PICTURE} -r 10"));
    for name in ["o.mp4", "o.mkv", "o.mov", "o.webm", "o.ts", "o.apng"] {
        c.run("a.gif", name, &["--vf", "gblur"]);
        assert_eq!(c.frame_hashes(name, &[]).len(), c.frame_hashes("a.gif", &[]).len(), "{name}");
    }
    assert_eq!(c.entry("o.webm", "v", "stream_tags=alpha_mode"), ["1"]);
}

/// Whether this ffmpeg has an encoder.
fn has_encoder(name: &str) -> bool {
    let out = std::process::Command::new("ffmpeg").args(["-hide_banner", "-encoders"]).output().unwrap();
    String::from_utf8_lossy(&out.stdout).split_whitespace().any(|word| word == name)
}

#[test]
fn two_passes_reach_the_rate() {
    let c = Clips::new();
    c.make("a.mkv", "-f lavfi -i testsrc2=size=160x120:rate=25:duration=4,noise=alls=20:allf=t -f lavfi -i sine=duration=4 -pix_fmt yuv420p -c:v ffv1 -c:a flac");
    let further = [("libtheora", vec!["-c:v", "libtheora"]), ("libaom-av1", vec!["-c:v", "libaom-av1", "--enc-opt", "cpu-used=8"])];
    let further = further.into_iter().filter(|(encoder, _)| has_encoder(encoder)).map(|(_, args)| ("r.mkv", args));
    for (name, args) in
        [("o.mkv", vec!["-c:v", "libx264"]), ("p.mkv", vec!["-c:v", "libx265"]), ("q.webm", vec!["--enc-opt", "cpu-used=8"])]
            .into_iter()
            .chain(further)
    {
        let said = c.run("a.mkv", name, &[vec!["--bitrate", "200k", "--two-pass", "-v", "--vf", "gblur=1"], args].concat());
        assert!(said.contains("first pass of two"), "{said}");
        let bytes: f64 = c.packets(name, "v", "size").iter().sum();
        let rate = bytes * 8.0 / 4.0;
        assert!((150e3..260e3).contains(&rate) && c.packets(name, "v", "size").len() == 100, "{name}: {rate}");
    }
    // Matroska's clock of milliseconds is no frame rate: one pass reaches the rate too.
    let theora = has_encoder("libtheora").then_some("libtheora");
    for encoder in ["libx264", "mpeg4", "libvpx-vp9", "mpeg2video"].into_iter().chain(theora) {
        let mut args = vec!["--bitrate", "300k", "-c:v", encoder];
        args.extend(if encoder == "libvpx-vp9" { vec!["--enc-opt", "cpu-used=8"] } else { vec![] });
        c.run("a.mkv", "s.mkv", &args);
        let rate = c.packets("s.mkv", "v", "size").iter().sum::<f64>() * 8.0 / 4.0;
        assert!((150e3..750e3).contains(&rate), "{encoder}: {rate}");
        assert_eq!(c.packets("s.mkv", "v", "size").len(), 100, "{encoder}");
    }
    for (args, word) in [
        (vec!["--two-pass", "--bitrate", "200k", "-c:v", "ffv1"], "two passes"),
        (vec!["--two-pass", "--bitrate", "200k", "-c:v", "mpeg4"], "may end the program in its second pass"),
        (vec!["--two-pass", "--bitrate", "200k", "-c:v", "mpeg2video"], "or choose libx264, libx265, libvpx-vp9 or libaom-av1"),
        (vec!["--two-pass"], "--bitrate"),
        (vec!["--crf", "20", "--bitrate", "200k"], "cannot be used with"),
    ] {
        let done = c.try_run("a.mkv", "none.mkv", &args);
        assert!(done.status.code() == Some(2) && stderr(&done).contains(word), "{args:?}: {}", stderr(&done));
    }
    let mut piped = convoy();
    piped.args(["run", "-", "-o", &c.at("none.mkv"), "--two-pass", "--bitrate", "1M"]);
    let done = finish_within(piped, Duration::from_secs(5));
    assert!(done.status.code() == Some(2) && stderr(&done).contains("read twice"), "{}", stderr(&done));
    assert!(!std::path::Path::new(&c.at("none.mkv")).exists());
}

#[test]
fn copy_params_keeps_codec_and_profile() {
    let c = Clips::new();
    for (name, args) in [
        ("a.mp4", "-pix_fmt yuv420p -c:v libx264 -profile:v main -preset ultrafast"),
        ("b.mkv", "-pix_fmt yuv422p10le -c:v libx264 -preset ultrafast"),
        ("c.mkv", "-pix_fmt yuv420p10le -c:v libx265 -preset ultrafast -x265-params log-level=none"),
        ("d.mov", "-pix_fmt yuv422p10le -c:v prores_ks -profile:v lt"),
        ("e.mkv", "-pix_fmt yuv444p -c:v ffv1"),
        ("f.webm", "-pix_fmt yuv420p -c:v libvpx-vp9 -cpu-used 8 -deadline realtime"),
        ("g.avi", "-pix_fmt yuv420p -c:v mpeg4"),
        ("h.mxf", "-pix_fmt yuv422p -c:v mpeg2video"),
        ("i.mov", "-pix_fmt yuv422p10le -vf scale=1280:720 -r 25 -c:v dnxhd -profile:v dnxhr_hqx -frames:v 2"),
    ] {
        c.make(name, &format!("{PICTURE} {args}"));
        let out = format!("o.{}", name.rsplit('.').next().unwrap());
        c.run(name, &out, &["--codec", "copy-params", "--vf", "gblur"]);
        let kind = |name: &str| c.entry(name, "v", "stream=codec_name,profile,pix_fmt");
        assert_eq!(kind(&out), kind(name), "{name}");
    }
    let done = c.try_run("a.mp4", "none.webm", &["--codec", "copy-params"]);
    assert!(!done.status.success() && stderr(&done).contains("webm cannot hold h264"), "{}", stderr(&done));
}

#[test]
fn nvenc_without_a_gpu_says_what_it_needs() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        println!("skipped: this machine has a GPU");
        return;
    }
    let c = Clips::new();
    c.make("a.mp4", &format!("{PICTURE} {H264}"));
    for name in ["h264_nvenc", "hevc_nvenc", "nosuch_nvenc"] {
        let done = c.try_run("a.mp4", "none.mp4", &["-c:v", name]);
        let said = stderr(&done);
        assert!(!done.status.success() && said.contains(name) && said.contains("-c:v libx264"), "{said}");
        assert!(!std::path::Path::new(&c.at("none.mp4")).exists());
    }
}

#[test]
fn a_missing_image_is_refused_skipped_or_held() {
    let c = Clips::new();
    c.make("f_%03d.png", &format!("{PICTURE} -start_number 7"));
    for n in [12, 20, 21] {
        std::fs::remove_file(c.at(&format!("f_{n:03}.png"))).unwrap();
    }
    let done = c.try_run("f_%03d.png", "none.mkv", &[]);
    assert!(
        done.status.code() == Some(1) && stderr(&done).contains("f_012.png' is missing (3 numbers are missing in all)"),
        "{}",
        stderr(&done)
    );
    for (gaps, last) in [("skip", 21.0), ("hold", 24.0)] {
        let said = c.run("f_%03d.png", "o.mkv", &["--gaps", gaps, "--vf", "gblur"]);
        assert!(said.contains("warning: 3 images are missing from the sequence, the first after number 11"), "{said}");
        let times = c.times("o.mkv", "v");
        assert!(times.len() == 22 && (times.last().unwrap() - last * 0.04).abs() < 0.0011, "{gaps}: {times:?}");
    }
    // Image sequences come out as they went in.
    c.make("g_%02d.png", &format!("{PICTURE} -frames:v 4"));
    c.run("g_%02d.png", "h_%02d.png", &["--vf", "gblur"]);
    let made =
        std::fs::read_dir(c.folder()).unwrap().filter(|e| e.as_ref().unwrap().file_name().to_str().unwrap().starts_with("h_")).count();
    assert_eq!(made, 4);
}

#[test]
fn strange_names_are_names() {
    let c = Clips::new();
    c.make("a.mkv", &format!("{PICTURE} {H264}"));
    for name in ["100%.mkv", "50%d.mkv", "a:b.mkv", "x y'z\".mkv", "-lead.mkv", "%.mkv", "ü.mkv"] {
        let run = |args: &[&str]| {
            let mut command = convoy();
            command.current_dir(c.folder()).args(args).args(["--backend", "cpu", "--preset", "ultrafast"]);
            let done = finish_within(command, Duration::from_secs(20));
            assert!(done.status.success(), "{args:?}: {}", stderr(&done));
        };
        run(&["run", "a.mkv", "-o", name, "-y"]);
        assert!(std::path::Path::new(&c.at(name)).is_file(), "{name}");
        let mut command = convoy();
        command.current_dir(c.folder()).args(["run", "-o", "back.mkv", "-y", "--backend", "cpu", "--preset", "ultrafast", "--", name]);
        let done = finish_within(command, Duration::from_secs(20));
        assert!(done.status.success(), "{name}: {}", stderr(&done));
        assert_eq!(c.frame_hashes("back.mkv", &[]).len(), 25, "{name}");
    }
}

#[test]
fn damage_is_a_failure_only_when_strict() {
    let c = Clips::new();
    c.make("a.mkv", &format!("{PICTURE} {SOUND} {H264} -g 5 -c:a flac"));
    let whole = std::fs::read(c.at("a.mkv")).unwrap();
    let mut bytes = whole.clone();
    let (from, to) = (bytes.len() / 4, bytes.len() / 2);
    bytes[from..to].iter_mut().step_by(61).for_each(|b| *b ^= 0x5a);
    c.write("damaged.mkv", bytes);
    c.write("cut.mkv", &whole[..whole.len() / 2]);
    for (name, word) in [("damaged.mkv", "the input is damaged: "), ("cut.mkv", "the input ends early: ")] {
        let said = c.run(name, "o.mkv", &["--vf", "gblur"]);
        assert!(said.contains(word), "{name}: {said}");
        let kept = c.frame_hashes("o.mkv", &[]);
        std::fs::remove_file(c.at("o.mkv")).unwrap();
        let done = c.try_run(name, "o.mkv", &["--vf", "gblur", "--strict"]);
        assert!(done.status.code() == Some(1) && stderr(&done).contains("the input is not whole: --strict"), "{name}: {}", stderr(&done));
        // Written all the same.
        assert_eq!(c.frame_hashes("o.mkv", &[]), kept, "{name}");
    }
    c.run("a.mkv", "o.mkv", &["--strict"]);
}

#[test]
fn a_disk_that_fills_up_leaves_the_earlier_output_untouched() {
    let c = Clips::new();
    let disk = c.at("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=400k", "tmpfs", &disk]).output();
    if !mount.is_ok_and(|m| m.status.success()) {
        println!("skipped: no small file system can be mounted here");
        return;
    }
    c.make("a.mkv", "-f lavfi -i testsrc2=size=320x240:rate=25:duration=4,noise=alls=80:allf=t -pix_fmt yuv420p -c:v ffv1");
    let run = || {
        std::fs::write(format!("{disk}/o.mkv"), "precious").unwrap();
        for fill in [0, 200_000, 340_000] {
            std::fs::write(format!("{disk}/fill"), vec![1; fill]).unwrap();
            for name in ["o.mkv", "o.mp4"] {
                let done = c.try_run("a.mkv", &format!("{disk}/{name}"), &["--crf", "5", "--preset", "ultrafast"]);
                let left: Vec<_> = std::fs::read_dir(&disk).unwrap().map(|e| e.unwrap().file_name()).collect();
                assert!(
                    done.status.code() == Some(1) && stderr(&done).contains("no space left on device"),
                    "{fill} {name}: {}",
                    stderr(&done)
                );
                assert_eq!(left.len(), 2, "{left:?}");
            }
        }
        assert_eq!(std::fs::read_to_string(format!("{disk}/o.mkv")).unwrap(), "precious");
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    let _ = std::process::Command::new("umount").arg(&disk).status();
    outcome.unwrap();
}
