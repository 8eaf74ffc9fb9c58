"""Tests of /v1/embeddings of a decoder through the whole server: a tiny Qwen3 compared with transformers, in parts, together, cached."""
import json
import math
import pathlib

import grpc
import httpx
import openai
import pytest

import tiny_qwen3
from conftest import Server
from daemon import metrics, run
from millrace_grpc import connect, pb

DATA = json.loads((pathlib.Path(__file__).parent / "reference" / "decoder_embedding_reference.json").read_text(encoding="utf-8"))
TEXTS = [entry["text"] for entry in DATA]
LONG = max(DATA, key=lambda entry: entry["tokens"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_qwen3.write(tmp_path_factory.mktemp("qwen3") / "tiny")


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    """Steps of 64 tokens: a long text takes many."""
    server = Server(tmp_path_factory.mktemp("decoder_server"), "--model", str(folder), "--max-num-batched-tokens", "64",
                    "--max-num-seqs", "8", "--kv-cache-dtype", "float32")
    yield server
    server.stop()


def embed(server, **body):
    response = httpx.post(server.http + "/v1/embeddings", json=body, timeout=240)
    assert response.status_code == 200, response.text
    return response.json()


def vectors(answer):
    return [item["embedding"] for item in answer["data"]]


def refusal(server, path="/v1/embeddings", **body):
    response = httpx.post(server.http + path, json=body, timeout=60)
    error = response.json()["error"]
    return response.status_code, error["param"], error["message"]


def worst(ours, theirs):
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def test_embeddings_are_what_transformers_makes_of_the_texts(server, record_property):
    answer = embed(server, input=TEXTS)
    assert answer["usage"]["prompt_tokens"] == sum(entry["tokens"] for entry in DATA)
    differences = [worst(ours, entry["embedding"]) for ours, entry in zip(vectors(answer), DATA, strict=True)]
    record_property("differences", differences)
    assert max(differences) < 2e-6


def test_with_keys_and_values_in_float16_they_are_close_by(start_server, folder, record_property):
    server = start_server("--model", str(folder))
    differences = [worst(ours, entry["embedding"]) for ours, entry in zip(vectors(embed(server, input=TEXTS)), DATA, strict=True)]
    record_property("differences", differences)
    assert max(differences) < 5e-4


def test_a_text_is_the_same_alone_among_others_cached_and_in_parts(server, start_server, folder):
    together = vectors(embed(server, input=TEXTS * 20))
    for i, text in enumerate(TEXTS):
        alone = vectors(embed(server, input=text))[0]
        assert all(vector == alone for vector in together[i::len(TEXTS)]), text
    plain = start_server("--model", str(folder), "--max-num-batched-tokens", "2048", "--kv-cache-dtype", "float32", "--prefix-caching=false")
    assert vectors(embed(plain, input=TEXTS)) == together[:len(TEXTS)]
    assert metrics(plain)["vllm:prefix_cache_hits_total"] == 0


def test_a_beginning_that_was_seen_before_is_not_computed_again(server):
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    head = "A beginning that no other test has, of more than a few blocks. " * 4
    embed(server, input=head + "One end.")
    before = metrics(server)
    embed(server, input=head + "Another end.")
    queries, hits = (metrics(server)[name] - before[name] for name in names)
    assert queries == len(head) + len("Another end.") + 1 and hits == len(head) // 16 * 16


def test_openais_client_and_grpc_get_the_same(server):
    client = openai.OpenAI(base_url=server.http + "/v1", api_key="none")
    answer = client.embeddings.create(model="tiny", input=TEXTS[:3])
    expected = vectors(embed(server, input=TEXTS[:3]))
    assert [item.embedding for item in answer.data] == [pytest.approx(vector, abs=1e-7) for vector in expected]
    stub = connect(server.grpc)
    reply = stub.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(text=text) for text in TEXTS[:3]]))
    assert [list(one.values) for one in reply.embeddings] == [pytest.approx(vector, abs=1e-7) for vector in expected]
    ids = httpx.post(server.http + "/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    assert ids[-1] == tiny_qwen3.END and len(ids) == DATA[0]["tokens"]
    assert vectors(embed(server, input=ids)) == expected[:1]
    with pytest.raises(grpc.RpcError) as refused:
        stub.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(text="a")], dimensions=8))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and refused.value.details().startswith("dimensions is 8; allowed: 64")


def test_scores_are_cosines(server):
    answer = httpx.post(server.http + "/v1/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1:3]}, timeout=60).json()
    for item, entry in zip(answer["data"], DATA[1:3], strict=True):
        cosine = sum(a * b for a, b in zip(DATA[0]["embedding"], entry["embedding"], strict=True))
        assert item["score"] == pytest.approx(cosine, abs=1e-5)


def test_a_text_that_is_too_long_is_refused_or_cut_before_its_end(server):
    text = "x" * 2000
    assert refusal(server, input=text) == (400, "input", "input has 2001 tokens; allowed: at most 1024, or truncate_prompt_tokens")
    cut = embed(server, input=text, truncate_prompt_tokens=11)
    assert cut["usage"]["prompt_tokens"] == 11
    assert vectors(cut) == vectors(embed(server, input="x" * 10))


def test_it_does_not_generate(server):
    for path, body in {"/v1/completions": {"prompt": "Hello"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]}}.items():
        status, param, message = refusal(server, path, **body)
        assert (status, param) == (400, "model") and "does not support the Completions API" in message


def shortened(vector, size):
    length = math.sqrt(sum(value * value for value in vector[:size]))
    return [value / length for value in vector[:size]]


@pytest.mark.parametrize("changes, sizes, refused", [
    ({"is_matryoshka": True}, (1, 32, 64), {0: "1 to 64", 65: "1 to 64"}),
    ({"matryoshka_dimensions": [16, 32]}, (16, 32, 64), {8: "16, 32 and 64", 65: "16, 32 and 64"}),
])
def test_dimensions_cut_embeddings_where_the_model_says_so(start_server, tmp_path, changes, sizes, refused):
    server = start_server("--model", str(tiny_qwen3.write(tmp_path / "tiny", **changes)), "--kv-cache-dtype", "float32")
    whole = vectors(embed(server, input=TEXTS[:4]))
    stub = connect(server.grpc)
    for size in sizes:
        cut = vectors(embed(server, input=TEXTS[:4], dimensions=size))
        for ours, vector in zip(cut, whole, strict=True):
            assert ours == pytest.approx(shortened(vector, size), abs=1e-6)
        reply = stub.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(text=TEXTS[0])], dimensions=size))
        assert list(reply.embeddings[0].values) == pytest.approx(cut[0], abs=1e-7)
    for size, allowed in refused.items():
        assert refusal(server, input="a", dimensions=size) == (400, "dimensions", f"dimensions is {size}; allowed: {allowed}")


def test_dimensions_are_refused_where_it_does_not(server):
    assert refusal(server, input="a", dimensions=32) == (
        400, "dimensions", "dimensions is 32; allowed: 64, the size of the model's embeddings")
    assert len(vectors(embed(server, input="a", dimensions=64))[0]) == 64


def test_the_runner_decides_where_the_files_do_not(start_server, tmp_path, folder):
    silent = tiny_qwen3.write(tmp_path / "silent", modules=False)
    generates = start_server("--model", str(silent))
    status, param, message = refusal(generates, input="Hello")
    assert (status, param) == (400, "model") and "does not support the Embeddings API" in message
    pools = start_server("--model", str(silent), "--runner", "pooling", "--kv-cache-dtype", "float32")
    for ours, entry in zip(vectors(embed(pools, input=TEXTS[:3])), DATA, strict=False):
        assert worst(ours, entry["embedding"]) < 2e-6
    forced = start_server("--model", str(folder), "--runner", "generate")
    assert httpx.post(forced.http + "/v1/completions", json={"prompt": "Hello", "max_tokens": 3}).status_code == 200
    status, message = run("--model", str(folder), "--runner", "pool")
    assert status == 1 and "runner" in message and "auto, generate, pooling" in message
    status, message = run("--model", str(folder), "--task", "embed")
    assert status == 1 and "--runner pooling" in message


def test_two_ranks_agree(start_server, folder):
    server = start_server("--model", str(folder), "--tensor-parallel-size", "2", "--kv-cache-dtype", "float32", "--threads", "2")
    for ours, entry in zip(vectors(embed(server, input=TEXTS)), DATA, strict=True):
        assert worst(ours, entry["embedding"]) < 2e-6


def test_long_texts_take_turns_in_a_small_cache(start_server, folder):
    """The cache holds one of the long texts and some short ones at a time."""
    server = start_server("--model", str(folder), "--max-num-batched-tokens", "64", "--max-num-seqs", "8", "--kv-cache-dtype", "float32",
                          "--kv-cache-memory", str(1 << 21), "--prefix-caching=false", "--threads", "1")
    answer = vectors(embed(server, input=[LONG["text"]] * 4 + TEXTS))
    assert all(vector == answer[0] for vector in answer[:4])
    assert worst(answer[0], LONG["embedding"]) < 2e-6
    assert max(worst(ours, entry["embedding"]) for ours, entry in zip(answer[4:], DATA, strict=True)) < 2e-6
