"""Events of the prefix cache: read by the schema that vLLM publishes, and what a router makes of them."""
import hashlib
import json
import random
import typing

import httpx
import msgspec
import pytest
import zmq

from daemon import free_port, metrics, run, wait_until

BLOCK = 16
TOPIC = "kv@pod@fake"
END = (2**64 - 1, b"")


class Event(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """As vllm/distributed/kv_events.py has it since 0.23; fields that it does not know are refused."""


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[typing.Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(Batch)


class Listener:
    """Follows a replica's cache by its events. As llm-d's indexer does, it takes the replica's hashes for names, and knows blocks by keys
    of its own, made of their tokens, extra keys and parents."""

    def __init__(self, endpoint, replay=None):
        self.events, self.asker = zmq.Context.instance().socket(zmq.SUB), zmq.Context.instance().socket(zmq.DEALER)
        for socket in (self.events, self.asker):
            socket.linger = 0
            socket.rcvtimeo = 60_000
        self.events.subscribe("kv@")
        self.events.connect(endpoint)
        if replay:
            self.asker.connect(replay)
        self.keys, self.blocks, self.next, self.last, self.read, self.gaps, self.snapshots = {}, {}, None, None, [], 0, 0

    def close(self):
        self.events.close()
        self.asker.close()

    def apply(self, payload):
        batch = DECODER.decode(payload)
        assert batch.data_parallel_rank == 0 and batch.ts > 1.6e9
        self.read += batch.events
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.keys.clear()
                self.blocks.clear()
                continue
            assert event.medium == "GPU" and event.group_idx == 0
            if isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    del self.blocks[name]
                continue
            assert len(event.token_ids) == event.block_size * len(event.block_hashes)
            key = self.keys.get(event.parent_block_hash)
            for i, name in enumerate(event.block_hashes):
                tokens = event.token_ids[i * event.block_size:(i + 1) * event.block_size]
                extra = event.extra_keys[i] if event.extra_keys else None
                key = hash((key, tuple(tokens), tuple(extra or ())))
                assert name not in self.blocks
                self.keys[name] = self.blocks[name] = key

    def ask(self, request):
        """Returns (number, payload) of each message that the request gets."""
        self.asker.send_multipart([b"", request])
        messages = []
        while True:
            delimiter, topic, number, payload = self.asker.recv_multipart()
            message = int.from_bytes(number, "big"), payload
            if message == END:
                assert (delimiter, topic) == (b"", b"")
                return messages
            assert (delimiter, topic) == (b"", TOPIC.encode())
            messages.append(message)

    def take_snapshot(self):
        self.snapshots += 1
        for self.next, payload in self.ask(b"snapshot"):
            self.apply(payload)

    def recover(self):
        """Has what is missing sent again, or, where it is no longer kept, everything."""
        messages = self.ask((self.next or 0).to_bytes(8, "big"))
        if [number for number, _ in messages] != list(range(self.next or 0, (self.next or 0) + len(messages))):
            return self.take_snapshot()
        for number, payload in messages:
            self.apply(payload)
            self.next = number + 1

    def hear(self, lost=lambda: False):
        """Takes what has come; `lost` says of each message whether this listener misses it."""
        while True:
            try:
                topic, number, payload = self.events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            number = int.from_bytes(number, "big")
            assert topic == TOPIC.encode()
            if lost():
                continue
            if self.last is not None and number <= self.last:  # a new server's: what was known of the other one is void
                self.next = None
            self.last = number
            if self.next is not None and number < self.next:  # a snapshot or a replay had it
                continue
            if number == (self.next or 0):
                self.apply(payload)
                self.next = number + 1
            else:
                self.gaps += 1
                self.recover()

    def cached(self, tokens):
        """Returns how many leading tokens of a prompt the replica has."""
        key, known = None, set(self.blocks.values())
        for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
            key = hash((key, tuple(tokens[begin:begin + BLOCK]), ()))
            if key not in known:
                return begin
        return len(tokens) // BLOCK * BLOCK


@pytest.fixture
def replica(start_server):
    """Returns replica(*flags, **config), which starts a server and gives it and its endpoints."""

    def start(*flags, **config):
        endpoint, replay = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
        config = {"enable_kv_cache_events": True, "topic": TOPIC, "endpoint": endpoint.replace("127.0.0.1", "*"),
                  "replay_endpoint": replay.replace("127.0.0.1", "*"), **config}
        server = start_server("--device", "fake", "--fake-step-us", "0", "--kv-events-config", json.dumps(config), *flags)
        return server, endpoint, replay

    yield start


def complete(server, prompt, max_tokens=1, **headers):
    """Returns how many of the prompt's tokens were cached, and the answer's tokens."""
    answer = httpx.post(server.http + "/v1/completions", timeout=60, headers=headers,
                        json={"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    details = answer.json()["usage"]["prompt_tokens_details"] or {}
    return details.get("cached_tokens", 0), answer.json()["choices"][0]["token_ids"]


def cached_blocks(server):
    lines = httpx.get(server.admin + "/metrics").text.split('millrace_kv_cache_blocks{', 1)[1].splitlines()
    return next(float(line.split()[-1]) for line in lines if 'state="cached"' in line)


def numbers(count, seed):
    return random.Random(seed).choices(range(1, 250), k=count)


def test_events_are_those_of_the_public_schema(replica):
    server, endpoint, replay = replica()
    listener = Listener(endpoint, replay)
    prompt = numbers(40, 1)
    _, answer = complete(server, prompt, max_tokens=30)
    wait_until(lambda: listener.recover() or len(listener.blocks) == 4)
    assert isinstance(listener.read[0], AllBlocksCleared)
    stored = [event for event in listener.read if isinstance(event, BlockStored)]
    assert [token for event in stored for token in event.token_ids] == (prompt + answer)[:64]
    assert {event.block_size for event in stored} == {BLOCK}
    assert {event.kv_cache_spec_kind for event in stored} == {"full_attention"}
    names = [name for event in stored for name in event.block_hashes]
    assert stored[0].parent_block_hash is None
    assert [event.parent_block_hash for event in stored[1:]] == [names[names.index(event.block_hashes[0]) - 1] for event in stored[1:]]
    assert listener.cached(prompt + answer) == 64
    assert complete(server, prompt)[0] == 32
    listener.close()


def test_a_listener_that_comes_late_or_misses_messages_knows_the_cache(replica):
    server, endpoint, replay = replica("--kv-cache-memory", "4MiB", buffer_steps=4)
    listeners = [Listener(endpoint, replay) for _ in range(3)]
    faithful, lossy, late = listeners
    faithful.recover()
    chance = random.Random(3)
    for i in range(120):
        begin = numbers(chance.choice((0, 100, 300)), chance.randrange(6))
        complete(server, begin + numbers(chance.randrange(1, 200), 100 + i))
        faithful.hear()
        lossy.hear(lost=lambda: chance.random() < 0.7)
        if i == 100:
            late.take_snapshot()
        elif i > 100:
            late.hear()

    def is_equal():
        for listener in listeners:
            listener.hear()
            listener.recover()  # the last message may have been lost
        return all(len(listener.blocks) == cached_blocks(server) and set(listener.blocks) == set(faithful.blocks) for listener in listeners)

    wait_until(is_equal)
    assert any(isinstance(event, BlockRemoved) for event in faithful.read)
    assert lossy.gaps > 0 and lossy.snapshots > 0
    for listener in listeners:
        listener.close()


def test_a_new_server_at_the_address_is_seen(replica):
    server, endpoint, replay = replica()
    listener = Listener(endpoint, replay)
    listener.recover()
    for seed in range(60):
        complete(server, numbers(40, seed))
        listener.hear()
    wait_until(lambda: listener.hear() or len(listener.blocks) == 120)
    server.stop()
    server, _, _ = replica(endpoint=endpoint.replace("127.0.0.1", "*"), replay_endpoint=replay.replace("127.0.0.1", "*"))
    seeds = iter(range(1000, 2000))

    def is_equal():
        complete(server, numbers(40, next(seeds)))
        listener.hear()
        return len(listener.blocks) == cached_blocks(server)

    wait_until(is_equal)
    assert listener.cached(numbers(40, 1000)) == 32 and listener.cached(numbers(40, 0)) == 0
    listener.close()


def test_salts_are_told_apart_and_not_told(replica, tmp_path):
    keys = [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **more}
            for name, more in (("first", {}), ("second", {"cache_salt": "a secret word"}))]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": keys}))
    server, endpoint, replay = replica("--keys", str(tmp_path / "keys.json"))
    prompt = numbers(40, 4)
    for key in keys:
        assert complete(server, prompt, Authorization=f"Bearer {key['name']}")[0] == 0
    listener = Listener(endpoint, replay)
    wait_until(lambda: listener.take_snapshot() or len(listener.blocks) == 4)
    payloads = b"".join(payload for _, payload in listener.ask(b"snapshot"))
    assert b"secret" not in payloads and b"first" not in payloads
    salts = [event.extra_keys[0] for event in DECODER.decode(payloads).events if isinstance(event, BlockStored)]
    expected = [[hashlib.sha256(f"kv-events:{salt}".encode()).hexdigest()[:32]] for salt in ("tenant:first", "salt:a secret word")]
    assert sorted(salts) == sorted(expected)
    assert listener.cached(prompt) == 0  # who sends no key finds none of these
    listener.close()


def serve_sessions(servers, choose):
    """Serves five chats of four turns, one turn of each after the other. Returns the tokens that were cached."""
    cached, chats = 0, [numbers(60, 10 + i) for i in range(5)]
    for turn in range(4):
        for i, chat in enumerate(chats):
            replica = choose(chat, turn * len(chats) + i)
            hits, answer = complete(servers[replica], chat, max_tokens=8)
            cached += hits
            chats[i] = chat + answer + numbers(40, 1000 + 10 * turn + i)
    return cached


def test_a_router_that_follows_two_replicas_hits_more_than_turns_do(replica):
    by_turns = serve_sessions([replica()[0] for _ in range(2)], lambda chat, count: count % 2)

    started = [replica() for _ in range(2)]
    servers = [server for server, _, _ in started]
    listeners = [Listener(*endpoints) for _, *endpoints in started]
    sent = [[], []]

    def choose(chat, count):
        for listener, prompts in zip(listeners, sent):
            wait_until(lambda: listener.recover() or all(listener.cached(prompt) == len(prompt) // BLOCK * BLOCK for prompt in prompts))
        scores = [listener.cached(chat) for listener in listeners]
        # Where neither has more, the one that was sent less.
        replica = max(range(2), key=lambda i: (scores[i], -len(sent[i]), -i))
        sent[replica].append(chat)
        return replica

    followed = serve_sessions(servers, choose)
    # Of a turn the whole blocks of the one before it can be cached, and of its answer but for the last token. By turns a chat comes to
    # the other replica each time, which has the turn before that one.
    assert followed == 5 * (64 + 112 + 160)
    assert by_turns == 5 * (64 + 112)
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("config, message", [
    ({"enable_kv_events": True}, "kv-events-config: enable_kv_events: is unknown; allowed: enable_kv_cache_events, publisher"),
    ({"enable_kv_cache_events": True, "endpoint": "http://x:1"}, 'kv-events-config: endpoint: is "http://x:1"; allowed: tcp://HOST:PORT'),
])
def test_what_is_wrong_ends_the_start(config, message):
    status, output = run("--device", "fake", "--kv-events-config", json.dumps(config))
    assert status == 1 and message in output, output


def test_a_port_that_is_taken_ends_the_start():
    listener = zmq.Context.instance().socket(zmq.PUB)
    port = listener.bind_to_random_port("tcp://127.0.0.1")
    status, output = run("--device", "fake", "--kv-events-config", json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://*:{port}"}))
    assert status == 1 and f"kv-events-config: endpoint: tcp://127.0.0.1:{port}: Address already in use" in output, output
    listener.close()


def test_the_log_says_where_they_are(replica):
    server, endpoint, replay = replica()
    log = server.log.read_text()
    assert f'KV events are published at {endpoint}, topic "{TOPIC}"; replay and snapshots at {replay}' in log
    assert "millrace_kv_event_batches_total" in metrics(server)
    assert "without a key" not in log


def test_the_log_warns_of_an_endpoint_that_others_reach(replica):
    port = free_port()
    server, _, _ = replica(replay_endpoint=f"tcp://0.0.0.0:{port}")
    assert f"KV events: whoever reaches tcp://0.0.0.0:{port} reads the tokens of all tenants' prompts, without a key" in server.log.read_text()


def test_without_the_setting_there_is_nothing(start_server):
    server = start_server("--device", "fake", "--kv-events-config", '{"enable_kv_cache_events": true, "publisher": "null"}')
    assert "KV events" not in server.log.read_text()
    assert "millrace_kv_event_batches_total" not in metrics(server)
