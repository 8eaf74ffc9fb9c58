"""Tests of --device torch with an AOTInductor package: Infer and ModelMetadata, with valid and invalid tensors."""
import array
import math
import pathlib
import re
import threading

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from daemon import run
from millrace_grpc import connect, pb
from triton_clients import client_module, speaks_http

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # To make a package takes a minute, on a busy machine several.
Input = pb.InferRequest.InferInputTensor
VOCABULARY, WIDTH, CLASSES = 50, 32, 4


@pytest.fixture(scope="module")
def package(make_package):
    return make_package("classifier")


@pytest.fixture(scope="module")
def server(package, tmp_path_factory):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("package"), "--model", str(package), "--device", "torch", "--threads", "2",
                    "--served-model-name", "classifier")
    yield server
    server.stop()


@pytest.fixture
def stub(server):
    return connect(server.grpc)


def single(value):
    """Rounds to float32."""
    return array.array("f", [value])[0]


def weights(number, rows, columns=1):
    """Returns the values of tests/packages/classifier.py's parameter of this index."""
    return [[single(math.sin((row * columns + column) * (number + 1))) for column in range(columns)] for row in range(rows)]


def linear(x, weight, bias):
    return [sum(a * b for a, b in zip(x, row)) + b0 for row, (b0,) in zip(weight, bias)]


def classify(ids, mask):
    """Returns logits and hidden of one text, in double precision."""
    table = weights(0, VOCABULARY, WIDTH)
    seen = [table[token] for token, wanted in zip(ids, mask) if wanted]
    mean = [sum(column) / max(len(seen), 1) for column in zip(*seen)] if seen else [0.0] * WIDTH
    hidden = [math.tanh(x) for x in linear(mean, weights(1, WIDTH, WIDTH), weights(2, WIDTH))]
    return linear(hidden, weights(3, CLASSES, WIDTH), weights(4, CLASSES)), hidden


def request(ids, mask=None, **fields):
    """Returns the inputs for texts of equal length."""
    mask = mask or [[True] * len(row) for row in ids]
    shape = [len(ids), len(ids[0])]
    return pb.InferRequest(
        model_name="classifier",
        inputs=[Input(name="ids", datatype="INT64", shape=shape,
                      contents=pb.InferTensorContents(int64_contents=sum(ids, []))),
                Input(name="mask", datatype="BOOL", shape=shape,
                      contents=pb.InferTensorContents(bool_contents=sum(mask, [])))], **fields)


def refused(stub, message):
    with pytest.raises(grpc.RpcError) as error:
        stub.Infer(message, timeout=60)
    return error.value.code(), error.value.details()


def check(response, ids, mask):
    """Compares all outputs of `response` with those computed here."""
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == \
        [("logits", "FP32", [len(ids), CLASSES]), ("hidden", "FP32", [len(ids), WIDTH])]
    if response.raw_output_contents:
        outputs = [array.array("f", raw) for raw in response.raw_output_contents]
    else:
        outputs = [output.contents.fp32_contents for output in response.outputs]
    expected = [classify(*text) for text in zip(ids, mask)]
    for output, which in zip(outputs, (0, 1)):
        assert list(output) == pytest.approx([x for text in expected for x in text[which]], abs=1e-4)


@pytest.mark.parametrize("texts, length", [(1, 1), (1, 7), (3, 1), (5, 16), (64, 128)])
def test_it_computes_what_the_module_does(stub, texts, length):
    ids = [[(row * 31 + column * 7) % VOCABULARY for column in range(length)] for row in range(texts)]
    mask = [[(row + column) % 3 != 0 for column in range(length)] for row in range(texts)]
    check(stub.Infer(request(ids, mask), timeout=60), ids, mask)


def test_raw_contents_come_and_go(stub):
    ids, mask = [[1, 2, 3], [4, 5, 49]], [[True, True, True], [True, False, True]]
    message = request(ids, mask, id="mine")
    for tensor in message.inputs:
        tensor.ClearField("contents")
    message.raw_input_contents.extend([array.array("q", sum(ids, [])).tobytes(), bytes(sum(mask, []))])
    response = stub.Infer(message, timeout=60)
    assert (response.model_name, response.id) == ("classifier", "mine")
    assert len(response.raw_output_contents) == 2
    check(response, ids, mask)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritons_clients_get_the_same(server, protocol):
    client = client_module(protocol)
    ids, mask = [[1, 2, 3], [4, 5, 49]], [[True, True, True], [True, False, True]]
    address = server.http.removeprefix("http://") if speaks_http(client) else server.grpc
    inputs = [client.InferInput("mask", [2, 3], "BOOL"), client.InferInput("ids", [2, 3], "INT64")]
    inputs[0].set_data_from_numpy(np.array(mask))
    inputs[1].set_data_from_numpy(np.array(ids, dtype=np.int64))
    with client.InferenceServerClient(address) as triton:
        result = triton.infer("classifier", inputs, request_id="mine")
        for name, which in (("logits", 0), ("hidden", 1)):
            expected = [classify(*text)[which] for text in zip(ids, mask, strict=True)]
            assert np.abs(result.as_numpy(name) - np.array(expected)).max() < 1e-4
        hidden = triton.infer("classifier", inputs, outputs=[client.InferRequestedOutput("hidden")])
        assert hidden.as_numpy("logits") is None and np.array_equal(hidden.as_numpy("hidden"), result.as_numpy("hidden"))
        model = triton.get_model_metadata("classifier", **({} if speaks_http(client) else {"as_json": True}))
        assert [(tensor["name"], tensor["datatype"]) for tensor in model["inputs"]] == [("ids", "INT64"), ("mask", "BOOL")]
        with pytest.raises(InferenceServerException, match="mask"):
            triton.infer("classifier", inputs[1:])


def test_inputs_may_come_in_any_order_and_outputs_be_chosen(stub):
    message = request([[1, 2, 3]], outputs=[pb.InferRequest.InferRequestedOutputTensor(name="hidden")])
    whole = stub.Infer(request([[1, 2, 3]]), timeout=60)
    message.inputs.extend([message.inputs[1], message.inputs[0]])
    del message.inputs[:2]
    (hidden,) = stub.Infer(message, timeout=60).outputs
    assert hidden == whole.outputs[1]


def test_metadata_says_what_may_come(stub):
    metadata = stub.ModelMetadata(pb.ModelMetadataRequest(), timeout=60)
    assert (metadata.name, metadata.platform) == ("classifier", "pytorch_aotinductor")
    ids, mask = metadata.inputs
    assert (ids.name, ids.datatype, list(ids.shape), ids.min_value, ids.max_value) == ("ids", "INT64", [-1, -1], 0, 49)
    assert [(d.name, d.min, d.max) for d in ids.dimensions] == [("batch", 1, 64), ("length", 1, 128)]
    assert (mask.name, mask.datatype, mask.HasField("min_value")) == ("mask", "BOOL", False)
    assert [(o.name, o.datatype, list(o.shape)) for o in metadata.outputs] == \
        [("logits", "FP32", [-1, CLASSES]), ("hidden", "FP32", [-1, WIDTH])]


def change(**fields):
    """Returns a valid request whose first input has these fields instead."""
    message = request([[1, 2, 3]])
    contents = fields.pop("contents", None)
    for name, value in fields.items():
        if name == "shape":
            message.inputs[0].ClearField("shape")
            message.inputs[0].shape.extend(value)
        else:
            setattr(message.inputs[0], name, value)
    if contents is not None:
        message.inputs[0].contents.CopyFrom(pb.InferTensorContents(**contents))
    return message


@pytest.mark.parametrize("message, says", [
    (change(name="tokens"), 'inputs: there is no "tokens"; allowed: ids, mask'),
    (change(name="mask"), "inputs: mask is there twice; allowed: once"),
    (pb.InferRequest(inputs=request([[1]]).inputs[:1]), "inputs: mask is missing; required: ids, mask"),
    (change(datatype="INT63"), 'input ids: datatype is "INT63"; allowed: BOOL, UINT8'),
    (change(datatype="INT32", contents={"int_contents": [1, 2, 3]}), "input ids: datatype is INT32; allowed: INT64"),
    (change(datatype="FP16"), "input ids: datatype is FP16; allowed with contents"),
    (change(contents={"fp32_contents": [1, 2, 3]}), "input ids: has fp32_contents; allowed for INT64: int64_contents"),
    (change(contents={"int64_contents": [1, 2]}), "input ids: has 16 bytes; allowed: 24, for INT64 [1, 3]"),
    (change(shape=[3]), "input ids: shape is [3]; allowed: [batch (1 to 64), length (1 to 128)]"),
    (change(shape=[65, 3]), "input ids: shape is [65, 3]; allowed"),
    (change(shape=[1, 0], contents={}), "input ids: shape is [1, 0]; allowed"),
    (change(shape=[3, 1]), "input mask: shape is [1, 3]; allowed: batch is 3 as in input ids"),
    (change(contents={"int64_contents": [1, 50, 3]}), "input ids: element 1 is 50; allowed: 0 to 49"),
    (change(contents={"int64_contents": [1, 2, -1]}), "input ids: element 2 is -1; allowed: 0 to 49"),
    (request([[1]], outputs=[pb.InferRequest.InferRequestedOutputTensor(name="y")]),
     'outputs: there is no "y"; allowed: logits, hidden'),
    (request([[1]], raw_input_contents=[b""]), "raw_input_contents: has 1 elements; allowed: none, or one for each of 2"),
    (request([[1]], raw_input_contents=[b"", b""]), "input ids: has int64_contents; allowed beside raw_input_contents: none"),
])
def test_what_does_not_fit_is_refused_by_name_and_counted(server, stub, message, says):
    def counted():
        (line,) = re.findall(r'^millrace_infer_requests_total{.*outcome="invalid"} (\d+)$', httpx.get(server.admin + "/metrics").text, re.M)
        return int(line)

    before = counted()
    code, details = refused(stub, message)
    assert counted() == before + 1
    assert code == grpc.StatusCode.INVALID_ARGUMENT and details.startswith(says)
    assert stub.Infer(request([[1, 2]]), timeout=60).outputs


def test_a_foreign_index_among_many_harms_nobody(stub):
    """In a loop shared among threads, LibTorch's own check would end the process."""
    ids = [[1] * 128 for _ in range(64)]
    ids[63][127] = VOCABULARY
    code, details = refused(stub, request(ids))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "input ids: element 8191 is 50; allowed: 0 to 49")


def test_it_is_a_model_that_generates_no_text(server, stub):
    assert refused(stub, pb.InferRequest(model_name="other")) == \
        (grpc.StatusCode.NOT_FOUND, 'model is "other"; allowed: classifier')
    with pytest.raises(grpc.RpcError) as error:
        list(stub.Generate(pb.GenerateRequest(text="Hello"), timeout=60))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "a model of tensors" in error.value.details()
    answer = httpx.post(server.http + "/v1/completions", json={"model": "classifier", "prompt": "Hello"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
    (model,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert (model["id"], model["architecture"]) == ("classifier", "pytorch_aotinductor")
    assert httpx.get(server.http + "/v1/models/classifier").json() == model
    assert [m.name for m in stub.ListModels(pb.ListModelsRequest()).models] == ["classifier"]
    assert httpx.get(server.http + "/readyz").status_code == 200


def test_many_clients_get_their_own_answers(server):
    def ask(seed):
        ids = [[(seed * 13 + column * 5) % VOCABULARY for column in range(1 + seed % 20)]]
        check(connect(server.grpc).Infer(request(ids), timeout=60), ids, [[True] * len(ids[0])])
        good.append(seed)

    good = []
    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(good) == list(range(24))


def test_language_models_take_no_tensors(fake_server):
    code, details = refused(connect(fake_server.grpc), pb.InferRequest())
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "allowed for Infer: a model of tensors" in details


def test_it_is_counted_drained_and_leaves_nothing(start_server, package):
    server = start_server("--model", str(package), "--device", "torch", "--threads", "1", "--api-key", "secret")
    maps = pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
    unpacked = set(re.findall(r"(/tmp/[^/]+)/.*/aotinductor/", maps))  # by LibTorch, which does not remove it
    assert unpacked and not any(pathlib.Path(folder).exists() for folder in unpacked)
    stub = connect(server.grpc)
    name = package.stem
    message = request([[1, 2, 3]])
    message.model_name = name
    assert refused(stub, message)[0] == grpc.StatusCode.UNAUTHENTICATED
    stub.Infer(message, timeout=60, metadata=[("authorization", "Bearer secret")])
    metrics = httpx.get(server.admin + "/metrics").text
    assert re.search(rf'^millrace_infer_requests_total{{model_name="{name}",outcome="ok"}} 1$', metrics, re.M)
    assert re.search(rf'^millrace_infer_compute_time_seconds_count{{model_name="{name}"}} 1$', metrics, re.M)
    server.signal()
    assert server.wait() == 0
    assert not any(pathlib.Path(folder).exists() for folder in unpacked)


@pytest.mark.parametrize("content, flags, says", [
    (b"no zip", [], "bad.pt2: LibTorch: "),
    (None, ["--device", "cpu"], "model: an AOTInductor package (.pt2) needs --device torch"),
    (None, ["--dtype", "bfloat16"], "flag --dtype: got \"bfloat16\", but an AOTInductor package (.pt2) without --tokenizer has only tensors"),
])
def test_a_start_that_cannot_be_says_why(tmp_path, package, content, flags, says):
    path = package
    if content is not None:
        path = tmp_path / "bad.pt2"
        path.write_bytes(content)
    status, error = run("--device", "torch", "--model", str(path), *flags)
    assert status == 1 and says in error


def test_a_package_that_is_not_there_is_named():
    status, error = run("--device", "torch", "--model", "/nowhere/gone.pt2")
    assert status == 1 and "model: gone.pt2 is no file here" in error


def test_bench_takes_language_models_alone(package):
    status, error = run("bench", "--device", "torch", "--model", str(package))
    assert status == 1 and "takes tensors, not tokens" in error
