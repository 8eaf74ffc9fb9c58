"""Tests of --keys and of deadlines, on the real daemon by both protocols."""
import hashlib
import itertools
import json
import pathlib
import re
import time

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from daemon import Stream, run, wait_until
from millrace_grpc import connect, inference_pb2_grpc, pb
from tls_clients import Authority, channel, context_of, flags, https

FAKE = ["--device", "fake", "--fake-step-us", "2000"]
PROBES = {"/livez", "/readyz", "/health"}
PUBLIC = ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
          "/v1/responses/x", "/v1/embeddings", "/tokenize", "/detokenize", "/v1/models", "/v1/models/x", "/livez",
          "/readyz", "/health", "/server_info", "/get_server_info", "/model_info", "/get_model_info", "/health_generate", "/metrics",
          "/version", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/x", "/v2/models/x/ready", "/v2/models/x/versions/1/infer",
          "/v2/rerank", "/v1/score", "/v1/rerank", "/nowhere"]
ADMIN = ["/v1/models", "/livez", "/readyz", "/health", "/metrics", "/version", "/log", "/nowhere"]
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def write(path, *entries):
    next_path = path.with_suffix(".next")
    next_path.write_text(json.dumps({"keys": list(entries)}))
    next_path.replace(path)


def entry(name, **fields):
    return {"name": name, "sha256": digest(f"key-{name}"), **fields}


def bearer(name):
    return {"Authorization": f"Bearer key-{name}"}


def complete(server, name, **body):
    return httpx.post(server.http + "/v1/completions", headers=bearer(name), timeout=60,
                      json={"prompt": "Hello", "max_tokens": 4, "ignore_eos": True, **body})


@pytest.fixture
def keyed(start_server, tmp_path):
    path = tmp_path / "keys.json"
    write(path, entry("a"), entry("b", share=300), entry("metrics", scopes=["metrics"]), entry("admin", scopes=["admin", "metrics"]),
          entry("few", requests_per_minute=2), entry("one", max_streams=1), entry("low", priority=[5, 9]))
    return start_server(*FAKE, "--keys", str(path)), path


def test_every_route_and_method_but_probes_wants_a_key(keyed):
    server, _ = keyed
    with httpx.Client() as client:
        for base, paths in ((server.http, PUBLIC), (server.admin, ADMIN)):
            for path, method in itertools.product(paths, METHODS):
                for headers in ({}, {"Authorization": "Bearer key-x"}, {"Authorization": "Basic key-a"}):
                    got = client.request(method, base + path, headers=headers).status_code
                    assert (got == 401) == (path not in PROBES), (base, method, path, headers, got)


def test_every_grpc_method_but_health_wants_a_key(keyed):
    server, _ = keyed
    with grpc.insecure_channel(server.grpc.removeprefix("http://")) as channel:
        service = pb.DESCRIPTOR.services_by_name["Inference"]
        assert len(service.methods) > 5
        names = [f"/{service.full_name}/{method.name}" for method in service.methods]
        # tritonclient, which other tests import, has descriptors of the same names: these are read as text.
        proto = pathlib.Path(__file__).parent.parent / "proto" / "kserve" / "v2" / "inference.proto"
        names += [f"/inference.GRPCInferenceService/{method}" for method in re.findall(r"rpc (\w+)", proto.read_text())]
        proto = proto.parents[2] / "vllm" / "engine.proto"
        names += [f"/vllm.grpc.engine.VllmEngine/{method}" for method in re.findall(r"rpc (\w+)", proto.read_text())]
        assert len(names) > 24
        names.append("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        for name in names:
            for metadata in ([], [("authorization", "Bearer key-x")]):
                with pytest.raises(grpc.RpcError) as error:
                    list(channel.unary_stream(name)(b"", timeout=30, metadata=metadata))
                assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED, name
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=30).status == health_pb2.HealthCheckResponse.SERVING


def test_a_client_certificate_stands_for_a_key(start_server, tmp_path):
    authority = Authority(tmp_path, "ours")
    alice, bob, carol = authority.issue("alice", subject="/O=Example/CN=alice"), authority.issue("bob"), authority.issue("carol")
    path = tmp_path / "keys.json"

    def entries(*more):
        write(path, entry("a"), {"name": "alice", "certificate": "CN=alice,O=Example", "requests_per_minute": 3},
              {"name": "ops", "certificate": ["CN=ops", "DNS:nowhere.example"], "scopes": ["admin", "metrics"]}, *more)

    entries({"name": "bob", "certificate": "CN=bob"})
    server = start_server(*FAKE, "--keys", str(path), *flags(authority.issue("server")), "--ssl-ca-certs", str(authority.file),
                          "--ssl-cert-reqs", "1")

    def by_http(client, key=None, path="/v1/completions"):
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        with httpx.Client(base_url=https(server), verify=context_of(authority, client), headers=headers) as one:
            body = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
            return (one.post(path, json=body) if path == "/v1/completions" else one.get(path)).status_code

    def by_grpc(client, key=None):
        request = pb.GenerateRequest(text="Hello", stopping=pb.StopOptions(max_tokens=4, ignore_eos=True))
        metadata = [("authorization", f"Bearer {key}")] if key is not None else []
        with channel(server, authority, client) as one:
            try:
                return len(list(inference_pb2_grpc.InferenceStub(one).Generate(request, metadata=metadata, timeout=60))) > 0
            except grpc.RpcError as error:
                return error.code().name

    # A response is the tenant's, though neither of them shows a key.
    with httpx.Client(base_url=https(server), verify=context_of(authority, bob)) as one:
        stored = one.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 4})
        assert stored.status_code == 200, stored.text
        mine = f"/v1/responses/{stored.json()['id']}"
        assert one.get(mine).status_code == 200
    assert by_http(alice, path=mine) == 404
    # Nobody, or one that no entry names, needs a key; a wrong key counts, whatever the certificate says.
    for client in (None, carol):
        assert (by_http(client), by_grpc(client)) == (401, "UNAUTHENTICATED")
        assert (by_http(client, "key-a"), by_grpc(client, "key-a")) == (200, True)
    assert (by_http(bob, "key-x"), by_grpc(bob, "key-x")) == (401, "UNAUTHENTICATED")
    assert (by_http(bob, path="/metrics"), by_http(bob, path="/v1/models")) == (403, 200)
    # It is the tenant in every way.
    assert (by_http(alice), by_grpc(alice), by_http(alice)) == (200, True, 200)
    assert (by_http(alice), by_grpc(alice)) == (429, "RESOURCE_EXHAUSTED")
    assert (by_http(bob), by_grpc(bob)) == (200, True)
    assert (by_http(alice, "key-a"), by_grpc(alice, "key-a")) == (200, True)
    text = httpx.get(server.admin + "/metrics", headers={"Authorization": "Bearer none"}).text
    assert "millrace_tenant" not in text
    # On connections that are open the next request counts.
    with httpx.Client(base_url=https(server), verify=context_of(authority, bob)) as kept, \
            channel(server, authority, bob) as kept_channel:
        stub = inference_pb2_grpc.InferenceStub(kept_channel)
        assert kept.get("/v1/models").status_code == 200
        assert stub.ListModels(pb.ListModelsRequest(), timeout=60).models
        entries()
        wait_until(lambda: kept.get("/v1/models").status_code == 401, 10)
        with pytest.raises(grpc.RpcError) as error:
            stub.ListModels(pb.ListModelsRequest(), timeout=60)
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert "the certificate of CN=bob stands for none" in error.value.details()
    entries({"name": "bob", "certificate": "bob"})
    wait_until(lambda: 'the keys stay as they were' in server.log.read_text(), 10)


def test_entries_name_certificates_only_where_clients_show_some(tmp_path):
    path = tmp_path / "keys.json"
    write(path, {"name": "bob", "certificate": "CN=bob"})
    status, output = run("--device", "fake", "--keys", str(path))
    assert status == 1
    assert "keys[0].certificate: is set, but without --ssl-ca-certs no client shows one" in output


def test_scopes(keyed):
    server, _ = keyed
    assert complete(server, "a").status_code == 200
    refused = complete(server, "metrics")
    assert refused.status_code == 403 and "infer" in refused.json()["error"]["message"]
    expected = {("a", "/metrics"): 403, ("metrics", "/metrics"): 200, ("admin", "/metrics"): 200, ("a", "/v1/models"): 200}
    for (name, path), status in expected.items():
        assert httpx.get(server.http + path, headers=bearer(name)).status_code == status, (name, path)
    for name, status in {"a": 403, "metrics": 403, "admin": 200}.items():
        assert httpx.get(server.admin + "/log", headers=bearer(name)).status_code == status, name
    stub = connect(server.grpc)
    with pytest.raises(grpc.RpcError) as error:
        list(stub.Generate(pb.GenerateRequest(text="x"), timeout=30, metadata=[("authorization", "Bearer key-metrics")]))
    assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_limits_and_metrics_by_tenant(keyed):
    server, _ = keyed
    answers = [complete(server, "few") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 < int(answers[2].headers["Retry-After"]) <= 30
    with pytest.raises(grpc.RpcError) as error:
        list(connect(server.grpc).Generate(pb.GenerateRequest(text="x"), timeout=30, metadata=[("authorization", "Bearer key-few")]))
    assert 1 < int(dict(error.value.trailing_metadata())["retry-after"]) <= 30
    assert complete(server, "one", n=2).status_code == 429
    assert complete(server, "one").status_code == 200
    for priority, status in ((None, 200), (4, 400), (5, 200), (10, 400)):
        assert complete(server, "low", **({} if priority is None else {"priority": priority})).status_code == status
    text = httpx.get(server.http + "/metrics", headers=bearer("metrics")).text
    assert 'millrace_tenant_requests_total{tenant="few"} 2' in text
    assert 'millrace_tenant_refused_total{tenant="few"} 2' in text
    assert 'millrace_tenant_generation_tokens_total{tenant="few"} 8' in text
    assert 'millrace_tenant_streams{tenant="few"} 0' in text


def test_text_calls_have_the_limits_of_the_key(start_server, tmp_path):
    """What tokenizes, counts or detokenizes costs a request and its tokens, by each protocol, as what generates does."""
    path = tmp_path / "keys.json"
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    calls = {"tokenize": ("/tokenize", {"prompt": "Hello"}), "detokenize": ("/detokenize", {"tokens": [72, 105]}),
             "count": ("/v1/messages/count_tokens", {"messages": chat["messages"]})}
    write(path, *(entry(name, requests_per_minute=2) for name in [*calls, "grpc-text", "grpc-tokens"]), entry("used", tokens_per_minute=10),
          entry("metrics", scopes=["metrics"]))
    server = start_server(*FAKE, "--keys", str(path))

    def post(name, route, body):
        return httpx.post(server.http + route, headers=bearer(name), json=body, timeout=60)

    for name, call in calls.items():
        answers = [post(name, *call) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429], name
        assert 1 < int(answers[2].headers["Retry-After"]) <= 30
        assert "requests a minute are used up; allowed: 2" in answers[2].json()["error"]["message"]
        assert complete(server, name).status_code == 429, "they are the same requests"
    stub = connect(server.grpc)
    for name, method, request in (("grpc-text", stub.Tokenize, pb.TokenizeRequest(text="Hello")),
                                  ("grpc-tokens", stub.Detokenize, pb.DetokenizeRequest(token_ids=[72, 105]))):
        metadata = [("authorization", f"Bearer key-{name}")]
        for _ in range(2):
            method(request, timeout=30, metadata=metadata)
        with pytest.raises(grpc.RpcError) as error:
            method(request, timeout=30, metadata=metadata)
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 1 < int(dict(error.value.trailing_metadata())["retry-after"]) <= 30
    assert [post("used", "/tokenize", {"prompt": "0123456789" * 4}).status_code for _ in range(2)] == [200, 429]
    assert complete(server, "used").status_code == 429
    text = httpx.get(server.http + "/metrics", headers=bearer("metrics")).text
    for series in ('text_tokens_total{tenant="tokenize"} 10', 'text_tokens_total{tenant="grpc-tokens"} 4', 'refused_total{tenant="count"} 2',
                   'streams{tenant="count"} 0', 'prompt_tokens_total{tenant="tokenize"} 0'):
        assert f"millrace_tenant_{series}" in text


def cached(server, name):
    usage = complete(server, name, prompt="What another tenant has asked tells nothing. " * 8).json()["usage"]
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def test_a_prefix_of_another_key_is_not_found(keyed):
    server, _ = keyed
    assert cached(server, "a") == 0
    assert cached(server, "a") > 0
    assert cached(server, "b") == 0


def test_a_prefix_may_be_shared_and_another_salt_keeps_its_own(start_server, tmp_path):
    path = tmp_path / "keys.json"
    write(path, entry("a"), entry("b"), entry("c", cache_salt="its own"))
    server = start_server(*FAKE, "--keys", str(path), "--shared-prefix-cache")
    assert cached(server, "a") == 0
    assert cached(server, "b") > 0
    assert cached(server, "c") == 0


def test_a_key_of_the_server_may_do_everything_beside_tenants(start_server, tmp_path):
    path = tmp_path / "keys.json"
    write(path, entry("a", requests_per_minute=1))
    server = start_server(*FAKE, "--keys", str(path), "--api-key", "key-all")
    for _ in range(3):
        assert complete(server, "all").status_code == 200
    assert [complete(server, "a").status_code for _ in range(2)] == [200, 429]
    assert httpx.get(server.http + "/metrics", headers=bearer("all")).status_code == 200
    assert httpx.get(server.admin + "/log", headers=bearer("all")).status_code == 200
    assert complete(server, "other").status_code == 401


def test_keys_follow_a_link_that_kubernetes_swaps(start_server, tmp_path):
    def mount(version, name):
        """As the kubelet puts a new version of a Secret into a pod."""
        (tmp_path / version).mkdir()
        write(tmp_path / version / "keys.json", entry(name))
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    mount("..1", "a")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    server = start_server(*FAKE, "--keys", str(tmp_path / "keys.json"))
    assert [complete(server, name).status_code for name in "ab"] == [200, 401]
    mount("..2", "b")
    wait_until(lambda: [complete(server, name).status_code for name in "ab"] == [401, 200], 10)


def test_keys_follow_the_file_and_streams_of_a_revoked_key_finish(keyed):
    server, path = keyed
    lines = []
    with httpx.stream("POST", server.http + "/v1/completions", headers=bearer("a"), timeout=60,
                      json={"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True, "stream": True}) as response:
        assert response.status_code == 200
        stream = response.iter_lines()
        lines.append(next(stream))
        write(path, entry("b"), entry("c"))
        began = time.monotonic()
        wait_until(lambda: complete(server, "a").status_code == 401)
        took = time.monotonic() - began
        lines.extend(stream)
    assert lines[-2:] == ["data: [DONE]", ""] or "data: [DONE]" in lines[-3:]
    assert sum('"text"' in line for line in lines) >= 1400
    assert complete(server, "c").status_code == 200
    assert took < 10  # a second on an idle machine
    path.write_text("{")
    wait_until(lambda: "the keys stay as they were" in server.log.read_text())
    assert complete(server, "c").status_code == 200


@pytest.mark.parametrize("text, wrong", [("{}", "keys"), ('{"keys": [{"name": "a"}]}', "keys[0].sha256"), ('{"keys": [{"nam": 1}]}', "keys[0].nam")])
def test_a_start_with_a_wrong_file_fails_and_names_what_is_wrong(tmp_path, text, wrong):
    path = tmp_path / "keys.json"
    path.write_text(text)
    code, output = run(*FAKE, "--keys", str(path))
    assert code == 1 and wrong in output


def test_a_running_stream_ends_at_its_deadline_and_says_so(fake_server):
    body = {"prompt": "Hello", "max_tokens": 100000, "ignore_eos": True, "stream": True}
    for body, headers in (({**body, "max_tokens": 3000, "timeout_ms": 300}, {}), ({**body, "max_tokens": 3000}, {"X-Request-Timeout-Ms": "300"})):
        with httpx.stream("POST", fake_server.http + "/v1/completions", json=body, headers=headers, timeout=60) as response:
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        assert len(lines) > 1
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"


def test_timeouts_out_of_range_are_refused_by_name(fake_server):
    for value in (0, -1, 1.5, "5", 10**9):
        answer = httpx.post(fake_server.http + "/v1/completions", json={"prompt": "Hello", "timeout_ms": value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "timeout_ms"
    for value in ("0", "-1", "x", "", "1.5", "99999999999999999999"):
        answer = httpx.post(fake_server.http + "/v1/completions", json={"prompt": "Hello"}, headers={"X-Request-Timeout-Ms": value})
        assert answer.status_code == 400 and "X-Request-Timeout-Ms" in answer.text
    with pytest.raises(grpc.RpcError) as error:
        list(connect(fake_server.grpc).Generate(pb.GenerateRequest(text="x", timeout_ms=0), timeout=30))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "timeout_ms" in error.value.details()


def test_what_expires_in_the_queue_costs_no_token_and_what_cannot_make_it_is_refused(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "20000", "--max-num-seqs", "1")
    first = Stream(server, {"prompt": "Hello", "max_tokens": 100, "ignore_eos": True, "stream": True})
    first.begun.wait()
    expired = httpx.post(server.http + "/v1/completions", json={"prompt": "Hello", "timeout_ms": 200}, timeout=60)
    assert expired.status_code == 504 and expired.json()["error"]["code"] == "deadline_exceeded"
    short = {"prompt": "Hello", "max_tokens": 5, "ignore_eos": True, "stream": True}
    streams = [Stream(server, short) for _ in range(60)]
    first.join()
    wait_until(lambda: sum(bool(stream.lines) for stream in streams) >= 20)
    began = time.monotonic()
    refused = httpx.post(server.http + "/v1/completions", json={"prompt": "Hello", "timeout_ms": 500}, timeout=60)
    assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
    assert 'reason="deadline"} 1' in httpx.get(server.admin + "/metrics").text.split("vllm:admission_rejections_total", 1)[1]
    assert "deadline" in refused.json()["error"]["message"]
    with pytest.raises(grpc.RpcError) as error:
        list(connect(server.grpc).Generate(pb.GenerateRequest(text="x", timeout_ms=500), timeout=30))
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert time.monotonic() - began < 5
    for stream in streams:
        stream.join()


def test_the_choices_of_a_request_do_not_wait_for_one_another(start_server):
    """A deadline is judged once for all of them: a stream whose later choices were refused would end in the middle."""
    server = start_server("--device", "fake", "--fake-step-us", "5000", "--max-num-seqs", "1")
    short = {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True, "stream": True}
    for stream in [Stream(server, short) for _ in range(30)]:
        assert stream.join()[-1] == "data: [DONE]"
    many = Stream(server, {**short, "n": 20, "timeout_ms": 1000}).join()  # all take two seconds
    assert "deadline_exceeded" in many[-1]
    counts = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in httpx.get(server.admin + "/metrics").text.splitlines() if line[0] != "#"}
    assert counts['vllm:request_success_total{engine="0",finished_reason="error",model_name="fake"}'] == 0
    assert counts['vllm:admission_rejections_total{engine="0",model_name="fake",reason="deadline"}'] == 0
