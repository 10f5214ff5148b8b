#!/usr/bin/env bash
# Make the sample clips. Nothing here was filmed by anybody: FFmpeg's sources draw and hum.
#
# usage: samples/make.sh FOLDER
set -euo pipefail
folder=${1:?usage: make.sh FOLDER}
mkdir -p "$folder"
ff() { ffmpeg -hide_banner -nostdin -v error -y "$@"; }

# 3 s, 640x360, H.264 with B-frames, AAC stereo and a subtitle: what most files look like.
printf '1\n00:00:00,500 --> 00:00:02,500\nA fractal, filtered\n' > "$folder/zoom.srt"
ff -f lavfi -i 'mandelbrot=size=640x360:rate=30:start_scale=3:end_scale=0.02:end_pts=90' \
   -f lavfi -i 'sine=frequency=330:sample_rate=48000' -i "$folder/zoom.srt" -t 3 \
   -c:v libx264 -preset medium -crf 20 -pix_fmt yuv420p -c:a aac -b:a 96k -c:s mov_text -map 0 -map 1 -map 2 "$folder/zoom.mp4"
