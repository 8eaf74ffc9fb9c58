#!/usr/bin/env bash
# Runs every test of the bundle on this machine's GPU: the kernels' and the executor's programs, then the black-box tests of the
# whole server against `millraced --device cuda`.
#   run_tests.sh [--sanitizer] [NAME ...]
# --sanitizer: instead, the tests that sanitizer.txt names under compute-sanitizer. NAME: only programs whose name holds one of
# these; `server` is the black-box tests, `reference` those against transformers, which that machine's Python must have.
# Logs: $OUT/run_tests.tar.gz (OUT: ./out unless set).
set -uo pipefail
source "$(dirname "$0")/common.sh"

sanitizer=
if [ "${1:-}" = --sanitizer ]; then
  sanitizer=1
  shift
fi
names=("$@")

# Prints the summary of a program's log: googletest's and pytest's totals, and the failures.
summarize() { grep -E '^\[  (PASSED|FAILED)  \]|^(FAILED|ERROR) |(passed|failed).* in ' "$LOGS/$1.log" | tail -"${2:-6}" | cut -c1-160; }

# check_patterns PROGRAM FILTER: fails for a pattern that matches no test, which would otherwise pass unnoticed.
check_patterns() {
  local pattern patterns
  IFS=: read -ra patterns <<<"$2"
  for pattern in "${patterns[@]}"; do
    LD_LIBRARY_PATH=$PROGRAM_LIBRARIES "gpu_tests/$1" --gtest_list_tests --gtest_filter="$pattern" | grep -q '^  ' ||
      die "sanitizer.txt: $1 has no test $pattern"
  done
}

if [ -n "$sanitizer" ]; then
  while read -r program tool filter; do
    case $program in '' | '#'*) continue ;; esac
    wanted "$program" || continue
    check_patterns "$program" "$filter"
    run "$program.$tool" 300 env LD_LIBRARY_PATH="$PROGRAM_LIBRARIES" \
      compute-sanitizer --tool "$tool" --error-exitcode 9 "gpu_tests/$program" --gtest_brief=1 --gtest_filter="$filter"
    grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|^\[  (PASSED|FAILED)  \]' "$LOGS/$program.$tool.log" | tail -3
  done <sanitizer.txt
  finish
fi

for program in gpu_tests/*; do
  name=$(basename "$program")
  wanted "$name" || continue
  run "$name" 300 env LD_LIBRARY_PATH="$PROGRAM_LIBRARIES" "$program" --gtest_brief=1
  summarize "$name" 12
done
if wanted server; then
  black_box server 300 "--device cuda" "${GPU_TESTS[@]}"
  summarize server 20
fi
if wanted reference; then
  black_box reference 300 "--device cuda" tests/gpu -s
  sed -n 's/^figures: //p' "$LOGS/reference.log" | cut -c1-240
  summarize reference 20
fi
finish
