"""Clients of both protocols, and probes, beside a fault: what they see is what the table of faults.py says."""
import collections
import contextlib
import dataclasses
import json
import threading
import time
import urllib.error
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import conftest
from millrace_grpc import connect, pb

PATIENCE = 60  # seconds


class Server(conftest.Server):
    """A server that is stopped in the end, whatever becomes of the fault."""

    started = []

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        Server.started.append(self)

    @staticmethod
    def stop_all():
        for server in Server.started:
            server.stop()
        Server.started.clear()


def summary(outcomes):
    return ", ".join(f"{count} x {what}" if count > 1 else what for what, count in collections.Counter(outcomes).items())


class Client:
    """A streamed completion that a thread of its own reads. outcome: how it ended, once it has."""

    def __init__(self, read, *arguments):
        self.tokens = 0
        self.outcome = None
        self.begun = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(read, *arguments), daemon=True)
        self.thread.start()

    def run(self, read, *arguments):
        try:
            self.outcome = read(self, *arguments)
        except (OSError, EOFError, ValueError) as error:
            self.outcome = "connection broken" if self.tokens else f"no answer ({type(error).__name__})"
        self.begun.set()

    def token(self):
        self.tokens += 1
        self.begun.set()

    def join(self):
        self.thread.join(2 * PATIENCE)
        return self.outcome or "hangs"


def read_http(client, server, length, extra):
    body = {"prompt": "Hello", "max_tokens": length, "ignore_eos": True, "stream": True, **extra}
    post = urllib.request.Request(server.http + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(post, timeout=PATIENCE) as response:
            last = ""
            for line in response:
                if line.startswith(b"data: "):
                    last = line[6:].decode().strip()
                    client.token()
    except urllib.error.HTTPError as error:
        return f"{error.code} {json.load(error)['error']['code']}"
    if last == "[DONE]":
        return "whole"
    error = json.loads(last).get("error")
    return f"last event {error['code']}" if error else "no last event"


def read_grpc(client, server, length, extra):
    stopping = pb.StopOptions(max_tokens=length, ignore_eos=True)
    finished = False
    try:
        for response in connect(server.grpc).Generate(pb.GenerateRequest(text="Hello", stopping=stopping, **extra), timeout=PATIENCE):
            client.token()
            finished = response.HasField("finish")
    except grpc.RpcError as error:
        return error.code().name
    return "whole" if finished else "OK without finish"


class Beside:
    """Streams of both protocols on a server, and probes of its health, each of which may take so many seconds, and so many attempts."""

    def __init__(self, server, length=200, each=3, wait=True, probe_timeout=1, probe_attempts=1, **extra):
        self.server = server
        self.probe_timeout, self.probe_attempts = probe_timeout, probe_attempts
        self.http = [Client(read_http, server, length, extra) for _ in range(each)]
        self.grpc = [Client(read_grpc, server, length, extra) for _ in range(each)]
        self.states = []  # (seconds, what the probes say), where that changed
        self.stop = threading.Event()
        if wait:
            for client in self.http + self.grpc:
                client.begun.wait(PATIENCE)
        self.begin = time.monotonic()
        self.prober = threading.Thread(target=self.probe, daemon=True)
        self.prober.start()

    def probe(self):
        while not self.stop.wait(0.05):
            live, ready = (self.attempt(lambda path=path: status(self.server, path, self.probe_timeout)) for path in ("/livez", "/readyz"))
            state = f"{live}/{ready}/{self.attempt(lambda: grpc_health(self.server, self.probe_timeout))}"
            if not self.states or self.states[-1][1] != state:
                self.states.append((time.monotonic() - self.begin, state))

    def attempt(self, probe):
        answers = (probe() for _ in range(self.probe_attempts))
        return next((answer for answer in answers if answer != "–"), "–")

    def end(self):
        """Waits for the streams. Returns what HTTP's saw, what gRPC's saw, and what the probes said, in its order."""
        http, over_grpc = summary(client.join() for client in self.http), summary(client.join() for client in self.grpc)
        self.stop.set()
        self.prober.join()
        return http, over_grpc, " → ".join(state for _, state in self.states)


def status(server, path, timeout):
    try:
        with urllib.request.urlopen(server.http + path, timeout=timeout) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return "–"


def grpc_health(server, timeout):
    with grpc.insecure_channel(server.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout)
            return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        except grpc.RpcError:
            return "–"


def complete(server, timeout=PATIENCE):
    """Returns the text of a short completion at temperature 0."""
    body = {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    post = urllib.request.Request(server.http + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(post, timeout=timeout) as response:
        return json.load(response)["choices"][0]["text"]


def serves_again(server):
    """Returns the seconds until a completion succeeds."""
    begin = time.monotonic()
    while True:
        with contextlib.suppress(OSError):
            complete(server, timeout=5)
            return time.monotonic() - begin
        if time.monotonic() - begin > PATIENCE:
            return float("inf")
        time.sleep(0.02)


@dataclasses.dataclass
class Row:
    """A line of the table, and what is wrong."""

    http: str = ""
    grpc: str = ""
    health: str = ""
    metrics: str = ""
    back: str = ""
    wrong: list = dataclasses.field(default_factory=list)

    def must(self, holds, what):
        if not holds:
            self.wrong.append(what)
        return self


def seconds(value):
    return f"{value:.1f} s" if value < 100 else "never"
