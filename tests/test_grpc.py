"""Tests of the real daemon's gRPC endpoint with the real grpcio client."""
import re
import threading
import time
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import http2
from daemon import cancelled, metrics, wait_until
from millrace_grpc import connect, pb


def request(text="Hello", **kwargs):
    kwargs.setdefault("stopping", pb.StopOptions(max_tokens=8, ignore_eos=True))
    return pb.GenerateRequest(text=text, **kwargs)


def generate(stub, message, **kwargs):
    """Returns the whole answer: text, token ids, and the last response."""
    responses = list(stub.Generate(message, timeout=60, **kwargs))
    assert all(not r.HasField("finish") for r in responses[:-1]) and responses[-1].HasField("finish")
    return ("".join(r.text for r in responses), [t for r in responses for t in r.token_ids], responses[-1])


def refused(stub, message, **kwargs):
    with pytest.raises(grpc.RpcError) as error:
        list(stub.Generate(message, timeout=60, **kwargs))
    return error.value


def metric(server, name):
    text = urllib.request.urlopen(server.admin + "/metrics").read().decode()
    return sum(float(v) for v in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M))


def test_an_answer_is_streamed_with_its_usage(fake_server):
    stub = connect(fake_server.grpc)
    stopping = pb.StopOptions(max_tokens=64, ignore_eos=True)
    responses = list(stub.Generate(request(request_id="my-own-id", stopping=stopping), timeout=60))
    assert responses[0].request_id == "my-own-id"
    assert len(responses) > 2
    finish = responses[-1].finish
    assert finish.reason == pb.FINISH_REASON_LENGTH
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (5, 64)
    assert finish.timings.prefill_seconds > 0 and finish.timings.decode_seconds > 0


def test_token_ids_and_chat_are_prompts_too(fake_server):
    stub = connect(fake_server.grpc)
    text, tokens, _ = generate(stub, request(sampling=pb.SamplingOptions(temperature=0)))
    same = generate(stub, request(token_ids=pb.TokenIds(ids=list(b"Hello")), text=None, sampling=pb.SamplingOptions(temperature=0)))
    assert len(tokens) == 8 and same[:2] == (text, tokens)
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="Hi")])
    assert generate(stub, request(chat=chat, text=None))[2].finish.usage.prompt_tokens > 2


def test_the_same_seed_gives_the_same_answer(fake_server):
    stub = connect(fake_server.grpc)
    sampling = pb.SamplingOptions(temperature=1.0, seed=7)
    assert generate(stub, request(sampling=sampling))[:2] == generate(stub, request(sampling=sampling))[:2]


def test_several_answers_share_a_call(fake_server):
    stub = connect(fake_server.grpc)
    message = request(n=3, echo=True, sampling=pb.SamplingOptions(temperature=1.0, seed=7), request_id="three")
    responses = list(stub.Generate(message, timeout=60))
    assert responses[0].request_id == "three" and not any(r.request_id for r in responses[1:])
    assert [r.index for r in responses if r.echo] == [0]
    for index in range(3):
        own = [r for r in responses if r.index == index]
        assert own[-1].HasField("finish") and not any(r.HasField("finish") for r in own[:-1])
        assert sum(len(r.token_ids) for r in own if not r.echo) == 8
        assert own[-1].finish.usage.prompt_tokens == 5 and own[-1].finish.usage.completion_tokens == 8
    one = [r for r in stub.Generate(request(sampling=message.sampling), timeout=60)]
    assert [t for r in one for t in r.token_ids] == \
        [t for r in responses if r.index == 0 and not r.echo for t in r.token_ids]


def test_logprobs_come_with_each_token(fake_server):
    responses = list(connect(fake_server.grpc).Generate(request(logprobs=3, echo=True), timeout=60))
    echo = [r for r in responses if r.echo]
    assert len(echo) == 1 and responses[0].echo and echo[0].text == "Hello"
    assert not echo[0].logprobs[0].HasField("logprob") and echo[0].logprobs[1].HasField("logprob")
    answer = [entry for r in responses if not r.echo for entry in r.logprobs]
    assert len(answer) == 8
    assert all(entry.logprob <= 0 and len(entry.top) == 3 and entry.rank >= 1 for entry in answer)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_a_prompt_that_is_only_scored_comes_first_and_is_counted(fake_server, n):
    before = metrics(fake_server)["vllm:prompt_tokens_total"]
    message = request(n=n, logprobs=0, echo=True, stopping=pb.StopOptions(max_tokens=0))
    responses = list(connect(fake_server.grpc).Generate(message, timeout=60))
    assert [r.echo for r in responses] == [True] + [False] * n
    assert {r.index for r in responses if r.HasField("finish")} == set(range(n))
    assert metrics(fake_server)["vllm:prompt_tokens_total"] - before == len(responses[0].token_ids)


def test_an_unknown_model_is_not_found(fake_server):
    error = refused(connect(fake_server.grpc), request(model="nobody"))
    assert error.code() == grpc.StatusCode.NOT_FOUND and "nobody" in error.details()


def test_what_can_never_fit_is_refused_with_both_numbers(fake_server):
    stub = connect(fake_server.grpc)
    longest = stub.ListModels(pb.ListModelsRequest()).models[0].max_model_len
    error = refused(stub, request(text="x" * (longest + 5)))
    assert error.code() == grpc.StatusCode.OUT_OF_RANGE
    assert str(longest + 5) in error.details() and str(longest) in error.details()


def test_tokens_that_wait_for_a_slow_client_come_together(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "100")
    call = connect(server.grpc).Generate(request(stopping=pb.StopOptions(max_tokens=4000, ignore_eos=True)))
    deadline = time.monotonic() + 60
    while metric(server, "vllm:generation_tokens_total") < 4000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    responses = list(call)  # more than HTTP/2's window holds
    assert sum(len(r.token_ids) for r in responses) == 4000
    assert any(len(r.token_ids) > 1 for r in responses)
    assert "".join(r.text for r in responses).isascii() and responses[-1].finish.usage.completion_tokens == 4000


def test_large_requests_are_read_and_refused_as_small_ones_are(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "10000", "--max-model-len", "65536")
    stub = connect(server.grpc)
    large = "x" * 50_000
    tokens = generate(stub, request(text=large))[1]
    assert len(tokens) == 8
    assert refused(stub, request(text=large, model="nobody")).code() == grpc.StatusCode.NOT_FOUND
    assert refused(stub, request(text=large * 2)).code() == grpc.StatusCode.OUT_OF_RANGE
    raw = grpc.insecure_channel(server.grpc).unary_stream("/millrace.v1.Inference/Generate")
    for broken in (b"\xff" * 3, b"\xff" * 50_000):
        with pytest.raises(grpc.RpcError) as error:
            list(raw(broken, timeout=60))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "is not valid" in error.value.details()
    for _ in range(20):  # which would take minutes
        stub.Generate(request(text=large, stopping=pb.StopOptions(max_tokens=15000, ignore_eos=True))).cancel()
    wait_until(lambda: metric(server, "vllm:num_requests_running") + metric(server, "vllm:num_requests_waiting") == 0, 20)


def test_cancelling_frees_the_blocks(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "2000")
    call = connect(server.grpc).Generate(request(stopping=pb.StopOptions(max_tokens=2000, ignore_eos=True)))
    next(call)
    assert metric(server, "vllm:kv_cache_usage_perc") > 0
    call.cancel()
    wait_until(lambda: cancelled(server, "client_gone") == 1)
    wait_until(lambda: metric(server, "vllm:kv_cache_usage_perc") == 0 and metric(server, "vllm:num_requests_running") == 0)


def test_a_deadline_ends_the_call(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "50000")
    with pytest.raises(grpc.RpcError) as error:
        list(connect(server.grpc).Generate(request(stopping=pb.StopOptions(max_tokens=1000, ignore_eos=True)),
                                           timeout=0.5))
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    # The client, whose deadline it is, too, may leave first.
    wait_until(lambda: cancelled(server, "deadline", "client_gone") == 1)
    wait_until(lambda: metric(server, "vllm:num_requests_running") == 0)


def test_tokenize_and_detokenize_are_inverse(fake_server):
    stub = connect(fake_server.grpc)
    tokens = stub.Tokenize(pb.TokenizeRequest(text="Grüße", add_special_tokens=False, return_token_strs=True))
    assert len(tokens.token_ids) == len(tokens.token_strs) == 7
    assert b"".join(tokens.token_strs).decode() == "Grüße"
    assert stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids)).text == "Grüße"


def test_every_method_but_health_wants_the_key(start_server):
    server = start_server("--device", "fake", "--api-key", "s3cret")
    stub = connect(server.grpc)
    for call in (lambda m: list(stub.Generate(request(), metadata=m)),
                 lambda m: stub.Tokenize(pb.TokenizeRequest(text="a"), metadata=m),
                 lambda m: stub.Detokenize(pb.DetokenizeRequest(token_ids=[97]), metadata=m),
                 lambda m: stub.ListModels(pb.ListModelsRequest(), metadata=m),
                 lambda m: stub.GetServerInfo(pb.GetServerInfoRequest(), metadata=m)):
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.RpcError) as error:
                call(metadata)
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        call((("authorization", "Bearer s3cret"),))
    channel = grpc.insecure_channel(server.grpc)
    with pytest.raises(grpc.RpcError) as error:
        ProtoReflectionDescriptorDatabase(channel).get_services()
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
    status = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status
    assert status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("method", ["Tokenize", "Generate"])
def test_who_leaves_before_its_message_has_come_has_not_sent_a_wrong_one(fake_server, method):
    def handled(code):
        lines = urllib.request.urlopen(fake_server.admin + "/metrics").read().decode().splitlines()
        labels = (f'grpc_method="{method}"', f'grpc_code="{code}"', 'grpc_service="millrace.v1.Inference"')
        return sum(float(line.split()[-1]) for line in lines if line.startswith("grpc_server_handled_total{") and all(label in line for label in labels))

    before = {code: handled(code) for code in ("Canceled", "InvalidArgument")}
    client = http2.Client(fake_server.grpc)
    client.open(1, f"/millrace.v1.Inference/{method}".encode())
    client.send(http2.frame(http2.DATA, 0, 1, http2.message(b"x" * 1000)[:500]))
    client.send(http2.frame(http2.PING, 0, 0, b"12345678"))
    client.wait_for(http2.PING)
    client.send(http2.frame(http2.RST_STREAM, 0, 1, (8).to_bytes(4, "big")))
    wait_until(lambda: handled("Canceled") == before["Canceled"] + 1)
    client.open(3, f"/millrace.v1.Inference/{method}".encode())
    client.send(http2.frame(http2.DATA, 0, 3, http2.message(b"x" * 1000)[:500]))
    client.close()
    wait_until(lambda: handled("Canceled") == before["Canceled"] + 2)
    assert handled("InvalidArgument") == before["InvalidArgument"]
    # One that ends its side without a message has sent a wrong one.
    client = http2.Client(fake_server.grpc)
    client.open(1, f"/millrace.v1.Inference/{method}".encode(), http2.END_HEADERS | http2.END_STREAM)
    wait_until(lambda: handled("InvalidArgument") == before["InvalidArgument"] + 1)
    client.close()


def test_reflection_tells_the_interface(fake_server):
    database = ProtoReflectionDescriptorDatabase(grpc.insecure_channel(fake_server.grpc))
    assert {"millrace.v1.Inference", "inference.GRPCInferenceService", "vllm.grpc.engine.VllmEngine", "grpc.health.v1.Health"} <= set(database.get_services())
    file = database.FindFileContainingSymbol("millrace.v1.Inference")
    assert [m.name for m in file.service[0].method][:1] == ["Generate"]
    with pytest.raises(KeyError):
        database.FindFileContainingSymbol("no.such.Thing")


def test_health_watch_sees_the_drain_and_the_running_stream_finishes(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "5000")
    stub = connect(server.grpc)
    call = stub.Generate(request(stopping=pb.StopOptions(max_tokens=200, ignore_eos=True)))
    first = next(call)
    seen, drained = [], threading.Event()

    def watch():
        try:
            for response in health_pb2_grpc.HealthStub(grpc.insecure_channel(server.grpc)).Watch(
                    health_pb2.HealthCheckRequest()):
                seen.append(response.status)
                if response.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                    drained.set()
        except grpc.RpcError:
            pass

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    while not seen:
        time.sleep(0.01)
    server.signal()
    assert drained.wait(20)
    assert seen[0] == health_pb2.HealthCheckResponse.SERVING
    rest = list(call)
    assert rest[-1].finish.usage.completion_tokens == 200 and first is not None
    assert server.wait() == 0


@pytest.mark.model
def test_the_real_model_answers(model_server):
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="Why is the sky blue?")])
    text, tokens, last = generate(connect(model_server.grpc), pb.GenerateRequest(
        chat=chat, sampling=pb.SamplingOptions(temperature=0), stopping=pb.StopOptions(max_tokens=40)))
    assert "scattering" in text
    assert last.finish.usage.completion_tokens == len(tokens)
    _, forced, _ = generate(connect(model_server.grpc), pb.GenerateRequest(
        chat=chat, sampling=pb.SamplingOptions(temperature=0, logit_bias=[dict(token=500, bias=100)]),
        stopping=pb.StopOptions(max_tokens=3)))
    assert forced == [500] * 3
