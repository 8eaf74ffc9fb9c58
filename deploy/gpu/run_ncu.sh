#!/usr/bin/env bash
# Nsight Compute's view of a decode step: the kernels of two layers of Llama-3-8B (dummy weights), the head and the sampler, each
# run by itself with cold caches. A Markdown table a batch size; the reports of ncu and the tables: $OUT/run_ncu.tar.gz.
#   run_ncu.sh [NAME ...]
# NAME: only points whose name (fp8_1, bf16_64, …) holds one of these. Needs ncu, and a machine that shows hardware counters.
set -uo pipefail
source "$(dirname "$0")/common.sh"
names=("$@")
command -v ncu >/dev/null || die "there is no ncu: it comes with the CUDA toolkit"

# Two layers keep a step short; all shapes are the model's.
model=$LOGS/model
mkdir -p "$model"
sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 2/' models/llama-3-8b/config.json >"$model/config.json"

# point NAME ROWS FLAG...: profiles behind the prompts, which take at most 16 steps of 40 launches.
point() {
  local name=$1 rows=$2
  shift 2
  wanted "$name" || return 0
  run "$name" 120 ncu --clock-control none --launch-skip 1200 --launch-count 48 --csv --page raw \
    --section SpeedOfLight --section WarpStateStats --section LaunchStats --section Occupancy --metrics dram__bytes.sum \
    --target-processes all --log-file "$LOGS/$name.csv" \
    bin/millraced bench --device cuda --model "$model" --load-format dummy --enforce-eager --reps 1 \
    --max-num-seqs 256 --max-num-batched-tokens 8192 --kv-cache-memory 4GiB --points "$rows:128:60:120" "$@"
  python3 ncu_table.py "$LOGS/$name.csv" | tee "$LOGS/$name.md"
}
for rows in 1 16 64 256; do
  point "fp8_$rows" $rows --quantization fp8
done
point bf16_1 1
point bf16_64 64
finish
