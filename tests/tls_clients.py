"""What tests of TLS share: an authority and its certificates, clients of both protocols, first messages, and what the server counts."""
import contextlib
import re
import socket
import ssl
import subprocess
import threading
import time

import grpc
import httpx
import pytest

from daemon import wait_until
from millrace_grpc import inference_pb2_grpc, pb

FAKE = ("--device", "fake", "--fake-step-us", "1000", "--max-model-len", "100000", "--kv-cache-memory", "4GiB")
COMPLETION = {"prompt": "Hello", "max_tokens": 5, "ignore_eos": True}


# ---- Certificates ----


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """An authority and the certificates that it signs, as PEM files in a folder."""

    def __init__(self, folder, name):
        self.folder = folder
        self.file, self.key = folder / f"{name}.ca", folder / f"{name}.cakey"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.key, "-out", self.file,
                "-days", 2, "-subj", f"/CN={name}")

    def issue(self, name, *more, subject=None, names="IP:127.0.0.1,DNS:localhost"):
        """Returns the files of a certificate and its key."""
        cert, key, extensions = (self.folder / f"{name}.{kind}" for kind in ("cert", "key", "san"))
        extensions.write_text(f"subjectAltName={names}\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", f"{cert}.req",
                "-subj", subject or f"/CN={name}")
        openssl("x509", "-req", "-in", f"{cert}.req", "-CA", self.file, "-CAkey", self.key, "-CAcreateserial", "-out", cert, "-days", 2,
                "-extfile", extensions, *more)
        return cert, key


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("strangers"), "theirs")


@pytest.fixture(scope="module")
def certificate(authority):
    return authority.issue("server")


def flags(certificate):
    return "--ssl-certfile", str(certificate[0]), "--ssl-keyfile", str(certificate[1])


class Revocations:
    """An authority's list of revoked certificates."""

    def __init__(self, authority, file):
        self.authority, self.file = authority, file
        self.config, index = file.with_suffix(".cnf"), file.with_suffix(".index")
        index.write_text("")
        self.config.write_text(f"[ca]\ndefault_ca=own\n[own]\ndatabase={index}\ndefault_md=sha256\n")
        self.write()

    def call(self, *arguments):
        openssl("ca", "-config", self.config, "-cert", self.authority.file, "-keyfile", self.authority.key, *arguments)

    def revoke(self, certificate):
        self.call("-revoke", certificate[0])

    def write(self, *lifetime):
        made = self.file.with_suffix(".new")
        self.call("-gencrl", "-out", made, *(lifetime or ("-crldays", 2)))
        made.rename(self.file)


# ---- Clients ----


def https(server):
    return server.http.replace("http:", "https:")


def context_of(authority, client=None):
    context = ssl.create_default_context(cafile=authority.file)
    if client:
        context.load_cert_chain(*client)
    return context


def http_client(server, authority, client=None):
    return httpx.Client(base_url=https(server), verify=context_of(authority, client), timeout=60, headers={"Authorization": "Bearer secret"})


def alert(server, authority, client=None):
    """Returns what the port of HTTP says as it refuses a client's handshake. The client sends nothing behind it: a request that meets a
    closed socket resets the connection, and what was said is lost."""
    port = server.ports["http"]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw, pytest.raises(ssl.SSLError) as refused:
        with context_of(authority, client).wrap_socket(raw, server_hostname="127.0.0.1") as one:
            one.recv(1)
    return str(refused.value)


def channel(server, authority, client=None):
    credentials = grpc.ssl_channel_credentials(
        root_certificates=authority.file.read_bytes(),
        private_key=client and client[1].read_bytes(), certificate_chain=client and client[0].read_bytes())
    return grpc.secure_channel(server.grpc, credentials, options=[("grpc.use_local_subchannel_pool", 1)])


KEY = [("authorization", "Bearer secret")]


def generate(channel, tokens):
    request = pb.GenerateRequest(text="Hello", stopping=pb.StopOptions(max_tokens=tokens, ignore_eos=True))
    return inference_pb2_grpc.InferenceStub(channel).Generate(request, metadata=KEY, timeout=120)


def count(responses):
    return sum(len(response.token_ids) for response in responses)


def counter(server, metric, reason):
    text = httpx.get(server.admin + "/metrics").text
    found = re.search(rf'^{metric}{{reason="{reason}"}} (\S+)$', text, re.M)
    return float(found[1]) if found else 0


def closed(server, reason):
    return counter(server, "millrace_grpc_connections_closed_total", reason)


def refused(server, reason):
    return counter(server, "millrace_http_refusals_total", reason)


class Running:
    """A stream that its own thread reads, of HTTP or of gRPC."""

    def __init__(self, server, authority, protocol, client=None):
        self.client = client
        self.tokens = 0
        self.error = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.read, args=(server, authority, protocol))
        self.thread.start()
        wait_until(lambda: self.tokens or self.error)

    def read(self, server, authority, protocol):
        try:
            if protocol == "grpc":
                with channel(server, authority, self.client) as one:
                    stream = generate(one, 90000)
                    for response in stream:
                        self.tokens += len(response.token_ids)
                        if self.stop.is_set():
                            return stream.cancel()
            else:
                with http_client(server, authority, self.client) as client, client.stream(
                        "POST", "/v1/completions", json={**COMPLETION, "max_tokens": 90000, "stream": True}) as response:
                    for line in response.iter_lines():
                        self.tokens += line.startswith("data: {")
                        if self.stop.is_set():
                            return
            self.error = "the stream ended"
        except Exception as error:
            self.error = repr(error)

    def is_running(self):
        now = self.tokens
        wait_until(lambda: self.tokens > now + 10 or self.error)
        return self.error is None

    def end(self):
        self.stop.set()
        self.thread.join(60)
        return self.error


# ---- First messages ----


def hello(size=None, protocols=()):
    """Returns a ClientHello, or its beginning."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    if protocols:
        context.set_alpn_protocols(protocols)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()[:size]


def seconds_until_closed(one):
    begin = time.monotonic()
    one.settimeout(30)
    with contextlib.suppress(ConnectionError):
        while one.recv(65536):
            pass
    return time.monotonic() - begin


def enlarged(hello, size=16_000):
    """Returns a ClientHello of one record with an extension that nobody knows, so that it has `size` bytes."""
    body = hello[9:]
    at = 34
    for width in (1, 2, 1):  # the session, the ciphers, the compression
        at += width + int.from_bytes(body[at:at + width], "big")
    extensions = body[at + 2:]
    extensions += b"\xff\xf3" + (size - len(hello) - 4).to_bytes(2, "big") + bytes(size - len(hello) - 4)
    body = body[:at] + len(extensions).to_bytes(2, "big") + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message
