# Sourced by the scripts beside it: where things lie, how a script speaks, the pinned Python environments.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/millrace
JOBS=${MILLRACE_JOBS:-$(nproc)}
MODEL=$CACHE/SmolLM2-135M-Instruct.Q4_1.gguf
LLAMA_CPP=$CACHE/llama-cpp-python-0.3.36
PATH=$CACHE/bin:$PATH

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() {
  printf 'millrace: %s\n' "$*" >&2
  exit 1
}

# The folder of the virtual environment that holds scripts/pypi/GROUP.txt. Its name carries the digest of that file, so a
# changed list makes a new one and an unchanged list costs one look.
venv_path() {
  local digest
  digest=$(sha256sum <"$ROOT/scripts/pypi/$1.txt")
  printf '%s/venv-%s-%s' "$CACHE" "$1" "${digest:0:12}"
}

# A new virtual environment at $1, of the system's Python.
make_venv() {
  python3 -m venv "$1" || die "python3 -m venv failed: scripts/setup.sh build installs what it needs"
}

# Builds targets of a build folder: on a terminal ninja rewrites one line of progress, in a log only what goes wrong is written.
build_quietly() {
  local folder=$1 quiet=--quiet
  shift
  [ -t 1 ] && quiet=
  ninja -C "$folder" -j "$JOBS" $quiet "$@"
}
