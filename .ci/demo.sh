#!/usr/bin/env bash
# Make the sample, filter it, and say where to look: what `make demo` runs after the build.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: demo.sh FOLDER}
convoy=target/release/convoy
samples/make.sh "$folder"
"$convoy" run "$folder/zoom.mp4" -o "$folder/blurred.mp4" --vf gblur=sigma=4 -y --stats
"$convoy" run "$folder/zoom.mp4" -o "$folder/edges.mp4" --vf 'gblur=sigma=1,sobel=planes=1' -y
for name in zoom blurred edges; do
  ffmpeg -hide_banner -nostdin -v error -y -ss 1 -i "$folder/$name.mp4" -frames:v 1 "$folder/$name.png"
done
ffmpeg -hide_banner -nostdin -v error -y -i "$folder/zoom.png" -i "$folder/blurred.png" -i "$folder/edges.png" \
  -filter_complex hstack=3 "$folder/before-after.png"
cat <<TEXT

Look at:
  $folder/before-after.png   one frame: original, gblur=sigma=4, gblur=sigma=1,sobel=planes=1=planes=1
  $folder/zoom.mp4           the original
  $folder/blurred.mp4        blurred, with the original's sound and subtitle
  $folder/edges.mp4          edges
TEXT
