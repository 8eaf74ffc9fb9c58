#!/usr/bin/env bash
# `make bench-cpu`: Millrace and llama.cpp side by side on this machine (bench/README.md).
#   bench/cpu/run.sh [--quick] [--baseline BUILD_FOLDER] [--only offline,gemma,experts,qwen35,lfm25,serve,quantize,start,scheduler,tokenizer] [--help]
# Installs what is missing, fetches the default model, builds llama.cpp (into the cache folder, once) and Millrace, measures.
# With a baseline, another build of Millrace is the peer, and llama.cpp is not built.
set -euo pipefail
source "$(dirname "$0")/../../scripts/common.sh"
cd "$ROOT"

PEER=$CACHE/llama.cpp-0.3.36
Q4_0=$CACHE/SmolLM2-135M-Instruct.Q4_0.gguf
FLOAT=$CACHE/SmolLM2-135M-Instruct-BF16
EXPERTS=$CACHE/olmoe-widths-4-layers-q4_k.gguf
QWEN35=$CACHE/qwen3.5-0.8b-shapes-q4_k.gguf
LFM25=$CACHE/lfm2.5-1.2b-shapes-q4_k.gguf
TOKENIZERS=build/bench/tokenizers
programs=(llama-server llama-bench llama-batched-bench llama-quantize)

build_peer() {
  local program missing=
  for program in "${programs[@]}"; do
    [ -x "$PEER/bin/$program" ] || missing=1
  done
  [ -n "$missing" ] || return 0
  say "building llama.cpp with $JOBS jobs (about six minutes on two cores, once)"
  cmake -S "$LLAMA_CPP/vendor/llama.cpp" -B "$PEER" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
    --log-level=WARNING >/dev/null
  build_quietly "$PEER" "${programs[@]}"
}

# llama.cpp's fastest format, quantized from the same file. It is another model of equal size, compared in speed only.
make_q4_0() {
  [ -f "$Q4_0" ] && return
  say "making the Q4_0 file"
  "$PEER/bin/llama-quantize" --allow-requantize "$MODEL" "$Q4_0.part" Q4_0 "$JOBS" >/dev/null 2>&1 ||
    die "llama-quantize failed on $MODEL"
  mv "$Q4_0.part" "$Q4_0"
}

# The same model dequantized to float weights, for --quantization.
make_float_folder() {
  [ -d "$FLOAT" ] && return
  say "making the BF16 folder"
  rm -rf "$FLOAT.part"
  "$python" bench/cpu/float_folder.py "$MODEL" "$FLOAT.part"
  mv "$FLOAT.part" "$FLOAT"
}

# make_random NAME FILE: random weights in the shapes of a model of shapes.py.
make_random() {
  [ -f "$2" ] && return
  say "making $(basename "$2") of random weights"
  python3 bench/cpu/random_file.py "$1" "$2.part"
  mv "$2.part" "$2"
}

build_ours() {
  say "building Millrace with $JOBS jobs"
  cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DMILLRACE_TESTS=ON -DMILLRACE_SANITIZE= --log-level=WARNING >/dev/null
  build_quietly build millraced executor_bench scheduler_bench tokenize_lines
}

case " $* " in *" --help "* | *" -h "*) exec python3 bench/cpu/compare.py --help ;; esac
scripts/setup.sh build bench
scripts/fetch_model.sh
scripts/fetch_gemma.sh
scripts/fetch_llama_cpp.sh
python=$(venv_path bench)/bin/python
[[ " $* " == *" --baseline"* ]] || { build_peer && make_q4_0; }
make_float_folder
make_random olmoe "$EXPERTS"
make_random qwen35 "$QWEN35"
make_random lfm25 "$LFM25"
say "making tokenizers"
"$python" bench/cpu/write_tokenizers.py "$MODEL" "$LLAMA_CPP/vendor/llama.cpp/models" "$TOKENIZERS"
build_ours
exec python3 bench/cpu/compare.py --peer "$PEER/bin" --model "$MODEL" --q4-0 "$Q4_0" --gemma "$GEMMA" --experts "$EXPERTS" \
  --qwen35 "$QWEN35" --lfm25 "$LFM25" --float-folder "$FLOAT" --tokenizers "$TOKENIZERS" --python "$python" "$@"
