#!/usr/bin/env python3
"""Counts the tests of each layer, as docs/testing.md lists them, and prints a table in Markdown.

Usage: layers.py [REPORTS]. The first number is counted in the sources: a test that runs with many parameters counts once. With
REPORTS, a folder that scripts/test.sh wrote (build/reports), the second is the number of cases that passed in that run.
"""
import ast
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASE = re.compile(r"^TEST(?:_F|_P)?\(", re.M)
KEYWORDS = {"NAME", "SRCS", "DEPS", "PRIVATE_DEPS", "LABELS", "TIMEOUT", "ARGS", "GPU", "THREADS"}


def declared(root, function):
    """Yields (name, sources, words) of each call of a CMake function, such as millrace_test."""
    for file in sorted(root.rglob("CMakeLists.txt")):
        if file.relative_to(root).parts[0].startswith(("build", ".")):
            continue
        text = re.sub(r"#.*", "", file.read_text())
        for call in re.finditer(rf"\b{function}\(([^()]*)\)", text):
            words, key, values = call[1].split(), None, {}
            for word in words:
                if word in KEYWORDS:
                    key = word
                    values.setdefault(key, [])
                elif key is not None:
                    values[key].append(word)
            yield "".join(values.get("NAME", [])), [file.parent / source for source in values.get("SRCS", [])], values


def cases(path):
    return len(CASE.findall(path.read_text())) if path.exists() else 0


def functions(path):
    """The number of test functions in a file of Python tests."""
    return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(ast.parse(path.read_text())))


def listed(path, name):
    """The number of entries of a list, or of the generator that makes a dictionary, in a Python file. Of an `if` it is the list of `else` that counts."""
    body = ast.parse(path.read_text()).body
    count = 0
    for node in body + [inner for node in body if isinstance(node, ast.If) for inner in node.orelse]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        if name in [target.id for target in targets if isinstance(target, ast.Name)]:
            value = node.value
            count += len(value.generators[0].iter.elts if isinstance(value, ast.DictComp) else value.elts)
    return count


def passed(report):
    """Yields (suite, case) of those that passed, of a JUnit file."""
    for case in ElementTree.parse(report).iter("testcase"):
        failed = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        if not failed and case.get("status") != "notrun":
            yield case.get("classname") or "", case.get("name")


def layers(root=ROOT, reports=None):
    """Returns [(layer, what is counted, in the sources, in the run)]; None: it is not part of a run."""
    host, gpu, server = 0, 0, 0
    programs = {}  # by name: whether it starts the whole daemon
    for name, sources, values in declared(root, "millrace_test"):
        count = sum(cases(source) for source in sources)
        if "GPU" in values:
            gpu += count
            continue
        programs[name] = bool({"server", "model"} & set(values.get("LABELS", [])))
        server, host = (server + count, host) if programs[name] else (server, host + count)
    python = {path.stem: path for path in sorted((root / "tests").glob("test_*.py"))}
    deployed = {name for name, path in python.items() if re.search(r"^pytestmark = .*mark\.deploy", path.read_text(), re.M)}
    fuzz = len(list(declared(root, "millrace_fuzz")))
    points = sum(len(re.findall(r"^FaultPoint \w+\(\"", path.read_text(), re.M)) for folder in ("executors", "engine", "server", "scheduler")
                 for path in (root / folder).rglob("*.cc") if not path.name.endswith("_test.cc"))
    soak = root / "tests" / "soak"
    run = {"host": None, "server": None, "black": None, "deploy": None}
    if reports is not None:
        run = dict.fromkeys(run, 0)
        for report in (reports / "cases").glob("*.xml"):
            run["server" if programs.get(report.stem) else "host"] += sum(1 for _ in passed(report))
        for suite, _ in passed(reports / "pytest.xml"):
            file = suite.removeprefix("tests.").split(".")[0]
            run["deploy" if file in deployed else "black"] += 1
    black = sum(functions(path) for name, path in python.items() if name not in deployed)
    return [
        ("unit tests", "cases", host, run["host"]),
        ("tests with a model or the daemon, in C++", "cases", server, run["server"]),
        ("black-box tests", "functions", black, run["black"]),
        ("tests of documents, images and charts", "functions", sum(functions(python[name]) for name in deployed), run["deploy"]),
        ("reference data", "files", len(list((root / "tests" / "reference").glob("*.json*"))), None),
        ("fuzz targets", "targets", fuzz, None),
        ("fault points", "points", points, None),
        ("soak and faults", "faults", sum(listed(soak / f"{part}_faults.py", "FAULTS") for part in ("device", "machine")), None),
        ("attacks", "attacks", listed(soak / "attacks.py", "ATTACKS"), None),
        ("GPU tests", "cases", gpu, None),
        ("GPU tests beside transformers", "functions", sum(functions(path) for path in (root / "tests" / "gpu").glob("test_*.py")), None),
        ("benchmarks", "programs", len(list(declared(root, "millrace_bench"))), None),
    ]


def main(arguments):
    rows = layers(reports=pathlib.Path(arguments[0]) if arguments else None)
    print("| layer | counted | in the sources | passed in the run |\n|---|---|---|---|")
    for layer, what, count, ran in rows:
        print(f"| {layer} | {what} | {count:,} | {'–' if ran is None else format(ran, ',')} |")


if __name__ == "__main__":
    main(sys.argv[1:])
