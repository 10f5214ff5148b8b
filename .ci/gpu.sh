#!/usr/bin/env bash
# Tests and figures on a machine with a GPU but without Rust: what `docs/measurements.md` quotes.
#
# usage: [FRAMES=3000] [ROUNDS=3] [SKIP_TESTS=1] gpu.sh FOLDER   with convoy (make portable), optionally gpu-* (the test binaries: gpu-tests and others), ffmpeg (static), clip.mp4
# Prints tables; everything runs in FOLDER.
set -uo pipefail
cd "${1:?usage: gpu.sh FOLDER}"
chmod +x convoy gpu-* ffmpeg 2>/dev/null
export PATH="$PWD:$PATH" CONVOY_REQUIRE_GPU=1
frames=${FRAMES:-3000}
section() { printf '\n== %s\n' "$*"; }

section doctor
convoy doctor
if [ -x gpu-tests ] && [ -z "${SKIP_TESTS:-}" ]; then
  section "GPU tests"
  # A process for each test: a lost context ends one of them, and says which.
  alone() { # binary test
    "./$1" --exact "$2" > "tests/$1-${2//:/_}.log" 2>&1 || { echo "FAILED: $1 $2"; grep -E "FAILURE|panicked|differ" "tests/$1-${2//:/_}.log" | head -5; }
  }
  export -f alone
  mkdir -p tests
  for tests in gpu-*; do
    [ -x "$tests" ] && [ "$tests" != gpu-pack ] && "./$tests" --list --format terse | sed -n "s/^\(.*\): test$/$tests \1/p"
  done > tests/all
  xargs -P "$(nproc)" -L 1 bash -c 'alone "$0" "$1"' < tests/all
  echo "$(grep -h "^test .* ok$" tests/*.log | wc -l) passed, $(grep -h "^test .*\.\.\. ignored" tests/*.log | wc -l) ignored of $(wc -l < tests/all)"
  if [ -x gpu-variants ]; then
    echo "-- every kernel size from 1 to 31"
    ./gpu-variants kernel_sizes --ignored --test-threads 16 2>&1 | grep -E "FAILURE|panicked|test result"
    echo "-- threads side by side, row by row"
    for rows in fft gemm texture constant -fft,gemm,texture,constant; do
      CONVOY_ROWS=$rows ./gpu-variants side_by_side --ignored 2>&1 | sed -n "s/^\(FAILURE.*\|.*lost.*\|test result.*\)/$rows: \1/p" | head -20
    done
  fi
  if [ -x gpu-pack ]; then
    convoy kernels pack --arch "${ARCH:-sm_90}" -o kernels.pack
    CONVOY_REQUIRE_PACK=1 CONVOY_NVRTC=/nonexistent CONVOY_KERNEL_PACK=$PWD/kernels.pack ./gpu-pack 2>&1 | grep "test result"
  fi
  # Kernels are in the cache by now. A process for each format and tool, side by side, each with one thread: races are looked for
  # within a launch, and the tools stumble over many threads.
  mkdir -p sanitizers
  check() { # tool, test binary, filter
    [ -x "$2" ] || return
    CONVOY_GPU_BRIEF=1 compute-sanitizer --tool "$1" "$2" ${3:+"$3"} --test-threads 1 > "sanitizers/$1-${3:-tensor}.log" 2>&1
  }
  for tool in memcheck racecheck initcheck; do
    for part in yuv_420_8_bit gray_16_bit gray_float p010_; do check $tool ./gpu-tests $part & done
    for part in planar_8_bit_reflect planar_8_bit_zero float_zero float_wrap deep_clamp semi_planar; do check $tool ./gpu-variants $part & done
    check $tool ./gpu-tensor &
  done
  wait
  for log in sanitizers/*; do
    echo "-- $log: $(grep -hoE "test result: .* failed|(ERROR|RACECHECK) SUMMARY.*" "$log" | paste -sd' ')"
  done
fi

section "whole jobs: $frames frames of 1080p H.264 to x264 ultrafast"
if [ ! -f long.mp4 ]; then
  ffmpeg -hide_banner -nostdin -v error -y -stream_loop -1 -i clip.mp4 -an -vf scale=1920:1080 -frames:v "$frames" \
    -c:v libx264 -preset veryfast -crf 23 -pix_fmt yuv420p long.mp4
fi
out=${OUT_FOLDER:-/dev/shm}
fps() { # name, then a command: wall-clock fps of the whole process
  local name=$1 start end; shift
  start=$(date +%s%N); "$@" > job.log 2>&1; local rc=$?; end=$(date +%s%N)
  awk -v n="$name" -v f="$frames" -v ns=$((end - start)) -v rc=$rc 'BEGIN {printf "%-46s %8.1f fps%s\n", n, f / (ns / 1e9), rc ? "  FAILED" : ""}'
  [ $rc -eq 0 ] || tail -3 job.log
}
x264=(-c:v libx264 -preset ultrafast)
for round in $(seq "${ROUNDS:-3}"); do
  echo "-- round $round"
  fps "ffmpeg, no filter"            ffmpeg -hide_banner -nostdin -v error -y -i long.mp4 "${x264[@]}" "$out/o.mp4"
  fps "ffmpeg, gblur=sigma=2"        ffmpeg -hide_banner -nostdin -v error -y -i long.mp4 -vf gblur=sigma=2 "${x264[@]}" "$out/o.mp4"
  fps "convoy cuda, gblur=sigma=2"   convoy run long.mp4 -o "$out/o.mp4" -y --backend cuda --vf gblur=sigma=2 "${x264[@]}" --progress none
  fps "the same, x264 threads as cores" convoy run long.mp4 -o "$out/o.mp4" -y --backend cuda --vf gblur=sigma=2 "${x264[@]}" --enc-opt threads="$(nproc)" --progress none
  fps "convoy cpu, gblur=sigma=2"    convoy run long.mp4 -o "$out/o.mp4" -y --backend cpu --vf gblur=sigma=2 "${x264[@]}" --progress none
  fps "ffmpeg, decode to null"       ffmpeg -hide_banner -nostdin -v error -y -i long.mp4 -f null -
  fps "convoy cuda, gblur to null:"  convoy run long.mp4 -o null: --backend cuda --vf gblur=sigma=2 --progress none
done

section "start-up: one synthetic frame, wall clock"
frames=1
for round in 1 2 3; do
  fps "convoy cuda" convoy run synth:1920x1080 -o null: --frames 1 --backend cuda --vf gblur=2 --progress none
  fps "convoy cpu"  convoy run synth:1920x1080 -o null: --frames 1 --backend cpu --vf gblur=2 --progress none
done

section "stages of the CUDA job"
convoy run long.mp4 -o "$out/o.mp4" -y --backend cuda --vf gblur=sigma=2 "${x264[@]}" --progress none --stats
section "stages of the CUDA job without an encoder"
convoy run long.mp4 -o null: --backend cuda --vf gblur=sigma=2 --progress none --stats
section "bench"
convoy bench --backend cuda --level kernel,loop --json=bench.json --html bench.html
section "bench: the classic tables"
convoy bench --preset article --peers --json=article.json --html article.html
section "bench: where variants cross"
convoy bench --preset sweep --backend cuda --size 480p,1080p,8k --kernel 3,7,15,31 --json=sweep.json --html sweep.html
section "bench: beside NPP and PyTorch"
convoy bench --backend cuda --peers --filter conv,gauss,box,max,median,sobel --kernel 3,15 --variant auto --json=peers.json --html peers.html
section "verify"
convoy verify --backend cuda --size 13x42,123x33
