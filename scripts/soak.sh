#!/usr/bin/env bash
# `make soak` and `make faults`: builds the daemon and lets tests/soak/soak.py, or faults.py, treat it badly.
#   scripts/soak.sh soak|faults [FLAG ...]   the flags of tests/soak/soak.py or tests/soak/faults.py: --minutes 5, --seed 1 …
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
what=$1
shift

scripts/setup.sh build test
scripts/fetch_model.sh
scripts/fetch_minilm.sh
if [ ! -f build/build.ninja ]; then
  say "configuring build/"
  cmake -S . -B build -G Ninja -DMILLRACE_TESTS=OFF --log-level=WARNING >/dev/null
fi
say "building build/millraced with $JOBS jobs"
build_quietly build millraced
export MILLRACED=${MILLRACED:-$ROOT/build/millraced} MILLRACE_MODEL=$MODEL MILLRACE_MINILM=$MINILM
exec "$(venv_path test)/bin/python" "tests/soak/$what.py" "$@"
