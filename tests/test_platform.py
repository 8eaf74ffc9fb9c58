"""What platforms need of the daemon: listeners, drain, metrics, logs, reload, CORS, starts that fail. With the fake executor."""
import json
import os
import re
import signal
import socket
import subprocess

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from daemon import LONG, Stream, environment, program, run, sanitized, status, wait_until
from millrace_grpc import connect, pb

COMPLETION = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}


def complete(server, **fields):
    return httpx.post(server.http + "/v1/completions", json=COMPLETION | fields, timeout=60)


def series(server, name):
    """Returns the values of a metric, by its labels."""
    found = {}
    for line in httpx.get(server.admin + "/metrics").text.splitlines():
        if match := re.fullmatch(rf"{re.escape(name)}(?:{{(.*)}})? (\S+)", line):
            found[frozenset(re.findall(r'(\w+)="([^"]*)"', match[1] or ""))] = float(match[2])
    return found


def value(server, name, **labels):
    """Returns the sum of the series that have these labels."""
    return sum(v for labelled, v in series(server, name).items() if labelled >= labels.items())


# ---- Listeners ----

def test_the_metrics_listener_has_metrics_and_probes_alone(start_server):
    server = start_server("--device", "fake", "--api-key", "secret", "--metrics-host", "127.0.0.1", "--metrics-port", "0")
    metrics = f"http://127.0.0.1:{server.ports['metrics']}"
    assert "vllm:num_requests_running" in httpx.get(metrics + "/metrics").text
    for path in ("/livez", "/readyz", "/health"):
        assert httpx.get(metrics + path).status_code == 200
    assert httpx.get(server.http + "/metrics").status_code == 401
    for path in ("/v1/models", "/log", "/version", "/server_info", "/"):
        assert httpx.get(metrics + path).status_code == 404
        assert httpx.get(metrics + path, headers={"Authorization": "Bearer secret"}).status_code == 404
    assert httpx.post(metrics + "/v1/completions", json=COMPLETION).status_code == 404
    assert httpx.put(metrics + "/log", content="debug").status_code == 404
    # A page of a stranger cannot read it, either.
    assert httpx.get(metrics + "/metrics", headers={"Host": "evil.example"}).status_code == 403
    assert httpx.get(metrics + "/metrics", headers={"Origin": "http://evil.example"}).status_code == 403


def test_the_metrics_listener_may_be_beyond_loopback_without_a_key(start_server):
    server = start_server("--device", "fake", "--metrics-host", "0.0.0.0", "--metrics-port", "0")
    address = f"http://127.0.0.1:{server.ports['metrics']}"
    assert httpx.get(address + "/metrics").status_code == 200
    assert httpx.get(address + "/metrics", headers={"Host": "10.1.2.3:8003"}).status_code == 200


@pytest.mark.parametrize("flags, said", [
    (("--metrics-port", "9000"), "no --metrics-host is given"),
    (("--metrics-host", "pod.example"), "expected an IPv4 or IPv6 address, or localhost"),
    (("--metrics-host", "127.0.0.1", "--metrics-port", "7001", "--http-port", "7001"), "expected different ports"),
])
def test_wrong_settings_of_the_metrics_listener_are_named(flags, said):
    code, output = run("--device", "fake", *flags)
    assert code == 1 and said in output and output.count("\n") == 1


def test_probes_answer_to_any_host(start_server):
    server = start_server("--device", "fake")
    foreign = {"Host": "10.0.0.7.nip.example"}
    for path in ("/livez", "/readyz", "/health"):
        assert httpx.get(server.http + path, headers=foreign).status_code == 200
        assert httpx.get(server.http + path, headers={**foreign, "Origin": "http://evil.example"}).status_code == 403
    assert httpx.get(server.http + "/v1/models", headers=foreign).status_code == 403


# ---- The end ----

def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_drain_delay_serves_on_and_then_closes_the_ports(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "10000", "--drain-delay", "2s")
    stub = connect(server.grpc)
    health = health_pb2_grpc.HealthStub(grpc.insecure_channel(server.grpc))
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    calls = stub.Generate(pb.GenerateRequest(text="Hi", stopping=pb.StopOptions(max_tokens=500, ignore_eos=True)), timeout=60)
    next(calls)
    stream = Stream(server, {**LONG, "max_tokens": 500})
    stream.begun.wait()
    idle = httpx.Client()
    assert idle.get(server.http + "/livez").status_code == 200
    server.signal()
    wait_until(lambda: idle.get(server.http + "/readyz").status_code == 503)
    # Not ready, and yet it serves.
    assert complete(server).status_code == 200
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    stub.Tokenize(pb.TokenizeRequest(text="x"), timeout=60)
    assert status(server, "/livez") == 200
    # Then nobody can connect, and what runs goes on.
    wait_until(lambda: refused(server.ports["http"]) and refused(server.ports["grpc"]))
    # A call is served until its client has read that the connection takes no more, and never cancelled.
    with pytest.raises(grpc.RpcError) as error:
        wait_until(lambda: not stub.Tokenize(pb.TokenizeRequest(text="x"), timeout=60))
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(httpx.HTTPError):
        idle.get(server.http + "/livez")
    assert httpx.get(server.admin + "/readyz").status_code == 503
    assert stream.join()[-1] == "data: [DONE]"
    assert list(calls)[-1].HasField("finish")
    assert server.wait() == 0


def test_during_the_delay_connections_close_after_their_answer(start_server):
    server = start_server("--device", "fake", "--drain-delay", "60s")
    assert httpx.get(server.http + "/livez").headers["connection"] == "keep-alive"
    server.signal()
    wait_until(lambda: status(server, "/readyz") == 503)
    assert complete(server).headers["connection"] == "close"
    server.signal()
    assert server.wait() == 128 + signal.SIGTERM


def test_a_device_that_fails_during_the_delay_ends_it(start_server):
    server = start_server("--device", "fake", "--drain-delay", "60s", "--faults", "fake.device_error@50")
    server.signal()
    wait_until(lambda: status(server, "/readyz") == 503)
    assert "device has failed" in Stream(server).join()[-1]
    assert server.wait() == 70


def test_who_watches_health_does_not_hold_up_the_end(start_server):
    server = start_server("--device", "fake", "--drain-timeout", "5m")
    health = health_pb2_grpc.HealthStub(grpc.insecure_channel(server.grpc))
    watch = health.Watch(health_pb2.HealthCheckRequest(service="millrace.v1.Inference"))
    unknown = health.Watch(health_pb2.HealthCheckRequest(service="nobody"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    assert next(unknown).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    server.signal()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    for call in (watch, unknown):
        with pytest.raises(grpc.RpcError) as error:
            next(call)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert server.wait() == 0


# ---- Metrics ----

def test_http_requests_are_counted_as_vllm_counts_them(start_server):
    server = start_server("--device", "fake", "--api-key", "secret")
    key = {"Authorization": "Bearer secret"}
    for _ in range(3):
        assert httpx.post(server.http + "/v1/completions", json=COMPLETION, headers=key).status_code == 200
    assert complete(server).status_code == 401
    assert httpx.get(server.http + "/v1/models/fake", headers=key).status_code == 200
    assert httpx.get(server.http + "/nowhere", headers=key).status_code == 404
    assert httpx.request("BREW", server.http + "/nowhere", headers=key).status_code == 404
    for path in ("/livez", "/readyz", "/metrics"):
        httpx.get(server.http + path, headers=key)
    wait_until(lambda: value(server, "http_requests_total") == 7)
    assert value(server, "http_requests_total", handler="/v1/completions", method="POST", status="2xx") == 3
    assert value(server, "http_requests_total", handler="/v1/completions", method="POST", status="4xx") == 1
    assert value(server, "http_requests_total", handler="/v1/models/{model}", method="GET", status="2xx") == 1
    assert value(server, "http_requests_total", handler="none", method="GET", status="4xx") == 1
    assert value(server, "http_requests_total", handler="none", method="OTHER", status="4xx") == 1
    completions = {"handler": "/v1/completions", "method": "POST"}
    assert value(server, "http_request_duration_seconds_count", **completions) == 4
    bounds = {dict(labels)["le"] for labels in series(server, "http_request_duration_seconds_bucket") if labels >= completions.items()}
    assert bounds == {"0.1", "0.5", "1.0", "+Inf"}
    assert value(server, "http_request_duration_highr_seconds_count") == 7
    assert value(server, "http_request_size_bytes_sum", handler="/v1/completions") > 100
    assert value(server, "http_response_size_bytes_count", handler="/v1/completions") == 4
    assert value(server, "millrace_http_refusals_total", reason="invalid_api_key") == 1
    assert value(server, "millrace_http_refusals_total", reason="unknown_url") == 2


def test_every_refusal_is_counted_by_its_reason(start_server):
    server = start_server("--device", "fake", "--max-num-seqs", "1", "--max-waiting", "1", "--fake-step-us", "5000")
    assert complete(server, top_p=3).status_code == 400
    assert complete(server, model="nobody").status_code == 404
    assert httpx.post(server.http + "/v1/completions", content="{}").status_code == 415
    assert httpx.get(server.http + "/v1/completions").status_code == 405
    assert httpx.get(server.http + "/v1/models", headers={"Host": "evil.example"}).status_code == 403
    with socket.create_connection(("127.0.0.1", server.ports["http"])) as raw:
        raw.sendall(b"NONSENSE\r\n\r\n")
        assert b"400" in raw.recv(100)
    streams = [Stream(server, {**LONG, "max_tokens": 100}) for _ in range(5)]
    for stream in streams:
        stream.join()
    assert {stream.status for stream in streams} == {200, 429}
    reasons = ("invalid_value", "model_not_found", "unsupported_media_type", "method_not_allowed", "foreign_host", "bad_request",
               "rate_limit_exceeded")
    for reason in reasons:
        assert value(server, "millrace_http_refusals_total", reason=reason) >= 1, reason


def test_grpc_calls_are_counted_by_method_and_code(start_server):
    server = start_server("--device", "fake")
    stub = connect(server.grpc)
    stub.Tokenize(pb.TokenizeRequest(text="x"))
    with pytest.raises(grpc.RpcError):
        stub.Tokenize(pb.TokenizeRequest(model="nobody", text="x"))
    list(stub.Generate(pb.GenerateRequest(text="x", stopping=pb.StopOptions(max_tokens=2))))
    labels = {"grpc_service": "millrace.v1.Inference"}
    with pytest.raises(grpc.RpcError):
        raw_call(grpc.insecure_channel(server.grpc), "/millrace.v1.Inference/Nope")
    with pytest.raises(grpc.RpcError):
        raw_call(grpc.insecure_channel(server.grpc), "/any.Name/AtAll")
    wait_until(lambda: value(server, "grpc_server_handled_total", **labels) == 3)
    assert value(server, "grpc_server_handled_total", grpc_method="unknown") == 2
    assert value(server, "grpc_server_handled_total", grpc_method="Tokenize", grpc_code="OK", **labels) == 1
    assert value(server, "grpc_server_handled_total", grpc_method="Tokenize", grpc_code="NotFound", **labels) == 1
    assert value(server, "grpc_server_handled_total", grpc_method="Generate", grpc_code="OK", **labels) == 1


def test_prompt_tokens_are_divided_by_their_source(start_server):
    server = start_server("--device", "fake")
    prompt = "a long prompt that fills some blocks of the cache, again and again, as a system prompt does"
    for _ in range(2):
        assert complete(server, prompt=prompt, n=2).status_code == 200
    cached = value(server, "vllm:prompt_tokens_cached_total")
    assert 0 < cached < len(prompt)
    assert value(server, "vllm:prompt_tokens_total") == 2 * len(prompt)
    assert value(server, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == cached
    assert value(server, "vllm:prompt_tokens_by_source_total", source="local_compute") == 2 * len(prompt) - cached
    assert value(server, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 0
    assert value(server, "vllm:request_params_n_sum") == 4
    assert value(server, "vllm:request_params_max_tokens_sum") == 6
    steps = value(server, "vllm:iteration_tokens_total_count")
    assert value(server, "millrace_step_duration_seconds_count") == steps > 0
    assert value(server, "millrace_step_batch_size_sum") >= steps
    # The fake device takes a millisecond for a step.
    assert value(server, "millrace_step_duration_seconds_sum") >= 0.001 * steps


# ---- Names ----

def test_a_model_may_have_several_names(start_server):
    server = start_server("--device", "fake", "--served-model-name", "first,org/second", "--served-model-name", "third")
    names = ["first", "org/second", "third"]
    listed = httpx.get(server.http + "/v1/models").json()["data"]
    assert [model["id"] for model in listed] == names
    assert {model["root"] for model in listed} == {"first"}
    for name in names:
        assert complete(server, model=name).json()["model"] == name
        assert httpx.get(server.http + "/v1/models/" + name.replace("/", "%2F")).json()["id"] == name
        with httpx.stream("POST", server.http + "/v1/completions", json=COMPLETION | {"model": name, "stream": True}) as response:
            assert {json.loads(line[6:])["model"] for line in response.iter_lines() if line.startswith("data: {")} == {name}
    assert complete(server).json()["model"] == "first"
    refusal = complete(server, model="fourth").json()["error"]
    assert refusal["message"].endswith("allowed: first, org/second, third")
    stub = connect(server.grpc)
    assert [model.name for model in stub.ListModels(pb.ListModelsRequest()).models] == names
    assert stub.Tokenize(pb.TokenizeRequest(model="third", text="x")).token_ids == [ord("x")]
    assert all("first" in str(labels) for labels in series(server, "vllm:prompt_tokens_total"))


# ---- Logs ----

def test_each_request_has_a_line_in_the_log(start_server):
    server = start_server("--device", "fake", "--log", "warning,http=info", "--log-format", "json", "--api-key", "secret")
    key = {"Authorization": "Bearer secret"}
    good = httpx.post(server.http + "/v1/completions", json=COMPLETION, headers={**key, "X-Request-Id": "mine"})
    complete(server)
    with socket.create_connection(("127.0.0.1", server.ports["http"])) as raw:
        raw.sendall(b"GET /nowhere\xff%1b[31m?secret=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\r\n")
        while raw.recv(4096):
            pass
    httpx.get(server.http + "/readyz")
    with httpx.stream("POST", server.http + "/v1/completions", json=LONG, headers=key) as response:
        next(response.iter_lines())

    def lines():
        return [json.loads(line) for line in server.log.read_text().splitlines()]

    wait_until(lambda: len(lines()) == 4)
    assert all(line["component"] == "http" and line["level"] == "info" for line in lines())
    messages = [line["message"] for line in lines()]
    first = re.fullmatch(r"POST /v1/completions 200 (\d+) bytes \S+ ms", messages[0])
    assert int(first[1]) > len(good.content) and lines()[0]["request_id"] == "mine"
    assert re.fullmatch(r"POST /v1/completions 401 \d+ bytes \S+ ms reason=invalid_api_key", messages[1])
    assert messages[2].startswith("GET /nowhere") and messages[2].endswith("reason=unknown_url") and "secret" not in messages[2]
    assert re.fullmatch(r"POST /v1/completions 200 \d+ bytes \S+ ms reason=client_closed", messages[3])


def test_logs_that_nobody_reads_stop_no_stream(tmp_path):
    ready = tmp_path / "ready.json"
    server = subprocess.Popen([program(), "--device", "fake", "--http-port", "0", "--grpc-port", "0", "--admin-port", "0", "--log", "debug",
                               "--ready-file", str(ready), "--fake-step-us", "0"], stderr=subprocess.PIPE, env=environment())
    try:
        wait_until(ready.exists)
        ports = json.loads(ready.read_text())
        url = f"http://127.0.0.1:{ports['http']}"

        def dropped():
            text = httpx.get(url + "/metrics").text
            return float(re.search(r"^millrace_log_lines_dropped_total (\S+)$", text, re.M)[1])

        # A step is a line of some 80 bytes: this is far beyond the pipe and what waits.
        while dropped() == 0:
            answer = httpx.post(url + "/v1/completions", json={"prompt": "x", "max_tokens": 2000, "ignore_eos": True}, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] == 2000
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0  # with nobody reading
    finally:
        server.kill()
        server.stderr.close()
        server.wait()


# ---- SIGHUP ----

def test_sighup_reloads_log_levels_and_hosts_and_cuts_no_stream(start_server, tmp_path):
    config = tmp_path / "m.yaml"
    config.write_text("log: info\nallowed-hosts: [one.example]\nmax-waiting: 5\n")
    server = start_server("--device", "fake", "--fake-step-us", "5000", "--config", str(config))
    stream = Stream(server, {**LONG, "max_tokens": 300})
    stream.begun.wait()

    def answers(host):
        return httpx.get(server.http + "/v1/models", headers={"Host": host}).status_code

    assert (answers("one.example"), answers("two.example")) == (200, 403)
    config.write_text("log: info,engine=debug\nallowed-hosts: [two.example]\nmax-waiting: 7\n")
    server.signal(signal.SIGHUP)
    wait_until(lambda: "reloaded: " in server.log.read_text())
    assert (answers("one.example"), answers("two.example")) == (403, 200)
    assert "engine=debug" in httpx.get(server.admin + "/log").text
    wait_until(lambda: "these take effect at the next start: max-waiting" in server.log.read_text())
    # A wrong file changes nothing.
    config.write_text("log: loud\nallowed-hosts: [three.example]\n")
    server.signal(signal.SIGHUP)
    wait_until(lambda: "reload: nothing changes: " in server.log.read_text())
    assert (answers("two.example"), answers("three.example")) == (200, 403)
    assert stream.join()[-1] == "data: [DONE]"
    server.signal()
    assert server.wait() == 0


# ---- CORS ----

APP = "https://app.example.com"


def preflight(server, origin, path="/v1/chat/completions", **headers):
    return httpx.options(server.http + path, headers={"Origin": origin, "Access-Control-Request-Method": "POST", **headers})


def test_pages_of_allowed_origins_may_call_and_read(start_server):
    server = start_server("--device", "fake", "--api-key", "secret", "--allowed-origins", APP)
    asked = preflight(server, APP, **{"Access-Control-Request-Headers": "authorization,content-type,x-stainless-os"})
    assert asked.status_code == 204
    assert asked.headers["access-control-allow-origin"] == APP and asked.headers["vary"] == "Origin"
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-private-network" not in asked.headers
    local = preflight(server, APP, **{"Access-Control-Request-Private-Network": "true"})
    assert local.headers["access-control-allow-private-network"] == "true"
    # The request itself needs the key; its refusal can be read, too.
    for key, code in (({}, 401), ({"Authorization": "Bearer secret"}, 200)):
        for stream in (False, True):
            answer = httpx.post(server.http + "/v1/completions", json=COMPLETION | {"stream": stream}, headers={"Origin": APP, **key})
            assert answer.status_code == code
            assert answer.headers["access-control-allow-origin"] == APP
            assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in httpx.get(server.http + "/livez").headers


def test_other_pages_may_not(start_server):
    server = start_server("--device", "fake", "--api-key", "secret", "--allowed-origins", APP)
    for origin in ("https://app.example.com.evil.example", "http://app.example.com", "https://app.example.com:8443", "null"):
        asked = preflight(server, origin)
        assert asked.status_code == 403 and "access-control-allow-origin" not in asked.headers
    # An OPTIONS that is no preflight needs the key as ever.
    assert httpx.options(server.http + "/v1/models", headers={"Origin": APP}).status_code == 401
    assert preflight(server, APP, "/nowhere").status_code == 404
    hostile = preflight(server, APP, **{"Access-Control-Request-Headers": "a: b;<script>"})
    assert "<" not in hostile.headers["access-control-allow-headers"]
    # The operator's listener is for no page.
    admin = httpx.get(server.admin + "/v1/models", headers={"Origin": APP})
    assert admin.status_code == 403 and "access-control-allow-origin" not in admin.headers


def test_every_page_may_with_a_star(start_server):
    server = start_server("--device", "fake", "--allowed-origins", "*")
    answer = httpx.post(server.http + "/v1/completions", json=COMPLETION, headers={"Origin": "null"})
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "*"
    # The name by which the page reached it is still checked.
    assert httpx.get(server.http + "/v1/models", headers={"Origin": "http://evil.example", "Host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("origin", ["app.example.com", "https://", "https://app.example.com/path", "https://*.example.com", "HTTPS://a"])
def test_what_is_no_origin_is_refused(origin):
    code, output = run("--device", "fake", "--allowed-origins", origin)
    assert code == 1 and "flag --allowed-origins" in output and "comma-separated origins" in output


# ---- Clients ----

def test_tokenizer_info_has_what_lm_eval_reads(start_server):
    server = start_server("--device", "fake")
    info = httpx.get(server.http + "/tokenizer_info").json()
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert info["eos_token"] is None and info["bos_token"] is None and info["pad_token"] is None
    assert "<|im_start|>" in info["chat_template"]
    assert info["model_max_length"] > 0


@pytest.mark.model
def test_tokenizer_info_of_a_model(model_server):
    info = httpx.get(model_server.http + "/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and "add_generation_prompt" in info["chat_template"]


def raw_call(channel, method, request=b""):
    return channel.unary_unary(method)(request, timeout=60)


def test_grpc_lists_health_and_speaks_both_reflections(start_server):
    server = start_server("--device", "fake", "--api-key", "secret")
    channel = grpc.insecure_channel(server.grpc)
    listed = raw_call(channel, "/grpc.health.v1.Health/List")
    for name in (b"millrace.v1.Inference", b"inference.GRPCInferenceService", b"vllm.grpc.engine.VllmEngine"):
        assert name in listed
    assert listed.count(b"\x12\x02\x08\x01") == 4  # SERVING, also of ""
    with pytest.raises(grpc.RpcError) as error:
        raw_call(channel, "/grpc.health.v1.Health/Check", b"\x0a\x06nobody")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    services = [b"millrace.v1.Inference", b"grpc.health.v1.Health", b"grpc.reflection.v1.ServerReflection",
                b"grpc.reflection.v1alpha.ServerReflection"]
    for version in ("v1", "v1alpha"):
        reflect = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError) as error:
            list(reflect(iter([b"\x3a\x00"]), timeout=60))
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        key = [("authorization", "Bearer secret")]
        answers = list(reflect(iter([b"\x3a\x00", b"\x22\x15millrace.v1.Inference", b"\x22\x06nobody"]), timeout=60, metadata=key))
        assert len(answers) == 3
        assert all(service in answers[0] for service in services)
        assert b"millrace/v1/inference.proto" in answers[1]
        assert b"not found: nobody" in answers[2]


# ---- Starts that fail ----

def fails_with_one_line(command):
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    errors = [line for line in done.stderr.splitlines() if "cannot start" in line]
    others = [line for line in done.stderr.splitlines() if "cannot start" not in line and " info " not in line]
    assert done.returncode == 1 and len(errors) == 1 and others == [], done.stderr
    return errors[0]


PORTS = ("--http-port", "0", "--grpc-port", "0", "--admin-port", "0")


@pytest.mark.skipif(sanitized(), reason="a sanitizer itself needs more")
@pytest.mark.parametrize("megabytes", [200, 300, 320, 400])
def test_too_little_address_space_ends_the_start(megabytes):
    # By a program: where Python itself sets a limit in its child, gRPC's threads there may abort it.
    assert "ulimit -v" in fails_with_one_line(["prlimit", f"--as={megabytes << 20}", program(), "--device", "fake", *PORTS])


@pytest.mark.skipif(os.getuid() != 0, reason="needs a user whose processes can be limited")
@pytest.mark.parametrize("processes", [1, 4, 12, 20, 36])
def test_too_few_threads_end_the_start(processes):
    # Nobody else may have this user's id, whose processes are counted.
    user = 60_000 + os.getpid() % 5_000
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "prlimit", f"--nproc={processes}", program(), "--device", "fake", *PORTS]
    assert "ulimit -u" in fails_with_one_line(command)


def test_a_kv_cache_beyond_the_machine_ends_the_start(tmp_path):
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    error = fails_with_one_line([program(), "--model", str(tmp_path), "--kv-cache-memory", "15TiB", *PORTS])
    assert "kv-cache-memory: got 15TiB, but " in error and "MiB" in error
    assert int(re.search(r"(\d+)MiB, for", error)[1]) <= machine >> 20
