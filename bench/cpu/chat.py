"""A chat client that is light enough to share two cores with the server that it measures.

While a stream runs it only notes when which bytes came; they are parsed when all streams have ended.
"""
import asyncio
import dataclasses
import json
import random
import time

from machine import BenchError

PROMPT_TOKENS = 119
ANSWER_TOKENS = 128
# Each is one token of SmolLM2, at the beginning of a line and after a space.
WORDS = """river stone cloud winter summer engine paper bridge forest market music color light water house school doctor ocean
planet window bread letter number picture story history science nature animal flower street city country rain snow wind fire
earth metal glass wood horse bird fish lion wolf bear snake apple orange rice corn sugar salt milk brother mother father child
friend teacher student king driver""".split()
QUESTION = "Tell me a long story."
TEMPLATE_TOKENS = 20  # tokens of ChatML with a system message, and of QUESTION
TIMEOUT_S = 300


class Prompts:
    """Returns prompts of PROMPT_TOKENS tokens. ChatML begins all of them with the same three tokens; after these they differ
    from the first token on, so that no full block is shared."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._first = self._random.sample(WORDS, len(WORDS))

    def take(self):
        if not self._first:
            raise BenchError(f"there are only {len(WORDS)} prompts that differ from their first token")
        words = [self._first.pop()] + self._random.choices(WORDS, k=PROMPT_TOKENS - TEMPLATE_TOKENS - 1)
        return [{"role": "system", "content": " ".join(words)}, {"role": "user", "content": QUESTION}]


def request(model, messages, max_tokens, temperature=0.7):
    """Returns the bytes of a request. The sampling parameters are explicit, since llama.cpp's defaults differ from ours."""
    body = json.dumps({
        "model": model, "messages": messages, "max_tokens": max_tokens, "ignore_eos": True,
        "temperature": temperature, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
        "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = ("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n")
    return head.encode() + body


@dataclasses.dataclass
class Answer:
    """One stream. Times are those of time.perf_counter(), in seconds; text_times has one for each event with text."""
    status: int
    sent: float
    text_times: list
    finish_reason: str | None
    usage: dict
    error: str

    def check(self, max_tokens, prompt_tokens=None):
        """Raises BenchError unless this is the requested answer, computed and not from a cache."""
        if self.status != 200:
            raise BenchError(f"the server answered {self.status}: {self.error}")
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        got = self.usage.get("prompt_tokens"), self.usage.get("completion_tokens"), self.finish_reason, cached
        wanted = prompt_tokens or got[0], max_tokens, "length", 0
        if got != wanted or not self.text_times:
            raise BenchError(f"an answer has (prompt tokens, output tokens, finish reason, cached tokens) {got}, wanted "
                             f"{wanted}, and {len(self.text_times)} events with text")


class _Recorder(asyncio.Protocol):
    def __init__(self, data):
        self.data = data
        self.received = []
        self.sent = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        transport.write(self.data)

    def data_received(self, data):
        self.received.append((time.perf_counter(), data))

    def connection_lost(self, error):
        if not self.ended.done():
            self.ended.set_result(error)


async def _exchange(port, data):
    sent = time.perf_counter()
    transport, recorder = await asyncio.get_running_loop().create_connection(lambda: _Recorder(data), "127.0.0.1", port)
    recorder.sent = sent
    try:
        await asyncio.wait_for(recorder.ended, TIMEOUT_S)
    except asyncio.TimeoutError:
        raise BenchError(f"a stream did not end within {TIMEOUT_S} s") from None
    finally:
        transport.abort()
    return recorder


class _Reader:
    """Takes a recorded response apart; what it takes comes with the time at which its last byte had come."""

    def __init__(self, received):
        self._received = iter(received)
        self._buffer = b""
        self._time = 0.0

    def _more(self):
        self._time, data = next(self._received, (self._time, None))
        if data is None:
            raise BenchError("a response ended in its middle")
        self._buffer += data

    def until(self, mark):
        while mark not in self._buffer:
            self._more()
        taken, _, self._buffer = self._buffer.partition(mark)
        return taken

    def exactly(self, size):
        while len(self._buffer) < size:
            self._more()
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def rest(self):
        try:
            while True:
                self._more()
        except BenchError:
            return self._buffer

    def chunks(self):
        """(time, bytes) of each chunk of a body in the chunked encoding."""
        while size := int(self.until(b"\r\n").split(b";")[0], 16):
            data = self.exactly(size + 2)[:-2]
            yield self._time, data


def _answer(recorder):
    reader = _Reader(recorder.received)
    head = reader.until(b"\r\n\r\n").decode("latin-1")
    answer = Answer(status=int(head.split(" ", 2)[1]), sent=recorder.sent, text_times=[], finish_reason=None, usage={}, error="")
    if answer.status != 200:
        answer.error = reader.rest().decode(errors="replace")[:500]
        return answer
    if "\r\ntransfer-encoding: chunked" not in head.lower():
        raise BenchError(f"a stream is expected in the chunked encoding, not with these headers: {head}")
    text = b""
    for when, data in reader.chunks():
        *events, text = (text + data).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                _take_event(answer, when, json.loads(event[6:]))
    return answer


def _take_event(answer, when, event):
    if "error" in event:
        raise BenchError(f"a stream ended with an error: {event['error']}")
    answer.usage = event.get("usage") or answer.usage
    for choice in event["choices"]:
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        if choice["delta"].get("content"):
            answer.text_times.append(when)


def ask(port, requests):
    """Sends all at once, and returns their answers when the last has ended."""
    async def all_of_them():
        return await asyncio.gather(*(_exchange(port, data) for data in requests))
    return [_answer(recorder) for recorder in asyncio.run(all_of_them())]


def ask_when_up(port, data, alive, timeout_s=60, pause_s=0.003):
    """Repeats a request until the response is neither a refused connection nor 503, as a client without knowledge of the
    server's state would. alive() raises if waiting is pointless."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            (answer,) = ask(port, [data])
            if answer.status != 503:
                return answer
        except ConnectionError:
            pass
        alive()
        time.sleep(pause_s)
    raise BenchError(f"the server did not answer within {timeout_s} s")


def get(port, path):
    """Returns the body of a GET."""
    data = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    recorder = asyncio.run(_exchange(port, data))
    head, _, body = b"".join(data for _, data in recorder.received).partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise BenchError(f"GET {path}: {head!r}")
    return body.decode()
