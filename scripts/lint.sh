#!/usr/bin/env bash
# `make lint`: clang-format over every tracked C++ file, clang-tidy over what changed, which must also compile file by file.
#   scripts/lint.sh [format|tidy|tidy-all|alone|fix]   tidy: clang-tidy alone; tidy-all: over every file; alone: whether what changed
#     compiles file by file; fix: let clang-format rewrite what it would refuse
# Changes are those since $CHANGES_SINCE or changes_base (scripts/common.sh), plus uncommitted ones.
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

# Prints those of the files read from standard input that a target compiles here: others need CUDA, or a sanitizer.
compiled() {
  while read -r file; do
    ! grep -q "\"file\": \"$ROOT/$file\"" build/tidy/compile_commands.json || echo "$file"
  done
}

# Prints the files that clang-tidy checks for a header: the .cc files beside it or, if there are none, two files that include
# it, directly or through other headers.
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
  local base moves=--moves
  if [ "$what" = tidy-all ]; then
    git ls-files '*.cc'
    return
  fi
  base=${CHANGES_SINCE:-$(changes_base)}
  # A file that was only moved has not changed, nor one of which only comments did or, for clang-tidy, where its headers lie.
  [ "$what" != alone ] || moves=
  git diff --name-status --find-renames --diff-filter=d "$base" -- '*.cc' '*.h' | awk -F'\t' '$1 != "R100" { print $2 "\t" $NF }' |
    python3 scripts/code_changed.py "$base" $moves | while read -r file; do
    case $file in
      *.h) sources_of "$file" ;;
      *) echo "$file" ;;
    esac
  done
}

cmake -S . -B build -G Ninja -DMILLRACE_TESTS=ON --log-level=WARNING >/dev/null
python3 scripts/tidy.py build
mapfile -t files < <(changed | sort -u | compiled)
if [ ${#files[@]} -eq 0 ]; then
  say "nothing changed"
  exit 0
fi
build_quietly build proto # generates the files that others include
[ "$what" = alone ] || python3 scripts/tidy.py build "$JOBS" "${files[@]}"
[[ $what = both || $what = alone ]] || exit 0
if [ "$what" = both ]; then  # Whether a file compiles may depend on where headers lie.
  what=alone
  mapfile -t files < <(changed | sort -u | compiled)
fi
python3 scripts/tidy.py build "$JOBS" --alone "${files[@]}"
