"""Prints those of the files on standard input whose code has changed since a commit: not only comments, blanks and line breaks.

Usage: code_changed.py COMMIT [--moves]   Each line has a file's name at the commit, a tab, and its name now; both are relative to the current
folder, the repository's root. A comment for clang-tidy (NOLINT) counts as code. With --moves, where headers lie and the names of include
guards do not count: a check that reads what headers say finds the same, while whether a file compiles may depend on it.
"""

import re
import subprocess
import sys

import batches

INCLUDE = re.compile(r'^#include "(?:[^"]*/)?([^"/]+)"\n', re.M)
GUARD = re.compile(r"^#ifndef (\w+_H_)\n#define \1\n", re.M)
CONDITION = re.compile(r"^([ \t]*#[ \t]*(?:if|ifdef|ifndef|elif|else|endif)\b[^\n]*\n?)", re.M)


def without_places(text):
    """The text with the names of its own headers, in their order, in place of includes by path, and without its include guard. A header
    keeps its side of every #if."""
    parts = CONDITION.split(GUARD.sub("", text))
    return "".join("".join(sorted(INCLUDE.findall(part))) + INCLUDE.sub("", part) for part in parts)


def code(text):
    """The text without comments, its strings kept, every blank one space."""
    kept = batches.HIDDEN.sub(lambda found: found.group() if found.group()[0] in "\"'R" or "NOLINT" in found.group() else " ", text)
    return re.sub(r"\s+", " ", kept)


def main(commit, moves):
    for line in sys.stdin.read().splitlines():
        old, new = line.split("\t")
        before = subprocess.run(["git", "show", f"{commit}:{old}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with open(new, encoding="utf-8") as file:
            texts = [before.stdout.decode(), file.read()]
        if moves:
            texts = [without_places(text) for text in texts]
        if before.returncode != 0 or code(texts[0]) != code(texts[1]):
            print(new)


if __name__ == "__main__":
    main(sys.argv[1], "--moves" in sys.argv[2:])
