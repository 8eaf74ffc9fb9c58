#!/usr/bin/env bash
# `make fuzz`: builds every fuzz target with clang and runs each for FUZZ_SECONDS (default 1800), as many at once as there are processors.
#   scripts/fuzz.sh [short] [TARGET ...]   short: 10 seconds each; TARGET as in build-asan/corpus, "text_grammar"
# A target's findings are kept in build-asan/found/TARGET, the inputs that it learns from in build-asan/corpus/TARGET. An input may take 10 seconds and 1 GiB.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
build="build-asan"
seconds=${FUZZ_SECONDS:-1800}
if [ "${1:-}" = short ]; then
  seconds=10
  shift
fi

scripts/setup.sh build fuzz
say "building $build/ with $JOBS jobs"
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DMILLRACE_SANITIZE=address,undefined -DMILLRACE_TESTS=OFF -DMILLRACE_TORCH=OFF \
  --log-level=WARNING >/dev/null
python3 scripts/fuzz_corpus.py "$build/corpus"
targets=("$@")
if [ $# = 0 ]; then
  mapfile -t targets < <(find "$build/corpus" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort)
fi
build_quietly "$build" "${targets[@]/%/_fuzz}"

export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
fuzz() {
  local target=$1 log=$build/found/$1/log dictionary=() result=ok
  mkdir -p "$build/found/$target"
  [ ! -s "$build/corpus/$target.dict" ] || dictionary=(-dict="$build/corpus/$target.dict")
  "$build/fuzz/${target}_fuzz" "$build/corpus/$target" "${dictionary[@]}" -max_total_time="$seconds" -max_len=16384 \
    -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$build/found/$target/" >"$log" 2>&1 || result=FAILED
  printf '%-24s %8s inputs   %s\n' "$target" "$(sed -nE 's/^stat::number_of_executed_units: +//p' "$log")" "$result"
  [ $result = ok ] || { tail -n 40 "$log" >&2; return 1; }
}
export -f fuzz
export build seconds
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$JOBS" bash -c 'fuzz "$1"' bash
