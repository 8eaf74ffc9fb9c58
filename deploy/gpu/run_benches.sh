#!/usr/bin/env bash
# Runs every benchmark of the bundle on this machine's GPU: the kernels' programs, then `millraced bench` on the shape of
# Llama-3-8B with dummy weights: FP8 and BF16, each exact and not, FP8 with static scales, with cuBLASLt or portable kernels alone,
# and without graphs; then on those of Llama-3-70B and of Qwen3.5 in FP8; then what one GPU shows of several ranks; then a sweep of loads.
#   run_benches.sh [NAME ...]
# NAME: only programs whose name holds one of these; `engine` is `millraced bench`, `ranks` that of ranks, `sweep` the loads. Logs, tables and
# JSON: $OUT/run_benches.tar.gz (OUT: ./out unless set).
set -uo pipefail
source "$(dirname "$0")/common.sh"

names=("$@")

for program in gpu_benches/*; do
  name=$(basename "$program")
  wanted "$name" || continue
  run "$name" 240 env LD_LIBRARY_PATH="$PROGRAM_LIBRARIES" "$program"
done

# engine NAME FLAG...: prints the tables, without the long traces.
model=llama-3-8b
engine() {
  local name=$1
  shift
  run "$name" 240 bin/millraced bench --device cuda --model "$HERE/models/$model" --load-format dummy \
    --max-num-seqs 256 --max-num-batched-tokens 8192 --json "$LOGS/$name.json" "$@"
  sed '/^Where a step goes/,$d' "$LOGS/$name.log" | grep -vE '^ *$|^(VOID)?\[' | cut -c1-200
}
if wanted engine; then
  short=1:128:16:144,64:128:16:144,256:128:16:144
  engine engine_fp8 --quantization fp8 --points $short,1:4096:1 --trace
  # 64 prompts of 2,048 tokens take 16 steps, 16 of 4,000 take 8. The shorter answers must be longer than that.
  engine engine_fp8_more --quantization fp8 --points 8:128:16:144,32:128:16:144,128:128:16:144,64:2048:32:96,16:4000:16:80,1:7800:16:144
  model=llama-3-8b-fp8-static
  engine engine_fp8_static --points $short,8:128:16:144,32:128:16:144,128:128:16:144,64:2048:32:96
  model=llama-3-8b
  engine engine_bf16 --points $short,1:4096:1 --trace
  engine engine_fp8_inexact --quantization fp8 --no-exact --points $short
  engine engine_bf16_inexact --no-exact --points $short
  engine engine_fp8_cublaslt --quantization fp8 --gemm cublaslt --points 1:128:16:144,64:128:16:144
  engine engine_fp8_portable --quantization fp8 --kernels portable --points 1:128:16:144,64:128:16:144,1:4096:1
  engine engine_fp8_eager --quantization fp8 --enforce-eager --points 1:128:16:144
  model=llama-3-70b
  engine engine_70b_fp8 --quantization fp8 --max-model-len 4096 --points 1:128:16:144,64:128:16:144
  model=qwen3.5-27b-fp8
  engine engine_qwen3.5_27b --max-num-seqs 64 --max-model-len 4200 --points 1:128:16:144,16:128:16:144,64:128:16:144,1:4096:1
  model=qwen3.5-35b-a3b-fp8
  engine engine_qwen3.5_35b --max-model-len 4200 --points $short,16:128:16:144,1:4096:1
fi

# One GPU measures parts of several: the first rank's share of a step and its bytes beside the whole, and how fast a checkpoint of 16 GB
# is read for one rank and for four on this GPU.
if wanted ranks; then
  for model in llama-3-8b llama-3-70b; do
    for ranks in 1 2 4; do
      flags=()
      [ $ranks = 1 ] || flags=(--tensor-parallel-size $ranks --lone-rank)
      engine "ranks_share_${model}_$ranks" --quantization fp8 --max-model-len 4096 --points 1:128:16:80,64:128:16:80 --trace "${flags[@]}"
      grep 'must move' "$LOGS/ranks_share_${model}_$ranks.log"
    done
  done
  checkpoint=$(mktemp -d)
  run ranks_checkpoint 120 python3 write_checkpoint.py models/llama-3-8b/config.json "$checkpoint/llama-3-8b"
  for attempt in 1 2 3; do
    for ranks in 1 4; do
      flags=()
      [ $ranks = 1 ] || flags=(--tensor-parallel-size $ranks --virtual-ranks)
      run "ranks_load_${ranks}_$attempt" 120 bin/millraced bench --device cuda --model "$checkpoint/llama-3-8b" --points 1:16:4 --reps 1 \
        --max-num-seqs 1 --max-model-len 1024 "${flags[@]}"
      grep -oE 'read .* of weights in .*|plans of linears.*' "$LOGS/ranks_load_${ranks}_$attempt.log"
    done
  done
  rm -rf "$checkpoint"
fi
# Each number of clients and rate of requests, then the same with the server on a core that another process keeps busy. SWEEP: in
# what orders, and for how long (SWEEP="--orders all --seconds 3": each after each, a quarter of an hour a server).
if wanted sweep; then
  for core in "" 0; do
    pin=()
    [ -z "$core" ] || pin=(--pin "$core")
    # shellcheck disable=SC2086
    run "sweep${core:+_busy_core}" 1200 env BUILD=bin python3 sweep.py ${SWEEP:---orders updown --seconds 8} \
      --json "$LOGS/sweep${core:+_busy_core}.json" "${pin[@]}" -- --device cuda --model "$HERE/models/llama-3-8b" --load-format dummy --quantization fp8 \
      --tokenizer "$MILLRACE_MODEL" --max-num-seqs 256 --max-model-len 4096
    cat "$LOGS/sweep${core:+_busy_core}.log"
  done
fi
finish
