"""Tests of /v1/score and /v1/rerank through the whole server: a cross-encoder compared with transformers, and embeddings."""
import json
import math
import os
import pathlib

import httpx
import pytest

import cross_encoder
from conftest import Server

DATA = json.loads((pathlib.Path(__file__).parent / "reference" / "cross_encoder_reference.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.model


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.fixture(scope="module")
def cross_server(tmp_path_factory):
    folder = cross_encoder.write(os.environ["MILLRACE_MINILM"], tmp_path_factory.mktemp("cross") / "cross")
    server = Server(tmp_path_factory.mktemp("cross_server"), "--model", str(folder))
    yield server
    server.stop()


def ask(server, path="/v1/score", **body):
    response = httpx.post(server.http + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def refusal(server, path="/v1/score", **body):
    response = httpx.post(server.http + path, json=body, timeout=60)
    error = response.json()["error"]
    return response.status_code, error["param"], error["message"]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_logits_are_what_transformers_makes_of_the_pairs(cross_server, path):
    first, second = zip(*(entry["pair"] for entry in DATA), strict=True)
    answer = ask(cross_server, path, text_1=first, text_2=second, use_activation=False)
    assert answer["object"] == "list" and answer["id"].startswith("score-")
    assert answer["usage"] == {"prompt_tokens": sum(e["logit"][0] for e in DATA), "total_tokens": sum(e["logit"][0] for e in DATA)}
    for i, (item, entry) in enumerate(zip(answer["data"], DATA, strict=True)):
        assert item["index"] == i and item["object"] == "score"
        assert item["score"] == pytest.approx(entry["logit"][1], abs=2e-3), entry["pair"]
    scores = ask(cross_server, path, text_1=first, text_2=second)["data"]
    for item, entry in zip(scores, DATA, strict=True):
        assert item["score"] == pytest.approx(sigmoid(entry["logit"][1]), abs=1e-3)


def test_the_order_and_the_types_of_a_pair_matter(cross_server):
    one, other = DATA[0]["pair"]
    straight = ask(cross_server, text_1=one, text_2=other)["data"][0]["score"]
    assert abs(straight - ask(cross_server, text_1=other, text_2=one)["data"][0]["score"]) > 1e-3


def test_pairs_are_cut_as_transformers_cuts_them(cross_server):
    for entry in DATA:
        answer = ask(cross_server, text_1=entry["pair"][0], text_2=entry["pair"][1], truncate_prompt_tokens=12, use_activation=False)
        assert answer["usage"]["prompt_tokens"] == entry["cut"][0]
        assert answer["data"][0]["score"] == pytest.approx(entry["cut"][1], abs=2e-3), entry["pair"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_come_back_the_best_first(cross_server, path):
    query, documents = DATA[0]["pair"][0], [entry["pair"][1] for entry in DATA[:3]]
    answer = ask(cross_server, path, query=query, documents=documents)
    expected = sorted(range(3), key=lambda i: -DATA[i]["logit"][1])
    assert [item["index"] for item in answer["results"]] == expected
    for item in answer["results"]:
        assert item["document"] == {"text": documents[item["index"]]}
        assert item["relevance_score"] == pytest.approx(sigmoid(DATA[item["index"]]["logit"][1]), abs=1e-3)
    best = ask(cross_server, path, query=query, documents=documents, top_n=1, return_documents=False)["results"]
    assert len(best) == 1 and best[0]["index"] == expected[0] and "document" not in best[0]
    assert len(ask(cross_server, path, query=query, documents=documents, top_n=9)["results"]) == 3


def test_the_activation_is_the_folders(start_server, tmp_path):
    folder = cross_encoder.write(os.environ["MILLRACE_MINILM"], tmp_path / "plain", "torch.nn.modules.linear.Identity")
    server = start_server("--model", str(folder))
    entry = DATA[0]
    answer = ask(server, text_1=entry["pair"][0], text_2=entry["pair"][1])
    assert answer["data"][0]["score"] == pytest.approx(entry["logit"][1], abs=2e-3)


def test_models_of_embeddings_answer_with_the_cosine(embedding_server):
    one, others = DATA[0]["pair"][0], [DATA[0]["pair"][1], DATA[1]["pair"][1]]
    vectors = [item["embedding"] for item in ask(embedding_server, "/v1/embeddings", input=[one, *others])["data"]]
    answer = ask(embedding_server, queries=one, documents=others)
    for item, vector in zip(answer["data"], vectors[1:], strict=True):
        assert item["score"] == pytest.approx(sum(a * b for a, b in zip(vectors[0], vector, strict=True)), abs=1e-5)
    long = "word " * 400
    assert refusal(embedding_server, text_1=long, text_2="a")[:2] == (400, "text_1")
    assert refusal(embedding_server, text_1="a", text_2=["b", long])[:2] == (400, "text_2[1]")


def test_bad_requests_are_refused_by_the_field(cross_server, fake_server):
    for field, body in {"text_1": {}, "text_2": {"text_1": "a"}, "text_2[1]": {"text_1": "a", "text_2": ["b", ""]},
                        "documents": {"queries": "a", "documents": []}, "data_1": {"data_1": 5, "data_2": "b"},
                        "truncate_prompt_tokens": {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 4},
                        "use_activation": {"text_1": "a", "text_2": "b", "use_activation": 1},
                        "timeout_ms": {"text_1": "a", "text_2": "b", "timeout_ms": 0}}.items():
        assert refusal(cross_server, **body)[:2] == (400, field), body
    assert refusal(cross_server, text_1=["a", "b"], text_2=["c"])[1] == "text_1"
    assert refusal(cross_server, text_1="a", text_2=["b"] * 2049)[2] == "text_2 is a list of 2049; allowed: at most 2048"
    for field, body in {"query": {"documents": ["a"]}, "documents": {"query": "a", "documents": []},
                        "documents[0]": {"query": "a", "documents": [7]}, "top_n": {"query": "a", "documents": ["b"], "top_n": -1}}.items():
        assert refusal(cross_server, "/v1/rerank", **body)[:2] == (400, field), body
    assert refusal(cross_server, text_1="a", text_2=["b", "word " * 600])[:2] == (400, "text_2[1]")
    status, param, message = refusal(cross_server, "/v1/embeddings", input="a")
    assert (status, param) == (400, "model") and "does not support the Embeddings API" in message
    status, param, message = refusal(fake_server, text_1="a", text_2="b")
    assert (status, param) == (400, "model") and "does not support the Score API" in message
