"""TLS on the ports of HTTP and gRPC: clients with and without certificates, certificates that change under streams, and clients that
speak something else."""
import concurrent.futures
import contextlib
import re
import resource
import signal
import socket
import ssl
import subprocess
import time

import grpc
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import http2
from daemon import begin_peak, environment, memory, metrics, program, run, sanitized, unread_by_peer, wait_until
from tls_clients import (COMPLETION, FAKE, Revocations, Running, alert, channel, closed, context_of, count, enlarged, flags, generate, hello,
                         http_client, https, refused, seconds_until_closed)
from tls_clients import authority, certificate, strangers  # noqa: F401  (fixtures)


@pytest.fixture(scope="module")
def server(tmp_path_factory, certificate):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("tls"), *FAKE, *flags(certificate), "--header-timeout", "1s", "--api-key", "secret",
                    "--log", "info,grpc=debug")
    yield server
    assert server.process.poll() is None
    server.stop()


def port(server, protocol):
    return server.ports[protocol]


def certificate_of(server, protocol="http"):
    """Returns the certificate that a new connection sees."""
    return ssl.get_server_certificate(("127.0.0.1", port(server, protocol)))


# ---- Clients that are served ----


def test_http(server, authority):
    json_type = {"Content-Type": "application/json"}
    with http_client(server, authority) as client:
        assert client.get("/v1/models").status_code == 200
        assert client.post("/v1/completions", json=COMPLETION).json()["usage"]["completion_tokens"] == 5
        assert client.post("/v1/completions", json=COMPLETION, headers={"Authorization": "Bearer x"}).status_code == 401
        # A body of many records, and a refusal that comes while it is sent.
        assert client.post("/v1/completions", content=b" " * 3_000_000 + b"{}", headers=json_type).status_code == 400
        assert client.post("/v1/completions", content=b" " * 40_000_000, headers=json_type).status_code == 413


def test_openai(server, authority):
    with openai.OpenAI(base_url=https(server) + "/v1", api_key="secret", max_retries=0,
                       http_client=httpx.Client(verify=context_of(authority))) as client:
        model = client.models.list().data[0].id
        chunks = client.completions.create(model=model, prompt="Hello", max_tokens=20, stream=True, extra_body={"ignore_eos": True})
        assert sum(len(chunk.choices) for chunk in chunks) >= 2


def test_grpc(server, authority):
    with channel(server, authority) as one:
        assert health_pb2_grpc.HealthStub(one).Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        assert count(generate(one, 100)) == 100


@pytest.mark.parametrize("protocol, alpn", [("http", "http/1.1"), ("grpc", "h2")])
def test_versions_and_protocols(server, authority, protocol, alpn):
    def connect(offered, change=lambda context: None):
        context = context_of(authority)
        context.set_alpn_protocols(offered)
        change(context)
        with socket.create_connection(("127.0.0.1", port(server, protocol))) as raw, context.wrap_socket(raw, server_hostname="localhost") as tls:
            return tls.version(), tls.selected_alpn_protocol(), tls.compression()

    assert connect(["h2", "http/1.1"]) == ("TLSv1.3", alpn, None)
    with pytest.raises(ssl.SSLError, match="(?i)no application protocol"):
        connect(["spdy/3"])

    def old(context):
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    assert connect([alpn], old)[0] == "TLSv1.2"

    def older(context):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")

    with pytest.raises(ssl.SSLError):
        connect([alpn], older)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("protocol, alpn", [("http", "http/1.1"), ("grpc", "h2")])
def test_a_session_is_not_resumed(server, authority, protocol, alpn, version):
    """A client's certificate is verified each time."""
    context = context_of(authority)
    context.set_alpn_protocols([alpn])
    context.minimum_version = context.maximum_version = version
    session = None
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port(server, protocol)), timeout=20) as raw, \
                context.wrap_socket(raw, server_hostname="localhost", session=session) as tls:
            # A ticket of TLS 1.3 would come with the first answer.
            tls.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" if protocol == "http" else http2.PREFACE + http2.frame(http2.SETTINGS))
            assert tls.recv(1) and not tls.session_reused
            assert tls.session is None or not tls.session.has_ticket
            session = tls.session


def test_64_streams(server, authority):
    def stream(client):
        with client.stream("POST", "/v1/completions", json={**COMPLETION, "max_tokens": 300, "stream": True}) as response:
            return sum(line.startswith("data: {") for line in response.iter_lines())

    with concurrent.futures.ThreadPoolExecutor(128) as pool, channel(server, authority) as one, \
            httpx.Client(base_url=https(server), verify=context_of(authority), timeout=60, headers={"Authorization": "Bearer secret"},
                         limits=httpx.Limits(max_connections=64)) as client:
        calls = [pool.submit(lambda: count(generate(one, 300))) for _ in range(64)]
        streams = [pool.submit(stream, client) for _ in range(64)]
        assert {call.result() for call in calls} == {300}
        assert all(one.result() >= 2 for one in streams)


def test_the_other_ports_stay_plain(start_server, certificate):
    server = start_server(*FAKE, *flags(certificate), "--metrics-host", "127.0.0.1", "--metrics-port", "0")
    for url in (server.admin, f"http://127.0.0.1:{server.ports['metrics']}"):
        assert httpx.get(url + "/readyz").status_code == 200


def test_health(server, start_server, certificate, authority):
    def health(one, *flags):
        done = subprocess.run([program(), "health", "--http-port", str(port(one, "http")), "--admin-port", str(one.ports["admin"]), *flags],
                              env=environment(), capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    assert health(server) == (0, "")
    mutual = start_server(*FAKE, *flags(certificate), "--ssl-ca-certs", str(authority.file))
    assert health(mutual) == (0, "")
    mutual.stop()
    assert health(mutual)[0] == 1


# ---- Certificates of clients ----


@pytest.fixture(scope="module")
def mutual(tmp_path_factory, certificate, authority):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("mutual"), *FAKE, *flags(certificate), "--ssl-ca-certs", str(authority.file),
                    "--log", "info,grpc=debug")
    yield server
    assert server.process.poll() is None
    server.stop()


def test_a_client_with_a_certificate_is_served_and_named(mutual, authority):
    alice = authority.issue("alice", subject="/O=Example/CN=alice")
    with http_client(mutual, authority, alice) as client:
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200
    with channel(mutual, authority, alice) as one:
        assert count(generate(one, 5)) == 5
    wait_until(lambda: re.search(r"POST /v1/completions 200 .* client=CN=alice,O=Example", mutual.log.read_text()))
    wait_until(lambda: re.search(r"Generate OK .*, ipv4:127\.0\.0\.1:\d+ \(CN=alice,O=Example\)", mutual.log.read_text()))


@pytest.mark.parametrize("who", ["nobody", "stranger", "late"])
def test_a_client_without_one_is_refused(mutual, authority, strangers, who):
    client = {"nobody": lambda: None, "stranger": lambda: strangers.issue("mallory"),
              "late": lambda: authority.issue("late", "-not_before", "20200101000000Z", "-not_after", "20200102000000Z")
              if openssl_takes_dates() else expired(authority)}[who]()
    before = closed(mutual, "client_certificate"), refused(mutual, "client_certificate")
    assert re.search("(?i)certificate|unknown ca", alert(mutual, authority, client))
    with http_client(mutual, authority, client) as one, pytest.raises(httpx.HTTPError):
        one.get("/livez")
    with channel(mutual, authority, client) as one, pytest.raises(grpc.RpcError) as error:
        list(generate(one, 5))
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    wait_until(lambda: closed(mutual, "client_certificate") > before[0] and refused(mutual, "client_certificate") > before[1])


def openssl_takes_dates():
    return "-not_before" in subprocess.run(["openssl", "x509", "-help"], capture_output=True, text=True).stderr


def expired(authority):
    """Returns a certificate that expired yesterday: `openssl x509` of 3.0 takes no dates, but negative days."""
    return authority.issue("late", "-days", "-1")


def test_certificates_that_clients_need_not_show(start_server, certificate, authority, strangers):
    server = start_server(*FAKE, *flags(certificate), "--ssl-ca-certs", str(authority.file), "--ssl-cert-reqs", "1")
    with http_client(server, authority) as client:
        assert client.get("/livez").status_code == 200
    with http_client(server, authority, authority.issue("bob")) as client:
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200
    wait_until(lambda: "client=CN=bob" in server.log.read_text())
    assert "unknown ca" in alert(server, authority, strangers.issue("mallory")).lower()


# ---- Certificates that are revoked ----


def is_taken(server, authority, client):
    """Returns whether both endpoints take new connections of a client, or neither does."""
    with http_client(server, authority, client) as one:
        try:
            by_http = one.get("/v1/models").status_code == 200
        except httpx.HTTPError:
            by_http = False
    with channel(server, authority, client) as one:
        try:
            by_grpc = count(generate(one, 5)) == 5
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            by_grpc = False
    # The file may have been read in between.
    return by_http if by_http == by_grpc else is_taken(server, authority, client)


def test_a_revoked_certificate_is_refused_and_its_streams_go_on(start_server, certificate, authority, tmp_path):
    alice, bob = authority.issue("alice-revoked"), authority.issue("bob-stays")
    revocations = Revocations(authority, tmp_path / "list.pem")
    server = start_server(*FAKE, *flags(certificate), "--ssl-ca-certs", str(authority.file), "--ssl-crl-file", str(revocations.file))
    assert is_taken(server, authority, alice) and is_taken(server, authority, bob)
    assert metrics(server)["millrace_tls_crl_expiry_timestamp_seconds"] == pytest.approx(time.time() + 2 * 86400, abs=600)
    streams = [Running(server, authority, protocol, alice) for protocol in ("http", "grpc")]
    before = closed(server, "client_certificate"), refused(server, "client_certificate")
    revocations.revoke(alice)
    revocations.write()
    wait_until(lambda: not is_taken(server, authority, alice), 20)
    assert "revoked" in alert(server, authority, alice).lower()
    assert is_taken(server, authority, bob)
    assert all(stream.is_running() for stream in streams)
    wait_until(lambda: closed(server, "client_certificate") > before[0] and refused(server, "client_certificate") > before[1])

    revocations.file.write_text("nonsense")
    wait_until(lambda: "the certificate stays as it was: ssl-crl-file: " in server.log.read_text(), 10)
    assert is_taken(server, authority, bob) and not is_taken(server, authority, alice)
    assert [stream.end() for stream in streams] == [None, None]


def test_a_list_that_expires_or_is_another_ones_lets_nobody_in(start_server, certificate, authority, strangers, tmp_path):
    bob = authority.issue("bob-waits")
    revocations = Revocations(authority, tmp_path / "short.pem")
    revocations.write("-crlhours", 1)
    server = start_server(*FAKE, *flags(certificate), "--ssl-ca-certs", str(authority.file), "--ssl-crl-file", str(revocations.file))
    assert is_taken(server, authority, bob)
    revocations.write("-crlsec", 8)
    wait_until(lambda: server.log.read_text().count("TLS: read again") == 1, 8)
    wait_until(lambda: not is_taken(server, authority, bob), 30)
    foreign = Revocations(strangers, tmp_path / "foreign.pem")
    foreign.file.rename(revocations.file)
    wait_until(lambda: server.log.read_text().count("TLS: read again") == 2, 10)
    assert not is_taken(server, authority, bob)
    revocations.write()
    wait_until(lambda: is_taken(server, authority, bob), 20)


# ---- Certificates that change ----


def replace(target, source):
    for one, other in zip(target, source):
        temporary = one.with_suffix(".new")
        temporary.write_bytes(other.read_bytes())
        temporary.rename(one)


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_new_certificate_is_shown_and_no_stream_is_cut(start_server, authority, tmp_path, by_signal):
    first, second, files = authority.issue("first"), authority.issue("second"), (tmp_path / "cert.pem", tmp_path / "key.pem")
    replace(files, first)
    server = start_server(*FAKE, *flags(files))
    streams = [Running(server, authority, protocol) for protocol in ("http", "grpc")]
    assert certificate_of(server).strip() == first[0].read_text().strip()
    replace(files, second)
    if by_signal:
        server.signal(signal.SIGHUP)
    for protocol in ("http", "grpc"):
        wait_until(lambda: certificate_of(server, protocol).strip() == second[0].read_text().strip(), 10)
    assert all(stream.is_running() for stream in streams)

    files[0].write_text("nonsense")
    wait_until(lambda: "the certificate stays as it was: ssl-certfile: " in server.log.read_text(), 10)
    server.signal(signal.SIGHUP)  # It reads the file once more, and says that of the same fault no second time.
    wait_until(lambda: server.log.read_text().count("reloaded: ") == (2 if by_signal else 1))
    assert server.log.read_text().count("the certificate stays as it was") == 1
    assert certificate_of(server).strip() == second[0].read_text().strip()
    replace(files, first)
    wait_until(lambda: certificate_of(server).strip() == first[0].read_text().strip(), 10)
    assert all(stream.is_running() for stream in streams)
    assert [stream.end() for stream in streams] == [None, None]


# ---- Clients that do not speak TLS, or not well ----


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_plain_http_is_told(server, protocol):
    before = closed(server, "plaintext") + refused(server, "plaintext")
    response = httpx.get(f"http://127.0.0.1:{port(server, protocol)}/livez")
    assert response.status_code == 400
    assert "this port speaks tls" in response.text.lower()
    wait_until(lambda: closed(server, "plaintext") + refused(server, "plaintext") == before + 1)


def test_plain_grpc_is_told(server):
    before = closed(server, "plaintext")
    with grpc.insecure_channel(server.grpc) as one, pytest.raises(grpc.RpcError) as error:
        list(generate(one, 5))
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert 0 < closed(server, "plaintext") - before < 10, "it connects again and again"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tls_to_a_plain_port_is_told(start_server, authority, protocol):
    server = start_server(*FAKE)
    with pytest.raises(ssl.SSLError, match="(?i)wrong.version.number"):
        certificate_of(server, protocol)
    wait_until(lambda: (closed if protocol == "grpc" else refused)(server, "tls") == 1)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("begin", [b"", hello(1), hello(100), hello()], ids=["silent", "byte", "part", "hello"])
def test_a_slow_handshake_ends_in_time(server, protocol, begin):
    with socket.create_connection(("127.0.0.1", port(server, protocol))) as one:
        one.sendall(begin)
        assert 0.5 < seconds_until_closed(one) < 15


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("garbage", [b"\x16" * 100_000, b"\x16\x03\x01\x00\x05" + b"\xff" * 5, hello()[:-20] + b"x" * 20_000, b"\0" * 1000,
                                     b"\x80\x2e\x01\x03\x01", b"\x16\x03\x01\x40\x00" + b"\1\0\x3f\xfc" + b"a" * 16380],
                         ids=["records", "short", "hello", "zeros", "ssl2", "huge"])
def test_garbage_ends(server, protocol, garbage):
    with socket.create_connection(("127.0.0.1", port(server, protocol))) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(garbage)
        assert seconds_until_closed(one) < 15


def test_garbage_after_the_handshake_ends(server, authority):
    for protocol in ("http", "grpc"):
        with socket.create_connection(("127.0.0.1", port(server, protocol))) as raw:
            tls = context_of(authority).wrap_socket(raw, server_hostname="localhost", do_handshake_on_connect=True)
            one = socket.socket(fileno=tls.detach())
            one.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)
            assert seconds_until_closed(one) < 15
            one.close()


@pytest.fixture
def most_descriptors():
    """Lets the test open as many files as the process may, and returns how many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("begin", [hello()[:-1], enlarged(hello())[:-1], hello(), enlarged(hello()), enlarged(hello(protocols=["spdy/3"]))],
                         ids=["half", "long-half", "whole", "long-whole", "long-refused"])
def test_a_hello_and_no_more_costs_little(start_server, most_descriptors, certificate, authority, begin):
    """What OpenSSL needs for a handshake is made when the client's first message is whole, and of those that then say nothing more only
    so many wait. Parts of messages have a budget, and a handshake that has failed keeps nothing."""
    most = 3000
    if most_descriptors < 6 * most:
        pytest.skip(f"only {most_descriptors} files may be open")
    server = start_server(*FAKE, *flags(certificate), "--header-timeout", "120s")
    before = begin_peak(server)
    with contextlib.ExitStack() as stack:
        for _ in range(most):
            for protocol in ("http", "grpc"):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", port(server, protocol))))
                with contextlib.suppress(ConnectionError):
                    one.sendall(begin)
        wait_until(lambda: is_served(server, authority, "http"))  # handshakes that have lasted for a second give way
        grown = memory(server, "VmHWM") - before
        print(f"{most} connections to each port: {grown >> 20} MiB")
        assert sanitized() or grown < 100_000_000
        # One whose message comes in two parts is not one of those that give way.
        assert handshake_in_parts(server, authority, hello_bytes=100) == "TLSv1.3"


def is_served(server, authority, protocol):
    """Whether a new client, which does not try again by itself, is answered."""
    try:
        if protocol == "http":
            with http_client(server, authority) as client:
                return client.get("/v1/models").status_code == 200
        with channel(server, authority) as one:
            return count(generate(one, 5)) == 5
    except (httpx.HTTPError, grpc.RpcError):
        return False


def handshake_in_parts(server, authority, hello_bytes):
    """Sends the first bytes of a ClientHello and, when they have been read, the rest. Returns the version of TLS that is spoken then."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context_of(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", port(server, "http")), timeout=60) as one:
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        message = outgoing.read()
        one.sendall(message[:hello_bytes])
        wait_until(lambda: unread_by_peer(one) == 0)
        one.sendall(message[hello_bytes:])
        while True:
            incoming.write(one.recv(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                return client.version()


def test_handshakes_that_wait_give_way(start_server, certificate, authority):
    # Handshakes do not end of themselves before the test does.
    server = start_server(*FAKE, *flags(certificate), "--max-connections", "8", "--header-timeout", "120s")
    for protocol in ("http", "grpc"):
        waiting = [socket.create_connection(("127.0.0.1", port(server, protocol))) for _ in range(100)]
        for one in waiting[::2]:
            with contextlib.suppress(OSError):
                one.sendall(hello(50))
        wait_until(lambda: is_served(server, authority, protocol))  # after a second: a connection that means it has begun by then
        for one in waiting:
            one.close()
    wait_until(lambda: metrics(server)["millrace_grpc_connections"] == 0)
    assert sum(map(int, re.findall(r"Threads:\s+(\d+)", open(f"/proc/{server.process.pid}/status").read()))) < 200


def test_a_flood_of_handshakes_holds_up_no_stream(server, authority):
    stream = Running(server, authority, "grpc")
    begin, before, made = time.monotonic(), stream.tokens, []

    def goes_on():  # a busy machine takes its time
        took = time.monotonic() - begin
        return took < 3 or (took < 60 and (len(made) <= 50 or stream.tokens <= before + 100))

    def flood(protocol):
        while goes_on():
            with contextlib.suppress(OSError):
                made.append(ssl.get_server_certificate(("127.0.0.1", port(server, protocol))))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(flood, ["http", "grpc"] * 4))
    assert len(made) > 50
    assert stream.tokens > before + 100
    assert stream.end() is None


# ---- Starts that fail ----


def test_starts_that_fail_name_the_flag(tmp_path, authority, certificate, strangers):
    other = strangers.issue("other")
    old = authority.issue("old", "-days", "-1")
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    cert, key = map(str, certificate)
    mutual = [*flags(certificate), "--ssl-ca-certs", str(authority.file)]
    late = Revocations(authority, tmp_path / "late.pem")
    broken = tmp_path / "broken.pem"
    broken.write_text(late.file.read_text() + "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    late.write("-crl_nextupdate", "20200102000000Z", "-crl_lastupdate", "20200101000000Z")
    for given, said in [
        (["--ssl-certfile", "/none"], "ssl-certfile: /none cannot be read"),
        (["--ssl-certfile", nonsense], f"ssl-certfile: {nonsense} holds no certificate in PEM form"),
        (["--ssl-certfile", cert], f"ssl-certfile: {cert} holds no private key in PEM form, and no --ssl-keyfile is given"),
        (["--ssl-certfile", cert, "--ssl-keyfile", "/none"], "ssl-keyfile: /none cannot be read"),
        (["--ssl-certfile", cert, "--ssl-keyfile", other[1]], f"ssl-keyfile: {other[1]} is not the key of the certificate in --ssl-certfile"),
        (flags(old), f"ssl-certfile: {old[0]} has a certificate that expired on "),
        ([*flags(certificate), "--ssl-ca-certs", "/none"], "ssl-ca-certs: /none cannot be read"),
        ([*flags(certificate), "--ssl-ca-certs", nonsense], f"ssl-ca-certs: {nonsense} holds no certificate in PEM form"),
        ([*mutual, "--ssl-crl-file", "/none"], "ssl-crl-file: /none cannot be read"),
        ([*mutual, "--ssl-crl-file", nonsense], f"ssl-crl-file: {nonsense} holds no revocation list in PEM form"),
        ([*mutual, "--ssl-crl-file", broken], f"ssl-crl-file: {broken} has a revocation list that is broken"),
        ([*mutual, "--ssl-crl-file", late.file], f"ssl-crl-file: {late.file} has a list that expired on "),
    ]:
        status, output = run("--device", "fake", *map(str, given))
        assert status == 1
        assert f"cannot start: {said}" in output
        assert output.count("\n") <= 2, output  # the settings, and why
