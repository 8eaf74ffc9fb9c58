"""Tests that drafts change no answer, that predictions are followed and counted, and that both can be turned off."""
import os

import httpx
import pytest

from daemon import metrics, run

CODE = "".join(f"def add_{name}(first, second):\n    return first + second  # {name}\n\n" for name in ("one", "two", "three", "four"))
EDIT = [{"role": "user", "content": f"Write this program again, with `sum` in the place of `add`:\n{CODE}"}]


def ask(server, **body):
    body = {"messages": EDIT, "max_tokens": 60} | body
    response = httpx.post(server.http + "/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def drafted(server):
    """Returns the tokens of drafts, and those of them that were right."""
    found = metrics(server)
    return found["vllm:spec_decode_num_draft_tokens_total"], found["vllm:spec_decode_num_accepted_tokens_total"]


SAMPLED = [
    {"temperature": 0},
    {"temperature": 1, "seed": 7},
    {"temperature": 0.8, "seed": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "top_p": 0.9},
    {"temperature": 0.5, "seed": 2, "logprobs": True, "top_logprobs": 3},
    {"temperature": 1, "seed": 3, "n": 3},
    {"temperature": 0, "stop": ["second", "three"]},
]


def check_answers(server, body):
    plain = ask(server, speculative=False, **body)
    whole = plain["choices"][0]["message"]["content"]
    # What is predicted is right, wrong, or right from some place on.
    for prediction in (None, whole, CODE, "x" + whole[len(whole) // 2:]):
        more = {} if prediction is None else {"prediction": {"type": "content", "content": prediction}}
        drafts = ask(server, **more, **body)
        assert drafts["choices"] == plain["choices"], prediction
        for counts in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert drafts["usage"][counts] == plain["usage"][counts]


@pytest.mark.parametrize("body", SAMPLED, ids=str)
def test_drafts_change_no_answer(fake_server, body):
    before = drafted(fake_server)
    check_answers(fake_server, {"ignore_eos": True} | body)
    after = drafted(fake_server)
    assert after[0] > before[0] and after[1] > before[1]


@pytest.mark.model
@pytest.mark.parametrize("body", SAMPLED, ids=str)
def test_drafts_change_no_answer_of_the_model(model_server, body):
    check_answers(model_server, body)


def test_a_prediction_is_counted_by_what_the_answer_has(fake_server):
    body = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    whole = ask(fake_server, **body)
    assert "accepted_prediction_tokens" not in whole["usage"]["completion_tokens_details"]
    text = whole["choices"][0]["message"]["content"]

    def counts(content, **more):
        details = ask(fake_server, prediction={"type": "content", "content": content}, **body | more)["usage"]["completion_tokens_details"]
        return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]

    size = len(text)  # a token is a byte
    assert counts(text) == (size, 0)
    assert counts([{"type": "text", "text": text}]) == (size, 0)
    assert counts(text, speculative=False) == (size, 0)
    assert counts(text, max_tokens=10) == (10, size - 10)
    assert counts(text, n=2) == (2 * size, 0)
    assert counts("\0" * 5) == (0, 5)
    assert counts("\0" * 5 + text) == (size, 5)


def test_nothing_is_drafted_where_it_is_off(start_server):
    server = start_server("--device", "fake", "--speculative-config", '{"method": "none"}')
    body = {"temperature": 0, "ignore_eos": True}
    text = ask(server, **body)["choices"][0]["message"]["content"]
    assert ask(server, prediction={"type": "content", "content": text}, **body)["choices"][0]["message"]["content"] == text
    assert drafted(server) == (0, 0)


def test_drafts_are_as_long_as_they_may_be(start_server):
    server = start_server("--device", "fake", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}')
    body = {"temperature": 0, "ignore_eos": True}
    text = ask(server, **body)["choices"][0]["message"]["content"]
    ask(server, prediction={"type": "content", "content": text}, **body)
    lines = httpx.get(server.admin + "/metrics").text.splitlines()
    places = {line.split('position="')[1].split('"')[0]: float(line.split()[-1])
              for line in lines if line.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total{")}
    assert len(places) == 16 and places["0"] > 0 and places["1"] > 0
    assert sum(places.values()) == places["0"] + places["1"] == drafted(server)[1]


def test_another_method_is_refused_by_name():
    status, output = run("--device", "fake", "--speculative-config", '{"method": "eagle3", "model": "x"}')
    assert status == 1 and 'method is "eagle3"; allowed: ngram, suffix, none' in output


@pytest.mark.model
def test_a_model_that_takes_no_drafts_is_named():
    status, output = run("--model", os.environ["MILLRACE_MINILM"], "--speculative-config", '{"method": "ngram"}')
    assert status == 1 and "speculative-config: this model takes no drafts on this device" in output
