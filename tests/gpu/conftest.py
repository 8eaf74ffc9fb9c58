"""Tests that need torch and transformers beside the server's GPU: deploy/gpu/run_tests.sh runs them, `make test` does not."""
import os

import pytest


@pytest.fixture(scope="session")
def tokenizer_flags():
    """Flags that serve folders with the default model's tokenizer. The tests exchange token ids, which need no meaning."""
    return ["--tokenizer", os.environ["MILLRACE_MODEL"]]


@pytest.fixture
def show(request, record_property):
    """Returns show(name, text), which prints a figure on a line of its own and adds it to pytest's report."""
    def show_figure(name, text):
        print(f"\nfigures: {request.node.name}: {name}: {text}")
        record_property(name, text)

    return show_figure
