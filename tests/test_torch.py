"""--device torch: LibTorch runs the default model, in the real server."""
import os

import httpx
import pytest

pytestmark = pytest.mark.model
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0,
            "max_tokens": 16}


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
