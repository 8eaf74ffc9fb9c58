"""Tests of allowed_token_ids and bad_words, which keep tokens out of answers."""
import re

import httpx
import pytest



def post(server, path="/v1/completions", **fields):
    body = {} if "messages" in fields else {"prompt": [1, 2, 3]}
    body |= {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True, **fields}
    return httpx.post(server.http + path, json=body, timeout=60)


def tokens(server, **fields):
    answer = post(server, **fields)
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in answer.json()["choices"]]


def step_by_step(server, forbidden, count):
    """Returns a greedy answer, of which each token is asked for alone. `forbidden`: from the tokens so far to what may not follow."""
    so_far = []
    for _ in range(count):
        bias = {str(token): -100 for token in forbidden(so_far)}
        so_far += tokens(server, prompt=[1, 2, 3, *so_far], max_tokens=1, logit_bias=bias)[0]
    return so_far


def test_only_the_allowed_tokens_are_sampled(tiny_server):
    allowed = [3, 97, 200, 256]
    for seed in range(4):
        for answer in tokens(tiny_server, allowed_token_ids=allowed, temperature=2, seed=seed, n=3):
            assert len(answer) == 24 and set(answer) <= set(allowed)
    assert tokens(tiny_server, allowed_token_ids=allowed) == [step_by_step(tiny_server, lambda _: set(range(258)) - set(allowed), 24)]


def test_all_tokens_allowed_change_nothing(tiny_server):
    for fields in ({}, {"temperature": 1.5, "seed": 3, "n": 4, "logprobs": 2}):
        free, bound = post(tiny_server, **fields).json(), post(tiny_server, **fields, allowed_token_ids=list(range(258))).json()
        assert [choice["token_ids"] for choice in free["choices"]] == [choice["token_ids"] for choice in bound["choices"]]
        assert [choice["logprobs"] for choice in free["choices"]] == [choice["logprobs"] for choice in bound["choices"]]


def test_bad_words_are_not_written_and_their_beginnings_are(tiny_server):
    (free,) = tokens(tiny_server)
    pairs = [(i, chr(a) + chr(b)) for i, (a, b) in enumerate(zip(free, free[1:])) if 32 < a < 127 and 32 < b < 127 and (a, b) not in zip(free[:i], free[1:i + 1])]
    assert pairs, "the model writes no two ASCII characters"
    at, word = pairs[0]
    (bound,) = tokens(tiny_server, bad_words=[word])
    assert bound[:at + 1] == free[:at + 1] and bound[at + 1] != free[at + 1]
    first, last = word.encode()
    assert bound == step_by_step(tiny_server, lambda so_far: [last] if so_far[-1:] == [first] else [], 24)
    one = chr(free[at])
    assert tokens(tiny_server, bad_words=[one]) == [step_by_step(tiny_server, lambda _: [free[at]], 24)]
    # The prompt is no part of what is compared.
    prompt = [1, 2, 3, *free[:at + 1]]
    assert tokens(tiny_server, prompt=prompt, bad_words=[word])[0][0] == free[at + 1]


def test_bounds_and_grammars_hold_together(tiny_server):
    for seed in range(6):
        fields = {"ignore_eos": False, "temperature": 2, "seed": seed, "n": 2, "structured_outputs": {"regex": "[abc]{12}"}}
        for answer in tokens(tiny_server, **fields, bad_words=["ab", "c"]):
            text = bytes(answer[:12]).decode()
            assert set(text) <= {"a", "b"} and "ab" not in text
        for answer in tokens(tiny_server, **fields, allowed_token_ids=[*b"ab", 256]):
            assert set(answer[:12]) <= set(b"ab")


def test_min_tokens_hold_beside_bounds(tiny_server):
    fields = {"ignore_eos": False, "temperature": 2, "allowed_token_ids": [97, 256]}
    lengths = {len(answer) for seed in range(8) for answer in tokens(tiny_server, **fields, min_tokens=5, seed=seed, n=4)}
    assert min(lengths) > 5, lengths
    assert min(len(answer) for answer in tokens(tiny_server, **fields, seed=1, n=16)) <= 5


@pytest.mark.parametrize("fields, says", [
    ({"allowed_token_ids": []}, "allowed_token_ids has 0 ids; allowed: 1 to 258"),
    ({"allowed_token_ids": [258]}, "allowed_token_ids[0] is 258; allowed: 0 to 257"),
    ({"bad_words": [""]}, "bad_words[0] has 0 bytes"),
    ({"bad_words": ["x", "  "]}, "bad_words[1] has no tokens"),
    ({"allowed_token_ids": [120], "bad_words": ["x"]}, "allowed_token_ids: no token is left that the answer could begin with"),
    ({"allowed_token_ids": [256], "min_tokens": 1, "ignore_eos": False}, "allowed_token_ids: no token is left that the answer could begin with, beside min_tokens"),
    ({"allowed_token_ids": [120], "ignore_eos": False, "structured_outputs": {"choice": ["yes"]}},
     "allowed_token_ids: no token is left that the answer could begin with, beside structured_outputs.choice"),
])
def test_what_cannot_be_is_refused_by_name(tiny_server, fields, says):
    refused = post(tiny_server, **fields)
    assert refused.status_code == 400 and says in refused.json()["error"]["message"], refused.text


def test_bounds_that_meet_later_end_the_row_alone(tiny_server):
    refused = post(tiny_server, ignore_eos=False, structured_outputs={"choice": ["yes"]}, bad_words=["es"])
    assert refused.status_code >= 400 and "may come next" in refused.json()["error"]["message"], refused.text
    assert tokens(tiny_server)


@pytest.mark.model
def test_words_of_a_real_vocabulary(model_server):
    fields = {"prompt": "The capital of France is", "max_tokens": 12}
    assert "Paris" in post(model_server, **fields).json()["choices"][0]["text"]
    assert "Paris" not in post(model_server, **fields, bad_words=["Paris"]).json()["choices"][0]["text"]
    chat = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 20}
    content = lambda **more: post(model_server, "/v1/chat/completions", **chat, **more).json()["choices"][0]["message"]["content"]
    word = max(re.findall("(?<= )[A-Za-z]+", content()), key=len)  # on the CPU Marseillaise, of several tokens
    assert word not in content(bad_words=[word])
