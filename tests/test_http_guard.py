"""Attacks on the HTTP endpoint by clients without a key: whatever they hold, probes and other clients are answered."""
import contextlib
import json
import socket
import threading
import time

import httpx
import pytest

from daemon import Stream, wait_until

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("guard"), "--device", "fake", "--max-connections", "200")
    yield server
    server.stop()


def connected(server, data=b""):
    one = socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=20)
    one.sendall(data)
    return one


@pytest.fixture
def sockets():
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(connected(*arguments))


def answers(server):
    assert httpx.get(server.http + "/livez", timeout=20).status_code == 200
    body = {"prompt": "x", "max_tokens": 2, "ignore_eos": True}
    assert httpx.post(server.http + "/v1/completions", json=body, timeout=20).status_code == 200


def test_bodies_that_are_only_announced_keep_nobody_out(server, sockets):
    for _ in range(40):
        sockets(server, POST + b"Content-Length: 33554432\r\n\r\n{")
    answers(server)


def test_idle_connections_keep_nobody_out(server, sockets):
    for _ in range(400):
        sockets(server)
    answers(server)
    for _ in range(200):
        sockets(server, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answers(server)


def test_headers_that_never_end_keep_nobody_out(server, sockets):
    for _ in range(400):
        sockets(server, b"GET /livez HTTP/1.1\r\nHost: loc")
    answers(server)


def test_probes_are_answered_where_every_connection_is_busy(server, sockets):
    def keep_busy():
        sockets(server, POST + b"Content-Length: 60000\r\n\r\n" + b" " * 50_000)  # fast enough for 50 seconds

    def is_full():
        keep_busy()
        return httpx.post(server.http + "/v1/completions", json={"prompt": "x"}, timeout=20).status_code == 503

    for _ in range(199):
        keep_busy()
    # One of these is refused if a connection of the test before has not ended yet: another takes its place.
    wait_until(is_full)
    assert httpx.get(server.http + "/livez", timeout=20).status_code == 200


def test_large_bodies_and_metrics_do_not_stop_a_stream(server):
    stream = Stream(server, {"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True, "stream": True})
    stream.begun.wait()
    body = json.dumps({"prompt": list(range(97, 123)) * 30000}).encode()
    assert len(body) > 3 << 20
    stop = threading.Event()
    refused = []

    def send():
        while not stop.is_set():
            refused.append(httpx.post(server.http + "/v1/completions", content=body,
                                      headers={"Content-Type": "application/json"}, timeout=60).status_code)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(refused) > 6)
    for _ in range(5):  # the large bodies are still coming
        assert httpx.get(server.http + "/metrics", timeout=20).status_code == 200
    stop.set()
    for thread in threads:
        thread.join()
    assert set(refused) == {400}
    assert stream.join()[-1] == "data: [DONE]"


def test_a_connection_is_closed_after_garbage(server):
    one = connected(server, b"nonsense\r\n\r\n")
    sent = 0
    with contextlib.suppress(ConnectionError):
        end = time.monotonic() + 20
        while sent < 1 << 30 and time.monotonic() < end:
            sent += one.send(bytes(1 << 20))
    assert sent < 64 << 20
