#!/usr/bin/env bash
# `make lint`: clang-format over every tracked C++ file, clang-tidy over what changed.
#   scripts/lint.sh [format|tidy|tidy-all|fix]   tidy-all: over every file; fix: let clang-format rewrite what it would refuse
# What changed: against origin/main if there is such a branch and it differs, plus what is not committed; in a clone whose
# origin/main is what is checked out (CI), the commits of the last six hours, as many as a landing takes.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
what=${1:-both}
scripts/setup.sh build test lint

sources() { git ls-files -z '*.h' '*.cc' '*simd*.inc' '*.cu' '*.cuh'; }
case $what in
  fix) sources | xargs -0 -r clang-format -i && exit ;;
  format | both)
    say "clang-format"
    sources | xargs -0 -r clang-format --dry-run -Werror
    [ "$what" = both ] || exit 0
    ;;
esac

# Of what it reads, the files that a target compiles here: others need CUDA, or a sanitizer.
compiled() {
  while read -r file; do
    ! grep -q "\"file\": \"$ROOT/$file\"" build/compile_commands.json || echo "$file"
  done
}

# What clang-tidy looks at for a header: the .cc files beside it; without any, two that include it, perhaps by way of other headers.
sources_of() {
  local users=("$1") found
  found=$(git ls-files "${1%.h}.cc" "${1%.h}_test.cc" | compiled)
  while [ -z "$found" ] && [ ${#users[@]} -gt 0 ]; do
    mapfile -t users < <(printf '#include "%s"\n' "${users[@]}" | git grep -lFf - -- '*.cc' '*.h')
    found=$(printf '%s\n' "${users[@]}" | grep '\.cc$' | compiled | sed 2q || true)
  done
  echo "$found"
}

# .cc files.
changed() {
  local base
  if [ "$what" = tidy-all ]; then
    git ls-files '*.cc'
    return
  fi
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
    # The empty tree stands for the parent of the first commit.
    base=$(git log -1 --format=%H --until=$(($(git log -1 --format=%ct) - 6 * 3600)) || true)
    base=${base:-$(git hash-object -t tree /dev/null)}
  fi
  git diff --name-only --diff-filter=d "$base" -- '*.cc' '*.h' | while read -r file; do
    case $file in
      *.h) sources_of "$file" ;;
      *) echo "$file" ;;
    esac
  done
}

cmake -S . -B build -G Ninja -DMILLRACE_TESTS=ON --log-level=WARNING >/dev/null
mapfile -t files < <(changed | sort -u | compiled)
if [ ${#files[@]} -eq 0 ]; then
  say "clang-tidy: nothing changed"
  exit 0
fi
build_quietly build proto # What protoc generates must be there for the files that include it.
say "clang-tidy: ${#files[@]} files"
printf '%s\0' "${files[@]}" | xargs -0 -n 2 -P "$JOBS" clang-tidy -p build --quiet --warnings-as-errors='*' 2>&1 |
  sed -E '/^[0-9]+ warnings? generated/d'
