#!/usr/bin/env bash
# Makes an AOTInductor package of a PyTorch module (scripts/export_package.py says how it is written):
#   scripts/export_package.sh MODULE.py PACKAGE.pt2
# The first time it makes a Python environment with PyTorch (2.3 GB of wheels from PyPI, which hold CUDA's libraries, too).
set -euo pipefail
source "$(dirname "$0")/common.sh"
[ $# = 2 ] || die "usage: scripts/export_package.sh MODULE.py PACKAGE.pt2"

[ "$(uname -m)" = x86_64 ] || die "this is $(uname -m); packages are made and run on x86_64"
"$ROOT/scripts/setup.sh" build package
exec "$(venv_path package)/bin/python" "$ROOT/scripts/export_package.py" "$@"
