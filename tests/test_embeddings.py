"""Tests of all-MiniLM-L6-v2's embeddings through the whole server: compared with transformers, and with OpenAI's client."""
import json
import os
import pathlib
import threading

import grpc
import httpx
import openai
import pytest

from daemon import metrics, run, wait_until
from millrace_grpc import connect, pb

DATA = json.loads((pathlib.Path(__file__).parent / "reference" / "embedding_reference.json").read_text(encoding="utf-8"))
TEXTS = [entry["text"] for entry in DATA]
NAME = "all-MiniLM-L6-v2"

pytestmark = pytest.mark.model


@pytest.fixture
def client(embedding_server):
    return openai.OpenAI(base_url=embedding_server.http + "/v1", api_key="none", max_retries=0)


def cosine(a, b):
    """Returns the cosine similarity of vectors of length 1."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def refusal(server, path="/v1/embeddings", **body):
    response = httpx.post(server.http + path, json=body, timeout=60)
    error = response.json()["error"]
    return response.status_code, error["param"], error["message"]


def test_they_are_what_transformers_makes_of_the_texts(client, record_property):
    # The server stores keys and values as float16.
    answer = client.embeddings.create(model=NAME, input=TEXTS, encoding_format="float",
                                      extra_body={"truncate_prompt_tokens": -1})
    assert answer.model == NAME and answer.object == "list"
    assert [item.index for item in answer.data] == list(range(len(TEXTS)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(entry["tokens"] for entry in DATA)
    worst = 0
    for item, entry in zip(answer.data, DATA, strict=True):
        worst = max(worst, *(abs(a - b) for a, b in zip(item.embedding, entry["embedding"], strict=True)))
        assert abs(cosine(item.embedding, item.embedding) - 1) < 1e-5
        assert cosine(item.embedding, entry["embedding"]) > 0.99999, entry["text"][:40]
    print("largest difference of a value", worst)
    record_property("largest_difference", worst)
    assert worst < 5e-4


@pytest.mark.parametrize("kind, bound", [("int8", 0.0032), ("int4", 0.14)])
def test_quantized_while_loaded_they_are_as_far_off_as_is_said(start_server, record_property, kind, bound):
    # docs/accuracy.md lists the errors: 0.0021 and 0.094 at most.
    server = start_server("--model", os.environ["MILLRACE_MINILM"], "--quantization", kind)
    answer = httpx.post(server.http + "/v1/embeddings", timeout=60,
                        json={"model": NAME, "input": TEXTS, "truncate_prompt_tokens": -1}).json()
    errors = [1 - cosine(item["embedding"], entry["embedding"]) for item, entry in zip(answer["data"], DATA, strict=True)]
    record_property("errors", errors)
    assert bound / 10 < max(errors) < bound


def test_a_text_alone_and_among_others_is_the_same_in_every_spelling(client, embedding_server):
    together = client.embeddings.create(model=NAME, input=TEXTS[:5], encoding_format="float").data
    alone = client.embeddings.create(model=NAME, input=TEXTS[2], encoding_format="float").data
    assert alone[0].embedding == together[2].embedding
    base64 = client.embeddings.create(model=NAME, input=TEXTS[2], encoding_format="base64").data[0].embedding
    assert isinstance(base64, str) and len(base64) == 384 * 4 * 4 // 3
    default = client.embeddings.create(model=NAME, input=TEXTS[2]).data[0].embedding  # the client's default encoding
    assert default == pytest.approx(alone[0].embedding, abs=1e-7)
    tokens = httpx.post(embedding_server.http + "/tokenize", json={"prompt": TEXTS[2]}).json()["tokens"]
    assert len(tokens) == DATA[2]["tokens"]
    for spelled in (tokens, [tokens]):
        by_ids = client.embeddings.create(model=NAME, input=spelled, encoding_format="float", dimensions=384, user="me")
        assert by_ids.data[0].embedding == alone[0].embedding


def test_over_grpc_they_are_the_same(client, embedding_server):
    stub = connect(embedding_server.grpc)
    expected = client.embeddings.create(model=NAME, input=TEXTS[:3], encoding_format="float")
    answer = stub.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(text=text) for text in TEXTS[:3]], request_id="mine"))
    assert answer.request_id == "mine"
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    for ours, theirs in zip(answer.embeddings, expected.data, strict=True):
        assert list(ours.values) == pytest.approx(theirs.embedding, abs=1e-7)
    (model,) = stub.ListModels(pb.ListModelsRequest()).models
    assert model.embedding_size == 384 and model.architecture == "bert" and model.max_model_len == 256

    def refused(request, **options):
        with pytest.raises(grpc.RpcError) as error:
            stub.Embed(request, **options)
        return error.value

    def code(request, **options):
        return refused(request, **options).code()

    assert code(pb.EmbedRequest()) == grpc.StatusCode.INVALID_ARGUMENT
    assert code(pb.EmbedRequest(inputs=[pb.EmbedInput()])) == grpc.StatusCode.INVALID_ARGUMENT
    long = refused(pb.EmbedRequest(inputs=[pb.EmbedInput(text="a"), pb.EmbedInput(text=TEXTS[-1])]))
    assert long.code() == grpc.StatusCode.OUT_OF_RANGE and long.details().startswith("inputs[1] has ")
    many = pb.EmbedRequest(inputs=[pb.EmbedInput(text=TEXTS[-1][:800])] * 2048)
    assert code(many, timeout=0.5) == grpc.StatusCode.DEADLINE_EXCEEDED
    call = stub.Embed.future(many)
    call.cancel()
    assert call.code() == grpc.StatusCode.CANCELLED
    idle(embedding_server)


def idle(server):
    """A cancelled call leaves nothing behind: no request, no block."""
    def done():
        now = metrics(server)
        return now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == now["vllm:kv_cache_usage_perc"] == 0

    wait_until(done)


def test_a_client_that_leaves_frees_what_its_texts_held(embedding_server):
    body = {"input": [TEXTS[-1][:800]] * 2048}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(embedding_server.http + "/v1/embeddings", json=body, timeout=0.3)
    idle(embedding_server)


def test_a_long_text_is_refused_or_cut(embedding_server, client):
    long = TEXTS[-1]
    tokens = httpx.post(embedding_server.http + "/tokenize", json={"prompt": long}).json()["tokens"]
    allowed = f"has {len(tokens)} tokens; allowed: at most 256, or truncate_prompt_tokens"
    assert refusal(embedding_server, input=long) == (400, "input", f"input {allowed}")
    assert refusal(embedding_server, input=["a"] * 300 + [long]) == (400, "input[300]", f"input[300] {allowed}")
    cut = client.embeddings.create(model=NAME, input=long, extra_body={"truncate_prompt_tokens": 10}, encoding_format="float")
    assert cut.usage.prompt_tokens == 10
    by_ids = client.embeddings.create(model=NAME, input=tokens[:9] + tokens[-1:], encoding_format="float")
    assert cut.data[0].embedding == by_ids.data[0].embedding
    assert refusal(embedding_server, input=long, truncate_prompt_tokens=2)[1:] == (
        "truncate_prompt_tokens", "truncate_prompt_tokens is 2; allowed: -1, and 3 to 256")


def test_bad_requests_are_refused_by_the_field(embedding_server):
    for field, body in {"input": {}, "input[1]": {"input": ["a", ""]}, "dimensions": {"input": "a", "dimensions": 128},
                        "encoding_format": {"input": "a", "encoding_format": "int8"},
                        "input_type": {"input": "a", "input_type": "query"}}.items():
        assert refusal(embedding_server, **body)[:2] == (400, field)
    assert refusal(embedding_server, input=[[101], [101, 30522]]) == (
        400, "input[1][1]", "input[1][1] is 30522; allowed: 0 to 30521")
    assert refusal(embedding_server, model="other", input="a")[0] == 404


def test_each_model_does_what_it_is_for(embedding_server, fake_server):
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    for path, body in {"/v1/completions": {"prompt": "Hello"}, "/v1/chat/completions": chat}.items():
        status, param, message = refusal(embedding_server, path, **body)
        assert (status, param) == (400, "model") and "does not support the Completions API" in message
    status, param, message = refusal(fake_server, input="Hello")
    assert (status, param) == (400, "model") and "does not support the Embeddings API" in message


def test_prefix_caching_is_said_to_be_off(embedding_server):
    assert "prefix-caching: off, as for every encoder" in embedding_server.log.read_text()


def test_metrics_count_the_tokens_of_the_texts(embedding_server, client):
    names = ("vllm:prompt_tokens_total", "vllm:request_prompt_tokens_count", "vllm:generation_tokens_total")
    before = metrics(embedding_server)
    client.embeddings.create(model=NAME, input=TEXTS[:2])
    after = metrics(embedding_server)
    assert [after[name] - before[name] for name in names] == [DATA[0]["tokens"] + DATA[1]["tokens"], 2, 0]


def test_a_drain_lets_texts_that_were_accepted_finish(start_server):
    server = start_server("--model", os.environ["MILLRACE_MINILM"])
    answers = []
    body = {"input": [TEXTS[-1][:800]] * 16 + ["a b"] * 1500}  # more than run concurrently
    asking = threading.Thread(target=lambda: answers.append(
        httpx.post(server.http + "/v1/embeddings", json=body, timeout=120)))
    asking.start()
    wait_until(lambda: metrics(server)["vllm:num_requests_running"] > 0)
    server.signal()
    asking.join()
    assert answers[0].status_code == 200 and len(answers[0].json()["data"]) == 1516
    assert server.wait() == 0


def test_what_an_encoder_is_not_for_is_refused_at_the_start():
    status, message = run("bench", "--model", os.environ["MILLRACE_MINILM"], "--batch-sizes", "1")
    assert status == 1 and "it makes embeddings; allowed for bench" in message
    status, message = run("--model", os.environ["MILLRACE_MINILM"], "--max-num-batched-tokens", "255", "--max-num-seqs", "8")
    assert status == 1 and "max_num_batched_tokens: is 255, must be at least max_model_len, 256" in message
