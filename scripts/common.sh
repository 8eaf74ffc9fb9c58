# Sourced by the scripts beside it: the locations of files, output functions, and the pinned Python environments.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/millrace
JOBS=${MILLRACE_JOBS:-$(nproc)}
MODEL=$CACHE/SmolLM2-135M-Instruct.Q4_1.gguf
MINILM=$CACHE/all-MiniLM-L6-v2
GEMMA=$CACHE/gemma-3-270m-q4_k_m.gguf
LLAMA_CPP=$CACHE/llama-cpp-python-0.3.36
PATH=$CACHE/bin:$PATH

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() {
  printf 'millrace: %s\n' "$*" >&2
  exit 1
}

# The distribution and its version, as scripts/packages.tsv names it.
DISTRIBUTION=$(. /etc/os-release 2>/dev/null && echo "$ID-${VERSION_ID:-}" || echo unknown)

# Prints the folder for the packages of scripts/pypi/GROUP.txt: $CACHE/NAME-, followed by the digest of that file and, where there is
# one, of GROUP.without-$DISTRIBUTION, so that a changed list gets a new folder and an unchanged one costs a single check. NAME is GROUP
# unless a second argument is given.
cache_path() {
  local digest lists=("$ROOT/scripts/pypi/$1.txt")
  [ ! -f "$ROOT/scripts/pypi/$1.without-$DISTRIBUTION" ] || lists+=("$ROOT/scripts/pypi/$1.without-$DISTRIBUTION")
  digest=$(cat "${lists[@]}" | sha256sum)
  printf '%s/%s-%s' "$CACHE" "${2:-$1}" "${digest:0:12}"
}

# Prints the folder of a group's virtual environment.
venv_path() { cache_path "$1" "venv-$1"; }

# Makes a virtual environment at $1 with the system's Python.
make_venv() {
  python3 -m venv "$1" || die "python3 -m venv failed: scripts/setup.sh build installs what it needs"
}

# Downloads the packages of scripts/pypi/$1.txt into $scratch, a new folder beside the cache's entries, which is removed when
# the script ends. Further arguments are passed to pip.
download_packages() {
  local group=$1
  shift
  mkdir -p "$CACHE"
  scratch=$(mktemp -d "$CACHE/.fetch.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  make_venv "$scratch/venv"
  "$scratch/venv/bin/pip" download --quiet --require-hashes --no-deps --only-binary :all: --dest "$scratch" \
    -r "$ROOT/scripts/pypi/$group.txt" "$@"
}

# Prints the commit since which changes are checked: where this branch left origin/main. In a clone whose origin/main is checked out (CI)
# it is the last one that is six hours older than the newest: as many as a landing takes.
changes_base() {
  local base
  base=$(git -C "$ROOT" merge-base HEAD origin/main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git -C "$ROOT" rev-parse HEAD)" ]; then
    # The empty tree stands for the parent of the first commit.
    base=$(git -C "$ROOT" log -1 --format=%H --until=$(($(git -C "$ROOT" log -1 --format=%ct) - 6 * 3600)) || true)
    base=${base:-$(git -C "$ROOT" hash-object -t tree /dev/null)}
  fi
  echo "$base"
}

# Builds targets of a build folder. On a terminal ninja rewrites one line of progress; otherwise only failures are printed.
build_quietly() {
  local folder=$1 quiet=--quiet
  shift
  [ -t 1 ] && quiet=
  ninja -C "$folder" -j "$JOBS" $quiet "$@"
}

# setting NAME FLAG...: prints the value of --NAME that millraced would use with these flags: from the last such flag, the
# environment, or the file of --config. Prints nothing if none of them sets it. NAME is one word.
setting() {
  local name=$1 variable=MILLRACE_${1^^} value= file
  local flags=("${@:2}")
  for i in "${!flags[@]}"; do
    case ${flags[i]} in
      --"$name"=*) value=${flags[i]#*=} ;;
      --"$name") value=${flags[i + 1]-} ;;
    esac
  done
  value=${value:-${!variable-}}
  if [ -z "$value" ] && [ "$name" != config ]; then
    file=$(setting config "${flags[@]}")
    [ ! -f "$file" ] || value=$(sed -nE "s/^([^#]*[{,[:space:]])?[\"']?$name[\"']?[[:space:]]*:[[:space:]]*[\"']?([^\"',}#[:space:]]+).*/\\2/p" "$file")
  fi
  printf '%s' "$value"
}
