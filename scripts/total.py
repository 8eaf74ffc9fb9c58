"""Adds up the reports of one run or several: prints what was slowest and, alone on the last line, "N passed, N failed".

Usage: total.py REPORTS... In each, REPORTS/ctest.xml and REPORTS/pytest.xml are JUnit files; REPORTS/cases/NAME.xml holds the cases of the
googletest program NAME. A program that fails although none of its cases does (a crash, a sanitizer's finding) counts as one.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

SLOWEST = 10


def outcomes(path):
    """Returns (passed, failed) of one XML file. Skipped cases are in neither."""
    passed = failed = 0
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is None and case.get("status") != "notrun":
            passed += 1
    return passed, failed


def total(reports):
    """Returns (passed, failed) of one folder of reports. A folder without a report of ctest is a failed build."""
    if not (reports / "ctest.xml").exists():
        return 0, 1
    passed = failed = 0
    for program in ElementTree.parse(reports / "ctest.xml").iter("testcase"):
        good = program.get("status") == "run"
        cases = reports / "cases" / (program.get("name") + ".xml")
        counts = outcomes(cases) if cases.exists() else (1, 0) if good else (0, 1)
        passed += counts[0]
        failed += max(counts[1], 0 if good else 1)
    if (reports / "pytest.xml").exists():
        counts = outcomes(reports / "pytest.xml")
        passed += counts[0]
        failed += counts[1]
    return passed, failed


def durations(path):
    """(seconds, class, name) of each case of one XML file."""
    for case in ElementTree.parse(path).iter("testcase"):
        yield float(case.get("time") or 0), case.get("classname") or "", case.get("name")


def slowest(reports):
    """([(seconds, program)], [(seconds, program, case)]) of one folder of reports; a file of Python tests is a program, too."""
    programs, cases = [], []
    if (reports / "ctest.xml").exists():
        programs += [(seconds, name) for seconds, _, name in durations(reports / "ctest.xml")]
    for path in sorted(reports.glob("cases/*.xml")):
        cases += [(seconds, path.stem, f"{suite}.{name}") for seconds, suite, name in durations(path)]
    if (reports / "pytest.xml").exists():
        files = {}
        for seconds, module, name in durations(reports / "pytest.xml"):
            file = module.removeprefix("tests.")
            files[file] = files.get(file, 0) + seconds
            cases.append((seconds, file, name))
        programs += [(seconds, file) for file, seconds in files.items()]
    return programs, cases


def print_slowest(folders):
    tables = [("programs", []), ("cases", [])]
    for folder in folders:
        where = [folder.parent.name] if len(folders) > 1 else []
        for (_, rows), found in zip(tables, slowest(folder)):
            rows += [(seconds, " ".join([*where, *words])) for seconds, *words in found]
    for what, rows in tables:
        print(f"slowest {what}:")
        for seconds, name in sorted(rows, reverse=True)[:SLOWEST]:
            print(f"  {seconds:7.1f} s  {name}")


def main(folders):
    folders = [pathlib.Path(folder) for folder in folders]
    counts = [total(folder) for folder in folders]
    passed, failed = (sum(column) for column in zip(*counts))
    print_slowest(folders)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
