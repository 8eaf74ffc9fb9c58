"""The table of every buffer, queue and lane in docs/security.md, against the code that has them."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "": 1}
# What hands work or bytes from one thread, or one moment, to another.
QUEUE = re.compile(r"^\s+(?:mutable |const )*(?:std::(?:deque|queue|priority_queue|list)<.*>|BoundedQueue<.*>|BodyBudget|HelloBudget|BufferPool&?|TextPool|TenantBudget|OutputBudget"
                   r"|std::(?:optional|unique_ptr|shared_ptr)<(?:TextPool|TenantBudget|OutputBudget)>) \w+"
                   r"(?: = .*)?(?:\{.*\}|\(.*\))?;|^\s+using \w+ = std::(?:deque|queue|list)<", re.M)
FOLDERS = ("base", "engine", "hub", "nodes", "plan", "scheduler", "server", "executors")
# Queues of what the process itself is made of: they do not grow by what anybody sends.
OWN = {"executors/cuda/weights/weights.h", "executors/cpu/weight_placer.h", "executors/cpu/collective.h", "executors/cpu/node_collective.h"}


def rows():
    text = (ROOT / "docs" / "security.md").read_text()
    section = text.split("## Every buffer, queue and lane\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def places(row):
    """Yields (file, what stands in it)."""
    for place in row[3].split("; "):
        words = re.findall(r"`([^`]+)`", place)
        yield words[0], words[1] if len(words) > 1 else ""


def value_of(expression):
    plain = re.sub(r"\w+\{(\d+)\}", r"\1", expression).replace("'", "")
    assert re.fullmatch(r"[\d<*() ]+", plain), expression
    return eval(plain)  # of digits and operators alone


def spaceless(text):
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_limit_stands_where_the_table_says(row):
    assert len(row) == 5 and all(row), row
    for file, words in places(row):
        source = (ROOT / file).read_text()
        if " = " not in words:
            assert spaceless(words) in spaceless(source), (file, words)
            continue
        name, expression = words.split(" = ")
        value = r"\s*".join(re.escape(part) for part in expression.split())
        assert re.search(rf"\b{re.escape(name)}\s*=\s*{value}\s*[;,)]", source), (file, words)
        if number := re.match(r"([\d,]+)(?: (KiB|MiB|GiB|TiB))?$", row[2]):
            assert int(number[1].replace(",", "")) * UNITS[number[2] or ""] == value_of(expression), row


def test_every_queue_is_in_the_table():
    named = {file for row in rows() for file, _ in places(row)} | OWN
    headers = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.h")) if "test_util" not in path.name]
    found = {str(path.relative_to(ROOT)) for path in headers if QUEUE.search(path.read_text())}
    assert len(found) > 15
    assert found <= named, f"not in the table of docs/security.md: {sorted(found - named)}"
    assert OWN <= found, f"no longer there: {sorted(OWN - found)}"
