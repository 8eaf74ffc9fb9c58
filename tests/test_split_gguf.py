"""Tests of the server with a GGUF model that is split into several files."""
import os

import httpx
import pytest

from daemon import device_flags, run
from gguf_split import split

pytestmark = pytest.mark.model


def test_it_answers_as_the_whole_file(model_server, start_server, tmp_path):
    first, second, third = split(os.environ["MILLRACE_MODEL"], tmp_path, "smol", 3)
    flags = ["--kv-cache-memory", "64MiB", *device_flags()]
    server = start_server("--model", str(first), *flags)
    assert [model["id"] for model in httpx.get(server.http + "/v1/models").json()["data"]] == ["smol"]
    for prompt in ("The sky is blue because", "Hello"):
        body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0, "logprobs": 5, "return_token_ids": True}
        split_model, whole = (httpx.post(url + "/v1/completions", json=body, timeout=60).json()["choices"]
                              for url in (server.http, model_server.http))
        assert len(whole[0]["token_ids"]) == 8 and split_model == whole

    server.stop()
    code, log = run("--model", str(second), *flags)
    assert code == 1 and f"{second.name}: is file 2 of 3: name the first of them" in log
    third.write_bytes(third.read_bytes()[:10_000_000])
    code, log = run("--model", str(first), *flags)
    assert code == 1 and f"{third.name}: tensor " in log
    third.unlink()
    code, log = run("--model", str(first), *flags)
    assert code == 1 and f"{third.name}: open: No such file or directory" in log
