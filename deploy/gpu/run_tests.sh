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

# What a program's log says last: googletest's and pytest's totals, and what failed.
summarize() { grep -E '^\[  (PASSED|FAILED)  \]|^(FAILED|ERROR) |(passed|failed).* in ' "$LOGS/$1.log" | tail -"${2:-6}" | cut -c1-160; }

if [ -n "$sanitizer" ]; then
  while read -r program tool filter; do
    case $program in '' | '#'*) continue ;; esac
    wanted "$program" || continue
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
# That machine's Python may have pytest's plugins of its own: only the bundle's one is wanted.
run_python() {
  local name=$1
  shift
  run "$name" 300 env MILLRACED="$HERE/bin/millraced" MILLRACED_ARGS="--device cuda" PYTHONPATH="$HERE/site" \
    PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -p pytest_timeout "$@" -q -p no:cacheprovider --timeout 120 -rfE
}
if wanted server; then
  run_python server tests --ignore tests/gpu
  summarize server 20
fi
if wanted reference; then
  run_python reference tests/gpu -s
  sed -n 's/^figures: //p' "$LOGS/reference.log" | cut -c1-240
  summarize reference 20
fi
finish
