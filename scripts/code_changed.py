"""Prints those of the files on standard input whose code has changed since a commit: not only comments, blanks and line breaks.

Usage: code_changed.py COMMIT   Names are relative to the current folder, the repository's root. A comment for clang-tidy (NOLINT) counts
as code.
"""

import re
import subprocess
import sys

import batches


def code(text):
    """The text without comments, its strings kept, every blank one space."""
    kept = batches.HIDDEN.sub(lambda found: found.group() if found.group()[0] in "\"'R" or "NOLINT" in found.group() else " ", text)
    return re.sub(r"\s+", " ", kept)


def main(commit):
    for name in sys.stdin.read().splitlines():
        before = subprocess.run(["git", "show", f"{commit}:{name}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with open(name, encoding="utf-8") as file:
            if before.returncode != 0 or code(before.stdout.decode()) != code(file.read()):
                print(name)


if __name__ == "__main__":
    main(sys.argv[1])
