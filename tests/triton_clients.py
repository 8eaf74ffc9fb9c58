"""The modules of tritonclient. The one for HTTP needs geventhttpclient, which has no wheel for some Pythons: its tests are skipped there."""
import importlib

import pytest


def client_module(protocol):
    """tritonclient.http or tritonclient.grpc."""
    if protocol == "http":
        pytest.importorskip("geventhttpclient", reason="no wheel for this Python, and tritonclient.http needs it")
    return importlib.import_module(f"tritonclient.{protocol}")


def speaks_http(module):
    return module.__name__ == "tritonclient.http"
