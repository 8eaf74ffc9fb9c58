"""Attacks beside a light client: each for some seconds, over 8 connections, from a process of its own.

    python tests/soak/soak.py --attacks all|NAME,... [--seconds 60]
    python tests/soak/attacks.py [--only NAME,...] [--seconds 60] [--list]

Of each: the memory may grow by 100 MB at most and is back within 10 s of the attack's end, the light client's 99th percentile is at most 1.5
times what it is alone, SIGTERM ends the server within the drain time while the attack goes on, and what the attack is after fails. Ends with
status 1 and a list if anything was wrong.
"""
import argparse
import contextlib
import dataclasses
import http.client
import itertools
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

import grpc  # noqa: E402

import http2  # noqa: E402
from conftest import Server  # noqa: E402
from test_tenants import bearer, entry, write  # noqa: E402

CONNECTIONS = 8
MOST_GROWTH = 100 << 20  # bytes, while it lasts
MOST_LEFT = 32 << 20  # bytes, once it is given back: noise of the allocator's arenas
GIVEN_BACK = 10  # seconds
MOST_LATENCY = 1.5
NOISE = 0.005  # seconds of the percentile that say nothing
DRAIN = 5  # seconds
LAST_WORDS = 4  # seconds beyond these: what cancelled streams have left to send, and a busy machine
FAKE = ("--device", "fake", "--fake-step-us", "2000", "--fake-token-us", "0", "--max-model-len", "4100000", "--kv-cache-memory", "4GiB")
MESSAGE_BYTES = 31 << 20
METHODS = ("/inference.GRPCInferenceService/ModelInfer", "/millrace.v1.Inference/Generate", "/vllm.grpc.engine.VllmEngine/Generate",
           "/millrace.v1.Inference/Embed", "/vllm.grpc.engine.VllmEngine/Embed", "/millrace.v1.Inference/Infer",
           "/grpc.health.v1.Health/Check", "/millrace.nodes.v1.Nodes/Join")


@dataclasses.dataclass
class Target:
    """What the attackers' process knows of a server."""

    pid: int
    http: str  # each "127.0.0.1:PORT"
    grpc: str
    admin: str
    metrics: str
    nodes: str  # empty: it is alone
    keys: str  # the file

    def listeners(self):
        return [address for address in (self.http, self.grpc, self.admin, self.metrics, self.nodes) if address]


def ask(address, method, path, body=None, key="", host=None, timeout=30):
    """Returns the status and the answer."""
    headers = {"Content-Type": "application/json", **(bearer(key) if key else {}), **({"Host": host} if host else {})}
    request = urllib.request.Request(f"http://{address}{path}", None if body is None else json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


# ---- The attacks. Each is a generator of one connection's acts, which goes on until it is closed; OSError ends one act. ----

def submessages(at):
    """Returns a message of two-byte submessages."""
    return bytes([(1 + at % 15) << 3 | 2, 0]) * (MESSAGE_BYTES // 2)


def send_message(address, method, message, **options):
    """Sends one message to a method, and reads what comes of it."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]) as channel:
        call = channel.stream_stream(method, request_serializer=lambda data: data, response_deserializer=lambda data: data)
        with contextlib.suppress(grpc.RpcError):
            list(call(iter([message]), timeout=20, **options))


def many_submessages(target, number):
    """One message of two-byte submessages, which becomes a hundred times as much, to each method of each listener; no key."""
    addresses = itertools.cycle([address for address in (target.grpc, target.nodes) if address])
    for at in itertools.count(number):
        send_message(next(addresses), METHODS[at % len(METHODS)], submessages(at))
        yield


def keyed_submessages(target, number):
    """As many_submessages, with a key, so that the messages are read."""
    for at in itertools.count(number):
        send_message(target.grpc, METHODS[at % len(METHODS)], submessages(at), metadata=(("authorization", "Bearer key-b"),))
        yield


def compressed_messages(target, number):
    """As many_submessages, of some 30 KiB that unfold."""
    for at in itertools.count(number):
        send_message(target.grpc, METHODS[at % len(METHODS)], submessages(at), compression=grpc.Compression.Gzip)
        yield


def continuations(target, number):
    """A header block of 64 MiB without an end, to every listener, that of the nodes among them; no key."""
    one_value = b"\0" + http2.integer(6) + b"x-more" + http2.integer(64 << 20)  # whose bytes are all that follows
    kinds = itertools.cycle(((one_value, b"y" * 16384), (b"", http2.field(b"x-more", b"y" * 16000)), (b"", b"")))
    for address in itertools.islice(itertools.cycle(target.listeners()), number, None):
        begin, more = next(kinds)
        piece = http2.frame(http2.CONTINUATION, 0, 1, more)
        with contextlib.suppress(OSError, EOFError):
            with socket.create_connection(address.rsplit(":", 1), timeout=5) as connection:
                connection.sendall(http2.PREFACE + http2.frame(http2.SETTINGS) +
                                   http2.frame(http2.HEADERS, 0, 1, http2.call(b"/millrace.nodes.v1.Nodes/Join") + begin))
                for _ in range(min((64 << 20) // len(piece), 100_000)):
                    connection.sendall(piece)
                time.sleep(0.2)
        yield


def unread_answers(target, number):
    """Five GETs of a stored response of 24 MiB on connections that read nothing; one key, of one stream."""
    status = 0
    while status != 200:  # the key has one stream, which another of the attackers may have
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, answer = ask(target.http, "POST", "/v1/responses", {"input": "x", "instructions": "\x01" * 4_000_000, "max_output_tokens": 2}, "b", timeout=60)
        yield
    stored = json.loads(answer)["id"]
    held = []
    while True:
        with contextlib.suppress(OSError):
            connection = socket.create_connection(target.http.rsplit(":", 1), timeout=5)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(f"GET /v1/responses/{stored} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-b\r\n\r\n".encode())
            held.append(connection)
        if len(held) > 5:
            held.pop(0).close()
        time.sleep(0.2)
        yield


def unread_generations(target, number):
    """32 calls of Generate a connection that echo a long prompt with log-probabilities, and of which nothing is read; one key, without limits."""
    from millrace_grpc import pb
    request = pb.GenerateRequest(text="ab cd " * 1500, echo=True, logprobs=20, stopping=pb.StopOptions(max_tokens=200, ignore_eos=True))
    payload = http2.message(request.SerializeToString())
    while True:
        client = http2.Client(target.grpc)
        with contextlib.closing(client):
            for stream in range(1, 65, 2):
                client.open(stream, b"/millrace.v1.Inference/Generate", http2.END_HEADERS, (b"authorization", b"Bearer key-c"))
                client.send(http2.frame(http2.DATA, http2.END_STREAM, stream, payload))
                time.sleep(0.02)
                yield


def stored_responses(target, number):
    """Large responses of tenant B, one after the other; A's small one must stay."""
    body = {"input": "x", "instructions": "\x01" * 4_000_000, "max_output_tokens": 2}
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(target.http, "POST", "/v1/responses", body, "b", timeout=60)
        yield


def abandoned_text(target, number):
    """Prompts of 7 MiB to be counted, whose client leaves at once; A's short prompt must not wait for them."""
    body = json.dumps({"prompt": "A word and another one. " * (7 << 20 >> 5)}).encode()
    for path in itertools.cycle(("/tokenize", "/v1/messages/count_tokens")):
        if path != "/tokenize":
            body_of = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "A word. " * (1 << 18)}]}).encode()
        else:
            body_of = body
        with contextlib.suppress(OSError):
            with socket.create_connection(target.http.rsplit(":", 1), timeout=5) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-b\r\n"
                                   f"Content-Type: application/json\r\nContent-Length: {len(body_of)}\r\n\r\n".encode() + body_of)
        yield


def strange_key_files(target, number):
    """FIFOs, devices and folders in place of --keys, and a SIGHUP each time; a signal must be heard all the same."""
    keys = pathlib.Path(target.keys)
    whole = keys.read_bytes()
    kinds = (lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(keys.parent))
    for kind in itertools.cycle(kinds):
        if number == 0:
            odd = keys.with_name("odd")
            odd.unlink(missing_ok=True)
            kind(odd)
            odd.replace(keys)
            os.kill(target.pid, signal.SIGHUP)
            time.sleep(0.6)
            again = keys.with_name("again")
            again.write_bytes(whole)
            again.replace(keys)
        time.sleep(0.6)
        yield


def rebinding(target, number):
    """Requests to the administration and the metrics in the name of a page elsewhere."""
    for path, method in itertools.cycle((("/admin/drain", "POST"), ("/admin/status", "GET"), ("/metrics", "GET"), ("/log", "PUT"))):
        for address in (target.admin, target.metrics):
            with contextlib.suppress(OSError):
                status, _ = ask(address, method, path, {} if method != "GET" else None, "admin", host="rebound.example")
                if status not in (403, 404):
                    raise AssertionError(f"{method} {path} answered {status} to rebound.example")
        time.sleep(0.01)
        yield


ATTACKS = {attack.__name__: attack for attack in (many_submessages, keyed_submessages, compressed_messages, continuations, unread_answers, unread_generations,
                                                  stored_responses, abandoned_text, strange_key_files, rebinding)}


def attack_until(name, target, stop, failures):
    """Runs in a process of its own: an attack over its connections."""
    os.nice(10)

    def one(number):
        acts = ATTACKS[name](target, number)
        while not stop.is_set():
            try:
                next(acts)
            except OSError:
                acts = ATTACKS[name](target, number)
                time.sleep(0.1)
            except Exception as error:  # noqa: BLE001 - told to whoever judges
                failures.put(f"{type(error).__name__}: {error}")
                return

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    stop.wait()
    os._exit(0) if failures.empty() else time.sleep(1)


class Attackers:
    def __init__(self, name, target):
        context = multiprocessing.get_context("spawn")
        self.stop_it, self.failures = context.Event(), context.Queue()
        self.process = context.Process(target=attack_until, args=(name, target, self.stop_it, self.failures), daemon=True)
        self.process.start()

    def stop(self):
        """Ends them with their connections. Returns what they found wrong."""
        self.stop_it.set()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        found = []
        while not self.failures.empty():
            found.append(self.failures.get())
        return found


class Watched:
    """A server with its keys, its light client and its memory."""

    def __init__(self, folder, name):
        self.name = name
        self.keys = folder / "keys.json"
        write(self.keys, entry("a"), entry("b", max_streams=1), entry("c"), entry("admin", scopes=["admin", "metrics"]))
        self.follower = None
        more, self.nodes = [], ""
        if name == "abandoned_text" and "MILLRACE_MODEL" in os.environ:  # whose tokenizer takes its time
            more = ["--model", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "256MiB"]
        if name == "continuations" and "MILLRACE_MODEL" in os.environ:
            more = self.begin_nodes(folder)
        self.server = Server(folder, *(more or FAKE), "--keys", str(self.keys), "--allowed-hosts", "*", "--metrics-host", "127.0.0.1",
                             "--metrics-port", "0", "--drain-timeout", f"{DRAIN}s", env={"MILLRACE_NODE_KEY": "a-key-of-soaked-nodes"} if self.nodes else None)
        ports = self.server.ports
        self.target = Target(self.server.process.pid, *(f"127.0.0.1:{ports[port]}" for port in ("http", "grpc", "admin", "metrics")), self.nodes, str(self.keys))
        self.wrong = []
        status, answer = ask(self.target.http, "POST", "/v1/responses", {"input": "mine", "max_output_tokens": 2}, "a")
        self.stored = json.loads(answer)["id"]

    def begin_nodes(self, folder):
        """Lets the model of $MILLRACE_MODEL run on two nodes, whose port is attacked as the others are. Returns node 0's flags."""
        from test_nodes import Follower, free_port, node_flags
        port = free_port()
        model = ["--model", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "256MiB", "--tensor-parallel-size", "2", "--threads", "2"]
        other = folder / "node1"
        other.mkdir()
        self.follower = Follower(other, *model, *node_flags(port, 1), env={"MILLRACE_NODE_KEY": "a-key-of-soaked-nodes"})
        self.nodes = f"127.0.0.1:{port}"
        return [*model, *node_flags(port, 0)]

    def rss(self):
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10

    def light(self, seconds):
        """Asks as tenant A for so long, one request after the other. Returns the 99th percentile of their seconds, and the most memory."""
        words = "A light client's prompt, of twenty kilobytes. " * 440 if self.name == "abandoned_text" else ""
        path, body = ("/tokenize", {"prompt": words}) if words else ("/v1/completions", {"prompt": "Hi", "max_tokens": 4, "ignore_eos": True})
        took, most = [], self.rss()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                status, answer = ask(self.target.http, "POST", path, body, "a")
                if status != 200:
                    self.wrong.append(f"the light client got {status}: {answer[:200]!r}")
            except OSError as error:
                self.wrong.append(f"the light client got {error}")
            took.append(time.monotonic() - began)
            most = max(most, self.rss())
            time.sleep(0.01)
            if self.server.process.poll() is not None:
                break
        return sorted(took)[int(len(took) * 0.99)], most

    def stop(self):
        self.server.stop()
        if self.follower is not None:
            self.follower.process.kill()
            self.follower.wait()


def try_attack(name, seconds, folder):
    """Returns a line of the table, and what is wrong."""
    watched = Watched(folder, name)
    wrong = watched.wrong
    attackers = None
    try:
        alone, before = watched.light(max(seconds / 4, 1))
        attackers = Attackers(name, watched.target)
        time.sleep(1)  # a process that begins
        beside, most = watched.light(seconds)
        wrong += attackers.stop()
        time.sleep(GIVEN_BACK)
        if watched.server.process.poll() is not None:
            wrong.append(f"the server ended with {watched.server.process.returncode}")
            return f"{name}: the server ended", wrong
        left = watched.rss() - before
        status, _ = ask(watched.target.http, "GET", f"/v1/responses/{watched.stored}", key="a")
        if status != 200:
            wrong.append(f"A's stored response answers {status}")
        attackers = Attackers(name, watched.target)
        time.sleep(2)
        began = time.monotonic()
        watched.server.signal()
        try:
            if (status := watched.server.wait(DRAIN + 60)) != 0:
                wrong.append(f"SIGTERM ended it with {status}")
        except Exception:  # noqa: BLE001 - it did not end
            wrong.append("SIGTERM did not end it")
        ended = time.monotonic() - began
        attackers.stop()
        attackers = None
        for holds, what in ((most - before <= MOST_GROWTH, f"{(most - before) >> 20} MiB more memory"), (left <= MOST_LEFT, f"{left >> 20} MiB stay"),
                            (beside <= alone * MOST_LATENCY + NOISE, f"the light client's p99 is {beside * 1000:.1f} ms, alone {alone * 1000:.1f} ms"),
                            (ended <= DRAIN + LAST_WORDS, f"SIGTERM took {ended:.1f} s")):
            if not holds:
                wrong.append(what)
        return f"{name}: memory +{(most - before) >> 20} MiB, {left >> 20} MiB stay, p99 {beside * 1000:.1f} ms ({alone * 1000:.1f} alone), SIGTERM {ended:.1f} s", wrong
    finally:
        if attackers is not None:
            attackers.stop()
        watched.stop()


def run(names, seconds):
    """Returns the number of attacks with anything wrong."""
    failed = 0
    for name in names:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"millrace-attack-{name}-"))
        line, wrong = try_attack(name, seconds, folder)
        print(f"{time.strftime('%H:%M:%S')}  {line}{f'; log in {folder}' if wrong else ''}", flush=True)
        for what in sorted(set(wrong))[:20]:
            print(f"  WRONG {what}", flush=True)
        failed += bool(wrong)
    return failed


def names_of(text):
    names = list(ATTACKS) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in ATTACKS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is no attack; allowed: all, {', '.join(ATTACKS)}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names_of, default=list(ATTACKS), help="these attacks, separated by commas")
    parser.add_argument("--seconds", type=float, default=60, help="of each")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, attack in ATTACKS.items():
            print(f"{name}: {attack.__doc__}")
        return 0
    return 1 if run(options.only, options.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
