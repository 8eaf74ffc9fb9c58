#!/usr/bin/env bash
# `make gpu-bundle`: packs everything that a GPU machine without network, compiler or our packages needs to run all GPU tests
# and benchmarks, in parts of at most 40 MiB in build/gpu-bundle/. deploy/gpu/README.md describes its use.
#   scripts/gpu_bundle.sh [BUILD_FOLDER]
# BUNDLE_PYTHON: the Python of that machine (3.12).
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
build=${1:-build}
python=${BUNDLE_PYTHON:-3.12}
part_bytes=$((40 << 20))

scripts/setup.sh build test
scripts/fetch_model.sh
say "building millraced, the GPU tests and the GPU benchmarks in $build/"
cmake -S . -B "$build" -G Ninja -DMILLRACE_TESTS=ON -DMILLRACE_CUDA=ON --log-level=WARNING >/dev/null
build_quietly "$build" millraced millrace-loadtest write_tiny_folders gpu_tests gpu_benches

work=$build/gpu-bundle.work
target=$build/gpu-bundle
rm -rf "$work" "$target"
mkdir -p "$work"/{bin,lib,gpu_tests,gpu_benches,models} "$target"

say "collecting programs"
take() { strip -o "$2/$(basename "$1")" "$1"; }
# Tests serve what write_tiny_folders writes, and look for it beside millraced.
for name in millraced millrace-loadtest write_tiny_folders; do strip -o "$work/bin/$name.real" "$build/$name"; done
for kind in tests benches; do
  while read -r program; do take "$program" "$work/gpu_$kind"; done <"$build/gpu_$kind.txt"
done
# Excludes the C and C++ run-time libraries, of which that machine has newer ones, and everything of CUDA.
for program in "$work"/bin/* "$work"/gpu_*/*; do
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
done | sort -u | grep -vE '/(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|cuda|cublas|cupti)[.-].*)$' |
  while read -r library; do cp -L "$library" "$work/lib/"; done
strip --strip-unneeded "$work"/lib/* 2>/dev/null || true
# A wrapper hides the libraries from programs that millraced is started beside.
for name in millraced millrace-loadtest write_tiny_folders; do
  cat >"$work/bin/$name" <<'WRAPPER'
#!/bin/sh
program=$(readlink -f "$0")
LD_LIBRARY_PATH=$(dirname "$program")/../lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$program.real" "$@"
WRAPPER
  chmod +x "$work/bin/$name"
done

say "collecting tests, models and Python packages"
cp -r deploy/gpu/{common.sh,run_tests.sh,run_benches.sh,run_multi.sh,run_ncu.sh,ncu_table.py,write_checkpoint.py,sanitizer.txt} "$work/"
cp bench/load/sweep.py "$work/"
cp -r deploy/gpu/models/. "$work/models/"
cp "$MODEL" "$work/models/"
git ls-files -z tests proto | xargs -0 cp --parents -t "$work"
echo "millrace $(git describe --always --dirty --exclude '*')" >"$work/VERSION"
platforms=()
for minor in 39 35 34 31 28 27 17 12 5; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
"$(venv_path test)/bin/pip" install --quiet --require-hashes --no-deps --no-compile --only-binary :all: --target "$work/site" \
  --python-version "$python" --implementation cp "${platforms[@]}" -r scripts/pypi/test.txt

say "packing"  # -9: its window spans several programs, which contain the same kernels
tar -C "$work" --sort=name --owner=0 --group=0 -c . | xz -T0 -9 | split -b $part_bytes -d -a 2 - "$target/bundle."
(cd "$target" && sha256sum bundle.* >SHA256SUMS)
for piece in "$target"/bundle.*; do
  part=$target/part-$((10#${piece##*.}))
  mkdir "$part"
  mv "$piece" "$part/"
  cp "$target/SHA256SUMS" deploy/gpu/install.sh "$part/"
done
rm -rf "$work" "$target/SHA256SUMS"
du -sh "$target"/part-* | sed 's/^/  /'
say "made $(ls -d "$target"/part-* | wc -l) parts: on the GPU machine, run part-N/install.sh FOLDER for each, then FOLDER/run_tests.sh"
