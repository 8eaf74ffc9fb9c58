#!/usr/bin/env bash
# Measures what thousands of streams cost the server: CPU time a token, memory a stream, and how even the tokens come.
# The server's model is the fake executor, so all of it is the server's own work. docs/load-testing.md has figures.
#   loadtest/streams.sh [http|grpc ...]      both by default
# Variables: BUILD (build), STREAMS (4000), TOKENS (400), STEP_US (50000), PERF (a file for `perf record`; none)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build} streams=${STREAMS:-4000} tokens=${TOKENS:-400} step_us=${STEP_US:-50000}
[ $# -gt 0 ] || set -- http grpc
ulimit -n "$(ulimit -Hn)"
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

memory_kib() { awk '/^VmRSS/ {print $2}' "/proc/$server/status"; }
# utime and stime, in ticks. The name before them may have spaces, and ends with the last bracket.
cpu_ticks() { sed 's/.*) //' "/proc/$server/stat" | awk '{print $12 + $13}'; }

measure() {
  local protocol=$1 port url before_kib before_ticks
  rm -f "$work/ready"
  "$build/millraced" --device fake --fake-step-us "$step_us" --fake-token-us 0 --max-num-seqs "$streams" \
    --max-num-batched-tokens 65536 --max-waiting $((streams + 1000)) --max-connections $((streams + 1000)) \
    --kv-cache-memory 4GiB --http-port 0 --grpc-port 0 --admin-port 0 --ready-file "$work/ready" --log warning &
  server=$!
  until [ -f "$work/ready" ]; do kill -0 "$server"; sleep 0.1; done
  port=$(sed -nE "s/.*\"$protocol\": ([0-9]+).*/\1/p" "$work/ready")
  url=127.0.0.1:$port
  [ "$protocol" = grpc ] || url=http://$url
  before_kib=$(memory_kib) before_ticks=$(cpu_ticks)
  # When all streams run, and two thirds of their tokens are sent.
  (sleep "$(awk "BEGIN {print $tokens * $step_us / 1.5e6}")" && memory_kib >"$work/kib") &
  local sampler=$! profiler=
  if [ -n "${PERF:-}" ]; then
    perf record -q -e cpu-clock -F 1999 -g -o "$PERF.$protocol" -p "$server" &
    profiler=$!
  fi
  "$build/millrace-loadtest" --url "$url" --protocol "$protocol" --concurrency "$streams" \
    --num-prompts "$streams" --input-len 16 --output-len "$tokens" --json "$work/result.json" >"$work/text"
  wait "$sampler"
  local ticks=$(($(cpu_ticks) - before_ticks))
  kill "$server"
  wait "$server" || true
  server=
  [ -z "$profiler" ] || wait "$profiler" || true
  figure() { sed -nE "s/.*\"$1\": ([0-9.]+).*/\1/p" "$work/result.json" | head -1; }
  awk -v protocol="$protocol" -v ticks="$ticks" -v hz="$(getconf CLK_TCK)" -v kib="$(($(cat "$work/kib") - before_kib))" \
    -v streams="$streams" -v sent="$(figure total_output_tokens)" -v done="$(figure completed)" \
    -v itl="$(figure p99_itl_ms)" -v pause="$(figure p99_pause_ms)" -v step="$(figure mean_itl_ms)" 'BEGIN {
      printf "%s: %d of %d complete; %.2f µs of server CPU a token; %.1f KiB a stream; ", protocol, done, streams,
             ticks / hz * 1e6 / sent, kib / streams
      printf "a token every %.1f ms, p99 %.1f ms, pauses p99 %.1f ms\n", step, itl, pause }'
}

for protocol in "$@"; do measure "$protocol"; done
