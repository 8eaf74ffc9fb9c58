"""Drafts: answers have the same bits with and without them, whatever else a request asks for."""
import concurrent.futures
import json
import random

import httpx
import pytest

from daemon import device_flags, metrics, sanitized
from tiny_folders import LETTERS, make_tiny_folder

MEMORY = {"llama": "1MiB", "gemma3": "1MiB", "qwen3_5": "2MiB"}
NONE = ("--speculative-config", '{"method": "none"}')
REQUESTS = 60 if sanitized() else 250  # of each model
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}}, "required": ["name", "count"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: make_tiny_folder(name, tmp_path_factory) for name in ("llama", "gemma3", "qwen3_5")}


@pytest.fixture
def serve(start_server, folders):
    # So few blocks that sequences are preempted, and others begin from cached ones.
    return lambda name, *flags: start_server("--model", str(folders[name]), "--kv-cache-memory", MEMORY[name], "--max-num-seqs", "20",
                                             "--max-num-batched-tokens", "256", *device_flags(), *flags)


def repeating(draw, length):
    """Returns a text that says the same again and again, with changes."""
    phrase = "".join(draw.choice(LETTERS) for _ in range(draw.randint(5, 40)))
    text = ""
    while len(text) < length:
        text += phrase if draw.random() < 0.8 else draw.choice(LETTERS)
    return text[:length]


def mixed_request(number):
    draw = random.Random(number)
    body = {"prompt": repeating(draw, draw.randint(1, 600)), "max_tokens": draw.choice([1, 2, 7, 40, 120]), "seed": number,
            "temperature": draw.choice([0, 0, 0.6, 1])}
    some = lambda share, **fields: body.update(fields) if draw.random() < share else None
    some(0.3, logprobs=draw.randint(0, 5))
    some(0.2, n=draw.randint(2, 3))
    some(0.2, repetition_penalty=1.2)
    some(0.2, frequency_penalty=0.7, presence_penalty=0.3)
    some(0.2, stop=[draw.choice(LETTERS) + draw.choice(LETTERS)])
    some(0.2, ignore_eos=True)
    some(0.1, top_p=0.8, top_k=20)
    some(0.1, min_tokens=1)
    some(0.1, echo=True)
    if "ignore_eos" not in body and "min_tokens" not in body and "echo" not in body:
        some(0.15, structured_outputs={"json": SCHEMA})
    some(0.1, logit_bias={"101": 5, "32": -100})
    some(0.1, priority=draw.randint(-1, 1))
    some(0.1, prompt="shared by many " * 9)
    if body.get("n", 1) == 1:
        some(0.1, cancelled=draw.randint(1, 6))
    return body


def answer_to(server, body):
    """Returns the choices of a request; of one that is cancelled after so many events nothing, since time tells how far it gets."""
    body = dict(body)
    events = body.pop("cancelled", None)
    if events is None:
        answer = httpx.post(server.http + "/v1/completions", json=body, timeout=300)
        assert answer.status_code == 200, (body, answer.text)
        return answer.json()["choices"]
    with httpx.stream("POST", server.http + "/v1/completions", json=body | {"stream": True}, timeout=300) as answer:
        for _, _ in zip(range(events), answer.iter_lines()):
            pass


def answers_of(server, clients=32, requests=REQUESTS):
    with concurrent.futures.ThreadPoolExecutor(clients) as threads:
        return list(threads.map(lambda number: answer_to(server, mixed_request(number)), range(requests)))


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_5"])
def test_answers_are_the_same_bits(serve, name):
    plain = answers_of(serve(name, *NONE))
    server = serve(name)
    # Few at once check long drafts; of many at once some are preempted, more or fewer as steps take time.
    drafted = [*answers_of(server, 2, 60), *answers_of(server)]
    for number, (one, other) in enumerate(zip([*plain[:60], *plain], drafted)):
        assert json.dumps(one) == json.dumps(other), mixed_request(number if number < 60 else number - 60)
    counted = metrics(server)
    assert counted["vllm:spec_decode_num_accepted_tokens_total"] > 0
    assert counted["vllm:spec_decode_num_draft_tokens_total"] >= counted["vllm:spec_decode_num_accepted_tokens_total"]
