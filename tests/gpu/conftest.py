"""Tests that need torch and transformers beside the server's GPU: deploy/gpu/run_tests.sh runs them, `make test` does not."""
import os

import pytest


@pytest.fixture(scope="session")
def tokenizer_flags():
    """Folders are served with the default model's tokenizer: tokens go in and out as ids, which need not mean anything."""
    return ["--tokenizer", os.environ["MILLRACE_MODEL"]]


@pytest.fixture
def show(request, record_property):
    """show(name, text): a figure, printed in a line of its own and kept in pytest's report."""
    def show_figure(name, text):
        print(f"\nfigures: {request.node.name}: {name}: {text}")
        record_property(name, text)

    return show_figure
