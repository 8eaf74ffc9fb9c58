"""A folder that holds too many sources for a reader is divided, with rows for its parts in cmake/Folders.cmake."""
import collections
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MOST = 60
EXCEPT = {"loadtest"}  # a program by itself, whose files all know one another's

pytestmark = pytest.mark.deploy


def test_no_folder_holds_too_many_sources():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.splitlines()
    sources = collections.Counter(str(pathlib.PurePath(file).parent) for file in files if re.search(r"[.](h|cc|cu|cuh|inc)$", file))
    assert len(sources) > 40
    assert {folder: count for folder, count in sources.items() if count > MOST and folder not in EXCEPT} == {}
