#!/usr/bin/env bash
# `make image-test`: builds Containerfile.cpu with buildah and runs what it made, without a daemon and without a registry: the base
# image is a Debian 12 that mmdebstrap makes of this machine's apt sources. Needs root. Compiles everything, so it takes minutes; the
# tree alone is tested by `make test` (tests/test_image.py). HEAD is built.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
[ "$(id -u)" = 0 ] || die "image-test makes a Debian and mounts it, and needs root"
scripts/setup.sh image

work=$(mktemp -d "${TMPDIR:-/var/tmp}/millrace-image.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM HUP
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
bud() { buildah --root "$work/storage" --runroot "$work/run" "$@"; }

say "making the base image"
mapfile -t sources < <(grep -lw bookworm /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null)
[ ${#sources[@]} -gt 0 ] || die "this host's apt sources name no bookworm"
mmdebstrap --quiet --variant=minbase bookworm "$work/debian" "${sources[@]}"
base=$(bud from scratch)
bud add -q "$base" "$work/debian" / >/dev/null
bud commit -q --rm "$base" docker.io/library/debian:12 >/dev/null
rm -rf "$work/debian"

say "building the image"
mkdir "$work/context"
git archive HEAD | tar -x -C "$work/context"
started=$SECONDS
bud bud --pull-never --network host --format docker -f "$work/context/deploy/image/Containerfile.cpu" -t millrace:cpu "$work/context"
say "built in $((SECONDS - started)) s"

# What a registry and an engine read of it.
bud inspect --type image --format '{{.Docker.Config.User}} {{.Docker.Config.Entrypoint}} {{.Docker.Config.Healthcheck.Test}}' millrace:cpu |
  grep -xF '65532:65532 [/usr/bin/millraced] [CMD /usr/bin/millraced health]' || die "the image's configuration is another"
container=$(bud from --pull-never millrace:cpu)
tree=$(bud mount "$container")
size=$(du -sm --apparent-size "$tree" | cut -f1)
say "the image has $size MB"
[ "$size" -le 250 ] || die "that is more than 250 MB"

say "running it"
bud run "$container" -- /usr/bin/millraced --version
inside() { chroot --userspec=65532:65532 "$tree" /usr/bin/millraced "$@"; }
# In the background a function has a shell of its own, which would get the signal: exec.
(exec chroot --userspec=65532:65532 "$tree" /usr/bin/millraced --device fake --http-port 0 --grpc-port 0 --admin-port 0 --ready-file /tmp/ready.json) &
server=$!
trap 'kill "$server" 2>/dev/null; wait; rm -rf --one-file-system "$work"' EXIT
until [ -f "$tree/tmp/ready.json" ]; do
  kill -0 "$server" 2>/dev/null || die "the server ended"
  sleep 0.05
done
inside health --http-port "$(sed -nE 's/.*"http": ([0-9]+).*/\1/p' "$tree/tmp/ready.json")"
kill "$server"
wait "$server"
say "it served, was well, and drained"
