"""Tests of vllm.grpc.engine.VllmEngine, which routers speak: token ids in, token ids out."""
import hashlib
import io
import json
import pathlib
import re
import threading
import zipfile

import grpc
import httpx
import pytest

import tiny_qwen3
from daemon import cancelled, wait_until
from vllm_grpc import common, connect, pb

DATA = json.loads((pathlib.Path(__file__).parent / "reference" / "decoder_embedding_reference.json").read_text(encoding="utf-8"))


@pytest.fixture
def stub(tiny_server):
    return connect(tiny_server.grpc)


def request(ids=(1, 2, 3), **fields):
    params = pb.SamplingParams(**{"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields.pop("params", {})})
    return pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=ids), sampling_params=params, **fields)


def expected(server, ids=(1, 2, 3), **fields):
    """The same over HTTP: a choice's tokens and the answer."""
    body = {"prompt": list(ids), "temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True, **fields}
    answer = httpx.post(server.http + "/v1/completions", json=body, timeout=60).json()
    return [choice["token_ids"] for choice in answer["choices"]], answer


def test_tokens_come_whole_or_in_chunks(tiny_server, stub):
    (tokens,), _ = expected(tiny_server)
    (whole,) = stub.Generate(request())
    assert list(whole.complete.output_ids) == tokens and whole.complete.finish_reason == "length"
    assert (whole.complete.prompt_tokens, whole.complete.completion_tokens) == (3, 8)
    *chunks, last = stub.Generate(request(stream=True))
    assert [token for chunk in chunks for token in chunk.chunk.token_ids] == tokens
    assert list(last.complete.output_ids) == list(chunks[-1].chunk.token_ids), "a stream's end has the last step's tokens"
    assert sum(chunk.chunk.completion_tokens for chunk in chunks) == 8 and {chunk.chunk.prompt_tokens for chunk in chunks} == {3}
    (text,) = stub.Generate(pb.GenerateRequest(text="Hello", sampling_params=request().sampling_params))
    assert text.complete.prompt_tokens == 6  # with the end that the tokenizer puts behind it


def test_choices_have_indices_and_log_probabilities(tiny_server, stub):
    fields = {"n": 3, "seed": 5, "temperature": 1}
    tokens, answer = expected(tiny_server, logprobs=2, **fields)
    responses = list(stub.Generate(request(stream=True, params={"logprobs": 2, **fields})))
    for index in range(3):
        of_choice = [r.chunk for r in responses if r.HasField("chunk") and r.chunk.index == index]
        assert [token for chunk in of_choice for token in chunk.token_ids] == tokens[index]
        (complete,) = [r.complete for r in responses if r.HasField("complete") and r.complete.index == index]
        assert complete.finish_reason == "length"
        logprobs = [chunk.output_logprobs for chunk in of_choice]
        assert [token for part in logprobs for token in part.token_ids] == tokens[index]
        assert all(len(top.token_ids) == 2 for part in logprobs for top in part.top_logprobs)
        assert [value for part in logprobs for value in part.token_logprobs] == pytest.approx(
            answer["choices"][index]["logprobs"]["token_logprobs"], abs=1e-4)


def test_the_prompt_has_log_probabilities_of_its_own(tiny_server, stub):
    _, answer = expected(tiny_server, ids=(1, 2, 3, 4), prompt_logprobs=2, n=2, seed=1, temperature=1)
    reference = answer["choices"][0]["prompt_logprobs"]
    params = {"prompt_logprobs": 2, "n": 2, "seed": 1, "temperature": 1}
    wholes = list(stub.Generate(request(ids=(1, 2, 3, 4), params=params)))
    streamed = list(stub.Generate(request(ids=(1, 2, 3, 4), stream=True, params=params)))
    for index in range(2):
        (whole,) = [r.complete for r in wholes if r.complete.index == index]
        chunks = [r.chunk for r in streamed if r.HasField("chunk") and r.chunk.index == index]
        assert not any(chunk.HasField("input_logprobs") for chunk in chunks[1:])
        assert not whole.HasField("output_logprobs") and not any(chunk.HasField("output_logprobs") for chunk in chunks)
        for prompt in (whole.input_logprobs, chunks[0].input_logprobs):
            assert list(prompt.token_ids) == [1, 2, 3, 4] and not prompt.token_logprobs[0].HasField("value")
            for i in (1, 2, 3):
                assert prompt.token_logprobs[i].value == pytest.approx(reference[i][str(i + 1)]["logprob"], abs=1e-4)
                for token, value in zip(prompt.top_logprobs[i].token_ids, prompt.top_logprobs[i].values, strict=True):
                    assert value == pytest.approx(reference[i][str(token)]["logprob"], abs=1e-4)


def test_stops_are_named(tiny_server, stub):
    (tokens,), _ = expected(tiny_server)
    (stopped,) = stub.Generate(request(params={"stop_token_ids": [tokens[2]]}))
    assert stopped.complete.finish_reason == "stop" and stopped.complete.matched_token_id == tokens[2]
    assert list(stopped.complete.output_ids) == tokens[:tokens.index(tokens[2]) + 1], "the stop token is one of the answer's"
    text = chr(tokens[1]) if tokens[1] < 128 else None
    assert text, "the test's model writes no ASCII where it is expected"
    (stopped,) = stub.Generate(request(params={"stop": [text]}))
    assert stopped.complete.matched_stop_str == text and stopped.complete.WhichOneof("matched_stop") == "matched_stop_str"


def test_an_answer_is_held_to_its_constraint(stub):
    (choice,) = stub.Generate(request(params={"choice": pb.ChoiceConstraint(choices=["yes", "no"]), "max_tokens": 20, "ignore_eos": False}))
    assert bytes(token for token in choice.complete.output_ids if token < 256).decode() in ("yes", "no")


def test_an_answer_is_held_to_its_structural_tag(stub):
    """The tag's own texts, too: without it the test's model writes neither."""
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<f>", "content": {"type": "regex", "pattern": "[ab]{2}"}, "end": "</f>"}}
    (choice,) = stub.Generate(request(params={"structural_tag": json.dumps(tag), "max_tokens": 40, "ignore_eos": False}))
    text = bytes(token for token in choice.complete.output_ids if token < 256).decode()
    assert re.fullmatch("<f>[ab]{2}</f>", text), text
    assert choice.complete.finish_reason == "stop"


@pytest.mark.parametrize("message, says", [
    (pb.GenerateRequest(), "input: missing"),
    (request(ids=[1, 300]), "prompt[1] is 300"),
    (request(params={"top_p": 3}), "top_p is 3"),
    (request(params={"prompt_logprobs": -1}), "prompt_logprobs is -1; allowed: 0 to 20"),
    (request(params={"logprobs": -1}), "logprobs is -1"),
    (request(params={"structural_tag": "{", "ignore_eos": False}), "structural_tag"),
    (request(params={"structural_tag": '{"type": "structural_tag", "format": {"type": "any_tokens"}}', "ignore_eos": False}), "structural_tag.format.type"),
    (request(params={"truncate_prompt_tokens": 5}), "truncate_prompt_tokens is set"),
    (request(kv_transfer_params=pb.KvTransferParams()), "kv_transfer_params is set"),
    (request(mm_inputs=pb.MultimodalInputs()), "mm_inputs is set"),
    (request(data_parallel_rank=1), "data_parallel_rank is 1"),
    (request(kv_transfer_params_json="{}"), "kv_transfer_params is set"),
    (request(media_refs=pb.MediaRefs()), "mm_inputs is set"),
    (request(params={"regex": "(", "ignore_eos": False}), "regex: "),
    (request(params={"choice": pb.ChoiceConstraint(), "ignore_eos": False}), "choice"),
    (request(params={"n": 1000}), "n is 1000"),
    (request(request_id="a b"), "request_id: 3 bytes"),
])
def test_what_is_not_supported_is_refused_by_name(stub, message, says):
    with pytest.raises(grpc.RpcError) as error:
        list(stub.Generate(message))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and error.value.details().startswith(says), error.value.details()


def test_abort_ends_a_stream_and_frees_it(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "5000")
    stub = connect(server.grpc)
    responses = []
    call = stub.Generate(request(request_id="mine", stream=True, params={"max_tokens": 1000}))
    reader = threading.Thread(target=lambda: responses.extend(call))
    reader.start()
    wait_until(lambda: responses)
    with pytest.raises(grpc.RpcError) as twice:
        list(stub.Generate(request(request_id="mine")))
    assert twice.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests == 1
    stub.Abort(pb.AbortRequest(request_ids=["mine", "other"]))
    reader.join(30)
    assert responses[-1].complete.finish_reason == "abort"
    assert 0 < sum(response.chunk.completion_tokens for response in responses) < 1000
    wait_until(lambda: stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests == 0)


def test_abort_ends_every_choice_before_the_prompt_is_shown(start_server):
    stub = connect(start_server("--device", "fake", "--fake-step-us", "300000", "--max-num-seqs", "2").grpc)
    busy = stub.Generate(request(request_id="busy", stream=True, params={"max_tokens": 1000, "n": 2}))
    next(busy)
    call = stub.Generate(request(request_id="mine", params={"max_tokens": 4, "n": 2, "prompt_logprobs": 1}), timeout=60)
    wait_until(lambda: stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests == 2)
    stub.Abort(pb.AbortRequest(request_ids=["mine"]))
    assert [response.complete.finish_reason for response in call] == ["abort", "abort"]
    busy.cancel()


def test_nobody_aborts_anothers_request(start_server, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("one", "two")]}))
    server = start_server("--device", "fake", "--fake-step-us", "2000", "--keys", str(keys))
    stub = connect(server.grpc)
    one, two = ([("authorization", f"Bearer {name}")] for name in ("one", "two"))
    call = stub.Generate(request(request_id="mine", params={"max_tokens": 100}), metadata=one)
    wait_until(lambda: stub.GetServerInfo(pb.GetServerInfoRequest(), metadata=one).active_requests == 1)
    stub.Abort(pb.AbortRequest(request_ids=["mine"]), metadata=two)
    (whole,) = call
    assert whole.complete.finish_reason == "length" and whole.complete.completion_tokens == 100


def test_a_deadline_and_a_client_that_leaves_end_a_call(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "5000")
    stub = connect(server.grpc)
    late = pb.GetLoadsRequest()
    with pytest.raises(grpc.RpcError) as error:
        list(stub.Generate(request(params={"max_tokens": 2000}), timeout=0.2))
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    # The client, whose deadline it is, too, may leave first.
    wait_until(lambda: cancelled(server, "deadline", "client_gone") == 1)
    wait_until(lambda: stub.GetLoads(late).loads[0].num_total_reqs == 0)
    call = stub.Generate(request(stream=True, params={"max_tokens": 2000, "n": 3}))
    next(call)
    (load,) = stub.GetLoads(late).loads
    assert load.num_running_reqs == 3 and load.token_usage > 0 and load.num_used_tokens % 16 == 0
    assert load.max_running_requests >= 3 and load.utilization == pytest.approx(3 / load.max_running_requests)
    left = cancelled(server, "client_gone")
    call.cancel()
    wait_until(lambda: cancelled(server, "client_gone") == left + 3)
    wait_until(lambda: stub.GetLoads(late).loads[0].num_total_reqs == 0)
    with pytest.raises(grpc.RpcError) as error:
        stub.GetLoads(pb.GetLoadsRequest(dp_rank=1))
    assert error.value.details() == "dp_rank is 1; allowed: 0"


def test_the_tokenizer_comes_as_an_archive(stub, start_server):
    *first, last = stub.GetTokenizer(common.GetTokenizerRequest())
    archive = b"".join(chunk.data for chunk in [*first, last])
    assert not any(chunk.sha256 for chunk in first) and last.sha256 == hashlib.sha256(archive).hexdigest()
    files = zipfile.ZipFile(io.BytesIO(archive))
    assert files.testzip() is None and files.namelist() == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert json.loads(files.read("tokenizer.json")) == tiny_qwen3.tokenizer()
    without = connect(start_server("--device", "fake").grpc)
    with pytest.raises(grpc.RpcError) as error:
        list(without.GetTokenizer(common.GetTokenizerRequest()))
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION and "--tokenizer-path" in error.value.details()


@pytest.mark.parametrize("method, message", [("FlushCache", "FlushCacheRequest"), ("StartProfile", "StartProfileRequest"),
                                             ("StopProfile", "StopProfileRequest"), ("SubscribeKvEvents", "SubscribeKvEventsRequest")])
def test_what_there_is_not_says_so(stub, method, message):
    with pytest.raises(grpc.RpcError) as error:
        answer = getattr(stub, method)(getattr(common, message)())
        list(answer)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED and len(error.value.details()) > 20


def test_it_says_what_it_serves(tiny_server, stub):
    assert stub.HealthCheck(pb.HealthCheckRequest()).healthy
    model = stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (model.model_path, model.served_model_name, model.model_type) == ("tiny", "tiny", "qwen3")
    assert model.is_generation and model.max_context_length == 1024 and model.vocab_size == 258
    about = stub.GetServerInfo(pb.GetServerInfoRequest())
    assert not about.is_paused and about.uptime_seconds > 0 and about.block_size == 16 and about.max_num_seqs > 0
    assert list(model.eos_token_ids) == [256] and model.pad_token_id == 256 and model.max_req_input_len == 1023


def test_embeddings(start_server, tmp_path):
    server = start_server("--model", str(tiny_qwen3.write(tmp_path / "tiny")), "--kv-cache-dtype", "float32")
    stub = connect(server.grpc)
    assert not stub.GetModelInfo(pb.GetModelInfoRequest()).is_generation
    ids = httpx.post(server.http + "/tokenize", json={"prompt": DATA[0]["text"]}).json()["tokens"]
    answer = stub.Embed(pb.EmbedRequest(tokenized=pb.TokenizedInput(input_ids=ids)))
    assert list(answer.embedding) == pytest.approx(DATA[0]["embedding"], abs=2e-6)
    assert (answer.prompt_tokens, answer.embedding_dim) == (len(ids), 64)
    with pytest.raises(grpc.RpcError) as error:
        stub.Embed(pb.EmbedRequest())
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
