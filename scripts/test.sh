#!/usr/bin/env bash
# `make test`: installs what is missing, builds everything and runs every test that needs no GPU.
#   scripts/test.sh [BUILD_FOLDER [CMAKE_ARGUMENT ...]]
# With MILLRACE_SANITIZE in the CMake arguments only tests without a model run: unit tests, and server tests on the fake executor.
# Comparisons with other programs' files belong to `make parity`.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
build=${1:-build}
shift $(($# ? 1 : 0))

groups=(build test)
options=(-DMILLRACE_TESTS=ON "$@")
if [[ " $* " == *MILLRACE_SANITIZE=address,undefined* ]]; then  # The build of `make fuzz`, which takes clang.
  groups+=(fuzz)
  options+=(-DCMAKE_CXX_COMPILER=clang++)
fi
scripts/setup.sh "${groups[@]}"
sanitized=
skip="not torch"  # applies to the Python tests
leave=()          # options of ctest
case " $* " in
  *MILLRACE_SANITIZE=[at]*) sanitized=1 skip+=" and not model and not deploy" ;;
  *)
    scripts/fetch_model.sh
    scripts/fetch_minilm.sh
    scripts/fetch_kubernetes.sh
    if [[ " $* " != *MILLRACE_TORCH=OFF* && $(uname -m) = x86_64 ]]; then
      scripts/fetch_torch.sh
      scripts/setup.sh package
      skip=  # A build without libmillrace_torch.so fails now.
    fi
    ;;
esac

say "building $build/ with $JOBS jobs"
cmake -S . -B "$build" -G Ninja "${options[@]}" --log-level=WARNING >/dev/null
# Several files compile as one (scripts/batches.py). Should two of them not go together, the build goes on file by file.
if ! build_quietly "$build"; then
  grep -q '^MILLRACE_BATCHES:BOOL=ON' "$build/CMakeCache.txt" || die "the build of $build/ failed"
  say "building $build/ again, file by file"
  cmake -S . -B "$build" -DMILLRACE_BATCHES=OFF --log-level=WARNING >/dev/null
  build_quietly "$build"
fi

export MILLRACE_MODEL=$MODEL MILLRACE_MINILM=$MINILM
PATH=$(cache_path kubernetes):$PATH
# Debian's gRPC is not built with ThreadSanitizer, so accesses within its code cannot be judged; those of our code are.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1:suppressions=$ROOT/scripts/tsan_suppressions.txt
export ASAN_OPTIONS=detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1
if [ -n "$sanitized" ]; then
  # These compare numbers of many models, which the build without a sanitizer does; memory and threads are used as by the others.
  export MILLRACE_SANITIZED=1 GTEST_FILTER='-*.WhatIsComputedOtherwiseShows'
fi
# Code that runs on one thread has no races.
[[ " $* " != *MILLRACE_SANITIZE=thread* ]] || skip+=" and not serial" leave=(-E '^(scheduler_.*|text_template_test|text_tokenizer.*)$')

# Each program writes its cases to a file, so that the total counts cases and not programs.
reports=$ROOT/$build/reports
rm -rf "$reports"
mkdir -p "$reports/cases"
failed=0

# The Python tests wait for the daemon half of the time: several files of them run at once, and beside the C++ tests. Under sanitizers the
# daemon is slow enough to keep the processors busy.
at_once=$((2 * JOBS))
[ -z "$sanitized" ] || at_once=1
say "Python tests of $build/millraced, their output below"
MILLRACED=$ROOT/$build/millraced "$(venv_path test)/bin/python" -m pytest tests -q --ignore tests/gpu \
  -n "$at_once" --dist loadfile -p no:cacheprovider -o junit_family=xunit1 --timeout 300 -m "$skip" --junitxml "$reports/pytest.xml" >"$reports/pytest.log" 2>&1 &
pytest=$!
trap 'kill "$pytest" 2>/dev/null || true' EXIT

say "C++ tests of $build/"
GTEST_OUTPUT=xml:$reports/cases/ ctest --test-dir "$build" -j "$JOBS" --output-on-failure --no-tests=error \
  -LE "parity${sanitized:+|model}" "${leave[@]}" --output-junit "$reports/ctest.xml" || failed=1
wait "$pytest" || failed=1
cat "$reports/pytest.log"

python3 scripts/total.py "$reports" || failed=1
exit $failed
