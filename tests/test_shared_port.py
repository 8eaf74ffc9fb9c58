"""HTTP and gRPC on one port, plain and with TLS, under clients of both at once and clients that are neither."""
import concurrent.futures
import contextlib
import os
import re
import socket
import ssl
import subprocess
import threading
import time

import grpc
import httpx
import pytest

import http2
from daemon import free_port, metrics, run, wait_until
from test_proxies import SIGNATURE, header, proxy
from tls_clients import COMPLETION, FAKE, channel, closed, context_of, count, flags, generate, hello, https, refused, seconds_until_closed
from tls_clients import authority, certificate  # noqa: F401  (fixtures)


def one_port():
    port = str(free_port())
    return "--http-port", port, "--grpc-port", port


def started(folder, *more):
    from conftest import Server
    return Server(folder, *FAKE, *one_port(), "--header-timeout", "1s", "--log", "info,grpc=debug", *more)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    server = started(tmp_path_factory.mktemp("plain"))
    yield server
    assert server.process.poll() is None
    server.stop()


@pytest.fixture(scope="module")
def tls(tmp_path_factory, certificate):
    server = started(tmp_path_factory.mktemp("tls"), *flags(certificate))
    yield server
    assert server.process.poll() is None
    server.stop()


@pytest.fixture(params=["plain", "tls"])
def server(request):
    return request.getfixturevalue(request.param)


def address(server):
    return "127.0.0.1", server.ports["http"]


def is_tls(server):
    with socket.create_connection(address(server)) as one:
        one.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return not one.recv(1000).startswith(b"HTTP/1.1 200")


def http_client(server, authority, **more):
    secure = is_tls(server)
    return httpx.Client(base_url=https(server) if secure else server.http, timeout=60,
                        **({"verify": context_of(authority)} if secure else {}), **more)


def grpc_channel(server, authority):
    if is_tls(server):
        return channel(server, authority)
    return grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)])


def serves(server, authority):
    with http_client(server, authority) as client:
        answer = client.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 5
    with grpc_channel(server, authority) as one:
        assert count(generate(one, 5)) == 5


def test_both_are_on_the_one_port(server, authority):
    assert server.ports["http"] == server.ports["grpc"]
    serves(server, authority)


def test_many_clients_of_both_at_once(server, authority):
    def stream():
        with http_client(server, authority) as client:
            for _ in range(3):
                with client.stream("POST", "/v1/completions", json={**COMPLETION, "max_tokens": 100, "stream": True}) as response:
                    lines = list(response.iter_lines())
                assert "data: [DONE]" in lines
            return client.get("/v1/models").status_code

    def calls():
        with grpc_channel(server, authority) as one:
            return [count(generate(one, 100)) for _ in range(3)]

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        streams = [pool.submit(stream) for _ in range(16)]
        both = [pool.submit(calls) for _ in range(16)]
        assert {one.result() for one in streams} == {200}
        assert all(one.result() == [100] * 3 for one in both)
    wait_until(lambda: metrics(server)["millrace_shared_port_connections"] == 0)


@pytest.mark.parametrize("more", [[], ["--http1.1"], ["--http2"], ["--http1.0"], ["--no-alpn"]])
def test_curl(server, authority, more):
    scheme = "https" if is_tls(server) else "http"
    done = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}", *more, "--cacert", authority.file,
                           f"{scheme}://127.0.0.1:{server.ports['http']}/v1/models"], capture_output=True, text=True, timeout=60)
    assert re.fullmatch(r"200 1(\.[01])?", done.stdout), done.stdout + done.stderr


def test_http2_that_is_not_grpc_gets_no_http1(plain):
    client = http2.Client(plain.grpc)
    get = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/v1/models"), (b":authority", b"localhost")]
    client.send(http2.frame(http2.HEADERS, http2.END_STREAM | http2.END_HEADERS, 1, b"".join(http2.field(*one) for one in get)))
    received = []
    for one in iter(client.read_frame, None):
        received.append(one)
        if one[2] == 1:
            break
    client.close()
    assert [received[0][0], received[-1][0]] == [http2.SETTINGS, http2.HEADERS]
    # gRPC's own refusal, in frames of HTTP/2.
    assert b"application/grpc" in received[-1][3] and b"Bad method header" in received[-1][3]
    assert not any(b"HTTP/1." in payload for *_, payload in received)


@pytest.mark.parametrize("offered, serves_http1", [(["h2"], False), (["h2", "http/1.1"], True), (["http/1.1"], True), ([], True)])
def test_alpn_decides(tls, authority, offered, serves_http1):
    context = context_of(authority)
    if offered:
        context.set_alpn_protocols(offered)
    with socket.create_connection(address(tls)) as raw, context.wrap_socket(raw, server_hostname="localhost") as one:
        one.settimeout(30)
        chosen = one.selected_alpn_protocol()
        assert chosen == ((None if not offered else "http/1.1") if serves_http1 else "h2")
        if serves_http1:
            one.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
        else:
            one.sendall(http2.PREFACE + http2.frame(http2.SETTINGS))
            assert one.recv(9)[3] == http2.SETTINGS


def test_a_protocol_that_nobody_speaks_is_refused(tls, authority):
    context = context_of(authority)
    context.set_alpn_protocols(["spdy/3"])
    with socket.create_connection(address(tls)) as raw, pytest.raises(ssl.SSLError, match="(?i)no application protocol"):
        context.wrap_socket(raw, server_hostname="localhost")


def test_first_bytes_that_come_one_by_one_are_not_lost(plain):
    request = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"prompt\":\"Hi\"}"
    with socket.create_connection(address(plain)) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request:
            one.sendall(bytes([byte]))
            time.sleep(0.002)
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
    client = http2.Client(plain.grpc, greet=False)
    for byte in http2.PREFACE + http2.frame(http2.SETTINGS):
        client.send(bytes([byte]))
        time.sleep(0.002)
    assert client.wait_for(http2.SETTINGS)
    client.close()


# ---- Clients that are neither, or take their time ----


@pytest.mark.parametrize("first", [b"", b"P", b"PRI", b"PRI * HTTP/2.0\r", http2.PREFACE[:20], b"GET", b"\r\n"],
                         ids=["silent", "p", "pri", "line", "preface", "get", "crlf"])
def test_who_does_not_begin_is_closed_in_time(plain, first):
    with socket.create_connection(address(plain)) as one:
        one.sendall(first)
        assert 0.5 < seconds_until_closed(one) < 15


@pytest.mark.parametrize("first", [b"", hello(1), hello(5), hello(100), hello()], ids=["silent", "byte", "header", "part", "hello"])
def test_a_slow_handshake_ends_in_time(tls, first):
    with socket.create_connection(address(tls)) as one:
        one.sendall(first)
        assert 0.5 < seconds_until_closed(one) < 15


GARBAGE = {"zeros": b"\0" * 100_000, "records": b"\x16" * 100_000, "half": http2.PREFACE[:-1] + b"x" * 1000, "pri": b"PRI * HTTP/2.0\r\nHost: x\r\n\r\n",
           "hello": hello()[:-20] + b"x" * 20_000, "ssl2": b"\x80\x2e\x01\x03\x01" * 100,
           "long": b"\x16\x03\x01\x40\x00\x01\x01\x00\x00" + b"a" * 16380, "proxy": SIGNATURE + b"\x21\x11\0\x0c" + b"a" * 12,
           "text": b"hello\r\n" * 1000, "http3": os.urandom(1200), "twice": http2.PREFACE * 2}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_ends(server, name):
    with socket.create_connection(address(server)) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(GARBAGE[name])
        assert seconds_until_closed(one) < 15


def test_a_request_that_looks_like_the_preface_is_answered(plain):
    with socket.create_connection(address(plain)) as one:
        one.sendall(b"PRI * HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert re.match(rb"HTTP/1\.1 4\d\d ", one.recv(1000))


def test_who_speaks_the_wrong_thing_is_told(plain, tls, authority):
    before = refused(tls, "plaintext"), closed(tls, "plaintext"), refused(plain, "tls")
    assert "this port speaks tls" in httpx.get(tls.http + "/livez").text.lower()
    with grpc.insecure_channel(tls.grpc) as one, pytest.raises(grpc.RpcError):
        list(generate(one, 5))
    with pytest.raises(ssl.SSLError, match="(?i)wrong.version.number"):
        ssl.get_server_certificate(address(plain))
    wait_until(lambda: refused(tls, "plaintext") > before[0] and closed(tls, "plaintext") > before[1] and refused(plain, "tls") > before[2])


def settle(server):
    """Waits until every connection has got to its endpoint: then the one that asks is the only new one."""
    def opened():
        found = metrics(server)
        return found["millrace_http_connections_opened_total"], found["millrace_grpc_connections_opened_total"]

    def is_quiet():
        before = opened()
        time.sleep(0.5)
        return opened() == (before[0] + 1, before[1])

    wait_until(is_quiet)


def test_those_who_do_not_begin_keep_nobody_out(start_server, authority):
    server = start_server(*FAKE, *one_port(), "--max-connections", "100", "--header-timeout", "60s")
    with contextlib.ExitStack() as stack:
        for first in (b"", b"PRI", http2.PREFACE, b"GET / HTTP/1.1\r\nHost: l"):
            for _ in range(300):
                one = stack.enter_context(socket.create_connection(address(server)))
                with contextlib.suppress(ConnectionError):
                    one.sendall(first)
            settle(server)
            assert metrics(server)["millrace_shared_port_connections"] <= 100
            serves(server, authority)


def test_a_flood_of_half_beginnings_costs_no_time(plain, authority):
    """Half a preface lies in 500 sockets: the thread that waits for the rest sleeps."""
    def seconds():
        fields = open(f"/proc/{plain.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with contextlib.ExitStack() as stack:
        for _ in range(500):
            stack.enter_context(socket.create_connection(address(plain))).sendall(b"PRI * ")
        before = seconds()
        time.sleep(0.5)
        assert seconds() - before < 0.4


# ---- What the endpoints know of a client, and their end ----


@pytest.mark.parametrize("secure", [False, True])
def test_behind_a_proxy(start_server, authority, certificate, secure):
    server = start_server(*FAKE, *one_port(), *(flags(certificate) if secure else ()), "--trusted-proxies", "127.0.0.0/8",
                          "--log", "info,grpc=debug", "--header-timeout", "1s")
    scheme, more = ("https", {"verify": context_of(authority)}) if secure else ("http", {})
    with proxy(server.ports["http"], header("1.2.3.4")) as port:
        assert httpx.post(f"{scheme}://127.0.0.1:{port}/v1/completions", json=COMPLETION, **more).status_code == 200
    wait_until(lambda: " from=ipv4:1.2.3.4:4660" in server.log.read_text())
    with proxy(server.ports["http"], header("fd00::7")) as port:
        target = f"127.0.0.1:{port}"
        credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
        with grpc.secure_channel(target, credentials) if secure else grpc.insecure_channel(target) as one:
            assert count(generate(one, 5)) == 5
    wait_until(lambda: re.search(r"Generate OK .*, ipv6:\[fd00::7\]:4660", server.log.read_text()))
    with socket.create_connection(address(server)) as one:
        one.settimeout(30)
        one.sendall(http2.PREFACE)
        assert one.recv(1000).startswith(b"HTTP/1.1 400")
    for part in (SIGNATURE, header("1.2.3.4"), header("1.2.3.4") + b"PRI"):
        with socket.create_connection(address(server)) as one:
            one.sendall(part)
            assert 0.5 < seconds_until_closed(one) < 15


def test_clients_are_named_by_their_certificates(start_server, authority, certificate):
    server = start_server(*FAKE, *one_port(), *flags(certificate), "--ssl-ca-certs", str(authority.file), "--log", "info,grpc=debug")
    alice = authority.issue("alice")
    with httpx.Client(base_url=https(server), verify=context_of(authority, alice), timeout=60) as client:
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200
    with channel(server, authority, alice) as one:
        assert count(generate(one, 5)) == 5
    wait_until(lambda: "client=CN=alice" in server.log.read_text())
    wait_until(lambda: re.search(r"Generate OK .* \(CN=alice\)", server.log.read_text()))


def test_it_ends_without_failing_a_request(start_server):
    """Clients come and go on new connections while the server ends: all are served, until none can connect."""
    server = start_server(*FAKE, *one_port(), "--drain-delay", "1s")
    done, failed = {"http": 0, "grpc": 0}, []

    def use(protocol):
        while True:
            try:
                if protocol == "http":
                    assert httpx.post(server.http + "/v1/completions", json=COMPLETION, timeout=30).status_code == 200
                else:
                    client = http2.Client(server.grpc, timeout=30)
                    client.open(1, http2_path, http2.END_HEADERS)
                    client.send(http2.frame(http2.DATA, http2.END_STREAM, 1, http2.message(b"")))
                    assert client.wait_for(http2.DATA, 1), "no answer"
                    client.close()
                done[protocol] += 1
            except (httpx.ConnectError, ConnectionRefusedError):
                return
            except Exception as error:
                failed.append(repr(error))
                return

    http2_path = b"/grpc.health.v1.Health/Check"
    threads = [threading.Thread(target=use, args=(protocol,)) for protocol in ("http", "grpc") * 4]
    kept = grpc.insecure_channel(server.grpc)
    stream = generate(kept, 400)
    next(stream)
    for thread in threads:
        thread.start()
    wait_until(lambda: min(done.values()) > 20)
    server.signal()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert count(stream) >= 390
    assert server.wait() == 0


def test_a_drain_says_goaway_and_close(start_server):
    server = start_server(*FAKE, *one_port(), "--drain-delay", "2s")
    client = http2.Client(server.grpc)
    assert client.wait_for(http2.SETTINGS)
    with httpx.Client() as one:
        assert one.get(server.http + "/livez").headers["connection"] == "keep-alive"
        server.signal()
        wait_until(lambda: one.get(server.http + "/livez").headers["connection"] == "close")
    assert b"the server is shutting down" in client.wait_for(http2.GOAWAY)[3]
    client.close()
    assert server.wait() == 0


def test_a_taken_port_is_named(plain):
    port = str(plain.ports["http"])
    status, output = run("--device", "fake", "--http-port", port, "--grpc-port", port)
    assert status == 1
    assert f"cannot start: http-port: cannot listen on 127.0.0.1:{port}" in output
