#!/usr/bin/env bash
# `make parity`: regenerates the reference data of tests/reference, and the tables of characters in text/tokenizer, with the
# programs that Millrace is compared with, and prints the differences from the committed data; then runs the tests that need
# those programs' own files (label parity).
#   scripts/parity.sh [--update]   --update: replaces the committed data
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
scripts/fetch_minilm.sh
scripts/fetch_llama_cpp.sh
cmake -S . -B build -G Ninja -DMILLRACE_TESTS=ON --log-level=WARNING >/dev/null
build_quietly build text_template_parity_test tokenize_lines write_tiny_folders
python=$(venv_path parity)/bin/python
export TQDM_DISABLE=1  # hides transformers' progress bars
export MILLRACE_TEMPLATES=$LLAMA_CPP/vendor/llama.cpp/models/templates
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
failed=0

say "making reference data"
make_reference() { "$python" "tests/reference/make_$1_reference.py" "${@:2}" "$made"; }
make_reference template "$MODEL" "$MILLRACE_TEMPLATES"
make_reference tokenizer "$MODEL"
make_reference shape
make_reference pre
make_reference gguf
make_reference class
make_reference quantized
make_reference sentencepiece
make_reference tiny build/write_tiny_folders
make_reference family build/write_tiny_folders
make_reference gguf_model build/write_tiny_folders
make_reference embedding "$MINILM"
make_reference decoder_embedding
make_reference cross_encoder "$MINILM"
make_reference sentence
make_reference model "$MODEL"

for file in "$made"/*; do
  case $file in
    *.h) committed=text/tokenizer/${file##*/} ;;
    *.inc) committed=formats/tensors/${file##*/} ;;
    *) committed=tests/reference/${file##*/} ;;
  esac
  if "$python" tests/reference/same_reference.py "$file" "$committed"; then
    say "${file##*/}: as committed"
  elif [ -n "$update" ]; then
    cp "$file" "$committed"
    say "${file##*/}: updated"
  else
    say "${file##*/}: DIFFERS from the committed one (keep the new one: scripts/parity.sh --update)"
    failed=1
  fi
done

say "comparing"
"$python" tests/reference/tokenizer_parity.py build/tokenize_lines "$LLAMA_CPP/vendor/llama.cpp/models" || failed=1
ctest --test-dir build -L parity --output-on-failure --no-tests=error || failed=1
exit $failed
