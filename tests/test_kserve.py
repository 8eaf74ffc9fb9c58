"""Tests of the Open Inference Protocol with Triton's own clients, over HTTP and gRPC: texts to embeddings and scores, health, errors."""
import json
import pathlib

import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import tiny_qwen3
from conftest import Server
from daemon import metrics
from triton_clients import client_module, speaks_http

DATA = json.loads((pathlib.Path(__file__).parent / "reference" / "decoder_embedding_reference.json").read_text(encoding="utf-8"))
TEXTS = [entry["text"] for entry in DATA]
EXPECTED = np.array([entry["embedding"] for entry in DATA], dtype=np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tiny_qwen3.write(tmp_path_factory.mktemp("kserve") / "tiny", is_matryoshka=True)
    server = Server(tmp_path_factory.mktemp("kserve_server"), "--model", str(folder), "--kv-cache-dtype", "float32",
                    "--served-model-name", "tiny,org/tiny")
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["http", "grpc"])
def triton(request):
    """The client's module."""
    return client_module(request.param)


def connect(triton, server):
    return triton.InferenceServerClient(server.http.removeprefix("http://") if speaks_http(triton) else server.grpc)


@pytest.fixture
def client(triton, server):
    with connect(triton, server) as client:
        yield client


def texts_input(triton, texts, shape=None, name="text"):
    tensor = triton.InferInput(name, shape or [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=np.object_).reshape(shape or [len(texts)]))
    return tensor


def refusal(call):
    with pytest.raises(InferenceServerException) as error:
        call()
    return str(error.value.status()), error.value.message()


def test_embeddings_are_what_transformers_makes_of_the_texts(triton, client):
    result = client.infer("tiny", [texts_input(triton, TEXTS)], request_id="mine")
    embeddings = result.as_numpy("embedding")
    assert embeddings.shape == EXPECTED.shape and embeddings.dtype == np.float32
    assert np.abs(embeddings - EXPECTED).max() < 2e-6
    reply = result.get_response() if speaks_http(triton) else result.get_response(as_json=True)
    assert (reply["model_name"], reply["model_version"], reply["id"]) == ("tiny", "1", "mine")
    column = client.infer("tiny", [texts_input(triton, TEXTS[:2], [2, 1])], model_version="1").as_numpy("embedding")
    assert np.array_equal(column, embeddings[:2])
    other_name = client.infer("org/tiny", [texts_input(triton, TEXTS[:2])]).as_numpy("embedding")
    assert np.array_equal(other_name, embeddings[:2])


def test_outputs_are_chosen_and_come_in_either_form(triton, client):
    inputs = [texts_input(triton, TEXTS[:2])]
    chosen = client.infer("tiny", inputs, outputs=[triton.InferRequestedOutput("embedding")]).as_numpy("embedding")
    assert np.abs(chosen - EXPECTED[:2]).max() < 2e-6
    code, message = refusal(lambda: client.infer("tiny", inputs, outputs=[triton.InferRequestedOutput("logits")]))
    assert code in ("400", "StatusCode.INVALID_ARGUMENT")
    assert message == "output logits is not one of the model's; allowed: embedding"
    if speaks_http(triton):
        plain = triton.InferInput("text", [2], "BYTES")
        plain.set_data_from_numpy(np.array([text.encode() for text in TEXTS[:2]], dtype=np.object_), binary_data=False)
        wanted = [triton.InferRequestedOutput("embedding", binary_data=False)]
        assert np.abs(client.infer("tiny", [plain], outputs=wanted).as_numpy("embedding") - EXPECTED[:2]).max() < 2e-6


def test_parameters_are_honoured_or_refused(triton, client):
    inputs = [texts_input(triton, TEXTS[:2])]
    cut = client.infer("tiny", inputs, parameters={"dimensions": 16}).as_numpy("embedding")
    expected = EXPECTED[:2, :16] / np.linalg.norm(EXPECTED[:2, :16], axis=1, keepdims=True)
    assert np.abs(cut - expected).max() < 2e-6
    assert client.infer("tiny", inputs, parameters={"truncate_prompt_tokens": 3}).as_numpy("embedding").shape == (2, 64)
    client.infer("tiny", inputs, priority=1)
    for parameters in ({"temperature": 1}, {"dimensions": 65}, {"dimensions": "16"}, {"truncate_prompt_tokens": 1 << 40}):
        code, message = refusal(lambda: client.infer("tiny", inputs, parameters=parameters))
        assert code in ("400", "StatusCode.INVALID_ARGUMENT") and next(iter(parameters)) in message
    code, message = refusal(lambda: client.infer("tiny", inputs, sequence_id=7, sequence_start=True))
    assert code in ("400", "StatusCode.INVALID_ARGUMENT") and "sequence_" in message


def test_health_and_metadata(triton, client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("tiny") and client.is_model_ready("tiny", "1")
    assert not client.is_model_ready("other") and not client.is_model_ready("tiny", "2")
    as_json = {} if speaks_http(triton) else {"as_json": True}
    about = client.get_server_metadata(**as_json)
    assert about["name"] == "millrace" and about["version"]
    model = client.get_model_metadata("tiny", **as_json)
    assert model["name"] == "tiny" and model["versions"] == ["1"] and model["platform"] == "millrace_qwen3"
    (text,), (embedding,) = model["inputs"], model["outputs"]
    assert (text["name"], text["datatype"], [int(size) for size in text["shape"]]) == ("text", "BYTES", [-1])
    assert (embedding["name"], embedding["datatype"], [int(size) for size in embedding["shape"]]) == ("embedding", "FP32", [-1, 64])


def test_bad_requests_name_what_is_wrong(triton, client):
    def infer(*inputs, model="tiny", **options):
        return refusal(lambda: client.infer(model, list(inputs), **options))

    good = texts_input(triton, TEXTS[:1])
    bad, missing = ("400", "StatusCode.INVALID_ARGUMENT"), ("404", "StatusCode.NOT_FOUND")
    code, message = infer(good, model="other")
    assert code in missing and "other" in message
    code, message = infer(good, model_version="2")
    assert code in missing and "version \"2\"" in message
    code, message = infer(texts_input(triton, ["a"], name="input_ids"))
    assert code in bad and message.startswith("input input_ids is not one of the model's; allowed: text")
    code, message = infer(good, good)
    assert code in bad and "twice" in message
    numbers = triton.InferInput("text", [1], "INT64")
    numbers.set_data_from_numpy(np.array([5], dtype=np.int64))
    code, message = infer(numbers)
    assert code in bad and message == 'input text: datatype is "INT64"; allowed: BYTES'
    code, message = infer(texts_input(triton, ["a", ""]))
    assert code in bad and message.startswith("input text: element 1 is empty")
    code, message = infer(texts_input(triton, ["a", "b"], [1, 2]))
    assert code in bad and "allowed: [n], or [n, 1]" in message
    code, message = infer(texts_input(triton, ["a", "x" * 2000]))
    assert code in ("400", "StatusCode.OUT_OF_RANGE") and message.startswith("text[1] has 2001 tokens; allowed: at most 1024")
    code, message = infer(texts_input(triton, ["a"] * 2049))
    assert code in bad and "has 2049 texts; allowed: 1 to 2048" in message


def test_a_models_texts_may_be_pairs(triton, start_server, tmp_path):
    import os

    import cross_encoder
    if "MILLRACE_MINILM" not in os.environ:
        pytest.skip("needs all-MiniLM-L6-v2")
    server = start_server("--model", str(cross_encoder.write(os.environ["MILLRACE_MINILM"], tmp_path / "cross")))
    pairs = json.loads((pathlib.Path(__file__).parent / "reference" / "cross_encoder_reference.json").read_text(encoding="utf-8"))
    first, second = zip(*(entry["pair"] for entry in pairs), strict=True)
    with connect(triton, server) as client:
        result = client.infer("cross", [texts_input(triton, second, name="text_2"), texts_input(triton, first, name="text_1")])
        expected = 1 / (1 + np.exp(-np.array([entry["logit"][1] for entry in pairs])))
        assert np.abs(result.as_numpy("score") - expected).max() < 1e-3
        code, message = refusal(lambda: client.infer("cross", [texts_input(triton, second, name="text_2"),
                                                              texts_input(triton, first[:1], name="text_1")]))
        assert code in ("400", "StatusCode.INVALID_ARGUMENT") and message.startswith("input text_1 has 1 texts and text_2 has")


def test_models_that_generate_are_ready_and_have_no_tensors(triton, fake_server):
    with connect(triton, fake_server) as client:
        name = httpx.get(fake_server.http + "/v1/models").json()["data"][0]["id"]
        assert client.is_model_ready(name)
        code, message = refusal(lambda: client.infer(name, [texts_input(triton, ["a"])]))
        assert code in ("400", "StatusCode.INVALID_ARGUMENT") and "which generates" in message


def test_keys_are_asked_for(triton, start_server, tmp_path):
    server = start_server("--model", str(tiny_qwen3.write(tmp_path / "tiny")), "--api-key", "secret")
    with connect(triton, server) as client:
        inputs = [texts_input(triton, ["a"])]
        for call in (lambda **k: client.infer("tiny", inputs, **k), lambda **k: client.get_server_metadata(**k),
                     lambda **k: client.get_model_metadata("tiny", **k)):
            assert refusal(call)[0] in ("401", "StatusCode.UNAUTHENTICATED")
            call(headers={"authorization": "Bearer secret"})
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready"):
        response = httpx.get(server.http + path)
        assert response.status_code == 401 and list(response.json()) == ["error"] and isinstance(response.json()["error"], str)


def test_deadlines_and_metrics(triton, server):
    with connect(triton, server) as client:
        many = [texts_input(triton, [TEXTS[-1]] * 2048)]
        deadline = {"timeout": 1000} if speaks_http(triton) else {"client_timeout": 0.05}
        code, message = refusal(lambda: client.infer("tiny", many, **deadline))
        assert code in ("504", "StatusCode.DEADLINE_EXCEEDED"), (code, message)
        client.infer("tiny", [texts_input(triton, ["a"])])
    text = httpx.get(server.http + "/metrics").text
    if speaks_http(triton):
        assert 'handler="/v2/models/{model}/infer"' in text
    else:
        assert 'grpc_method="ModelInfer"' in text
    assert metrics(server)["vllm:kv_cache_usage_perc"] < 1
