#!/usr/bin/env bash
# `make coverage`: builds folders' tests without the optimizer and with gcov's counters, runs those that need no model, and prints for
# each folder how many lines of its code they reach.
#   scripts/coverage.sh [FOLDER ...]   default: formats text server
# build-coverage/coverage.csv has a row for each file. Lines that only the Python tests reach count as not reached.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
build=build-coverage
folders=(formats text server)
[ $# -eq 0 ] || folders=("$@")

scripts/setup.sh build test coverage
say "building $build/ with $JOBS jobs"
cmake -S . -B "$build" -G Ninja -DMILLRACE_TESTS=ON -DMILLRACE_CUDA=OFF -DMILLRACE_TORCH=OFF -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_CXX_FLAGS_DEBUG=--coverage --log-level=WARNING >/dev/null
build_quietly "$build" "${folders[@]/%//all}"

find "$build" -name '*.gcda' -delete  # the counts of an earlier run
for folder in "${folders[@]}"; do
  say "C++ tests of $folder/"
  ctest --test-dir "$build/$folder" -j "$JOBS" -LE 'model|parity' --output-on-failure --no-tests=error
done

say "adding up"
gcovr --root . -j "$JOBS" --filter "($(IFS='|' && echo "${folders[*]}"))/" --exclude '.*_(test|bench|fuzz)(_util)?\.(cc|h)' \
  --exclude 'formats/twins/' --csv "$build/coverage.csv" "${folders[@]/#/$build/}"
awk -F, 'NR > 1 { sub("/.*", "", $1); lines[$1] += $2; reached[$1] += $3 }
  END { for (folder in lines) printf "%-10s %6d of %6d lines: %.1f %%\n", folder, reached[folder], lines[folder], 100 * reached[folder] / lines[folder] }' \
  "$build/coverage.csv" | sort
