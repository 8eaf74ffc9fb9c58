"""The documents: their links lead somewhere, they name functions that exist, and they keep to their length."""
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import layers  # noqa: E402

pytestmark = pytest.mark.deploy
DOCUMENTS = sorted(path for path in ROOT.rglob("*.md") if not re.match(r"build|[.]", path.relative_to(ROOT).parts[0]))
CODE_BLOCK = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def links(document):
    """(text, target) of each link outside of code blocks that does not lead into the web."""
    for found in LINK.finditer(CODE_BLOCK.sub("", document.read_text())):
        if not re.match(r"[a-z]+:", found["target"]):
            yield found["text"], found["target"]


def anchors(document):
    """The fragments of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", CODE_BLOCK.sub("", document.read_text()), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document):
    for _, target in links(document):
        path, _, fragment = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{target}: there is no such file"
        assert not fragment or file.suffix != ".md" or fragment in anchors(file), f"{target}: there is no such heading"


@pytest.mark.parametrize("name, least", [("architecture.md", 40), ("life-of-a-request.md", 40), ("life-of-a-weight.md", 40)])
def test_pages_about_the_code_name_functions_that_exist(name, least):
    document = ROOT / "docs" / name
    named = [(text, target) for text, target in links(document) if re.fullmatch(r"`[\w:]+`", text)]
    assert len(named) > least
    for text, target in named:
        source = (document.parent / target).read_text()
        for name in text.strip("`").split("::"):
            assert re.search(rf"\b{name}\b", source), f"{target} has no {text}"


def test_the_page_about_tests_has_every_layer_and_about_as_many_tests():
    """The page is dated: its counts are printed anew (scripts/layers.py) when one has grown, or shrunk, by half."""
    page = (ROOT / "docs" / "testing.md").read_text()
    for layer, what, count, _ in layers.layers():
        row = re.search(rf"^\| {re.escape(layer)} \| {what} \| ([0-9,]+) \|", page, re.M)
        assert row, layer
        told = int(row[1].replace(",", ""))
        assert count <= 1.5 * told and told <= 1.5 * count, f"{layer}: {told} in docs/testing.md, {count} in the sources"


def test_the_index_of_experiments_lists_every_page():
    folder = ROOT / "docs" / "experiments"
    listed = {target for _, target in links(folder / "README.md")}
    assert {path.name for path in folder.glob("*.md")} - {"README.md"} <= listed


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path.name == "README.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_explains_itself_on_a_page(document):
    text = document.read_text()
    lines, words = len(text.splitlines()), len(text.split())
    if document.parent != ROOT:
        advice = "measurements belong to docs/speed.md and docs/accuracy.md, what was tried to docs/experiments/"
        assert lines <= 80, f"{lines} lines; {advice}"
        assert words <= 400, f"{words} words; {advice}"


@pytest.mark.parametrize("name", ["coming-from-vllm.md", "coming-from-sglang.md", "coming-from-llama-cpp.md", "coming-from-ollama.md"])
def test_the_guides_name_settings_that_exist(name):
    """The second cells of tables: settings that are taken in the place of others. foreign_flags_test compares generated tables."""
    settings = (ROOT / "docs" / "settings.md").read_text()
    known = {f"--{no}{flag}" for optional, flag in re.findall(r"`--(\[no-\])?([a-z0-9-]+)", settings) for no in ("", "no-" if optional else "")}
    rows = re.findall(r"^\| `[^|]*\|([^|]*)\|", (ROOT / "docs" / name).read_text(), re.M)
    flags = {flag for row in rows for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", row)}
    assert len(flags) >= 5
    assert flags <= known, flags - known
