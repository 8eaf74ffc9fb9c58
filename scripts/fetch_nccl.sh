#!/usr/bin/env bash
# Puts libnccl.so.2 and its licence (LICENSE.nccl) into a folder, for the image of GPUs: NVIDIA's archive need not have it for each
# distribution, and PyPI has.
#   scripts/fetch_nccl.sh FOLDER
set -euo pipefail
source "$(dirname "$0")/common.sh"
[ $# = 1 ] || die "usage: scripts/fetch_nccl.sh FOLDER"

say "fetching NCCL (196 MB, inside the PyPI package nvidia-nccl-cu13)"
download_packages nccl --no-cache-dir
python3 - "$scratch"/nvidia_nccl_cu13-*.whl "$scratch" <<'PYTHON'
import pathlib, shutil, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (licence,) = [name for name in wheel.namelist() if name.endswith(".dist-info/licenses/License.txt")]
    for name, target in [("nvidia/nccl/lib/libnccl.so.2", "libnccl.so.2"), (licence, "LICENSE.nccl")]:
        with wheel.open(name) as source, open(pathlib.Path(sys.argv[2], target), "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
PYTHON
install -D -m 644 -t "$1" "$scratch/libnccl.so.2" "$scratch/LICENSE.nccl"
