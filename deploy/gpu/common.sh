# Sourced by run_tests.sh, run_benches.sh and run_ncu.sh of an unpacked bundle: the locations of files, and one line per program run.
# shellcheck shell=bash

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
OUT=${OUT:-$HERE/out}
LOGS=$HERE/logs/$(basename "$0" .sh)
rm -rf "$LOGS"
mkdir -p "$OUT" "$LOGS"
failures=0
runs=0

die() {
  printf '%s\n' "$*" >&2
  exit 1
}
command -v nvidia-smi >/dev/null || die "there is no nvidia-smi: this is no GPU machine"

# Locates CUDA's libraries, which the bundle does not contain, in the toolkit or in Python packages (nvidia-cublas,
# nvidia-cuda-cupti, nvidia-nccl).
python_libraries() {
  python3 -c '
import importlib.util, pathlib
spec = importlib.util.find_spec("nvidia")
for folder in spec.submodule_search_locations if spec else []:
    for library in pathlib.Path(folder).glob("*/lib"):
        print(library)' 2>/dev/null
}
folder_of() {
  local folder
  for folder in /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64 $(python_libraries); do
    [ -e "$folder/$1" ] && echo "$folder" && return
  done
  echo "note: $1 was not found" >&2
}
for library in libcublasLt.so.13 libcupti.so.13 libnccl.so.2; do
  folder=$(folder_of $library)
  [ -z "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH
# The bundle's libraries are only for its own programs; bin/millraced finds them by itself.
PROGRAM_LIBRARIES=$HERE/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export MILLRACE_MODEL=$HERE/models/SmolLM2-135M-Instruct.Q4_1.gguf

# Succeeds if NAME contains one of `names`, or if these are empty.
wanted() {
  local name
  [ ${#names[@]} -gt 0 ] || return 0
  for name in "${names[@]}"; do
    [[ $1 != *"$name"* ]] || return 0
  done
  return 1
}

# run NAME SECONDS COMMAND...: runs the command with its output in a log, prints a line on how it ended, and returns its status.
run() {
  local name=$1 limit=$2 code=0 begun=$SECONDS
  shift 2
  runs=$((runs + 1))
  timeout -k 5 "$limit" "$@" >"$LOGS/$name.log" 2>&1 </dev/null || code=$?
  local what=ok
  [ $code = 0 ] || what="FAILED ($code)"
  [ $code != 124 ] || what="took more than $limit s"
  [ $code = 0 ] || failures=$((failures + 1))
  printf '%-40s %5d s  %s\n' "$name" $((SECONDS - begun)) "$what"
  return $code
}

# black_box NAME SECONDS FLAGS TEST...: runs Python tests with a server that has these flags. The GPU machine's Python may have
# pytest plugins of its own; only the bundle's one is used.
black_box() {
  local name=$1 limit=$2 flags=$3
  shift 3
  run "$name" "$limit" env MILLRACED="$HERE/bin/millraced" MILLRACED_ARGS="$flags" PYTHONPATH="$HERE/site" \
    PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -m pytest -p pytest_timeout "$@" -q -p no:cacheprovider --timeout 120 -rfE
}
# The tests that a GPU can run: no embeddings, which need a model that the bundle does not contain, no LibTorch, which it does not
# contain either, no tests of scripts, documents, other programs and what is deployed, and none that needs a browser or a client's
# package.
GPU_TESTS=(tests --ignore tests/gpu -m "not torch and not deploy")
for name in bad_inputs clients console decoder_embeddings docs embeddings examples grammars image install kserve kubernetes loadtest monitoring openapi package \
  replicas scripts shared_port soak sweep tracing vllm_engine vllm_router; do
  GPU_TESTS+=(--ignore "tests/test_$name.py")
done

# Packs the logs into one file and exits.
finish() {
  [ $runs -gt 0 ] || die "nothing has such a name"
  tar -czf "$OUT/$(basename "$0" .sh).tar.gz" -C "$LOGS" . || failures=$((failures + 1))
  if [ $failures = 0 ]; then
    echo "all is well"
    exit 0
  fi
  echo "$failures failed"
  exit 1
}

echo "$(cat "$HERE/VERSION"), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), $(date -u +%F)"
cd "$HERE" || exit 1
