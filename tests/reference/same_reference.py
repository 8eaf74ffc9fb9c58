#!/usr/bin/env python3
"""Whether two files of reference data say the same: `make parity` runs it.

    same_reference.py MADE COMMITTED

Numbers that are no whole ones may differ by 1e-4: what is computed in float32 has other last digits on another processor.
"""
import json
import math
import pathlib
import sys

TOLERANCE = 1e-4


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=0, abs_tol=TOLERANCE)
    return a == b


def main():
    made, committed = (pathlib.Path(path).read_text(encoding="utf-8") for path in sys.argv[1:])
    if made == committed:
        return 0
    return 0 if sys.argv[1].endswith(".json") and same(json.loads(made), json.loads(committed)) else 1


if __name__ == "__main__":
    sys.exit(main())
