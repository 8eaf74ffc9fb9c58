#!/usr/bin/env bash
# `make fresh-test`: runs the README's two commands in a new Debian 12, or Ubuntu 24.04, with nothing but make, and prints the times they
# took.
#   scripts/fresh_test.sh [debian-12|ubuntu-24.04]
# Needs root, on Debian. The new system uses this host's apt and pip configuration, whatever that is; HEAD is tested.
# UBUNTU_MIRROR: where Ubuntu's packages come from (http://archive.ubuntu.com/ubuntu).
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"

distribution=${1:-debian-12}
mirror=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
case $distribution in
  debian-12) suite=bookworm title="Debian 12" ;;
  ubuntu-24.04) suite=noble title="Ubuntu 24.04" ;;
  *) die "$distribution: allowed are debian-12 and ubuntu-24.04" ;;
esac
[ "$(id -u)" = 0 ] || die "fresh-test makes a chroot and needs root"
for port in 8000 8001 8002; do
  ! (: </dev/tcp/127.0.0.1/$port) 2>/dev/null || die "port $port is taken, and \`make serve\` needs it"
done
scripts/setup.sh fresh
git diff --quiet HEAD || say "note: what is not committed is not tested"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/millrace-fresh.XXXXXX")
system=$work/system
runner=
cleanup() {
  # Killing the first process of the namespaces ends all processes in them, and their mounts.
  [ -z "$runner" ] || kill -KILL "$runner" 2>/dev/null || true
  wait
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

# ---- The new system ----
keyring=()
if [ "$distribution" = debian-12 ]; then
  mapfile -t sources < <(grep -lw $suite /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources \
    2>/dev/null)
  [ ${#sources[@]} -gt 0 ] || die "this host's apt sources name no $suite"
else
  # Debian has no package with Ubuntu's keys.
  curl -fsSL -o "$work/keyring.deb" "$mirror/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb" ||
    die "cannot fetch Ubuntu's keys from $mirror"
  sha256sum --quiet -c - <<<"36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $work/keyring.deb" ||
    die "Ubuntu's keys from $mirror are not those that are expected"
  dpkg-deb -x "$work/keyring.deb" "$work/keys"
  keyring=(--keyring="$work/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg")
  sources=()
  for pocket in "" -updates -security; do sources+=("deb $mirror $suite$pocket main universe"); done
fi
apt-config dump | grep '^Acquire::' | grep -v ' "";$' >"$work/apt.conf"

say "making a $title with make and nothing else"
started=$SECONDS
mmdebstrap --quiet --mode=root --variant=minbase --include=make,apt --aptopt="$work/apt.conf" "${keyring[@]}" $suite "$system" "${sources[@]}"
chroot_seconds=$((SECONDS - started))

cp -L /etc/resolv.conf /etc/hosts "$system/etc/"
mkdir -p "$system/usr/local/share/ca-certificates" "$system/root/.config" "$system/root/millrace" "$system/opt/host"
find /usr/local/share/ca-certificates -name '*.crt' -exec cp -L {} "$system/usr/local/share/ca-certificates/" \; 2>/dev/null || true
for file in /etc/pip.conf /etc/xdg/pip/pip.conf "$HOME/.pip/pip.conf" "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf"; do
  [ ! -f "$file" ] || cat "$file" >>"$system/etc/pip.conf"
done
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb)
while IFS= read -r -d '' variable; do
  [[ $variable == *=/* ]] || environment+=("$variable") # A path of this host means nothing there.
done < <(env -0 | grep -zE '^(PIP_[A-Z_]+|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY)=')
# The host may trust certificates that a new Debian does not have: pip's are named in its configuration.
certificate=$(sed -nE 's/^ *cert *= *//p' "$system/etc/pip.conf" 2>/dev/null | tail -1)
certificate=${PIP_CERT:-$certificate}
if [ -n "$certificate" ]; then
  cp -L "$certificate" "$system/opt/host/certificates.pem"
  environment+=(PIP_CERT=/opt/host/certificates.pem)
fi
git archive HEAD | tar -x -C "$system/root/millrace"

# ---- The two commands, run and timed inside ----
cp scripts/fresh_inside.sh "$system/opt/host/"
say "running the README's commands in it"
unshare --mount --pid --fork --kill-child --propagation private bash -euc '
  mount -t proc proc "$1/proc"
  mount -t sysfs -o ro sysfs "$1/sys"
  mount --rbind /dev "$1/dev"
  root=$1
  shift
  exec chroot "$root" env -i "$@" /bin/bash /opt/host/fresh_inside.sh' fresh "$system" "${environment[@]}" </dev/null &
runner=$!
code=0
wait "$runner" || code=$?
runner=

say "a new $title, $(nproc) cores, $(sed -nE 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(git rev-parse --short HEAD)"
printf '| %-44s | %10s |\n' what figure "$(printf -- '-%.0s' {1..44})" "$(printf -- '-%.0s' {1..10})" \
  "make the chroot (not Millrace's)" "$chroot_seconds s"
while IFS=$'\t' read -r what figure; do
  printf '| %-44s | %10s |\n' "$what" "$figure"
done <"$system/opt/host/figures"
[ $code = 0 ] || die "fresh-test failed (see above)"
say "fresh-test passed"
