#!/usr/bin/env bash
# `make parity`: makes the reference data of tests/reference afresh, with the programs that Millrace is compared with, and says
# what differs from the committed data; then runs the tests that need those programs' own files (label parity).
#   scripts/parity.sh [--update]   --update: the committed data becomes what was made
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
update=
case ${1:-} in
  --update) update=1 ;;
  ?*) die "usage: scripts/parity.sh [--update]" ;;
esac

scripts/setup.sh build test parity
scripts/fetch_model.sh
scripts/fetch_llama_cpp.sh
python=$(venv_path parity)/bin/python
export MILLRACE_TEMPLATES=$LLAMA_CPP/vendor/llama.cpp/models/templates
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
failed=0

say "making reference data"
"$python" tests/reference/make_template_reference.py "$MODEL" "$MILLRACE_TEMPLATES" "$made"
"$python" tests/reference/make_shape_reference.py "$made"
"$python" tests/reference/make_quantized_reference.py "$made"

for file in "$made"/*; do
  committed=tests/reference/${file##*/}
  if cmp -s "$file" "$committed"; then
    say "${file##*/}: as committed"
  elif [ -n "$update" ]; then
    cp "$file" "$committed"
    say "${file##*/}: updated"
  else
    say "${file##*/}: DIFFERS from the committed one (keep the new one: scripts/parity.sh --update)"
    diff -u "$committed" "$file" | cut -c -300 | head -20 || true
    failed=1
  fi
done

say "comparing"
cmake -S . -B build -G Ninja -DMILLRACE_TESTS=ON --log-level=WARNING >/dev/null
build_quietly build server_text_template_parity_test
build_quietly build tokenize_lines
"$python" tests/reference/tokenizer_parity.py build/tokenize_lines "$LLAMA_CPP/vendor/llama.cpp/models" || failed=1
ctest --test-dir build -L parity --output-on-failure --no-tests=error || failed=1
exit $failed
