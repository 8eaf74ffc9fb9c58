"""Runs JSON-Schema-Test-Suite, draft 2020-12, against our grammars, and prints what they take and get wrong.

    python tests/json_schema_suite.py jsonschema-4.26.0    # the unpacked source of PyPI's jsonschema, which holds the suite
"""
import collections
import json
import pathlib
import sys

from json_schemas import Checker, texts_of, whole_numbers


def main(folder):
    checker = Checker()
    counts, reasons, slowest = collections.Counter(), collections.Counter(), 0
    for path in sorted(pathlib.Path(folder, "json/tests/draft2020-12").glob("*.json")):
        for case in json.loads(path.read_text()):
            forms = [[*texts_of(test["data"]), *texts_of(whole_numbers(test["data"]))] for test in case["tests"]]
            answer = checker.ask(case["schema"], [text for some in forms for text in some])
            slowest = max(slowest, answer["seconds"])
            if "error" in answer:
                if any(test["valid"] for test in case["tests"]) or answer["error"] != "no text at all meets it":
                    counts["refused"] += 1
                    reasons[answer["error"].split(" at #")[0]] += 1
                else:
                    counts["empty"] += 1  # rightly: it has no instance
                continue
            counts["taken"] += 1
            matches = iter(answer["matches"])
            for test, some in zip(case["tests"], forms):
                accepts = any([next(matches) for _ in some])
                counts["accepted" if accepts else "rejected", test["valid"]] += 1
                if accepts != test["valid"]:
                    print("ACCEPTED" if accepts else "rejected", path.name, "|", case["description"], "|", test["description"])
    schemas = counts["taken"] + counts["refused"] + counts["empty"]
    valid = counts["accepted", True] + counts["rejected", True]
    print(f"schemas: {schemas}, taken {counts['taken']} ({counts['taken'] / schemas:.1%}), rightly found empty {counts['empty']}")
    print(f"valid instances of them: {valid}, accepted {counts['accepted', True]} ({counts['accepted', True] / valid:.1%})")
    print(f"invalid instances accepted: {counts['accepted', False]}; slowest compilation {slowest * 1e3:.1f} ms")
    for reason, count in reasons.most_common():
        print(f"  refused for {reason}: {count}")


if __name__ == "__main__":
    main(sys.argv[1])
