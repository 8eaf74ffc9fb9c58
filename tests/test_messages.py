"""Tests of /v1/messages with the real `anthropic` client. The fake device gives the answer that its flag says."""
import anthropic
import httpx
import pytest

TOOL = {"name": "get_weather", "description": "The weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
ANSWER = ('<think>It is a city.</think> Let me look. '
          '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>')


def client_of(server, key="none"):
    return anthropic.Anthropic(base_url=server.http, api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(start_server):
    return client_of(start_server("--device", "fake", "--fake-step-us", "0", "--fake-token-us", "0", "--fake-answer", ANSWER))


def test_blocks_whole_and_streamed(client):
    kwargs = dict(model="fake", max_tokens=300, messages=MESSAGES, tools=[TOOL], system="Be brief.")
    whole = client.messages.create(**kwargs)
    assert whole.stop_reason == "tool_use" and whole.role == "assistant"
    thinking, text, call = whole.content
    assert (thinking.thinking, text.text, call.name, call.input) == (
        "It is a city.", "Let me look.", "get_weather", {"city": "Paris"})
    with client.messages.stream(**kwargs) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
            "message_stop", "text", "thinking", "input_json"} <= kinds
    assert [block.to_dict(exclude_unset=False) | {"id": None} for block in final.content] == [
        block.to_dict(exclude_unset=False) | {"id": None} for block in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == "tool_use"


def test_a_conversation_with_calls_goes_on(client):
    first = client.messages.create(model="fake", max_tokens=300, messages=MESSAGES, tools=[TOOL])
    call = first.content[-1]
    result = {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]},
        {"type": "text", "text": "Go on."}]}
    second = client.messages.create(model="fake", max_tokens=3, tools=[TOOL],
                                    messages=[*MESSAGES, {"role": "assistant", "content": first.content}, result])
    assert second.stop_reason == "max_tokens"
    total = lambda usage: usage.input_tokens + usage.cache_read_input_tokens
    assert total(second.usage) > total(first.usage)


def test_tokens_are_counted_as_they_are_used(client):
    kwargs = dict(model="fake", messages=MESSAGES, tools=[TOOL], system="Be brief.")
    counted = client.messages.count_tokens(**kwargs).input_tokens
    used = client.messages.create(**kwargs, max_tokens=1).usage
    assert counted == used.input_tokens + used.cache_read_input_tokens


def test_a_stop_sequence_is_named(client):
    message = client.messages.create(model="fake", max_tokens=300, messages=MESSAGES, stop_sequences=["look"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "look")
    assert message.content[-1].text == "Let me "


def test_a_forced_call(start_server):
    client = client_of(start_server("--device", "fake", "--fake-answer", '{"city": "Rome"}}</tool_call>'))
    message = client.messages.create(model="fake", max_tokens=300, messages=MESSAGES, tools=[TOOL],
                                     tool_choice={"type": "tool", "name": "get_weather"})
    assert [(block.name, block.input) for block in message.content] == [("get_weather", {"city": "Rome"})]


def test_the_answer_goes_on_with_a_last_turn(client):
    message = client.messages.create(model="fake", max_tokens=5, messages=[*MESSAGES, {"role": "assistant", "content": "It"}])
    assert message.usage.output_tokens == 5


def test_a_budget_ends_the_thinking(client, start_server):
    kwargs = dict(model="fake", max_tokens=300, messages=MESSAGES)
    for budget in (2, 5):
        asked = kwargs | {"thinking": {"type": "enabled", "budget_tokens": budget}}
        whole = client.messages.create(**asked)
        assert whole.content[0].thinking == "It is a city."[:budget] and whole.content[1].type == "text"
        with client.messages.stream(**asked) as stream:
            assert stream.get_final_message().content[0].thinking == "It is a city."[:budget]
    assert client.messages.create(**kwargs, thinking={"type": "enabled", "budget_tokens": 200}).content[0].thinking == "It is a city."
    assert client.messages.count_tokens(model="fake", messages=MESSAGES, thinking={"type": "enabled", "budget_tokens": 1024}).input_tokens > 10
    for thinking, says in (({"type": "enabled", "budget_tokens": 300}, "less than max_tokens, which is 300"),
                           ({"type": "enabled"}, "thinking.budget_tokens is missing"), ({"type": "enabled", "budget_tokens": 0}, "at least 1"),
                           ({"type": "disabled", "budget_tokens": 5}, "only when type is enabled")):
        with pytest.raises(anthropic.BadRequestError, match=says):
            client.messages.create(**kwargs, thinking=thinking)
    # Where there are no thoughts there is nothing to bound.
    without = client_of(start_server("--device", "fake", "--reasoning-parser", "none"))
    assert without.messages.create(**kwargs, thinking={"type": "enabled", "budget_tokens": 5}).content[0].type == "text"


@pytest.mark.parametrize("kwargs, word", [
    (dict(max_tokens=0), "max_tokens"),
    (dict(messages=[]), "messages"),
    (dict(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]), r"content\[0\].type"),
    (dict(tools=[{"type": "bash_20250124", "name": "bash"}]), r"tools\[0\].type"),
    (dict(thinking={"type": "enabled", "budget_tokens": 1024}), "thinking.budget_tokens"),
    (dict(extra_body={"temperature": 3.0}), "temperature"),
    (dict(extra_body={"tempreature": 1}), "tempreature"),
])
def test_errors_have_anthropics_shape(fake_server, kwargs, word):
    with pytest.raises(anthropic.BadRequestError, match=word) as error:
        client_of(fake_server).messages.create(**{"model": "fake", "max_tokens": 5, "messages": MESSAGES, **kwargs})
    assert error.value.body["type"] == "error" and error.value.body["error"]["type"] == "invalid_request_error"


def test_keys_come_in_either_header(start_server):
    server = start_server("--device", "fake", "--api-key", "sesame")
    with pytest.raises(anthropic.AuthenticationError) as error:
        client_of(server, "wrong").messages.create(model="fake", max_tokens=1, messages=MESSAGES)
    assert error.value.body["error"]["type"] == "authentication_error"
    assert client_of(server, "sesame").messages.create(model="fake", max_tokens=1, messages=MESSAGES).content
    body = {"model": "fake", "max_tokens": 1, "messages": MESSAGES}
    bearer = httpx.post(server.http + "/v1/messages", json=body, headers={"Authorization": "Bearer sesame"})
    assert bearer.status_code == 200


def test_other_refusals_have_it_too(fake_server):
    assert httpx.post(fake_server.http + "/v1/messages", content="{", headers={"Content-Type": "text/plain"}).json()[
        "type"] == "error"
    with pytest.raises(anthropic.NotFoundError):
        client_of(fake_server).messages.create(model="claude", max_tokens=5, messages=MESSAGES)


@pytest.mark.model
def test_a_real_model_answers(model_server):
    client = client_of(model_server)
    model = httpx.get(model_server.http + "/v1/models").json()["data"][0]["id"]
    message = client.messages.create(model=model, max_tokens=20, extra_body={"temperature": 0}, messages=MESSAGES)
    body = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    chat = httpx.post(model_server.http + "/v1/chat/completions", json=body, timeout=60).json()
    assert message.content[0].text == chat["choices"][0]["message"]["content"] != ""
