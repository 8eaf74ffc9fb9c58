"""Tests of --device torch: LibTorch runs the default model and an embedding model in the real server."""
import json
import os
import pathlib

import httpx
import pytest

pytestmark = [pytest.mark.model, pytest.mark.torch]
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
            "max_tokens": 16}
EMBEDDINGS = pathlib.Path(__file__).parent / "reference" / "embedding_reference.json"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_answers_as_the_model_does(start_server, dtype):
    server = start_server("--model", os.environ["MILLRACE_MODEL"], "--device", "torch", "--dtype", dtype,
                          "--threads", "1", "--max-model-len", "512")
    (model,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert model["batch_invariant"] is False
    for _ in range(2):  # The second time from the prefix cache.
        answer = httpx.post(server.http + "/v1/chat/completions", json={"model": model["id"], **QUESTION},
                            timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_its_embeddings_are_what_transformers_makes_of_the_texts(start_server):
    server = start_server("--model", os.environ["MILLRACE_MINILM"], "--device", "torch", "--threads", "1")
    expected = json.loads(EMBEDDINGS.read_text(encoding="utf-8"))[:4]
    answer = httpx.post(server.http + "/v1/embeddings", json={
        "model": "all-MiniLM-L6-v2", "input": [entry["text"] for entry in expected], "truncate_prompt_tokens": -1},
        timeout=60).json()
    for item, entry in zip(answer["data"], expected, strict=True):
        assert item["embedding"] == pytest.approx(entry["embedding"], abs=1e-5)
