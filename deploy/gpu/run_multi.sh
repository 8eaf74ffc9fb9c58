#!/usr/bin/env bash
# Runs what several GPUs show: the tests of ranks, the black-box tests over two GPUs, a rank that stalls, the collectives beside
# NCCL, and the benches of a model on 1, 2, 4 and 8 GPUs, as many as there are.
#   run_multi.sh [NAME ...]
# NAME: only parts whose name holds one of these: ranks, collective, server, stall, nccl, nodes, bench. BENCH_RANKS: the numbers of
# GPUs to bench (1 2 4 8). Logs, tables and JSON: $OUT/run_multi.tar.gz (OUT: ./out unless set).
set -uo pipefail
source "$(dirname "$0")/common.sh"

names=("$@")
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
echo "$gpus GPUs"
nvidia-smi topo -m 2>/dev/null | head -$((gpus + 1)) | cut -c1-100

for name in kernels_collective_test kernels_nccl_test executors_cuda_ranks_test; do
  wanted "${name/executors_cuda_/}" || continue
  run "$name" 400 env LD_LIBRARY_PATH="$PROGRAM_LIBRARIES" "gpu_tests/$name" --gtest_brief=1
  grep -E '^\[  (PASSED|FAILED)  \]' "$LOGS/$name.log" | tail -12
done
[ "$gpus" -ge 2 ] || finish

# Virtual ranks need their kernels loaded at once, and so do the tests above. Servers on real GPUs load them when they are used.
if wanted ranks; then
  run ranks_lazy 120 env LD_LIBRARY_PATH="$PROGRAM_LIBRARIES" CUDA_MODULE_LOADING=LAZY gpu_tests/executors_cuda_ranks_test \
    --gtest_brief=1 --gtest_filter='*Gpus*'
fi

if wanted nccl; then
  run collectives_beside_nccl 120 env LD_LIBRARY_PATH="$PROGRAM_LIBRARIES" NCCL_NVLS_ENABLE=0 gpu_benches/kernels_collective_gpus_bench
  grep '^|' "$LOGS/collectives_beside_nccl.log"
fi

if wanted server; then
  black_box server 400 "--device cuda --tensor-parallel-size 2" "${GPU_TESTS[@]}"
  tail -20 "$LOGS/server.log" | cut -c1-160
fi

# The server must end with status 70 when a rank launches nothing.
stall() {
  local code=0
  timeout 120 "$HERE/bin/millraced" --device cuda --model "$MILLRACE_MODEL" --tensor-parallel-size 2 --step-timeout 2s \
    --http-port 18471 --grpc-port 0 --admin-port 0 --faults cuda.rank_stall=1000@20 &
  local server=$!
  for _ in $(seq 60); do
    sleep 1
    python3 -c "import urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:18471/v1/completions', b'{\"prompt\": \"One, two\", \"max_tokens\": 100, \"ignore_eos\": true}', {'Content-Type': 'application/json'}), timeout=30)" 2>/dev/null
    kill -0 $server 2>/dev/null || break
  done
  wait $server || code=$?
  [ $code = 70 ]
}
export HERE MILLRACE_MODEL
export -f stall
if wanted stall; then run stall 180 bash -c stall; fi

# millraced --device cuda FLAG...: with ports of this script's.
node() {
  local rank=$1
  shift
  local ports=()
  [ "$rank" != 0 ] || ports=(--http-port 18472 --grpc-port 0 --admin-port 0)
  [ $# = 0 ] || export MILLRACE_NODE_KEY=a-key-of-this-script
  exec timeout 150 "$HERE/bin/millraced" --device cuda --model "$MILLRACE_MODEL" \
    --tensor-parallel-size 2 "${ports[@]}" "$@"
}
# Prints an answer of the server, once there is one.
answer() {
  for _ in $(seq 60); do
    sleep 1
    python3 -c "import json, urllib.request as u; print(json.dumps(json.load(u.urlopen(u.Request('http://127.0.0.1:18472/v1/completions', b'{\"prompt\": \"One, two\", \"max_tokens\": 60, \"temperature\": 0, \"logprobs\": 3, \"ignore_eos\": true}', {'Content-Type': 'application/json'}), timeout=30))['choices']))" 2>/dev/null && return
  done
  return 1
}
# Two processes with a GPU each give what one process with both gives. When one of them is killed, the other ends with status 70.
nodes() {
  local one two code=0
  (node 0) &
  local server=$!
  one=$(answer)
  kill $server
  wait $server
  local flags=(--nnodes 2 --master-addr 127.0.0.1 --master-port 29610)
  (node 1 "${flags[@]}" --node-rank 1 --devices 1) &
  local follower=$!
  (node 0 "${flags[@]}" --node-rank 0 --devices 0) &
  server=$!
  two=$(answer)
  echo "$one"
  echo "$two"
  pkill -KILL -P $follower || kill -KILL $follower
  wait $server || code=$?
  wait $follower
  [ -n "$one" ] && [ "$one" = "$two" ] && [ $code = 70 ]
}
export -f node answer nodes
if wanted nodes; then run nodes 400 bash -c nodes; fi

# engine NAME MODEL RANKS FLAG...: prints the tables.
engine() {
  local name=$1 model=$2 ranks=$3
  shift 3
  run "$name" 240 bin/millraced bench --device cuda --model "$HERE/models/$model" --load-format dummy --tensor-parallel-size "$ranks" \
    --max-num-seqs 256 --max-num-batched-tokens 8192 --max-model-len 4096 --json "$LOGS/$name.json" "$@"
  grep -vE '^ *$|^(VOID)?\[' "$LOGS/$name.log" | cut -c1-200
}
if wanted bench; then
  memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1) # MiB
  short=1:128:16:144,64:128:16:144,256:128:16:144
  for ranks in ${BENCH_RANKS:-1 2 4 8}; do
    [ "$ranks" -le "$gpus" ] || continue
    engine "bench_8b_fp8_tp$ranks" llama-3-8b "$ranks" --quantization fp8 --points $short
    [ $((ranks * memory)) -lt 90000 ] || engine "bench_70b_fp8_tp$ranks" llama-3-70b "$ranks" --quantization fp8 --points $short
    [ "$ranks" = 1 ] || engine "bench_experts_tp$ranks" qwen3-30b-a3b-fp8 "$ranks" --enable-expert-parallel --points 1:128:16:144,64:128:16:144
    [ $((ranks * memory)) -lt 90000 ] || engine "bench_oss_120b_tp$ranks" gpt-oss-120b "$ranks" --points 1:128:16:144,16:128:16:144
  done
fi
finish
