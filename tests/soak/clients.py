"""The soak's clients: each sends what draw.py says, behaves as it says, and judges the answer."""
import collections
import http.client
import json
import socket
import struct
import threading
import time

import grpc
import jsonschema

from draw import SCHEMA, payload
from millrace_grpc import inference_pb2_grpc, pb

PATIENCE = 120  # seconds for an answer; the machine may be busy, a server that hangs is not
ENDS = {"response.completed", "response.incomplete", "message_stop"}  # types of last events; completions end with [DONE]
LATE = {"deadline_exceeded", "timeout_error", "timeout"}  # what a stream's last event may say
RESPONSES = {"Generate": pb.GenerateResponse, "Embed": pb.EmbedResponse, "Tokenize": pb.TokenizeResponse, "Detokenize": pb.DetokenizeResponse,
             "ListModels": pb.ListModelsResponse, "GetServerInfo": pb.GetServerInfoResponse}


class Wrong(Exception):
    """An answer that no request should get."""


class Tally:
    """What all clients of a server saw. Thread-safe."""

    def __init__(self):
        self.lock = threading.Lock()
        self.outcomes = collections.Counter()
        self.complete = 0  # choices whose end a client saw
        self.wrong = []

    def add(self, outcome, complete=0):
        with self.lock:
            self.outcomes[outcome] += 1
            self.complete += complete

    def blame(self, request, why):
        with self.lock:
            self.wrong.append(f"{why}\n      {str(request)[:1500]}")


def connect(address):
    sock = socket.create_connection(address, timeout=PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def head_of(request, body):
    lines = [f"{request.method} {request.path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    if request.key:
        lines.append(f"Authorization: Bearer key-{request.key}")
    if request.deadline:
        lines.append(f"X-Request-Timeout-Ms: {int(request.deadline * 1000)}")
    if request.method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def send(sock, request, body):
    head = head_of(request, body)
    if request.behaviour == "torn":
        sock.sendall((head + body)[:max(1, (len(head) + len(body)) // 2)])
        time.sleep(request.moment)
    elif request.behaviour == "trickle":
        for at in range(0, len(head + body), max(1, len(head + body) // 10)):
            sock.sendall((head + body)[at:at + max(1, len(head + body) // 10)])
            time.sleep(request.moment / 10)
    else:
        sock.sendall(head + body)


def leave(sock, request):
    if request.behaviour == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif request.behaviour == "half":
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(PATIENCE)
        while sock.recv(65536):  # whatever comes until the server closes
            pass


def read(sock, request):
    """Returns (status, body); leaves in the middle if the request says so, and then returns None."""
    if request.behaviour in ("close", "reset", "half", "torn"):
        end = time.monotonic() + request.moment
        try:
            while (left := end - time.monotonic()) > 0:
                sock.settimeout(left)
                if not sock.recv(4096):
                    break
        except TimeoutError:
            pass
        leave(sock, request)
        return None
    response = http.client.HTTPResponse(sock, method=request.method)
    response.begin()
    kind = response.getheader("Content-Type", "")
    if response.status == 200 and request.stream != kind.startswith("text/event-stream"):
        raise Wrong(f"an answer of type {kind!r}")
    chunks = []
    while chunk := response.read1(300 if request.behaviour == "slow" else 65536):
        chunks.append(chunk)
        if request.behaviour == "slow" and len(chunks) <= 8:
            time.sleep(request.moment / 4)
    if response.length:
        raise Wrong(f"{response.length} bytes of the body are missing")
    return response.status, b"".join(chunks)


def over_http(server, request):
    """Returns an outcome and how many choices are complete."""
    body = payload(request)
    with connect(("127.0.0.1", server.ports["http"])) as sock:
        try:
            send(sock, request, body)
            answer = read(sock, request)
        except (ConnectionResetError, BrokenPipeError):
            if request.behaviour in ("close", "reset", "half", "torn") or not request.good:
                return "left", 0
            raise
    if answer is None:
        return "left", 0
    status, text = answer
    return judge_http(request, status, text)


def judge_http(request, status, text):
    if not request.good:
        # A key whose tenant has used up its limits hears of that first.
        if not 400 <= status < 500:
            raise Wrong(f"a bad request got {status}: {text[:300]!r}")
        return f"http {status}", 0
    if status in (401, 429) or (status in (503, 504) and request.deadline):
        json.loads(text)
        return f"http {status}", 0
    if status != 200:
        raise Wrong(f"status {status}: {text[:500]!r}")
    if request.path in ("/livez", "/readyz"):
        return "http 200", 0
    if request.stream:
        return judge_stream(request, text)
    return "http 200", judge_whole(request, json.loads(text))


def judge_whole(request, answer):
    if request.path == "/v1/embeddings":
        wanted = request.body["input"]
        if len(answer["data"]) != (len(wanted) if isinstance(wanted, list) else 1):
            raise Wrong(f"{len(answer['data'])} embeddings")
    if "choices" not in answer:
        return 1 if request.path in ("/v1/responses", "/v1/messages") else 0
    if len(answer["choices"]) != request.body.get("n", 1):
        raise Wrong(f"{len(answer['choices'])} choices")
    for choice in answer["choices"]:
        if choice["finish_reason"] not in ("stop", "length", "tool_calls"):
            raise Wrong(f"finish reason {choice['finish_reason']}")
        if choice["finish_reason"] == "stop" and request.body.get("response_format", {}).get("type") == "json_schema":
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    usage = answer["usage"]
    if usage["prompt_tokens"] + usage["completion_tokens"] != usage["total_tokens"]:
        raise Wrong(f"usage {usage}")
    return len(answer["choices"])


def judge_stream(request, text):
    events = [line[5:].strip() for line in text.decode().split("\n") if line.startswith("data:")]
    if not events:
        raise Wrong("a stream without an event")
    last = events[-1]
    if last == "[DONE]":
        finished = {choice["index"] for event in events[:-1] for choice in json.loads(event)["choices"] if choice.get("finish_reason")}
        if len(finished) != request.body.get("n", 1):
            raise Wrong(f"choices with an end: {sorted(finished)}")
        return "http stream", len(finished)
    event = json.loads(last)
    if event.get("type") in ENDS:
        return "http stream", 1
    error = event if event.get("type") == "error" and "code" in event else event.get("error") or {}
    code = error.get("code") or error.get("type")
    if code in LATE and request.deadline:
        return "http stream late", 0
    raise Wrong(f"a stream ends with {last[:500]}")


def garbage(server, request):
    with connect(("127.0.0.1", server.ports[request.path])) as sock:
        try:
            sock.sendall(request.body)
            sock.settimeout(0.2)
            while sock.recv(65536):
                pass
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
    return "garbage", 0


class GrpcClient:
    """A client with a channel of its own, which it makes anew after it has dropped it."""

    def __init__(self, server):
        self.server = server
        self.channel = None

    def open(self):
        if self.channel is None:
            self.channel = grpc.insecure_channel(self.server.grpc, options=[("grpc.use_local_subchannel_pool", 1)])
            self.stub = inference_pb2_grpc.InferenceStub(self.channel)

    def close(self):
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def run(self, request):
        self.open()
        metadata = [("authorization", f"Bearer key-{request.key}")]
        name = f"/millrace.v1.Inference/{request.path}"
        serialize = bytes if isinstance(request.body, bytes) else type(request.body).SerializeToString
        parse = RESPONSES.get(request.path, pb.GenerateResponse).FromString
        call = self.channel.unary_stream(name, serialize, parse)(request.body, metadata=metadata, timeout=request.deadline or PATIENCE)
        timer = None
        if request.behaviour in ("cancel", "drop"):
            timer = threading.Timer(request.moment, call.cancel if request.behaviour == "cancel" else self.channel.close)
            timer.start()
        try:
            return judge_grpc(request, self.read(request, call))
        except grpc.RpcError as error:
            return self.judge_error(request, error)
        except ValueError:  # the channel was closed before the call began
            return "left", 0
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()
            if request.behaviour == "drop":
                self.close()

    @staticmethod
    def read(request, call):
        responses = []
        for response in call:
            responses.append(response)
            if request.behaviour == "slow" and len(responses) <= 8:
                time.sleep(request.moment / 4)
        return responses

    @staticmethod
    def judge_error(request, error):
        code = error.code()
        codes = grpc.StatusCode
        if code == codes.CANCELLED and request.behaviour in ("cancel", "drop"):
            return "left", 0
        allowed = {codes.RESOURCE_EXHAUSTED, codes.UNAUTHENTICATED}
        if request.deadline:
            allowed.add(codes.DEADLINE_EXCEEDED)
        if not request.good:
            allowed |= {codes.INVALID_ARGUMENT, codes.UNIMPLEMENTED, codes.OUT_OF_RANGE}
        if code not in allowed:
            raise Wrong(f"gRPC {code.name}: {error.details()}")
        return f"grpc {code.name}", 0


def judge_grpc(request, responses):
    if not request.good:
        raise Wrong(f"a bad message was taken: {responses!r}"[:500])
    if not responses:
        raise Wrong("OK without a response")
    if request.path != "Generate":
        return "grpc OK", 0
    finished = [response.index for response in responses if response.HasField("finish")]
    if sorted(finished) != list(range(request.body.n if request.body.HasField("n") else 1)):
        raise Wrong(f"choices with an end: {finished}")
    return "grpc OK", len(finished)


def perform(server, grpc_client, request, tally):
    """Sends a request and tallies what came of it."""
    try:
        if request.protocol == "grpc":
            outcome = grpc_client.run(request)
        else:
            outcome = (over_http if request.protocol == "http" else garbage)(server, request)
        tally.add(*outcome)
    except Wrong as wrong:
        tally.blame(request, str(wrong))
    except Exception as error:  # a client's own failure is one, too: a refused connection, an answer that is no JSON
        tally.blame(request, f"{type(error).__name__}: {error}")
