"""Attacks by clients that ask for large answers and never read them, beside one that does."""
import contextlib
import json
import re
import socket
import time

import grpc
import httpx
import pytest

import http2
from daemon import metrics, sanitized, wait_until
from millrace_grpc import connect, inference_pb2_grpc, pb

MIB = 1 << 20
BODY = {"input": "Hello", "max_output_tokens": 4, "user": "u" * (29 * MIB)}


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) << 10


def connected(server, data):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(20)
    one.connect(("127.0.0.1", server.ports["http"]))
    one.sendall(data)
    return one


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path, body):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("unread"), "--device", "fake", "--unread-timeout", "1s", "--drain-timeout", "1s")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def stored(server):
    """Returns the paths of two stored responses of 29 MiB."""
    made = [httpx.post(server.http + "/v1/responses", json=BODY, timeout=60) for _ in range(2)]
    assert [one.status_code for one in made] == [200, 200], made[0].text[:300]
    paths = ["/v1/responses/" + one.json()["id"] for one in made]
    for path in paths:
        assert len(httpx.get(server.http + path, timeout=60).content) > 29 * MIB
    return paths


@pytest.mark.parametrize("ask, clients", [("stored", 40), ("ahead", 8), ("made", 4)])
def test_unread_answers_take_little_memory_and_keep_nobody_out(server, stored, ask, clients):
    light = {"prompt": "x", "max_tokens": 2, "ignore_eos": True}
    with contextlib.ExitStack() as stack:
        before = resident(server)
        for i in range(clients):
            data = get(stored[i % 2]) * (100 if ask == "ahead" else 1) if ask != "made" else post("/v1/responses", BODY | {"store": False})
            stack.enter_context(contextlib.closing(connected(server, data)))
            assert httpx.post(server.http + "/v1/completions", json=light, timeout=20).status_code == 200
        most = resident(server)
        assert httpx.get(server.admin + "/metrics", timeout=20).status_code == 200
        assert metrics(server)["millrace_unread_answer_bytes"] <= 64 * MIB
        measured = not sanitized() and ask != "made"  # whose bodies and their JSON take memory of their own
        if measured:
            assert most < before + 100 * MIB
        # Nobody has closed, and yet the memory comes back.
        wait_until(lambda: metrics(server)["millrace_unread_answers"] == 0, 20)
        if measured:
            wait_until(lambda: resident(server) < before + 100 * MIB, 10)


def test_who_reads_gets_all_of_it_beside_those_who_do_not(server, stored):
    with contextlib.ExitStack() as stack:
        for i in range(40):
            stack.enter_context(contextlib.closing(connected(server, get(stored[0]))))
        for path in stored:  # the other's memory is there as soon as they have not read for a while
            deadline = time.monotonic() + 20
            while (got := httpx.get(server.http + path, timeout=60)).status_code == 503:
                assert got.headers["Retry-After"] == "1" and time.monotonic() < deadline
                time.sleep(0.1)
            assert got.status_code == 200 and len(got.json()["user"]) == 29 * MIB


def test_readers_of_one_response_share_it(server, stored):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(connected(server, get(stored[0])))) for _ in range(8)]
        for one in clients:
            assert one.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"


def asked(server, method, request):
    """Returns a client of HTTP/2 that has made a call, and gives the server no window beyond the first."""
    client = http2.Client(server.grpc, timeout=20)
    client.open(1, f"/millrace.v1.Inference/{method}".encode())
    payload = http2.message(request.SerializeToString())
    for at in range(0, len(payload), 16384):
        last = at + 16384 >= len(payload)
        client.send(http2.frame(http2.DATA, http2.END_STREAM if last else 0, 1, payload[at:at + 16384]))
    return client


def samples(server, name, **labels):
    """Returns the sum of a metric's samples that have these labels."""
    lines = httpx.get(server.admin + "/metrics", timeout=20).text.splitlines()
    has = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{") and all(one in line for one in has))


def broken_off(server):
    return samples(server, "millrace_unread_answers_refused_total") + samples(server, "millrace_unread_answers_evicted_total")


def read_to_the_end(client):
    """Reads until the call has ended by its trailers, or been reset."""
    while (one := client.read_frame()) is not None:
        if one[0] == http2.RST_STREAM or one[0] == http2.HEADERS and one[1] & http2.END_STREAM:
            break
    client.close()


def test_responses_of_grpc_that_nobody_reads_share_the_memory(start_server):
    server = start_server("--device", "fake", "--answer-memory", "1MiB", "--unread-timeout", "3s")
    request = pb.TokenizeRequest(text="ab cd " * 10000, return_token_strs=True)
    stub = connect(server.grpc)
    size = stub.Tokenize(request, timeout=20).ByteSize()
    assert size > 128 << 10  # more than the windows and gRPC's own buffers take
    clients = [asked(server, "Tokenize", request) for _ in range(8)]

    def answered():
        try:
            return len(stub.Tokenize(request, timeout=20).token_ids) > 0
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
            assert ("retry-after", "1") in [tuple(one) for one in error.trailing_metadata()]
            assert "that wait to be read leave no memory" in error.details()
            return False

    wait_until(lambda: broken_off(server) >= 1, 20)
    assert metrics(server)["millrace_unread_answer_bytes"] <= 1 * MIB
    wait_until(answered, 20)
    wait_until(lambda: metrics(server)["millrace_unread_answers"] == 0, 20)
    refused = samples(server, "millrace_unread_answers_refused_total")
    assert samples(server, "grpc_server_handled_total", grpc_method="Tokenize", grpc_code="ResourceExhausted") == refused
    for client in clients:
        read_to_the_end(client)


def test_prompts_that_generate_echoes_share_the_memory(start_server):
    server = start_server("--device", "fake", "--answer-memory", "4MiB", "--unread-timeout", "60s", "--max-model-len", "20000")
    stopping = pb.StopOptions(max_tokens=1)
    request = pb.GenerateRequest(text="ab cd " * 2000, echo=True, logprobs=20, stopping=stopping)
    options = [("grpc.max_receive_message_length", -1)]
    stub = inference_pb2_grpc.InferenceStub(grpc.insecure_channel(server.grpc, options=options))
    size = list(stub.Generate(request, timeout=60))[0].ByteSize()
    assert size > 3 * MIB  # of which the memory has room for one alone
    before = resident(server)
    clients = []
    for _ in range(12):
        clients.append(asked(server, "Generate", request))
        wait_until(lambda: broken_off(server) + metrics(server)["millrace_unread_answers"] == len(clients))
    assert metrics(server)["millrace_unread_answers"] == 1
    assert metrics(server)["millrace_unread_answer_bytes"] <= 4 * MIB
    if not sanitized():
        wait_until(lambda: resident(server) < before + 5 * size, 10)  # and not of all twelve
    # A short answer goes through beside the one that waits.
    assert len(list(stub.Generate(pb.GenerateRequest(text="a", stopping=stopping), timeout=20))) > 0
    for client in clients:
        client.close()
    wait_until(lambda: metrics(server)["millrace_unread_answers"] == 0)
    echo = list(stub.Generate(request, timeout=60))[0]
    assert echo.echo and echo.text == request.text and echo.request_id and len(echo.token_ids) == len(echo.logprobs) == 12000
    assert [one.token for one in echo.logprobs] == list(echo.token_ids) and all(len(one.top) == 20 for one in echo.logprobs[1:])

    def ended(code):
        return samples(server, "grpc_server_handled_total", grpc_service="millrace.v1.Inference", grpc_method="Generate", grpc_code=code)

    refused = samples(server, "millrace_unread_answers_refused_total")
    wait_until(lambda: ended("ResourceExhausted") == refused and ended("Canceled") == len(clients) - refused)


def test_an_end_does_not_wait_for_them(server, stored):
    with contextlib.ExitStack() as stack:
        for i in range(8):
            stack.enter_context(contextlib.closing(connected(server, get(stored[i % 2]))))
        began = time.monotonic()
        server.signal()
        assert server.wait(20) == 0
        assert time.monotonic() - began < 10
