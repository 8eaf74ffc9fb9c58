#!/usr/bin/env bash
# Installs what the named groups of scripts/packages.tsv and scripts/pypi/ need and this machine lacks.
#   scripts/setup.sh build|test|bench|lint|fuzz|coverage|fresh|image|parity|package ...
# As root it installs; as another user it prints the missing packages and fails. If nothing is missing it contacts no server and
# ends at once.
set -euo pipefail
source "$(dirname "$0")/common.sh"
[ $# -gt 0 ] || die "usage: scripts/setup.sh build|test|bench|lint|fuzz|coverage|fresh|image|parity|package ..."

case $DISTRIBUTION in
  debian-12) column=2 ;;
  ubuntu-24.04) column=4 ;;
  *) die "this is $DISTRIBUTION; scripts/packages.tsv knows debian-12 and ubuntu-24.04: install its packages by hand" ;;
esac

# Prints the lines "package minimum take" of the requested groups, in one pass.
wanted=$(awk -F'\t' -v column=$column -v groups=" $* " \
  '!/^#/ && $column != "-" && index(groups, " " $1 " ") && !seen[$column $6]++ { print $column, $(column + 1), $6 }' "$ROOT/scripts/packages.tsv")
for group in "$@"; do
  grep -q "^$group	" "$ROOT/scripts/packages.tsv" || die "scripts/packages.tsv has no group $group"
done

missing=()
declare -A installed
while read -r package version status; do
  [ "$status" = installed ] && installed[$package]=$version
done < <(awk 'NF == 2 { print $1 }' <<<"$wanted" |
  xargs dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' 2>/dev/null)
take=()
while read -r package minimum file; do
  if [ -n "$file" ]; then
    [ -x "$CACHE/bin/${file##*/}" ] || take+=("$package:$file")
  elif [ -z "${installed[$package]:-}" ] || dpkg --compare-versions "${installed[$package]}" lt "$minimum"; then
    missing+=("$package")
  fi
done <<<"$wanted"

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ]; then
    die "packages are missing and this is not root. Run once, then repeat what you did:
    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null >/dev/null
  while read -r package minimum file; do
    [ -z "$file" ] || continue
    version=$(dpkg-query -W -f '${Version}' "$package")
    dpkg --compare-versions "$version" ge "$minimum" || die "$package is $version, but $minimum or later is needed"
  done <<<"$wanted"
fi

for item in "${take[@]}"; do
  package=${item%%:*} file=${item#*:}
  say "taking ${file##*/} out of the package $package"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  (cd "$scratch" && apt-get download -qq -o APT::Sandbox::User=root "$package" >/dev/null && dpkg-deb -x "$package"_*.deb out) ||
    die "cannot download the package $package: is apt's list fresh (apt-get update)?"
  mkdir -p "$CACHE/bin"
  mv "$scratch/out/$file" "$CACHE/bin/${file##*/}"
done

# Prints scripts/pypi/$1.txt without the packages of scripts/pypi/$1.without-$DISTRIBUTION, which have no wheel for its Python.
requirements() {
  local without='' list=$ROOT/scripts/pypi/$1.without-$DISTRIBUTION
  [ ! -f "$list" ] || without=$(sed '/^#/d' "$list" | tr '\n' ' ') || return
  awk -v without=" $without" '/^[^ #]/ { skip = index(without, " " substr($1, 1, index($1, "==") - 1) " ") } !skip' "$ROOT/scripts/pypi/$1.txt"
}

# Python packages: a group with a list scripts/pypi/GROUP.txt has an environment of its own, outside the tree.
for group in "$@"; do
  [ -f "$ROOT/scripts/pypi/$group.txt" ] || continue
  venv=$(venv_path "$group")
  [ -e "$venv/complete" ] && continue
  say "making the Python environment of group $group"
  rm -rf "$venv"
  make_venv "$venv"
  list=$(requirements "$group")
  "$venv/bin/pip" install --quiet --require-hashes --only-binary :all: -r /dev/stdin <<<"$list"
  touch "$venv/complete"
done
