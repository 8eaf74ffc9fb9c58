"""Tests of the HTTP endpoint with the real `openai` client, as an application uses it."""
import threading

import openai
import pytest

from daemon import metrics

MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]


def client_of(server, key="none"):
    return openai.OpenAI(base_url=server.http + "/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def fake(fake_server):
    return client_of(fake_server)


def test_models(fake):
    models = fake.models.list().data
    assert [model.id for model in models] == ["fake"]
    assert fake.models.retrieve("fake").object == "model"


def test_a_completion_whole_and_streamed(fake):
    kwargs = dict(model="fake", prompt="Hello", max_tokens=12, seed=3, extra_body={"ignore_eos": True})
    whole = fake.completions.create(**kwargs)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    chunks = list(fake.completions.create(**kwargs, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_chat_whole_and_streamed(fake):
    kwargs = dict(model="fake", messages=MESSAGES, max_completion_tokens=12, seed=3, extra_body={"ignore_eos": True})
    whole = fake.chat.completions.create(**kwargs)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(fake.chat.completions.create(**kwargs, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == whole.usage.total_tokens
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    # A response's message can be sent back as part of the next request.
    again = fake.chat.completions.create(
        model="fake", max_tokens=2, messages=[*MESSAGES, whole.choices[0].message, *MESSAGES])
    assert again.usage.prompt_tokens > whole.usage.prompt_tokens


def test_several_choices_of_one_prompt(fake):
    kwargs = dict(model="fake", messages=MESSAGES, max_completion_tokens=8, n=3, seed=4, extra_body={"ignore_eos": True})
    whole = fake.chat.completions.create(**kwargs)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    one = fake.chat.completions.create(**{**kwargs, "n": 1})
    assert one.choices[0].message.content == texts[0]
    assert whole.usage.prompt_tokens == one.usage.prompt_tokens and whole.usage.completion_tokens == 24
    streamed = ["", "", ""]
    for chunk in fake.chat.completions.create(**kwargs, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_logprobs(fake):
    chat = fake.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=5,
                                        extra_body={"ignore_eos": True})
    content = chat.choices[0].logprobs.content
    assert len(content) == 3 and all(len(entry.top_logprobs) == 5 for entry in content)
    assert all(entry.logprob <= 0 and isinstance(entry.bytes, list) for entry in content)
    text = fake.completions.create(model="fake", prompt="Hi", max_tokens=3, logprobs=5, echo=True)
    lists = text.choices[0].logprobs
    assert lists.token_logprobs[0] is None and lists.tokens[:2] == ["H", "i"]


@pytest.mark.parametrize("kwargs, kind, param, code", [
    (dict(temperature=3), openai.BadRequestError, "temperature", "invalid_value"),
    (dict(n=0), openai.BadRequestError, "n", "invalid_value"),
    (dict(presence_penalty=3), openai.BadRequestError, "presence_penalty", "invalid_value"),
    (dict(modalities=["audio"]), openai.BadRequestError, "modalities", "unsupported_parameter"),
    (dict(extra_body={"tempreature": 1}), openai.BadRequestError, "tempreature", "unknown_parameter"),
    (dict(model="gpt-4"), openai.NotFoundError, "model", "model_not_found"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_typed(fake, kwargs, kind, param, code, stream):
    with pytest.raises(kind) as error:
        fake.chat.completions.create(**{"model": "fake", "messages": MESSAGES, "max_tokens": 2, **kwargs}, stream=stream)
    assert (error.value.param, error.value.code, error.value.type) == (param, code, "invalid_request_error")


def test_a_wrong_key_is_an_authentication_error(start_server):
    server = start_server("--device", "fake", "--api-key", "sesame")
    with pytest.raises(openai.AuthenticationError):
        client_of(server, "wrong").models.list()
    assert client_of(server, "sesame").models.list().data


def test_a_full_server_is_a_rate_limit_error(start_server):
    server = start_server("--device", "fake", "--max-num-seqs", "1", "--max-waiting", "1", "--fake-step-us", "5000")
    client = client_of(server)
    outcomes = []

    def ask():
        try:
            client.completions.create(model="fake", prompt="x", max_tokens=300, extra_body={"ignore_eos": True})
            outcomes.append(None)
        except openai.APIStatusError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [outcome for outcome in outcomes if outcome is not None]
    assert errors and all(isinstance(error, openai.RateLimitError) for error in errors)
    assert all(int(error.response.headers["retry-after"]) >= 1 for error in errors)


def test_an_error_inside_a_stream_is_raised(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "10000", "--drain-timeout", "1")
    stream = client_of(server).completions.create(model="fake", prompt="x", max_tokens=5000, stream=True,
                                                  extra_body={"ignore_eos": True})
    next(stream)
    server.signal()
    with pytest.raises(openai.APIError, match="shutting down"):
        for _ in stream:
            pass
    assert server.wait() == 0


@pytest.mark.model
def test_the_model_answers(model_server):
    client = client_of(model_server)
    model = client.models.list().data[0].id
    kwargs = dict(model=model, messages=MESSAGES, temperature=0, max_tokens=16)
    whole = client.chat.completions.create(**kwargs)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(client.chat.completions.create(**kwargs, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    text = client.completions.create(model=model, prompt="The capital of France is", temperature=0, max_tokens=4)
    assert text.choices[0].text.startswith(" Paris")


@pytest.mark.model
def test_prompt_logprobs_are_those_of_an_echo(model_server):
    client = client_of(model_server)
    model = client.models.list().data[0].id
    for prompt in ("The capital of France is Paris.", [504, 3575, 282, 4649]):
        asked = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        echo = client.completions.create(**asked, echo=True, logprobs=3).choices[0].logprobs
        [choice] = client.completions.create(**asked, extra_body={"prompt_logprobs": 3, "return_token_ids": True}).choices
        assert choice.logprobs is None and choice.prompt_logprobs[0] is None
        assert len(choice.prompt_logprobs) == len(choice.prompt_token_ids) == len(echo.tokens) - 1
        for i, token in enumerate(choice.prompt_token_ids[1:], 1):
            entries = choice.prompt_logprobs[i]
            assert entries[str(token)]["logprob"] == echo.token_logprobs[i]
            assert {entry["decoded_token"]: entry["logprob"] for entry in entries.values()} == echo.top_logprobs[i]
            ranked = sorted(entries.values(), key=lambda entry: entry["rank"])
            assert [entry["rank"] for entry in ranked[:3]] == [1, 2, 3]
            assert ranked == sorted(ranked, key=lambda entry: -entry["logprob"])
    chat = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1, extra_body={"prompt_logprobs": 0})
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens and chat.choices[0].logprobs is None


@pytest.mark.model
def test_the_choices_of_a_prompt_differ_and_come_again(model_server):
    client = client_of(model_server)
    kwargs = dict(model=client.models.list().data[0].id, prompt="Once upon a time", max_tokens=16, seed=1, temperature=1.0)
    texts = [choice.text for choice in client.completions.create(**kwargs, n=4).choices]
    assert len(set(texts)) == 4
    assert [choice.text for choice in client.completions.create(**kwargs, n=2).choices] == texts[:2]


@pytest.mark.model
def test_a_prompt_is_worked_through_once_for_all_its_choices(model_server):
    client = client_of(model_server)
    prompt = "A prompt of more than one block, which nobody has sent before: " + "one two three four five " * 8
    kwargs = dict(model=client.models.list().data[0].id, prompt=prompt, max_tokens=8, seed=1, n=6,
                  extra_body={"ignore_eos": True})
    before = metrics(model_server)
    whole = client.completions.create(**kwargs, best_of=8, temperature=1.0)
    after = metrics(model_server)
    tokens = whole.usage.prompt_tokens
    assert tokens > 32 and whole.usage.prompt_tokens_details.cached_tokens == 0
    assert whole.usage.completion_tokens == 8 * 8 and len(whole.choices) == 6
    grown = {name: after[name] - before[name] for name in after}
    assert grown["vllm:prompt_tokens_total"] == tokens
    assert grown["vllm:generation_tokens_total"] == 64
    assert grown["vllm:prefix_cache_queries_total"] == tokens
    # The steps processed the prompt, its last token for each of the other seven, and the generated tokens.
    assert tokens + 7 < grown["vllm:iteration_tokens_total_sum"] <= tokens + 7 + 8 * 8

    stream = client.completions.create(**{**kwargs, "n": 3}, temperature=1.0, stream=True, echo=True, logprobs=1)
    texts, offsets = [""] * 3, [[], [], []]
    for part in stream:
        for choice in part.choices:
            texts[choice.index] += choice.text
            if choice.logprobs:
                offsets[choice.index] += choice.logprobs.text_offset
    answers = client.completions.create(**{**kwargs, "n": 3}, temperature=1.0, echo=True, logprobs=1).choices
    assert texts == [choice.text for choice in answers] and all(text.startswith(prompt) for text in texts)
    assert [len(each) for each in offsets] == [tokens + 8] * 3
    assert [choice.logprobs.token_logprobs[:tokens] for choice in answers[1:]] == \
        [answers[0].logprobs.token_logprobs[:tokens]] * 2


@pytest.mark.model
def test_the_best_candidates_come_first(model_server):
    client = client_of(model_server)
    kwargs = dict(model=client.models.list().data[0].id, prompt="The best thing about autumn is", max_tokens=6, seed=3,
                  temperature=1.0, logprobs=0, extra_body={"ignore_eos": True})

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    everything = client.completions.create(**kwargs, n=5).choices
    best = client.completions.create(**kwargs, n=2, best_of=5).choices
    ranked = sorted(everything, key=mean, reverse=True)
    assert [choice.text for choice in best] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best] == [0, 1]
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(**kwargs, n=2, best_of=5, stream=True)
    assert error.value.param == "best_of"


@pytest.mark.model
def test_penalties_and_biases_change_what_is_said(model_server):
    client = client_of(model_server)
    kwargs = dict(model=client.models.list().data[0].id, prompt="yes yes yes yes yes yes", temperature=0, max_tokens=24)

    def tokens(extra=None, **more):
        answer = client.completions.create(**kwargs, **more, logprobs=0,
                                           extra_body={"ignore_eos": True, "return_token_ids": True, **(extra or {})})
        return answer.choices[0].token_ids, answer.choices[0].logprobs.token_logprobs

    plain, _ = tokens()
    assert len(set(plain)) < 20
    for extra, more in (({"repetition_penalty": 10}, {}), ({}, {"frequency_penalty": 2, "presence_penalty": 2})):
        strict, _ = tokens(extra, **more)
        assert strict != plain and len(set(strict)) > len(set(plain))
    forced, raw = tokens(logit_bias={str(plain[0]): -100, "500": 100})
    assert forced == [500] * 24
    assert max(raw) < -0.5  # the model's own values, before the bias
    assert tokens({"typical_p": 0.5}, seed=1)[0] == plain  # greedy
    assert tokens({"typical_p": 0.9, "temperature": 1.0}, seed=1) == tokens({"typical_p": 0.9, "temperature": 1.0}, seed=1)


@pytest.mark.model
def test_stop_strings_never_show_and_are_named(model_server):
    client = client_of(model_server)
    kwargs = dict(model=client.models.list().data[0].id, prompt="Count: 1, 2, 3, 4, 5,", temperature=0, max_tokens=40)
    text = client.completions.create(**kwargs).choices[0].text
    stop = text[5:9]
    for stream in (False, True):
        answer = client.completions.create(**kwargs, stop=[stop], stream=stream)
        parts = list(answer) if stream else [answer]
        assert "".join(part.choices[0].text for part in parts) == text[:text.index(stop)]
        assert parts[-1].choices[0].finish_reason == "stop"
        assert parts[-1].choices[0].stop_reason == stop


@pytest.mark.model
def test_logprobs_of_the_model_agree_between_the_two_endpoints(model_server):
    client = client_of(model_server)
    model = client.models.list().data[0].id
    chat = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=6, logprobs=True,
                                          top_logprobs=3, extra_body={"return_token_ids": True, "ignore_eos": True})
    content = chat.choices[0].logprobs.content
    assert [entry.token for entry in content] == [entry.top_logprobs[0].token for entry in content]
    text = client.completions.create(model=model, prompt=chat.prompt_token_ids, temperature=0, max_tokens=6,
                                     logprobs=3, extra_body={"ignore_eos": True})
    lists = text.choices[0].logprobs
    assert lists.token_logprobs == [entry.logprob for entry in content]
    assert [bytes(entry.bytes).decode() for entry in content] == lists.tokens


@pytest.mark.model
def test_emoji_come_whole_in_every_chunk(model_server):
    client = client_of(model_server)
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Repeat exactly: 🙂🚀🎉 漢字 한국어"}]
    kwargs = dict(model=model, messages=messages, temperature=0, max_tokens=40, logprobs=True)
    whole = client.chat.completions.create(**kwargs)
    chunks = list(client.chat.completions.create(**kwargs, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert any(ord(character) > 0xffff for character in text), f"no emoji, whose bytes are in several tokens: {text}"
    assert "\ufffd" not in text[:-1]  # the last one may be cut short
    spoken = b"".join(bytes(e.bytes) for e in whole.choices[0].logprobs.content)
    assert spoken.decode(errors="replace").startswith(text[:5])
