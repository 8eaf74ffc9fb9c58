#!/usr/bin/env bash
# Makes the tree of the container image, without a container engine: the program, the shared libraries that it needs, CA
# certificates, a user, licence texts and a list of all that (SBOM).
#   deploy/image/rootfs.sh FOLDER [PROGRAM [LIBRARY...]]
# FOLDER must not exist, or be empty. PROGRAM is build/millraced by default, and each LIBRARY is one that it opens by itself: for GPUs
# CUDA's libcublasLt.so.13 and NCCL's libnccl.so.2. dpkg says which packages the libraries belong to, so this runs on the Debian that
# the program was built on. The same program gives the same tree, apart from times. The libraries of the GPU's driver are left out,
# since the container runtime puts them into the container.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
die() {
  printf 'rootfs.sh: %s\n' "$*" >&2
  exit 1
}

[ $# -ge 1 ] || die "usage: deploy/image/rootfs.sh FOLDER [PROGRAM [LIBRARY...]]"
folder=$1
program=${2:-$root/build/millraced}
[[ -f $program && -x $program ]] || die "$program is not a program; ninja -C build millraced builds it"
command -v dpkg-query >/dev/null || die "dpkg-query is missing: this needs the Debian that the program was built on"
[ -z "$(ls -A "$folder" 2>/dev/null)" ] || die "$folder is not empty"
umask 022
mkdir -p "$folder"/{etc/ssl/certs,tmp,usr/bin,usr/share/doc/millrace,usr/share/licenses,var/cache/millrace}
chmod 1777 "$folder/tmp"

# ---- The program and its libraries ----
install -m 755 "$program" "$folder/usr/bin/millraced"
strip --strip-unneeded "$folder/usr/bin/millraced"
needed=$(ldd "$program" "${@:3}") || die "ldd cannot read $program ${*:3}"
! grep -q 'not found' <<<"$needed" || die "libraries are missing: $(grep 'not found' <<<"$needed" | awk '{ print $1 }' | xargs)"
mapfile -t libraries < <({
  printf '%s\n' "${@:3}"
  awk '$2 == "=>" { print $3 } $1 ~ /^\/.*[^:]$/ { print $1 }' <<<"$needed"
} | grep . | grep -vE '/lib(cuda|nvidia-[a-z-]+)[.]so' | sort -u)
# Libraries keep their paths, so that the loader finds them without a cache. /lib is a link to /usr/lib, as Debian has it.
ln -s usr/lib "$folder/lib"
ln -s usr/lib64 "$folder/lib64"
installed=()
for library in "${libraries[@]}"; do
  path=${library/#\/lib/\/usr\/lib}
  install -D -m 755 "$library" "$folder$path"
  installed+=("$path")
done
# A loader looks for libraries beyond Debian's folders, as CUDA's, where this says.
printf '%s\n' "${installed[@]%/*}" | sort -u >"$folder/etc/ld.so.conf"
ldconfig -r "$folder" -X

# ---- Names, users, certificates ----
echo 'millrace:x:65532:65532:Millrace:/var/cache/millrace:/usr/sbin/nologin' >"$folder/etc/passwd"
echo 'millrace:x:65532:' >"$folder/etc/group"
echo 'hosts: files dns' >"$folder/etc/nsswitch.conf"
# Those of the package alone: this machine may trust others.
cat /usr/share/ca-certificates/mozilla/*.crt >"$folder/etc/ssl/certs/ca-certificates.crt"
[ "$(id -u)" != 0 ] || chown 65532:65532 "$folder/var/cache/millrace"

# ---- Licences and the list of packages ----
install -m 644 "$root/LICENSE" "$folder/usr/share/licenses/millrace"
"$here/sbom.py" "$folder" "$("$program" --version)" /usr/share/ca-certificates/mozilla "${libraries[@]}"
