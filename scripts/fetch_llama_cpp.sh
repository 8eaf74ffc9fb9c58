#!/usr/bin/env bash
# Downloads llama.cpp's sources, as contained in PyPI's llama-cpp-python, into the cache folder. make bench-cpu builds them, and
# make parity reads their templates and vocabularies.
set -euo pipefail
source "$(dirname "$0")/common.sh"
[ ! -d "$LLAMA_CPP" ] || exit 0

# pip queries a source package's metadata, which needs the build backend of the pinned environment.
"$ROOT/scripts/setup.sh" bench
say "fetching llama.cpp (77 MB, the source package of PyPI's llama-cpp-python 0.3.36)"
mkdir -p "$CACHE"
scratch=$(mktemp -d "$CACHE/.peer.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
if ! "$(venv_path bench)/bin/pip" download --quiet --require-hashes --no-deps --no-binary :all: --no-build-isolation \
  --dest "$scratch" -r "$ROOT/scripts/pypi/llama-cpp.txt" ||
  ! tar -xf "$scratch"/llama_cpp_python-*.tar.gz -C "$scratch"; then
  die "cannot fetch llama.cpp's sources"
fi
mv "$scratch"/llama_cpp_python-0.3.36 "$LLAMA_CPP"
