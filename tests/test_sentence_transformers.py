"""Tests of a sentence-transformers folder through the whole server: a tiny MPNet with a Dense layer and a default prompt."""
import json
import pathlib

import httpx
import pytest

import tiny_mpnet
from conftest import Server

DATA = json.loads((pathlib.Path(__file__).parent / "reference" / "sentence_reference.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tiny_mpnet.write(tmp_path_factory.mktemp("mpnet") / "tiny")
    server = Server(tmp_path_factory.mktemp("mpnet_server"), "--model", str(folder), "--kv-cache-dtype", "float32")
    yield server
    server.stop()


def embed(server, **body):
    response = httpx.post(server.http + "/v1/embeddings", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_embeddings_are_what_sentence_transformers_makes_of_the_texts(server, record_property):
    answer = embed(server, input=[entry["text"] for entry in DATA], truncate_prompt_tokens=-1)
    assert answer["usage"]["prompt_tokens"] == sum(entry["tokens"] for entry in DATA)
    worst = 0
    for item, entry in zip(answer["data"], DATA, strict=True):
        assert len(item["embedding"]) == tiny_mpnet.SIZE
        worst = max(worst, *(abs(a - b) for a, b in zip(item["embedding"], entry["embedding"], strict=True)))
    record_property("largest_difference", worst)
    assert worst < 1e-5


def test_the_default_prompt_stands_before_texts_and_not_before_tokens(server):
    text = DATA[0]["text"]
    tokens = httpx.post(server.http + "/tokenize", json={"prompt": tiny_mpnet.PROMPT + text}).json()["tokens"]
    assert len(tokens) == DATA[0]["tokens"]
    by_text = embed(server, input=text)["data"][0]["embedding"]
    assert embed(server, input=tokens)["data"][0]["embedding"] == by_text


def test_a_text_is_bounded_by_the_tokenizers_length(server):
    (model,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert model["max_model_len"] == tiny_mpnet.LONGEST
    response = httpx.post(server.http + "/v1/embeddings", json={"input": DATA[-1]["text"]})
    assert response.status_code == 400 and "allowed: at most 200, or truncate_prompt_tokens" in response.text
