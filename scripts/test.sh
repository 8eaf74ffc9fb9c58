#!/usr/bin/env bash
# `make test`: installs what is missing, builds everything and runs every test that needs no GPU.
#   scripts/test.sh [BUILD_FOLDER [CMAKE_ARGUMENT ...]]
# With MILLRACE_SANITIZE in the CMake arguments only what needs no model runs: unit tests, and server tests on the fake executor.
# What compares with other programs' data is for `make parity`.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
build=${1:-build}
shift $(($# ? 1 : 0))

scripts/setup.sh build test
sanitized=
skip="not torch"  # of the Python tests
case " $* " in
  *MILLRACE_SANITIZE=[at]*) sanitized=1 skip+=" and not model" ;;
  *)
    scripts/fetch_model.sh
    scripts/fetch_minilm.sh
    if [[ " $* " != *MILLRACE_TORCH=OFF* && $(uname -m) = x86_64 ]]; then
      scripts/fetch_torch.sh
      scripts/setup.sh package
      skip=  # A build without libmillrace_torch.so fails now.
    fi
    ;;
esac

say "building $build/ with $JOBS jobs"
cmake -S . -B "$build" -G Ninja -DMILLRACE_TESTS=ON "$@" --log-level=WARNING >/dev/null
build_quietly "$build"

export MILLRACE_MODEL=$MODEL MILLRACE_MINILM=$MINILM
# Debian's gRPC is not built with ThreadSanitizer: what its code does among itself cannot be judged; what ours does is.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:second_deadlock_stack=1
export ASAN_OPTIONS=detect_stack_use_after_return=1
export UBSAN_OPTIONS=print_stacktrace=1

# Each program writes its cases to a file, so that the total counts cases and not programs.
reports=$ROOT/$build/reports
rm -rf "$reports"
mkdir -p "$reports/cases"
failed=0

say "C++ tests of $build/"
GTEST_OUTPUT=xml:$reports/cases/ ctest --test-dir "$build" -j "$JOBS" --output-on-failure --no-tests=error \
  -LE "parity${sanitized:+|model}" --output-junit "$reports/ctest.xml" || failed=1

if [ -n "$(find tests -name 'test_*.py' -print -quit)" ]; then
  say "Python tests of $build/millraced"
  MILLRACED=$ROOT/$build/millraced "$(venv_path test)/bin/python" -m pytest tests -q --ignore tests/gpu \
    -p no:cacheprovider -o junit_family=xunit1 --timeout 300 -m "$skip" --junitxml "$reports/pytest.xml" || failed=1
fi

python3 scripts/total.py "$reports" || failed=1
exit $failed
