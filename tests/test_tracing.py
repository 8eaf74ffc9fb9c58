"""Traces: spans of requests, as a collector of OpenTelemetry gets them."""
import http.server
import os
import socket
import threading
import time

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from daemon import Stream, metrics, run, wait_until
from millrace_grpc import connect, pb

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Collector:
    """Keeps the spans that are sent to it; answers with the statuses that it is given, then with 200."""

    def __init__(self, statuses=(), answer=b""):
        self.spans, self.resources, self.requests = [], [], []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append((self.path, dict(self.headers)))
                status = statuses.pop(0) if statuses else 200
                if status == 200:
                    message = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
                    for resource in message.resource_spans:
                        collector.resources.append({pair.key: pair.value.string_value for pair in resource.resource.attributes})
                        for scope in resource.scope_spans:
                            collector.spans.extend(scope.spans)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *unused):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def requests_of(self, name="llm_request"):
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collect():
    collectors = []

    def make(*arguments):
        collectors.append(Collector(*arguments))
        return collectors[-1]

    yield make
    for collector in collectors:
        collector.server.shutdown()


def attributes(span):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def complete(server, **headers):
    response = httpx.post(server.http + "/v1/completions", json={"prompt": "Hi", "max_tokens": 3, "temperature": 0.5, "ignore_eos": True},
                          headers=headers, timeout=60)
    assert response.status_code == 200
    return response.json()


def test_each_request_is_a_span_of_its_callers_trace(start_server, collect):
    collector = collect()
    server = start_server("--device", "fake", "--otlp-traces-endpoint", collector.url)
    answer = complete(server, traceparent=PARENT, tracestate="vendor=x", **{"X-Request-Id": "r1"})
    stub = connect(server.grpc)
    list(stub.Generate(pb.GenerateRequest(request_id="g1", text="Hi", stopping=pb.StopOptions(max_tokens=2)),
                       metadata=[("traceparent", PARENT)], timeout=60))
    complete(server)
    wait_until(lambda: len(collector.requests_of()) == 3)
    path, headers = collector.requests[0]
    assert path == "/v1/traces" and headers["Content-Type"] == "application/x-protobuf"
    assert collector.resources[0]["service.name"] == "millraced"

    by_id = {attributes(span)["gen_ai.request.id"]: span for span in collector.requests_of()}
    span = by_id["cmpl-r1"]
    assert span.trace_id.hex() == TRACE and span.parent_span_id.hex() == PARENT.split("-")[2]
    assert span.trace_state == "vendor=x" and span.kind == trace_pb2.Span.SPAN_KIND_SERVER
    found = attributes(span)
    assert found["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == 3
    assert found["gen_ai.request.max_tokens"] == 3 and found["gen_ai.request.temperature"] == 0.5
    assert 0 <= found["gen_ai.latency.time_in_queue"] <= found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]
    parts = [part for part in collector.spans if part.parent_span_id == span.span_id]
    assert [part.name for part in parts] == ["queue", "prefill", "decode"]
    assert parts[0].start_time_unix_nano == span.start_time_unix_nano
    assert parts[-1].end_time_unix_nano == span.end_time_unix_nano

    assert by_id["g1"].trace_id.hex() == TRACE
    (other,) = [span for name, span in by_id.items() if name not in ("cmpl-r1", "g1")]
    assert other.trace_id.hex() != TRACE and not other.parent_span_id


def test_a_caller_that_does_not_sample_gets_no_span(start_server, collect):
    collector = collect()
    server = start_server("--device", "fake", "--otlp-traces-endpoint", collector.url)
    complete(server, traceparent=PARENT[:-1] + "0", **{"X-Request-Id": "unsampled"})
    complete(server, **{"X-Request-Id": "sampled"})
    wait_until(lambda: collector.requests_of())
    assert [attributes(span)["gen_ai.request.id"] for span in collector.requests_of()] == ["cmpl-sampled"]


def test_choices_and_failures_have_spans_of_their_own(start_server, collect):
    collector = collect()
    server = start_server("--device", "fake", "--otlp-traces-endpoint", collector.url + "/custom/path", "--faults", "fake.row_error")
    body = {"prompt": "Hi", "max_tokens": 2, "ignore_eos": True}
    assert httpx.post(server.http + "/v1/completions", json=body, timeout=60).status_code == 500
    assert httpx.post(server.http + "/v1/completions", json={**body, "n": 3}, timeout=60).status_code == 200
    wait_until(lambda: len(collector.requests_of()) == 4)
    assert collector.requests[0][0] == "/custom/path"
    found = [attributes(span) for span in collector.requests_of()]
    assert sorted(one["millrace.choice"] for one in found if one["gen_ai.request.n"] == 3) == [0, 1, 2]
    (failed,) = [span for span in collector.requests_of() if attributes(span)["gen_ai.request.n"] == 1]
    assert failed.status.code == trace_pb2.Status.STATUS_CODE_ERROR and failed.status.message
    assert attributes(failed)["gen_ai.response.finish_reasons"].values[0].string_value == "error"


@pytest.mark.model
def test_all_inputs_of_an_embedding_are_one_span(start_server, collect):
    collector = collect()
    server = start_server("--model", os.environ["MILLRACE_MINILM"], "--otlp-traces-endpoint", collector.url)
    answer = httpx.post(server.http + "/v1/embeddings", json={"input": ["a", "b c"]}, headers={"traceparent": PARENT}, timeout=60).json()
    wait_until(lambda: collector.spans)
    (span,) = collector.spans
    assert span.trace_id.hex() == TRACE
    assert attributes(span)["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]


def test_a_collector_that_is_busy_is_asked_again(start_server, collect):
    collector = collect([503, 429])
    server = start_server("--device", "fake", "--otlp-traces-endpoint", collector.url,
                          env={"OTEL_SERVICE_NAME": "mine", "OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret"})
    complete(server)
    wait_until(lambda: collector.requests_of())
    assert len(collector.requests) == 3
    assert collector.requests[0][1]["api-key"] == "secret"
    assert collector.resources[0]["service.name"] == "mine"
    wait_until(lambda: 'millrace_trace_spans_total{result="exported"} 1' in httpx.get(server.admin + "/metrics").text)


def test_a_collector_that_refuses_is_not_asked_again(start_server, collect):
    collector = collect([400])
    server = start_server("--device", "fake", "--otlp-traces-endpoint", collector.url)
    complete(server)
    wait_until(lambda: 'millrace_trace_spans_total{result="dropped"} 1' in httpx.get(server.admin + "/metrics").text)
    assert len(collector.requests) == 1


def test_without_a_collector_requests_are_answered_and_the_server_ends(start_server):
    server = start_server("--device", "fake", "--otlp-traces-endpoint", "http://127.0.0.1:9")
    for _ in range(3):
        complete(server)
    server.signal()
    assert server.wait() == 0


def test_what_waits_is_sent_at_the_end(start_server, collect):
    collector = collect()
    server = start_server("--device", "fake", "--otlp-traces-endpoint", collector.url)
    complete(server)
    server.signal()
    assert server.wait() == 0
    assert len(collector.requests_of()) == 1


def test_what_a_failed_device_ended_is_sent_at_the_end(start_server, collect):
    collector = collect()
    server = start_server("--device", "fake", "--otlp-traces-endpoint", collector.url, "--fake-step-us", "2000", "--faults", "fake.device_error@200")
    streams = [Stream(server) for _ in range(3)]
    assert server.wait() == 70
    for stream in streams:
        assert "device has failed" in stream.join()[-1]
    assert [span.status.code for span in collector.requests_of()] == [trace_pb2.Status.STATUS_CODE_ERROR] * 3


def test_the_endpoint_must_be_a_url():
    status, output = run("--device", "fake", "--otlp-traces-endpoint", "localhost:4317")
    assert status != 0 and "otlp-traces-endpoint" in output and "http://" in output


def test_without_the_setting_nothing_is_traced(start_server):
    server = start_server("--device", "fake")
    complete(server, traceparent=PARENT)
    assert "millrace_trace_spans_total" not in metrics(server)


class Stalling:
    """A collector that takes connections and then answers with `pieces`, one each 50 ms, without end; with none it says nothing."""

    def __init__(self, head=b"", piece=b""):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.requests = 0
        self.open = True
        self.head, self.piece = head, piece
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        held = []
        while self.open:
            try:
                held.append(self.socket.accept()[0])
            except OSError:
                return
            self.requests += 1
            threading.Thread(target=self.answer, args=(held[-1],), daemon=True).start()

    def answer(self, connection):
        try:
            connection.recv(65536)
            connection.sendall(self.head)
            while self.open and self.piece:
                connection.sendall(self.piece)
                time.sleep(0.05)
        except OSError:
            pass

    def close(self):
        self.open = False
        self.socket.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
STALLS = {"says nothing": (), "trickles a header": (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), "trickles a body": (CHUNKED, b"1\r\nx\r\n"),
          "floods": (CHUNKED, b"100000\r\n" + bytes(1 << 20) + b"\r\n"),
          "sends a bomb": (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + bytes(1 << 20) + b"\r\n")}


@pytest.mark.parametrize("stall", STALLS)
def test_a_collector_that_stalls_holds_up_no_request_and_no_stop(start_server, stall):
    collector = Stalling(*STALLS[stall])
    server = start_server("--device", "fake", "--fake-step-us", "0", "--drain-timeout", "1s", "--otlp-traces-endpoint", collector.url)
    complete(server)
    wait_until(lambda: collector.requests)
    before = resident(server)
    for _ in range(20):
        complete(server)
    assert resident(server) < before + (30 << 20)
    began = time.monotonic()
    server.signal()
    assert server.wait(30) == 0
    assert time.monotonic() - began < 8  # two seconds on an idle machine; the collector stalls for ever
    collector.close()


def test_an_answer_without_end_is_broken_off_and_named(start_server):
    collector = Stalling(*STALLS["floods"])
    server = start_server("--device", "fake", "--otlp-traces-endpoint", collector.url)
    complete(server)
    wait_until(lambda: 'millrace_trace_spans_total{result="dropped"} 1' in httpx.get(server.admin + "/metrics").text)
    assert "traces are not taken: the answer has more than 65536 bytes" in server.log.read_text()
    collector.close()


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))
