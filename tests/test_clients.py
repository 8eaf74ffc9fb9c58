"""Tests of the `openai` and `anthropic` clients' helpers that parse answers and run tools, against a model and the fake device.

The answers' shapes are asserted, never what a small model says.
"""
import json
from typing import Literal

import anthropic
import openai
import pydantic
import pytest

MESSAGES = [{"role": "user", "content": "Answer shortly about Bob."}]


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)
    kind: Literal["a", "b"]


class Kind(pydantic.BaseModel):
    """A kind, without the bounds that the anthropic client leaves out of the schemas that it sends."""

    kind: Literal["a", "b"]
    sure: bool


class GetWeather(pydantic.BaseModel):
    """Gets the weather of a city."""

    city: Literal["Paris", "Rome"]


TOOL = openai.pydantic_function_tool(GetWeather, name="get_weather")
FLAT_TOOL = {"type": "function", **TOOL["function"]}


def openai_of(server):
    return openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0, timeout=60)


def anthropic_of(server):
    return anthropic.Anthropic(base_url=server.http, api_key="none", max_retries=0, timeout=60)


def model_of(client):
    return client.models.list().data[0].id


@pytest.fixture
def chats(model_server):
    client = openai_of(model_server)
    return client, dict(model=model_of(client), messages=MESSAGES, max_tokens=200)


@pytest.fixture
def messages(model_server):
    client = anthropic_of(model_server)
    return client, dict(model=model_of(client), messages=MESSAGES, max_tokens=200)


@pytest.mark.model
def test_a_parsed_chat_goes_on(chats):
    client, kwargs = chats
    message = client.chat.completions.parse(**kwargs, response_format=Person).choices[0].message
    assert isinstance(message.parsed, Person)
    # Fields that parse added come back with the turn, and change nothing.
    turn = {"role": "assistant", "content": message.content}
    ask = {"role": "user", "content": "And Eve?"}
    bare, dumped = (client.chat.completions.create(**kwargs | {"messages": [*MESSAGES, first, ask], "max_tokens": 1}).usage
                    for first in (turn, turn | {"parsed": message.parsed.model_dump()}))
    assert bare.prompt_tokens == dumped.prompt_tokens


@pytest.mark.model
def test_parsed_calls_go_on(chats):
    client, kwargs = chats
    message = client.chat.completions.parse(**kwargs, tools=[TOOL], tool_choice="required").choices[0].message
    call = message.tool_calls[0]
    assert isinstance(call.function.parsed_arguments, GetWeather)
    dumped = call.to_dict() | {"function": call.function.to_dict() | {"parsed_arguments": json.loads(call.function.arguments)}}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    turn = {"role": "assistant", "content": None, "tool_calls": [dumped]}
    after = client.chat.completions.create(**kwargs | {"messages": [*MESSAGES, turn, result], "max_tokens": 1})
    assert after.usage.completion_tokens == 1


@pytest.mark.model
def test_a_parsed_stream_of_a_chat(chats):
    client, kwargs = chats
    with client.chat.completions.stream(**kwargs, response_format=Person) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert {"chunk", "content.delta", "content.done"} <= kinds and isinstance(message.parsed, Person)


@pytest.mark.model
def test_a_parsed_response_whole_and_streamed(chats):
    client, kwargs = chats
    kwargs = dict(model=kwargs["model"], input=MESSAGES, max_output_tokens=200)
    whole = client.responses.parse(**kwargs, text_format=Person)
    assert isinstance(whole.output_parsed, Person)
    with client.responses.stream(**kwargs, text_format=Person) as stream:
        kinds = {event.type for event in stream}
        assert isinstance(stream.get_final_response().output_parsed, Person)
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds


@pytest.mark.model
def test_parsed_items_of_a_response_go_on(chats):
    client, kwargs = chats
    kwargs = dict(model=kwargs["model"], max_output_tokens=200)
    first = client.responses.parse(**kwargs, input=MESSAGES, tools=[FLAT_TOOL], tool_choice="required")
    call = next(item for item in first.output if item.type == "function_call")
    GetWeather.model_validate_json(call.arguments)
    dumped = call.to_dict() | {"parsed_arguments": json.loads(call.arguments)}
    text = client.responses.parse(**kwargs, input=MESSAGES, text_format=Person).output[0]
    said = text.to_dict() | {"content": [{"type": "output_text", "text": "{}", "annotations": [], "parsed": {}}]}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    after = client.responses.create(**kwargs | {"max_output_tokens": 16}, input=[*MESSAGES, said, dumped, output])
    assert after.usage.output_tokens > 0


@pytest.mark.model
@pytest.mark.parametrize("beta", [False, True])
def test_a_parsed_message(messages, beta):
    client, kwargs = messages
    parse = client.beta.messages.parse if beta else client.messages.parse
    assert isinstance(parse(**kwargs, output_format=Kind).parsed_output, Kind)


@pytest.mark.model
def test_a_parsed_stream_of_a_message(messages):
    client, kwargs = messages
    with client.messages.stream(**kwargs, output_format=Kind) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Kind)


def test_formats_of_messages(fake_server):
    client = anthropic_of(fake_server)
    # Random answers would open a thought and not end it.
    kwargs = dict(model=model_of(client), messages=MESSAGES, max_tokens=400, thinking={"type": "disabled"})
    form = {"type": "json_schema", "schema": Person.model_json_schema() | {"additionalProperties": False}}
    for body in ({"output_config": {"format": form}}, {"output_format": form}):
        answer = client.messages.create(**kwargs, extra_body=body)
        Person.model_validate_json(answer.content[0].text)


@pytest.mark.parametrize("body, word", [
    ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": []}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"contains": {}}}}}, "contains"),
    ({"output_config": {"task_budget": {"total": 9}}}, "output_config.task_budget"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}},
      "output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
    ({"output_config": 1}, "output_config"),
    ({"thread": {"type": "create"}}, "thread"),
])
def test_what_messages_do_not_hold_is_refused_by_name(fake_server, body, word):
    client = anthropic_of(fake_server)
    with pytest.raises(anthropic.BadRequestError, match=word):
        client.messages.create(model=model_of(client), messages=MESSAGES, max_tokens=5, extra_body=body)


@pytest.mark.parametrize("stream", [False, True])
def test_the_runner_of_tools(start_server, stream):
    """The fake device always calls the tool: the runner runs it and asks again, as often as it may.

    Without thread=False the client asks for a thread, which the server would have to keep.
    """
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Gets the weather of a city."""
        asked.append(city)
        return "sunny"

    client = anthropic_of(start_server(
        "--device", "fake", "--fake-step-us", "0", "--fake-token-us", "0", "--fake-answer",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'))
    runner = client.beta.messages.tool_runner(model=model_of(client), messages=MESSAGES, max_tokens=200, tools=[get_weather],
                                              max_iterations=2, stream=stream, thread=False)
    turns = [turn.get_final_message() if stream else turn for turn in runner]
    assert [turn.stop_reason for turn in turns] == ["tool_use", "tool_use"] and asked and set(asked) == {"Paris"}


def test_a_forced_call_needs_no_format(fake_server):
    """Instructor's mode RESPONSES_TOOLS sends the schema twice: a forced call leaves no text that a format could hold."""
    client = openai_of(fake_server)
    schema = Person.model_json_schema() | {"additionalProperties": False}
    form = {"type": "json_schema", "name": "Person", "schema": schema, "strict": True}
    tool = {"type": "function", "name": "Person", "parameters": schema}
    kwargs = dict(model=model_of(client), input="Bob", max_output_tokens=400, tools=[tool], text={"format": form})
    answer = client.responses.create(**kwargs, tool_choice={"type": "function", "name": "Person"})
    assert [item.type for item in answer.output] == ["function_call"]
    Person.model_validate_json(answer.output[0].arguments)
    # Where the model decides it is a call or the format, here of one schema.
    asked = kwargs | {"tools": [tool | {"strict": True}], "max_output_tokens": 2000, "parallel_tool_calls": False}
    last = client.responses.create(**asked, reasoning={"effort": "none"}).output[-1]
    Person.model_validate_json(last.arguments if last.type == "function_call" else last.content[0].text)


def test_a_response_has_a_priority(fake_server):
    """sglang-router sends it with every response."""
    client = openai_of(fake_server)
    kwargs = dict(model=model_of(client), input="hi", max_output_tokens=2)
    assert client.responses.create(**kwargs, extra_body={"priority": 0, "top_k": -1, "min_p": 0.0}).output
    with pytest.raises(openai.BadRequestError, match="priority"):
        client.responses.create(**kwargs, extra_body={"priority": "high"})
