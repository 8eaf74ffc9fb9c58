#!/usr/bin/env bash
# Downloads LibTorch into the cache folder, once: the libraries and headers that `--device torch` is built with and runs on
# (cmake/Torch.cmake looks there). On machines other than x86-64 it does nothing, and the server is built without that device.
set -euo pipefail
source "$(dirname "$0")/common.sh"

[ "$(uname -m)" = x86_64 ] || exit 0
torch=$(cache_path torch)
[ -d "$torch" ] && exit 0

say "fetching LibTorch (531 MB, inside the PyPI package torch)"
download_packages torch --no-cache-dir --implementation cp --python-version 311 --abi cp311 --abi none \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux2014_x86_64
python3 - "$scratch" <<'PYTHON'
import pathlib, shutil, sys, zipfile

scratch = pathlib.Path(sys.argv[1])
libraries = {f"torch/lib/{name}" for name in ("libtorch_cpu.so", "libc10.so", "libgomp.so.1")}
libraries |= {f"nvidia/cu13/lib/{name}" for name in ("libcudart.so.13", "libcupti.so.13")}
headers = tuple(f"torch/include/{folder}/" for folder in ("ATen", "c10", "torch"))
for wheel in scratch.glob("*.whl"):
    with zipfile.ZipFile(wheel) as files:
        for entry in files.infolist():
            path = pathlib.PurePosixPath(entry.filename)
            if entry.filename in libraries:
                target = scratch / "torch" / "lib" / path.name
                libraries.remove(entry.filename)
            elif entry.filename.startswith(headers) and path.suffix in (".h", ".hpp"):
                target = scratch / "torch" / "include" / path.relative_to("torch/include")
            elif path.match("torch-*.dist-info/licenses/*"):
                target = scratch / "torch" / path.name
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with files.open(entry) as source, open(target, "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
sys.exit(f"not in the wheels: {sorted(libraries)}" if libraries else 0)
PYTHON
mv "$scratch/torch" "$torch"
