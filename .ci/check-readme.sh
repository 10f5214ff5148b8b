#!/usr/bin/env bash
# Run every convoy command that README.md shows, as it stands there, in a scratch folder with the inputs that they name.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
binary=${1:-target/debug/convoy}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/bin" "$scratch/demo" "$scratch/target/release"
ln -s "$root/$binary" "$scratch/bin/convoy"
ln -s "$root/$binary" "$scratch/target/release/convoy"
samples/make.sh "$scratch/demo"
cp "$scratch/demo/zoom.mp4" "$scratch/in.mp4"
ffmpeg -hide_banner -nostdin -v error -i "$scratch/in.mp4" -map 0:v -map 0:a -c copy "$scratch/in.mkv"
cd "$scratch"
export PATH="$scratch/bin:$PATH"

count=0
while read -r command; do
  if ! output=$(eval "$command" 2>&1 </dev/null); then
    printf 'README command failed: %s\n%s\n' "$command" "$output" >&2
    exit 1
  fi
  count=$((count + 1))
  rm -f out.mp4 out.mkv
done < <(awk '/^```sh/ {on = 1; next} /^```/ {on = 0} on' "$root/README.md" | sed 's/ *#.*//' | grep -E '^(convoy|target/release/convoy) ')
[ "$count" -ge 5 ] || { echo "README.md shows too few commands ($count): is its format known to this script?" >&2; exit 1; }
echo "README: $count commands ran"
