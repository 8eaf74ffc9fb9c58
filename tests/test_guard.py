"""Attacks on the gRPC endpoint by clients without a key, each beside a stream that must go on; and clients that must not be taken
for attackers."""
import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import socket
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import http2
from daemon import begin_peak, memory, sanitized, wait_until
from http2 import (CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS,
                   WINDOW_UPDATE, Client, call, frame)
from millrace_grpc import inference_pb2_grpc, pb
from test_proxies import proxy
from tls_clients import closed

SECONDS = float(os.environ.get("ATTACK_SECONDS", 2))  # of each attack
MOST_GROWTH = 100 << 20  # bytes
GENERATE = b"/millrace.v1.Inference/Generate"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import Server
    server = Server(tmp_path_factory.mktemp("guard"), "--device", "fake", "--fake-step-us", "2000", "--fake-token-us", "1",
                    "--api-key", "secret", "--header-timeout", "1s", "--max-model-len", "100000", "--kv-cache-memory", "4GiB")
    yield server
    server.stop()


def stub(server):
    channel = grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)])
    return connect_with(channel)


def connect_with(channel):
    return inference_pb2_grpc.InferenceStub(channel)


KEY = [("authorization", "Bearer secret")]


@contextlib.contextmanager
def unharmed(server):
    """While its body attacks, a stream goes on; then the server is alive and has not grown. Yields enough(), which says whether the stream
    has got so far that the attack may end; a busy machine takes its time."""
    before = begin_peak(server)
    tokens = []
    stream = stub(server).Generate(pb.GenerateRequest(text="Hello", stopping=pb.StopOptions(max_tokens=90000, ignore_eos=True)),
                                   metadata=KEY, timeout=120)

    def read():
        with contextlib.suppress(grpc.RpcError):
            for response in stream:
                tokens.extend(response.token_ids)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: tokens)
    begun = len(tokens)
    yield lambda: len(tokens) > begun + 50
    during = len(tokens)
    print(f"{during - begun} tokens beside the attack, {(memory(server, 'VmHWM') - before) >> 20} MiB more")
    assert during > begun + 50
    wait_until(lambda: len(tokens) > during + 10)
    stream.cancel()
    thread.join()
    assert server.process.poll() is None
    assert sanitized() or memory(server, "VmHWM") - before < MOST_GROWTH


def repeatedly(server, enough, attack, connections=1):
    """Runs attack(client) on new connections, one after the other, until the time is over and it was enough(). Returns what it returned."""
    begin = time.monotonic()
    results = []

    def goes_on():
        return (took := time.monotonic() - begin) < SECONDS or (took < 60 and not enough())

    def run():
        while goes_on():
            try:
                client = Client(server.grpc)
                results.append(attack(client))
                client.close()
            except (ConnectionError, TimeoutError):
                pass

    threads = [threading.Thread(target=run) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_flood_of_continuations(server):
    def attack(client):
        client.send(frame(HEADERS, 0, 1, call(GENERATE)))
        return client.flood(frame(CONTINUATION, 0, 1, http2.field(b"x", b"y" * 16000)), SECONDS)

    with unharmed(server) as enough:
        assert not any(repeatedly(server, enough, attack))
    assert closed(server, "header_bytes") > 0
    client = Client(server.grpc)
    client.send(frame(HEADERS, 0, 1, call(GENERATE)) + 5 * frame(CONTINUATION, 0, 1, bytes(16000)))
    assert client.goaway()[1:] == (ENHANCE_YOUR_CALM, "a header block is too large; allowed: 65536 bytes, in at most 32 frames")


def test_a_flood_of_empty_continuations(server):
    client = Client(server.grpc)
    client.send(frame(HEADERS, 0, 1, call(GENERATE)) + 40 * frame(CONTINUATION, 0, 1))
    assert client.goaway()[1] == ENHANCE_YOUR_CALM


def test_streams_that_are_reset_at_once(server):
    def attack(client):
        streams = itertools.count(1, 2)

        def some():
            return b"".join(frame(HEADERS, END_HEADERS, one, call(GENERATE)) + frame(RST_STREAM, 0, one, bytes([0, 0, 0, 8]))
                            for one in itertools.islice(streams, 50))

        return client.flood(some, SECONDS)

    with unharmed(server) as enough:
        repeatedly(server, enough, attack, connections=8)
    assert closed(server, "resets") > 0


def test_silent_connections(server):
    def attack(first):
        half = Client(server.grpc, greet=False)
        half.send(http2.PREFACE[:10])
        silent = [Client(server.grpc, greet=False) for _ in range(299)]
        return [client.goaway() for client in (half, *silent)]

    with unharmed(server) as enough:
        goaways = sum(repeatedly(server, enough, attack), [])
    assert len(goaways) >= 300 and set(goaways) == {(0, ENHANCE_YOUR_CALM, "the connection did not begin in time")}


def test_a_header_block_that_does_not_end(server):
    client = Client(server.grpc)
    client.send(frame(HEADERS, 0, 1, call(GENERATE)))
    assert client.goaway()[1:] == (ENHANCE_YOUR_CALM, "a header block did not come in time")


FLOODS = {  # gRPC itself closes after its second early ping
    "pings": ("closed", frame(PING, payload=bytes(8))),
    "settings": ("settings", frame(SETTINGS)),
    "priorities": ("idle_frames", frame(PRIORITY, 0, 1, bytes(5))),
    "unknown frames": ("idle_frames", frame(77, 0, 0, b"x")),
    "window updates": ("window_updates", frame(WINDOW_UPDATE, payload=b"\0\0\0\x20")),
    "small window updates": ("window_updates", frame(WINDOW_UPDATE, payload=b"\0\0\0\1")),
    "settings acknowledgements": ("settings", frame(SETTINGS, http2.ACK)),
    "ping acknowledgements": ("pings", frame(PING, http2.ACK, payload=bytes(8))),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_of_small_frames(server, name):
    reason, data = FLOODS[name]
    before = closed(server, reason)
    with unharmed(server) as enough:
        assert not any(repeatedly(server, enough, lambda client: client.flood(100 * data, SECONDS), connections=2))
    assert closed(server, reason) > before


def test_a_flood_of_empty_data(server):
    before = closed(server, "idle_frames")
    client = Client(server.grpc)
    client.open(1, GENERATE)
    assert not client.flood(100 * frame(DATA, 0, 1), SECONDS)
    assert closed(server, "idle_frames") == before + 1


def test_pings_that_are_never_read_wait(server):
    def attack(client):
        client.socket.settimeout(SECONDS)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.flood(1000 * frame(PING, payload=bytes(8)), SECONDS)

    with unharmed(server) as enough:
        repeatedly(server, enough, attack, connections=4)


def test_a_header_list_that_unfolds(server):
    # A field of 4,000 bytes is put into the table, and named by one byte a hundred times.
    block = call(GENERATE) + b"\x40" + http2.integer(1) + b"x" + http2.integer(3900) + b"y" * 3900 + 100 * b"\xbe"
    client = Client(server.grpc)
    client.send(frame(HEADERS, END_HEADERS, 1, block))
    assert client.goaway()[1:] == (ENHANCE_YOUR_CALM, "the fields of a header block are too large; allowed: 65536 bytes")


def test_more_streams_than_allowed(server):
    client = Client(server.grpc)
    for stream in range(1, 2 * 257, 2):
        client.open(stream, b"/grpc.health.v1.Health/Check")
    assert client.goaway()[:2] == (511, ENHANCE_YOUR_CALM)


def test_grpc_max_streams(start_server):
    """Clients are told the number and wait for their turn; one that does not loses its connection."""
    server = start_server("--device", "fake", "--fake-step-us", "1000", "--grpc-max-streams", "3")
    client = Client(server.grpc)
    settings = client.wait_for(SETTINGS)[3]
    assert {settings[i:i + 2]: settings[i + 2:i + 6] for i in range(0, len(settings), 6)}[b"\0\3"] == bytes([0, 0, 0, 3])
    for stream in (1, 3, 5, 7):
        client.open(stream)
    assert client.goaway()[:2] == (5, ENHANCE_YOUR_CALM)
    one = stub(server)
    request = pb.GenerateRequest(text="x", stopping=pb.StopOptions(max_tokens=50, ignore_eos=True))

    def tokens(_):
        return sum(len(response.token_ids) for response in one.Generate(request, timeout=60))

    with concurrent.futures.ThreadPoolExecutor(12) as pool:  # a call that nobody reads would keep its place
        assert list(pool.map(tokens, range(12))) == [50] * 12


MALFORMED = {
    "no preface": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    "no settings": http2.PREFACE + frame(PING, payload=bytes(8)),
    "continuation alone": http2.PREFACE + frame(SETTINGS) + frame(CONTINUATION, 4, 1, b"x"),
    "interrupted block": http2.PREFACE + frame(SETTINGS) + frame(HEADERS, 0, 1, call(GENERATE)) + frame(PING, payload=bytes(8)),
    "even stream": http2.PREFACE + frame(SETTINGS) + frame(HEADERS, 5, 2, call(GENERATE)),
    "stream 0": http2.PREFACE + frame(SETTINGS) + frame(HEADERS, 5, 0, call(GENERATE)),
    "data of no stream": http2.PREFACE + frame(SETTINGS) + frame(DATA, 0, 7, b"x"),
    "reset of no stream": http2.PREFACE + frame(SETTINGS) + frame(RST_STREAM, 0, 7, bytes(4)),
    "short reset": http2.PREFACE + frame(SETTINGS) + frame(RST_STREAM, 0, 7, bytes(3)),
    "long ping": http2.PREFACE + frame(SETTINGS) + frame(PING, payload=bytes(9)),
    "push": http2.PREFACE + frame(SETTINGS) + frame(http2.PUSH_PROMISE, 4, 1, bytes(8)),
    "odd settings": http2.PREFACE + frame(SETTINGS, payload=bytes(7)),
    "window of 0": http2.PREFACE + frame(SETTINGS) + frame(WINDOW_UPDATE, payload=bytes(4)),
    "window too large": http2.PREFACE + frame(SETTINGS) + 2 * frame(WINDOW_UPDATE, payload=b"\x7f\xff\xff\xff"),
    "large frame": http2.PREFACE + frame(SETTINGS) + b"\xff\xff\xff\0\0\0\0\0\1",
    "broken header block": http2.PREFACE + frame(SETTINGS) + frame(HEADERS, 5, 1, b"\xff\xff\xff\xff\xff\xff"),
    "padding too long": http2.PREFACE + frame(SETTINGS) + frame(HEADERS, 5 | 8, 1, b"\xff"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_frames_end_the_connection(server, name):
    client = Client(server.grpc, greet=False)
    client.send(MALFORMED[name])
    _, code, text = client.goaway()
    assert code != http2.NO_ERROR and text


def test_http1_is_told_so(server):
    client = Client(server.grpc, greet=False)
    client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while data := client.socket.recv(4096):
        answer += data
    assert answer.startswith(b"HTTP/1.1 400 ") and b"--http-port" in answer


def test_a_connection_after_goaway_is_not_read_on(server):
    client = Client(server.grpc, timeout=SECONDS + 10)
    client.send(frame(HEADERS, 5, 2, call(GENERATE)))
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 64 << 20:
            client.send(bytes(65536))
            sent += 65536
    assert sent < 64 << 20


def test_idle_connections_give_way(start_server):
    server = start_server("--device", "fake", "--max-connections", "20")
    idle = [Client(server.grpc) for _ in range(20)]
    for client in idle:
        assert client.wait_for(SETTINGS)
    busy = stub(server).Generate(pb.GenerateRequest(text="x", stopping=pb.StopOptions(max_tokens=1900, ignore_eos=True)), timeout=60)
    next(busy)
    more = [Client(server.grpc) for _ in range(19)]
    for client in more:
        client.open(1)
        client.send(frame(DATA, END_STREAM, 1, http2.message(b"")))
        assert client.wait_for(HEADERS, 1)
    assert all(client.goaway()[1:] == (ENHANCE_YOUR_CALM, "the server has too many connections") for client in idle)
    assert sum(len(response.token_ids) for response in busy) > 1800  # it was busy, and so it stayed


def test_who_holds_every_connection_busy_refuses_only_itself(start_server):
    server = start_server("--device", "fake", "--max-connections", "4")
    watching = [Client(server.grpc) for _ in range(4)]
    for client in watching:
        client.open(1, b"/grpc.health.v1.Health/Watch")
        client.send(frame(DATA, END_STREAM, 1, http2.message(b"")))
        assert client.wait_for(DATA, 1)
    assert Client(server.grpc).goaway()[1:] == (ENHANCE_YOUR_CALM, "the server has too many connections")
    watching.pop().close()

    def answered():
        client = Client(server.grpc)
        return client.wait_for(SETTINGS) is not None

    wait_until(answered)


# ---- Messages ----

METHODS = [f"/{service}/{name}".encode() for service, names in {
    "millrace.v1.Inference": "Generate Embed Tokenize Detokenize Infer ModelMetadata ListModels GetServerInfo",
    "inference.GRPCInferenceService": "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer",
    "vllm.grpc.engine.VllmEngine": "Generate Embed HealthCheck Abort GetModelInfo GetServerInfo GetLoads GetTokenizer FlushCache "
                                   "StartProfile StopProfile SubscribeKvEvents",
    "grpc.reflection.v1.ServerReflection": "ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection": "ServerReflectionInfo"}.items() for name in names.split()]
EMPTY_INPUTS = 2 * (8 << 20)  # bytes of messages of nothing
BOMBS = {  # two bytes each, some hundred in memory
    "inference.GRPCInferenceService/ModelInfer": b"\x2a\0",
    "millrace.v1.Inference/Infer": b"\x2a\0",
    "millrace.v1.Inference/Embed": b"\x12\0",
    "millrace.v1.Inference/Generate": b"\x0a\0\x1a\2\x0a\0",  # each chat takes in the messages of the next
    "vllm.grpc.engine.VllmEngine/Abort": b"\x0a\0",
    "millrace.v1.Inference/GetServerInfo": b"\x08\1",  # unknown fields are kept, too
}


def test_a_call_without_a_key_ends_before_its_message_comes(server):
    client = Client(server.grpc)
    for stream, method in enumerate(METHODS):
        client.open(2 * stream + 1, method)
    ended = set()
    while len(ended) < len(METHODS):
        kind, flags, stream, _ = client.read_frame()
        if kind == HEADERS and flags & END_STREAM:
            ended.add(stream)


@pytest.mark.parametrize("metadata", [None, KEY])
def test_messages_of_many_parts(server, metadata):
    """With a key they are read, and refused before objects are made of them."""
    def attack(path):
        with grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            piece = BOMBS[path]
            with pytest.raises(grpc.RpcError) as error:
                list(channel.unary_stream("/" + path)(piece * (EMPTY_INPUTS // len(piece)), metadata=metadata, timeout=60))
            return error.value.code(), error.value.details()

    refusals, before = [], memory(server)
    with unharmed(server) as enough, concurrent.futures.ThreadPoolExecutor(8) as pool:
        while len(refusals) < 24 or not enough():
            refusals += pool.map(attack, 2 * list(BOMBS))
    for code, details in refusals:
        if metadata is None:
            assert code == grpc.StatusCode.UNAUTHENTICATED
        elif code != grpc.StatusCode.RESOURCE_EXHAUSTED:  # several at once
            assert code == grpc.StatusCode.INVALID_ARGUMENT and "it makes more than 65536 submessages" in details
    assert metadata is None or "inputs: it makes" in attack("inference.GRPCInferenceService/ModelInfer")[1]
    wait_until(lambda: sanitized() or memory(server) <= before + (30 << 20), seconds=10)


def test_health_takes_no_long_message_of_a_stranger(server):
    check = grpc.insecure_channel(server.grpc).unary_unary("/grpc.health.v1.Health/Check")
    for message in (b"\x0a\xff\x7f" + 16383 * b"x", b"\x10\1" * 100):
        with pytest.raises(grpc.RpcError) as error:
            check(message, timeout=60)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "allowed: " in error.value.details()


def test_a_call_without_a_message_is_refused(server):
    client = Client(server.grpc)
    for stream, method in ((1, GENERATE), (3, b"/grpc.health.v1.Health/Check"), (5, b"/millrace.v1.Inference/Embed")):
        client.open(stream, method, END_HEADERS | END_STREAM, (b"authorization", b"Bearer secret"))
        assert b"is not valid" in client.wait_for(HEADERS, stream)[3]  # before the next is opened


# ---- Clients that are none of this ----

def health(channel):
    return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30).status


def test_metadata_within_the_limit_passes_and_beyond_it_says_so(server):
    with grpc.insecure_channel(server.grpc, options=[("grpc.max_metadata_size", 1 << 20)]) as channel:
        def check(size):
            return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30,
                                                             metadata=[("x-large", "y" * size)])

        for size in (15000, 60000, 30000, 100):  # on one connection
            assert check(size).status
        with pytest.raises(grpc.RpcError) as error:
            check(70000)
        assert "a header block is too large; allowed: 65536 bytes" in error.value.details()
        assert check(100).status  # on the next connection


def test_200_streams_on_one_connection(server):
    async def run():
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            async def one():
                tokens = 0
                request = pb.GenerateRequest(text="x", stopping=pb.StopOptions(max_tokens=20, ignore_eos=True))
                async for response in connect_with(channel).Generate(request, metadata=KEY, timeout=60):
                    tokens += len(response.token_ids)
                return tokens
            return await asyncio.gather(*(one() for _ in range(200)))

    assert asyncio.run(run()) == [20] * 200


def test_cancelling_200_streams_at_once_is_no_attack(server):
    async def run():
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            request = pb.GenerateRequest(text="x", stopping=pb.StopOptions(max_tokens=5000, ignore_eos=True))
            for _ in range(2):
                calls = [connect_with(channel).Generate(request, metadata=KEY, timeout=60) for _ in range(200)]
                await asyncio.gather(*(one.read() for one in calls))
                for one in calls:
                    one.cancel()
            request.stopping.max_tokens = 5
            answers = [response async for response in connect_with(channel).Generate(request, metadata=KEY, timeout=60)]
            return len(answers)

    assert asyncio.run(run()) > 0


def test_large_messages(server):
    text = "x" * (20 << 20)
    with pytest.raises(grpc.RpcError) as error:
        list(stub(server).Generate(pb.GenerateRequest(text=text), metadata=KEY, timeout=60))
    assert error.value.code() == grpc.StatusCode.OUT_OF_RANGE  # it came whole, and is too long
    tokenized = connect_with(grpc.insecure_channel(server.grpc, options=[("grpc.max_receive_message_length", -1)])).Tokenize(
        pb.TokenizeRequest(text=text[:4 << 20]), metadata=KEY, timeout=60)
    assert len(tokenized.token_ids) == 4 << 20


def test_keepalive_pings_of_an_ordinary_client(start_server):
    """A client pings when it has heard nothing for a second, the shortest time that it keeps to, and so once between two tokens."""
    server = start_server("--device", "fake", "--fake-step-us", "1500000")
    options = [("grpc.keepalive_time_ms", 1000), ("grpc.http2.max_pings_without_data", 0), ("grpc.http2.bdp_probe", 0)]
    sent = bytearray()
    with proxy(server.ports["grpc"], b"", sent) as port, grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        assert health(channel)
        stream = connect_with(channel).Generate(
            pb.GenerateRequest(text="x", stopping=pb.StopOptions(max_tokens=5, ignore_eos=True)), timeout=60)
        assert sum(len(response.token_ids) for response in stream) == 5
        assert health(channel)
    assert sent.count(http2.PREFACE) == 1, "it had to connect again"
    pings = [flags for kind, flags, *_ in http2.frames(bytes(sent)[len(http2.PREFACE):]) if kind == PING and flags != http2.ACK]
    assert len(pings) >= 3


# ---- Messages that unfold ----

COMPRESSED_METHODS = ("/millrace.v1.Inference/Generate", "/millrace.v1.Inference/Tokenize", "/inference.GRPCInferenceService/ModelInfer",
           "/vllm.grpc.engine.VllmEngine/Generate", "/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_not_unpacked(server, compression):
    """Some 30 KiB on the wire become 31 MiB: each call that unpacked them would take as much before its key is looked at."""
    name = compression.name.lower().encode()
    client = Client(server.grpc)
    client.open(1, GENERATE, END_HEADERS, (b"authorization", b"Bearer secret"), (b"grpc-encoding", name))
    assert b"is disabled" in client.wait_for(HEADERS, 1)[3]  # before the message comes
    embed = grpc.insecure_channel(server.grpc, compression=compression).unary_unary("/millrace.v1.Inference/Embed")
    with pytest.raises(grpc.RpcError) as error:
        embed(pb.EmbedRequest(request_id="x" * 10_000).SerializeToString(), metadata=KEY, timeout=60)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED and "is disabled" in error.value.details()
    message = b"\x0a" + varint(31 << 20) + bytes(31 << 20)
    with unharmed(server) as enough, grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        methods = itertools.cycle(COMPRESSED_METHODS)
        tried = 0
        while tried < len(COMPRESSED_METHODS) or not enough():
            method = next(methods)
            tried += 1
            send = channel.stream_stream(method, request_serializer=lambda data: data, response_deserializer=lambda data: data)
            with pytest.raises(grpc.RpcError) as error:
                list(send(iter([message]), compression=compression, timeout=60))
            assert error.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.CANCELLED), method


def test_many_compressed_messages_at_once_take_no_memory(server):
    message = b"\x0a" + varint(31 << 20) + bytes(31 << 20)
    with unharmed(server) as enough, concurrent.futures.ThreadPoolExecutor(4) as pool:
        def attack():
            with grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                send = channel.unary_unary(COMPRESSED_METHODS[0], request_serializer=lambda data: data, response_deserializer=lambda data: data)
                with pytest.raises(grpc.RpcError):
                    send(message, compression=grpc.Compression.Gzip, timeout=60)
        while True:
            for done in [pool.submit(attack) for _ in range(8)]:
                done.result()
            if enough():
                break


def varint(value):
    """Returns a number as protobuf writes it."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])
