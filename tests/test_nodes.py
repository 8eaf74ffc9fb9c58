"""Black-box tests of several hosts: processes on 127.0.0.1 that share the ranks of a model."""
import concurrent.futures
import os
import pathlib
import random
import signal
import socket
import subprocess

import httpx
import pytest

import http2
from daemon import Stream, begin_peak, environment, memory, on_a_gpu, program, run, sanitized, wait_until
from test_mixtures import write_tokenizer
from tls_clients import Authority

pytestmark = [pytest.mark.skipif(on_a_gpu(), reason="these ranks are threads on the CPU")]

KEY = "a key of these tests".replace(" ", "-")
GREEDY = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "logprobs": 2, "ignore_eos": True}
SAMPLED = [{"prompt": "One, two, " * n, "max_tokens": 24, "seed": n, "logprobs": 3, "repetition_penalty": 1.2, "ignore_eos": True}
           for n in range(1, 7)]
ANY_PORTS = {"MILLRACE_HTTP_PORT": "0", "MILLRACE_GRPC_PORT": "0", "MILLRACE_ADMIN_PORT": "0"}
ENDLESS = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def free_port():
    """Returns a port that is free, as is the one behind it."""
    while True:
        port = random.randrange(20000, 32000, 2)
        try:
            for offset in (0, 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
            return port
        except OSError:
            continue


def node_flags(port, rank, nnodes=2, *more):
    return ["--nnodes", str(nnodes), "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port), *more]


class Follower:
    """A node that serves nothing itself."""

    def __init__(self, folder, *flags, env=None):
        self.log = folder / "follower.txt"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([program(), *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=environment({"MILLRACE_NODE_KEY": KEY, **(env or {})}))

    def wait(self, timeout=60):
        return self.process.wait(timeout)

    def text(self):
        return self.log.read_text()


@pytest.fixture
def start_nodes(start_server, tmp_path_factory):
    """Returns start_nodes(nnodes, *flags, follower=(), leader=()), which returns node 0's server and the other nodes."""
    followers = []

    def start(nnodes, *flags, follower=(), leader=(), env=None):
        port = free_port()
        env = {"MILLRACE_NODE_KEY": KEY, **(env or {})}
        mine = [Follower(tmp_path_factory.mktemp("node"), *flags, *node_flags(port, rank, nnodes), *follower, env=env)
                for rank in range(1, nnodes)]
        followers.extend(mine)
        server = start_server(*flags, *node_flags(port, 0, nnodes), *leader, env=env)
        server.port = port
        return server, mine

    yield start
    for node in followers:
        if node.process.poll() is None:
            node.process.kill()
        node.process.wait()


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twins")
    subprocess.run([pathlib.Path(program()).parent / "write_tiny_folders", folder, "families"], check=True)
    for twin in folder.iterdir():
        write_tokenizer(twin)
    return folder


def tiny(twins, size, name="qwen3moe"):
    return ["--model", str(twins / name), "--kv-cache-memory", "16MiB", "--tensor-parallel-size", str(size), "--threads", "2"]


def smollm2(size):
    return ["--model", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "256MiB", "--tensor-parallel-size", str(size), "--threads", "2"]


def complete(server, body):
    answer = httpx.post(server.http + "/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def answers(server, bodies):
    """Returns the answers to all, asked at the same time."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda body: complete(server, body), bodies))


def in_ids(bodies):
    """Returns the requests with prompts of the twins' tokens."""
    return [{**body, "prompt": [5 + ord(c) % 100 for c in body["prompt"]], "max_tokens": 12} for body in bodies]


@pytest.mark.model
def test_answers_are_those_of_as_many_ranks_of_one_process(start_server, start_nodes):
    one = start_server(*smollm2(2))
    two, (follower,) = start_nodes(2, *smollm2(2))
    (model,) = httpx.get(two.http + "/v1/models").json()["data"]
    assert (model["tensor_parallel_size"], model["batch_invariant"]) == (2, True)
    held = [{**SAMPLED[0], "ignore_eos": False, "structured_outputs": {"regex": "(red|green|blue) [0-9]{3,9}"}}]
    requests = [GREEDY, *SAMPLED, *held, {**GREEDY, "echo": True, "max_tokens": 1}]
    assert answers(two, requests) == [complete(one, body) for body in requests]
    two.signal(signal.SIGTERM)
    assert two.wait() == 0
    assert follower.wait() == 0
    assert "node 0 has ended, and so does node 1" in follower.text()


@pytest.mark.parametrize("nnodes,size,flags", [(2, 4, []), (3, 3, []), (2, 4, ["--enable-expert-parallel"]), (4, 4, ["--max-num-batched-tokens", "8", "--max-num-seqs", "8"])])
def test_tiny_models_on_more_nodes(start_server, start_nodes, twins, nnodes, size, flags):
    requests = in_ids([GREEDY, *SAMPLED])
    one = start_server(*tiny(twins, size), *flags)
    many, _ = start_nodes(nnodes, *tiny(twins, size), *flags)
    assert answers(many, requests) == [complete(one, body) for body in requests]


@pytest.mark.model
def test_embeddings_are_those_of_as_many_ranks_of_one_process(start_server, start_nodes):
    flags = ["--model", os.environ["MILLRACE_MINILM"], "--tensor-parallel-size", "2", "--threads", "2"]
    one = start_server(*flags)
    two, _ = start_nodes(2, *flags)
    body = {"input": ["one", "two and more words"], "model": "all-MiniLM-L6-v2"}
    vectors = [httpx.post(server.http + "/v1/embeddings", json=body, timeout=60).json()["data"] for server in (one, two)]
    assert vectors[0] == vectors[1]


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("of_node", [0, 1])
def test_a_node_that_goes_away_ends_the_others(start_nodes, twins, of_node, number, loaded):
    server, (follower,) = start_nodes(2, *tiny(twins, 2), "--max-model-len", "128")
    streams = [Stream(server, {**in_ids([ENDLESS])[0], "max_tokens": 100})] if loaded else []
    for stream in streams:
        stream.begun.wait()
    victim, other = [(server, follower), (follower, server)][of_node]
    victim.process.send_signal(number)
    assert other.wait() == 70
    text = other.log.read_text()
    if number == signal.SIGSTOP:
        assert f"node {of_node} of 2 (" in text and "has sent nothing for 3 s; all nodes end" in text
        victim.process.send_signal(signal.SIGCONT)
        assert victim.wait() == 70  # it finds the other gone
    else:
        assert f"node {of_node} of 2 (" in text and "is gone: its " in text
    for stream in streams:
        stream.join()


@pytest.mark.model
def test_requests_of_a_lost_node_get_a_status_to_retry(start_nodes):
    server, (follower,) = start_nodes(2, *smollm2(2))
    stream = Stream(server)
    stream.begun.wait()
    follower.process.kill()
    assert server.wait() == 70
    assert "device has failed" in stream.join()[-1]


def test_a_node_whose_rank_hangs_or_fails_ends_all_with_its_reason(start_nodes, twins):
    for fault, why in [("cpu.rank_hang=1000000@300", "got no further for 2 s (--step-timeout)"),
                       ("cpu.rank_error@300", "a rank failed (fault point cpu.rank_error)")]:
        server, (follower,) = start_nodes(2, *tiny(twins, 2), "--step-timeout", "2s", follower=["--faults", fault])
        streams = [Stream(server, {**in_ids([ENDLESS])[0], "max_tokens": 100}) for _ in range(4)]
        assert server.wait() == 70
        assert follower.wait() == 70
        assert why in server.log.read_text() and why in follower.text()
        for stream in streams:
            stream.join()


def test_a_signal_to_any_node_ends_all_in_order(start_nodes, twins):
    for of_node in (0, 1):
        server, (follower,) = start_nodes(2, *tiny(twins, 2))
        stream = Stream(server, {**in_ids([ENDLESS])[0], "max_tokens": 60})
        stream.begun.wait()
        [server, follower][of_node].process.send_signal(signal.SIGTERM)
        assert (server.wait(), follower.wait()) == (0, 0)
        assert stream.join()[-1] == "data: [DONE]"


def readiness(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").text
    except httpx.TransportError:
        return ""


def refused(tmp_path, flags, *follower, leader=()):
    """Starts a node 0 with a follower of its flags, and those of each. Returns both statuses and logs."""
    port = free_port()
    nodes = []
    for rank, more in [(0, leader), (1, follower)]:
        folder = tmp_path / str(rank)
        folder.mkdir()
        nodes.append(Follower(folder, *flags, *node_flags(port, rank), *more, env=ANY_PORTS))
    statuses = [node.wait() for node in nodes]
    return statuses, [node.text() for node in nodes]


def test_nodes_must_have_the_same_settings(tmp_path, twins):
    statuses, texts = refused(tmp_path, [*tiny(twins, 2), "--max-num-seqs", "8"], "--max-num-seqs", "16")
    assert statuses == [1, 1]
    for text in texts:
        assert 'node 1: --max-num-seqs is "16", and that of node 0 is "8"; allowed: the same on all nodes' in text


def test_nodes_must_have_the_same_runner(tmp_path, twins):
    statuses, texts = refused(tmp_path, tiny(twins, 2), "--runner", "pooling")
    assert statuses == [1, 1]
    for text in texts:
        assert 'node 1: --runner is "pooling", and that of node 0 is "auto"' in text


def test_nodes_must_have_the_same_weights(tmp_path, twins):
    other = tmp_path / "other"
    other.mkdir()
    for file in (twins / "qwen3moe").iterdir():
        data = bytearray(file.read_bytes())
        if file.suffix == ".safetensors":
            data[-1] ^= 1
        (other / file.name).write_bytes(data)
    statuses, texts = refused(tmp_path, tiny(twins, 2), "--model", str(other))
    assert statuses == [1, 1]
    for text in texts:
        assert "node 1: digest of the weights is " in text and "allowed: the same on all nodes" in text


def test_a_node_without_its_model_ends_all_with_the_reason(tmp_path, twins):
    statuses, (leader, follower) = refused(tmp_path, tiny(twins, 2), "--model", str(tmp_path / "nowhere"))
    assert statuses == [70, 1]
    assert "node 1 of 2 failed: " in leader and "nowhere" in leader and "nowhere" in follower


def test_node_0_without_its_model_ends_all_with_the_reason(tmp_path, twins):
    statuses, (leader, follower) = refused(tmp_path, tiny(twins, 2), leader=["--model", str(tmp_path / "nowhere")])
    assert statuses == [1, 70]
    assert "nowhere" in leader and "node 0 of 2 failed: " in follower and "nowhere" in follower


def test_node_0_whose_port_is_taken_ends_all_with_the_reason(tmp_path, twins):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        statuses, (leader, follower) = refused(tmp_path, tiny(twins, 2), leader=["--http-port", str(taken.getsockname()[1])])
    assert statuses == [1, 70]
    assert "http-port" in leader and "node 0 of 2 failed: " in follower and "http-port" in follower


def test_a_node_that_may_not_fetch_its_model_ends_all_with_the_reason(tmp_path, twins):
    statuses, (leader, follower) = refused(tmp_path, tiny(twins, 2), "--model", "org/nosuch", "--offline")
    assert statuses == [70, 1]
    assert "node 1 of 2 failed: " in leader and "org/nosuch" in leader and "org/nosuch" in follower


@pytest.mark.parametrize("fetching", [0, 1])
@pytest.mark.parametrize("of_node", [0, 1])
def test_a_signal_while_a_node_fetches_ends_all_in_order(tmp_path, twins, of_node, fetching):
    with socket.create_server(("127.0.0.1", 0)) as hub:  # which never answers
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}", "HF_HOME": str(tmp_path / "hub"), **ANY_PORTS}
        port = free_port()
        nodes = []
        for rank in (0, 1):
            (tmp_path / str(rank)).mkdir()
            model = ["--model", "org/nosuch"] if rank == fetching else []
            nodes.append(Follower(tmp_path / str(rank), *tiny(twins, 2), *model, *node_flags(port, rank), env=env))
        try:
            hub.settimeout(60)
            with hub.accept()[0]:
                nodes[of_node].process.send_signal(signal.SIGTERM)
                assert [node.wait() for node in nodes] == [0, 0]
        finally:
            for node in nodes:
                node.process.kill()
                node.process.wait()


def test_node_0_says_that_it_waits_for_others(tmp_path, twins):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        http = probe.getsockname()[1]
    leader = Follower(tmp_path, *tiny(twins, 2), *node_flags(free_port(), 0), "--http-port", str(http), env=ANY_PORTS)
    try:
        wait_until(lambda: "waiting for the others" in leader.text())
        wait_until(lambda: "waiting for the other nodes" in readiness(http))
        leader.process.send_signal(signal.SIGTERM)
        assert leader.wait() == 0
    finally:
        leader.process.kill()
        leader.process.wait()


def expect_a_node_joins(leader, port, twins, tmp_path):
    """A node of the right key makes the group ready, and both end in order."""
    (tmp_path / "follower").mkdir()
    follower = Follower(tmp_path / "follower", *tiny(twins, 2), *node_flags(port, 1))
    wait_until((tmp_path / "ready").exists)
    leader.process.send_signal(signal.SIGTERM)
    assert (leader.wait(), follower.wait()) == (0, 0)


def test_a_node_with_another_key_is_refused_and_node_0_waits_on(tmp_path, twins):
    port = free_port()
    leader = Follower(tmp_path, *tiny(twins, 2), *node_flags(port, 0), "--ready-file", str(tmp_path / "ready"),
                      env=ANY_PORTS)
    try:
        status, log = run(*tiny(twins, 2), *node_flags(port, 1), env={"MILLRACE_NODE_KEY": "x" * 16})
        assert status == 1
        assert "refused this node: its key is another than that of node 0 (--node-key)" in log
        wait_until(lambda: "refused a node at ipv4:127.0.0.1" in leader.text())
        assert KEY not in leader.text() + log
        expect_a_node_joins(leader, port, twins, tmp_path)
    finally:
        leader.process.kill()
        leader.process.wait()


def test_a_node_that_never_comes_ends_the_wait(twins):
    status, log = run(*tiny(twins, 2), *node_flags(free_port(), 0), "--node-timeout", "1s", env={"MILLRACE_NODE_KEY": KEY, "MILLRACE_HTTP_PORT": "0"})
    assert status == 1
    assert "node 1 of 2 did not come within 1 s (--node-timeout)" in log


def test_a_node_0_that_never_answers_ends_the_wait(twins):
    status, log = run(*tiny(twins, 2), *node_flags(free_port(), 1), "--node-timeout", "1s", env={"MILLRACE_NODE_KEY": KEY, "MILLRACE_HTTP_PORT": "0"})
    assert status == 1
    assert "did not answer within 1 s (--node-timeout)" in log


def test_the_port_of_another_server_is_no_node_0(start_server, twins):
    other = start_server("--device", "fake")
    # gRPC servers of others answer in words of their own.
    for port, why in [(other.ports["grpc"], "error server cannot start: "), (other.ports["http"], "did not answer within 2 s (--node-timeout)")]:
        status, log = run(*tiny(twins, 2), *node_flags(port, 1), "--node-timeout", "2s", env={"MILLRACE_NODE_KEY": KEY})
        assert status == 1
        assert why in log


def test_garbage_on_the_ports_is_refused_and_the_nodes_still_meet(tmp_path, twins):
    port = free_port()
    leader = Follower(tmp_path, *tiny(twins, 2), *node_flags(port, 0), "--ready-file", str(tmp_path / "ready"),
                      env=ANY_PORTS)
    try:
        wait_until(lambda: "waiting for the others" in leader.text())
        draw = random.Random(3)
        for at in (port, port + 1):
            for garbage in (draw.randbytes(100), b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + draw.randbytes(4000), b""):
                with socket.create_connection(("127.0.0.1", at)) as connection:
                    connection.sendall(garbage)
        wait_until(lambda: leader.text().count("refused a connection of 127.0.0.1 to the nodes' data port: it d") == 4)
        (tmp_path / "follower").mkdir()
        follower = Follower(tmp_path / "follower", *tiny(twins, 2), *node_flags(port, 1))
        wait_until((tmp_path / "ready").exists)
        for at in (port, port + 1):  # nothing listens on the second one any more
            try:
                with socket.create_connection(("127.0.0.1", at)) as connection:
                    connection.sendall(draw.randbytes(1000))
            except OSError:
                assert at == port + 1
        leader.process.send_signal(signal.SIGTERM)
        assert (leader.wait(), follower.wait()) == (0, 0)
    finally:
        leader.process.kill()
        leader.process.wait()


def test_floods_of_strangers_on_the_nodes_port(tmp_path, twins):
    """It stands behind the guard of the gRPC endpoint, and asks for the key before it reads a message."""
    port = free_port()
    leader = Follower(tmp_path, *tiny(twins, 2), *node_flags(port, 0), "--ready-file", str(tmp_path / "ready"),
                      env=ANY_PORTS)
    try:
        wait_until(lambda: "waiting for the others" in leader.text())
        before = begin_peak(leader)
        path = b"/millrace.nodes.v1.Nodes/Join"

        def continuations(client):
            client.send(http2.frame(http2.HEADERS, 0, 1, http2.call(path)))
            client.flood(http2.frame(http2.CONTINUATION, 0, 1, http2.field(b"x", b"y" * 16000)), 1)

        def resets(client):
            client.flood(lambda: b"".join(http2.frame(http2.HEADERS, http2.END_HEADERS, one, http2.call(path))
                                          + http2.frame(http2.RST_STREAM, 0, one, bytes(4)) for one in range(1, 4000, 2)), 1)

        for attack in (continuations, resets):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda _: attack(http2.Client(f"127.0.0.1:{port}")), range(8)))
        client = http2.Client(f"127.0.0.1:{port}")
        client.send(http2.frame(http2.HEADERS, 0, 1, http2.call(path)) + 5 * http2.frame(http2.CONTINUATION, 0, 1, bytes(16000)))
        assert client.goaway()[1:] == (http2.ENHANCE_YOUR_CALM, "a header block is too large; allowed: 16384 bytes, in at most 32 frames")
        client = http2.Client(f"127.0.0.1:{port}")
        client.open(1, path)  # without a message
        assert b"its key is another" in client.wait_for(http2.HEADERS, 1)[3]
        silent = [http2.Client(f"127.0.0.1:{port}", greet=False) for _ in range(300)]
        assert silent[0].goaway()[1] == http2.ENHANCE_YOUR_CALM
        assert sanitized() or memory(leader, "VmHWM") - before < 100 << 20
        expect_a_node_joins(leader, port, twins, tmp_path)
    finally:
        leader.process.kill()
        leader.process.wait()


def tls(folder, name):
    return ["--node-tls-cert", f"{folder}/{name}.cert", "--node-tls-key", f"{folder}/{name}.key", "--node-tls-ca", f"{folder}/{name}.ca"]


def test_nodes_speak_tls_and_take_their_own_certificates_alone(start_nodes, tmp_path, twins):
    for name in ("ours", "theirs"):
        Authority(tmp_path, name).issue(name)
    server, (follower,) = start_nodes(2, *tiny(twins, 2), *tls(tmp_path, "ours"))
    assert ", by TLS" in server.log.read_text()
    complete(server, in_ids([GREEDY])[0])
    for flags in ([], tls(tmp_path, "theirs")):
        status, log = run(*tiny(twins, 2), *node_flags(server.port, 1), "--node-timeout", "1s", *flags, env={"MILLRACE_NODE_KEY": KEY})
        assert status == 1
        assert "did not answer within 1 s (--node-timeout)" in log
    assert follower.process.poll() is None


def test_a_file_of_their_tls_that_cannot_be_read_any_longer_is_told_of(start_nodes, tmp_path, twins):
    Authority(tmp_path, "ours").issue("ours")
    server, _ = start_nodes(2, *tiny(twins, 2), *tls(tmp_path, "ours"))
    assert httpx.get(server.http + "/readyz").json() == {"status": "ok"}
    key = tmp_path / "ours.key"
    key.unlink()
    os.mkfifo(key)
    wait_until(lambda: "node-tls-cert" in httpx.get(server.http + "/readyz").json().get("detail", ""), 10)
    assert f"the certificate stays as it was: node-tls-key: {key} cannot be read: it is a FIFO" in server.log.read_text()
    assert 'millrace_file_stale{setting="node-tls-cert"} 1' in httpx.get(server.admin + "/metrics").text
    complete(server, in_ids([GREEDY])[0])
    server.signal()
    assert server.wait(20) == 0
