#!/usr/bin/env python3
"""Compares two files of reference data and prints their differences. `make parity` runs it.

    same_reference.py MADE COMMITTED

Non-integers may differ by TOLERANCE: rotations are computed in float32, whose last digits depend on the processor. With other
instruction sets they differed by up to 4e-6.
"""
import difflib
import json
import math
import pathlib
import sys

TOLERANCE = 1e-5
# A large model is computed in float32 throughout, and its gaps have four digits; a difference of one in the last digit is
# ignored.
TOLERANCES = {"model_reference.json": 1.5e-4}
LINES, COLUMNS = 20, 300  # shown at most


def differences(made, committed, tolerance, where=""):
    """Yields a line for each difference: its path and both values."""
    if type(made) is type(committed) is dict and made.keys() == committed.keys():
        for key in made:
            yield from differences(made[key], committed[key], tolerance, f"{where}.{key}")
    elif type(made) is type(committed) is list and len(made) == len(committed):
        for i, pair in enumerate(zip(made, committed)):
            yield from differences(*pair, tolerance, f"{where}[{i}]")
    elif type(made) is type(committed) is float and math.isclose(made, committed, rel_tol=0, abs_tol=tolerance):
        return
    elif type(made) is not type(committed) or made != committed:
        yield f"{where}: {made} was made, {committed} is committed"


def main():
    made, committed = map(pathlib.Path, sys.argv[1:])
    if made.read_bytes() == committed.read_bytes():
        return 0
    if committed.suffix != ".json":
        lines = (path.read_text(encoding="utf-8").splitlines() for path in (committed, made))
        found = list(difflib.unified_diff(*lines, "committed", "made", n=0, lineterm=""))
    else:
        tolerance = TOLERANCES.get(committed.name, TOLERANCE)
        found = list(differences(json.loads(made.read_bytes()), json.loads(committed.read_bytes()), tolerance))
    for line in found[:LINES]:
        print(line[:COLUMNS])
    if len(found) > LINES:
        print(f"and {len(found) - LINES} lines more")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
