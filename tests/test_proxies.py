"""Connections that come through a proxy, which names the client by a PROXY header of version 2 (--trusted-proxies)."""
import contextlib
import re
import socket
import ssl
import struct
import threading

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import http2
from daemon import metrics, wait_until
from tls_clients import COMPLETION, FAKE, Authority, closed, context_of, count, flags, generate, refused

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def header(address, port=4660):
    """Returns the header of a client with this address; of the proxy itself if it is None."""
    if address is None:
        return SIGNATURE + b"\x20\0\0\0"
    family, kind = (socket.AF_INET6, 0x21) if ":" in address else (socket.AF_INET, 0x11)
    packed = socket.inet_pton(family, address)
    rest = packed + packed + struct.pack(">HH", port, 80) + b"\x04\0\x03abc"  # and a field that means nothing here
    return SIGNATURE + bytes([0x21, kind]) + struct.pack(">H", len(rest)) + rest


@contextlib.contextmanager
def proxy(port, begin, sent=None):
    """Yields the port of a proxy that begins each connection with these bytes. sent: a bytearray, to which it adds what clients send."""
    def pump(source, target, copy=None):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if copy is not None:
                    copy.extend(data)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", port))
                sockets.extend((client, server))
                server.sendall(begin)
                for way in ((client, server, sent), (server, client)):
                    threading.Thread(target=pump, args=way, daemon=True).start()

    sockets = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)
    for one in sockets:
        one.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("proxies"), *FAKE, "--trusted-proxies", "10.0.0.0/8,127.0.0.0/8", "--log", "info,grpc=debug",
                    "--header-timeout", "1s")
    yield server
    assert server.process.poll() is None
    server.stop()


@pytest.mark.parametrize("address, shown", [("1.2.3.4", "ipv4:1.2.3.4:4660"), ("fd00::7", "ipv6:[fd00::7]:4660"), (None, None)])
def test_the_client_is_named(server, address, shown):
    with proxy(server.ports["http"], header(address)) as port:
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=COMPLETION).status_code == 200
    if shown:
        wait_until(lambda: f" from={shown}" in server.log.read_text())
    with proxy(server.ports["grpc"], header(address)) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert count(generate(channel, 5)) == 5
    if shown:
        wait_until(lambda: re.search(rf"Generate OK .*, {re.escape(shown)}", server.log.read_text()))


def test_with_tls(start_server, tmp_path):
    authority = Authority(tmp_path, "ours")
    server = start_server(*FAKE, *flags(authority.issue("server")), "--trusted-proxies", "127.0.0.1")
    with proxy(server.ports["http"], header("1.2.3.4")) as port:
        assert httpx.post(f"https://127.0.0.1:{port}/v1/completions", json=COMPLETION, verify=context_of(authority)).status_code == 200
    wait_until(lambda: " from=ipv4:1.2.3.4:4660" in server.log.read_text())
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
    with proxy(server.ports["grpc"], header("1.2.3.4")) as port, grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        assert count(generate(channel, 5)) == 5
    with pytest.raises(ssl.SSLError):  # the hello is not a header
        ssl.get_server_certificate(("127.0.0.1", server.ports["http"]))


def test_a_connection_without_a_header_is_refused(server):
    for protocol, counter in (("http", refused), ("grpc", closed)):
        before = counter(server, "proxy_header")
        response = httpx.get(f"http://127.0.0.1:{server.ports[protocol]}/livez")
        assert response.status_code == 400
        assert "a PROXY header of version 2" in response.text
        for begin in (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", SIGNATURE + b"\x31\x11\0\0", SIGNATURE + b"\x21\x11\xff\xff"):
            with socket.create_connection(("127.0.0.1", server.ports[protocol])) as one:
                one.settimeout(30)
                one.sendall(begin)
                assert one.recv(1000).startswith(b"HTTP/1.1 400")
        wait_until(lambda: counter(server, "proxy_header") == before + 4)
        with socket.create_connection(("127.0.0.1", server.ports[protocol])) as one:  # one that does not come
            one.settimeout(30)
            one.sendall(SIGNATURE)
            assert one.recv(1000) == b""


def test_clients_of_a_proxy_are_told_apart(start_server):
    """Where connections run short, those of the client that has most give way, and not those of the proxy."""
    server = start_server(*FAKE, "--trusted-proxies", "127.0.0.1", "--max-connections", "8")

    def connect(address):
        one = socket.create_connection(("127.0.0.1", server.ports["grpc"]))
        one.sendall(header(address) + http2.PREFACE + http2.frame(http2.SETTINGS))
        one.settimeout(30)
        assert one.recv(9)
        return one

    first = connect("1.1.1.1")
    others = [connect("2.2.2.2") for _ in range(30)]
    wait_until(lambda: metrics(server)["millrace_grpc_connections"] <= 8)
    first.sendall(http2.frame(http2.PING, 0, 0, b"12345678"))
    received = b""
    while http2.frame(http2.PING, http2.ACK, 0, b"12345678") not in received:
        more = first.recv(1000)
        assert more, "the connection of the other client was closed"
        received += more
    for one in (first, *others):
        one.close()


def test_who_is_no_proxy_speaks_for_itself(start_server):
    server = start_server(*FAKE, "--trusted-proxies", "10.0.0.0/8")
    assert httpx.post(server.http + "/v1/completions", json=COMPLETION).status_code == 200
    assert " from=" not in server.log.read_text()
    with grpc.insecure_channel(server.grpc) as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    with proxy(server.ports["http"], header("1.2.3.4")) as port:
        assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 400
