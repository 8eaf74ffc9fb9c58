"""The examples of the documents: each command and each program runs as it stands, and prints what the page says it prints."""
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from conftest import Server

pytestmark = pytest.mark.model

DOCS = pathlib.Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(?P<language>sh|python)\n(?P<code>.*?)^```\n(?:\n```\n(?P<output>.*?)^```\n)?", re.M | re.S)
SERVER, FAKE = "http://127.0.0.1:8000", "http://127.0.0.1:8010"


def examples():
    """(page, its blocks) up to the heading behind its examples."""
    for name in ("structured-output.md", "tools-and-reasoning.md"):
        page = (DOCS / name).read_text()
        yield name, list(BLOCK.finditer(page[:page.index("\n## ", page.index("\n## Examples") + 1)]))


BLOCKS = [pytest.param(block, id=f"{name}-{number}") for name, blocks in examples() for number, block in enumerate(blocks)
          if "millraced --" not in block["code"]]


@pytest.fixture(scope="module")
def fake_thinker(tmp_path_factory):
    """The server of the page's own command line, but for its ports."""
    (command,) = [block["code"] for _, blocks in examples() for block in blocks if "millraced --" in block["code"]]
    flags = shlex.split(command)[1:]
    server = Server(tmp_path_factory.mktemp("thinker"), *flags[:flags.index("--http-port")])
    yield server
    server.stop()


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_runs_as_it_stands(block, model_server, fake_thinker):
    code = block["code"].replace(SERVER, model_server.http).replace(FAKE, fake_thinker.http)
    command = ["bash", "-euo", "pipefail", "-c", code] if block["language"] == "sh" else [sys.executable, "-c", code]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() and "null" not in run.stdout.split(), run.stdout
    if block["output"] is not None:
        assert run.stdout == block["output"]
