"""Adds up the reports of one run or several and prints the total, "N passed, N failed", alone on the last line.

Usage: total.py REPORTS... In each, REPORTS/ctest.xml and REPORTS/pytest.xml are JUnit files; REPORTS/cases/NAME.xml holds the cases of the
googletest program NAME. A program that fails although none of its cases does (a crash, a sanitizer's finding) counts as one.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def outcomes(path):
    """(passed, failed) of one XML file; a case that was skipped did not run and is in neither."""
    passed = failed = 0
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is None and case.get("status") != "notrun":
            passed += 1
    return passed, failed


def total(reports):
    """(passed, failed) of one folder of reports; one without a report of ctest is a build that failed."""
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


def main(folders):
    counts = [total(pathlib.Path(folder)) for folder in folders]
    passed, failed = (sum(column) for column in zip(*counts))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


sys.exit(main(sys.argv[1:]))
