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
server=
cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  wait
  # The image's tree, and the folder of the storage driver.
  awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP
export BUILDAH_ISOLATION=chroot
bud() { buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }

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

# A registry and an engine read this of it.
bud inspect --type image --format '{{.Docker.Config.User}} {{.Docker.Config.Entrypoint}} {{.Docker.Config.Healthcheck.Test}}' millrace:cpu |
  grep -xF '65532:65532 [/usr/bin/millraced] [CMD /usr/bin/millraced health]' || die "the image's configuration is another"
container=$(bud from --pull-never millrace:cpu)
tree=$(bud mount "$container")
size=$(du -sm --apparent-size "$tree" | cut -f1)
say "the image has $size MB"
[ "$size" -le 250 ] || die "that is more than 250 MB"

say "running it"
bud run "$container" -- /usr/bin/millraced --version
inside=(env -i "$(command -v chroot)" --userspec=65532:65532 "$tree" /usr/bin/millraced)
"${inside[@]}" --device fake --http-port 0 --grpc-port 0 --admin-port 0 --ready-file /tmp/ready.json &
server=$!
until [ -f "$tree/tmp/ready.json" ]; do
  kill -0 "$server" 2>/dev/null || die "the server ended"
  sleep 0.05
done
"${inside[@]}" health --http-port "$(sed -nE 's/.*"http": ([0-9]+).*/\1/p' "$tree/tmp/ready.json")"
kill "$server"
wait "$server"
say "it served, was well, and drained"
