"""A real router in front of millraced, which speaks vllm.grpc.engine to it: smg, as PyPI has it (`pip install smg`)."""
import json
import shutil
import subprocess

import httpx
import pytest

import tiny_qwen3
from conftest import Server
from daemon import free_port, wait_until

SMG = shutil.which("smg")
SCHEMA = {"type": "object", "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["size"],
          "additionalProperties": False}

pytestmark = [pytest.mark.deploy, pytest.mark.skipif(SMG is None, reason="smg is not installed")]


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    """The router's address. It has no tokenizer but the one that the server sends."""
    folder = tmp_path_factory.mktemp("router")
    model = tiny_qwen3.write(folder / "tiny", modules=False)
    config = json.loads((model / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    server = Server(folder, "--model", str(model))  # without keys: the router sends none over gRPC
    port = free_port()
    with open(folder / "router.log", "wb") as log:
        process = subprocess.Popen([SMG, "launch", "--worker-urls", f"grpc://{server.grpc}", "--host", "127.0.0.1", "--port", str(port),
                                    "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"HF_HUB_OFFLINE": "1", "HOME": str(folder)})
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def serves():
        try:
            return client.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(serves)
        yield client, httpx.Client(base_url=server.http, timeout=60)
    finally:
        process.kill()
        process.wait()
        server.stop()


def chat(**fields):
    return {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 24, **fields}


def text(answer):
    return [choice["message"]["content"] for choice in answer.json()["choices"]]


def test_the_routers_answers_are_the_servers_own(router):
    through, direct = router
    for fields in ({}, {"stop": ["m"]}, {"n": 2, "temperature": 1, "seed": 3}, {"logit_bias": {"100": -100}}):
        asked = chat(**fields)
        one, other = through.post("/v1/chat/completions", json=asked), direct.post("/v1/chat/completions", json=asked)
        assert one.status_code == other.status_code == 200, (one.text, other.text)
        # The router leaves out half a character at the end.
        assert [t.rstrip("\ufffd") for t in text(one)] == [t.rstrip("\ufffd") for t in text(other)], fields
        for field in ("prompt_tokens", "completion_tokens"):
            assert one.json()["usage"][field] == other.json()["usage"][field], fields


def test_a_stream_adds_up(router):
    through, _ = router
    whole = through.post("/v1/chat/completions", json=chat()).json()
    lines = through.post("/v1/chat/completions", json=chat(stream=True, stream_options={"include_usage": True})).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"] and len(deltas) > 3
    (usage,) = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 24


def test_the_constraints_of_the_router_hold(router):
    through, _ = router
    schema = {"type": "json_schema", "json_schema": {"name": "size", "schema": SCHEMA}}
    for seed in range(5):
        answer = through.post("/v1/chat/completions", json=chat(response_format=schema, temperature=1, seed=seed, max_tokens=200)).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"size"}


def test_the_servers_refusals_reach_the_client(router):
    through, _ = router
    refused = through.post("/v1/chat/completions", json=chat(max_tokens=5000))
    assert refused.status_code == 400 and "the model's length is 1024" in refused.json()["error"]["message"]
