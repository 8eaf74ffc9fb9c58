"""Tests of tools and reasoning with the real `openai` client. The fake device gives the answer that its flag says."""
import json
import re

import grpc
import httpx
import jsonschema
import openai
import pydantic
import pytest

from millrace_grpc import connect, pb

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
CALLS = ('Let me look. <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call> '
         '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>')
THOUGHTS = "<think>It is a city.</think> It is sunny."


def client_of(server):
    return openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def answers(start_server):
    """Returns answers(text, *flags), a client of a server that always answers so."""
    return lambda text, *flags: client_of(start_server("--device", "fake", "--fake-step-us", "0", "--fake-token-us", "0",
                                                       "--fake-answer", text, *flags))


def joined(chunks):
    """Puts a stream's deltas together as a client does by hand."""
    content, reasoning, calls, finish = "", "", {}, None
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.id:
                    assert call.index not in calls and call.type == "function"
                    calls[call.index] = [call.id, call.function.name, ""]
                calls[call.index][2] += call.function.arguments or ""
    return content, reasoning, [tuple(calls[index]) for index in sorted(calls)], finish


def test_calls_whole_and_streamed(answers):
    client = answers(CALLS)
    kwargs = dict(model="fake", messages=MESSAGES, tools=[WEATHER, TIME])
    choice = client.chat.completions.create(**kwargs).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    weather, time = choice.message.tool_calls
    assert (weather.type, weather.function.name) == ("function", "get_weather")
    assert json.loads(weather.function.arguments) == {"city": "Paris"} and time.function.arguments == "{}"
    assert weather.id != time.id
    content, _, calls, finish = joined(client.chat.completions.create(**kwargs, stream=True))
    assert (content, finish) == ("Let me look.", "tool_calls")
    assert [call[1:] for call in calls] == [("get_weather", '{"city": "Paris"}'), ("get_time", "{}")]


def test_the_clients_own_stream_of_calls(answers):
    client = answers(CALLS)
    with client.chat.completions.stream(model="fake", messages=MESSAGES, tools=[WEATHER, TIME]) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert [call.function.name for call in message.tool_calls] == ["get_weather", "get_time"]


def test_a_conversation_with_calls_goes_on(answers):
    client = answers(CALLS)
    first = client.chat.completions.create(model="fake", messages=MESSAGES, tools=[WEATHER, TIME])
    message = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    second = client.chat.completions.create(model="fake", messages=[*MESSAGES, message, *results], tools=[WEATHER])
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    # A turn with calls needs no content.
    bare = {"role": "assistant", "content": None, "tool_calls": [call.to_dict() for call in message.tool_calls]}
    assert client.chat.completions.create(model="fake", messages=[*MESSAGES, bare, *results]).choices


def test_the_choice_of_tools(answers):
    client = answers(CALLS)
    kwargs = dict(model="fake", messages=MESSAGES, tools=[WEATHER, TIME])
    none = client.chat.completions.create(**kwargs, tool_choice="none").choices[0]
    assert none.message.content == CALLS and none.finish_reason == "stop" and not none.message.tool_calls
    one = client.chat.completions.create(**kwargs, parallel_tool_calls=False).choices[0]
    assert len(one.message.tool_calls) == 1 and one.finish_reason == "tool_calls"


def test_a_named_call_is_forced(answers):
    # The prompt has the call's beginning, so that the answer goes on with the arguments.
    client = answers('{"city": "Rome"}}</tool_call>')
    named = {"type": "function", "function": {"name": "get_weather"}}
    kwargs = dict(model="fake", messages=MESSAGES, tools=[WEATHER, TIME], tool_choice=named)
    choice = client.chat.completions.create(**kwargs).choices[0]
    assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == [
        ("get_weather", '{"city": "Rome"}')]
    assert choice.finish_reason == "stop" and choice.message.content is None
    assert joined(client.chat.completions.create(**kwargs, stream=True))[2][0][1:] == ("get_weather", '{"city": "Rome"}')


def test_a_required_call_is_forced(answers):
    client = answers('get_time", "arguments": {}}</tool_call>')
    choice = client.chat.completions.create(model="fake", messages=MESSAGES, tools=[WEATHER, TIME],
                                            tool_choice="required").choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["get_time"]
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("kwargs, param", [
    (dict(tools=[{"type": "retrieval"}]), "tools[0].type"),
    (dict(tools=[{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
    (dict(tools=[{"type": "function", "function": {"name": "f", "parameters": []}}]), "tools[0].function.parameters"),
    (dict(tools=[WEATHER], tool_choice="sometimes"), "tool_choice"),
    (dict(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice"),
    (dict(tool_choice="required"), "tool_choice"),
    (dict(tools=[WEATHER] * 129), "tools"),
    (dict(reasoning_effort="very"), "reasoning_effort"),
    (dict(extra_body={"thinking_token_budget": -2}), "thinking_token_budget"),
    (dict(extra_body={"thinking_token_budget": "10"}), "thinking_token_budget"),
])
def test_what_cannot_be_done_is_refused_by_name(fake_server, kwargs, param):
    with pytest.raises(openai.BadRequestError) as error:
        client_of(fake_server).chat.completions.create(model="fake", messages=MESSAGES, max_tokens=2, **kwargs)
    assert error.value.param == param


FORECAST = {"type": "object", "properties": {"unit": {"enum": ["c", "f"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["unit", "days"], "additionalProperties": False}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "forecast"}}])
@pytest.mark.parametrize("seed", range(4))
def test_forced_arguments_are_of_their_schema_whatever_the_model_says(fake_server, choice, seed):
    tools = [{"type": "function", "function": {"name": "forecast", "parameters": FORECAST}}]
    answer = client_of(fake_server).chat.completions.create(model="fake", messages=MESSAGES, tools=tools, tool_choice=choice,
                                                            seed=seed, max_tokens=500).choices[0]
    assert [call.function.name for call in answer.message.tool_calls] == ["forecast"]
    jsonschema.validate(json.loads(answer.message.tool_calls[0].function.arguments), FORECAST)


class Forecast(pydantic.BaseModel):
    """The weather to come."""
    days: int


def test_a_strict_tool_is_held_to_its_schema_where_the_model_decides(answers):
    # The model would write a string; a grammar lets it write digits alone, and line feeds where ~ stands.
    client = answers('I look. <tool_call>~{"name": "Forecast", "arguments": {"days": "x"}}~</tool_call> Done.')
    with client.chat.completions.stream(model="fake", messages=MESSAGES, tools=[openai.pydantic_function_tool(Forecast)],
                                        max_tokens=400) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert message.content.startswith("I look.")
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Forecast)


def test_flags_choose_the_parsers(answers):
    client = answers('[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', "--tool-call-parser", "mistral")
    call = client.chat.completions.create(model="fake", messages=MESSAGES, tools=[WEATHER]).choices[0].message.tool_calls[0]
    assert call.function.arguments == '{"city": "Paris"}' and len(call.id) == 9
    client = answers(CALLS, "--enable-auto-tool-choice=false")
    with pytest.raises(openai.BadRequestError, match="enable-auto-tool-choice"):
        client.chat.completions.create(model="fake", messages=MESSAGES, tools=[WEATHER])


def test_reasoning_whole_and_streamed(answers):
    client = answers(THOUGHTS)
    kwargs = dict(model="fake", messages=MESSAGES)
    whole = client.chat.completions.create(**kwargs)
    message = whole.choices[0].message
    assert (message.content, message.reasoning_content) == ("It is sunny.", "It is a city.")
    assert message.reasoning == message.reasoning_content
    # A byte is a token; the markers are counted, too.
    assert whole.usage.completion_tokens_details.reasoning_tokens == len("<think>It is a city.</think>") - len("<think")
    content, reasoning, _, finish = joined(client.chat.completions.create(**kwargs, stream=True))
    assert (content, reasoning, finish) == ("It is sunny.", "It is a city.", "stop")
    hidden = client.chat.completions.create(**kwargs, extra_body={"include_reasoning": False}).choices[0].message
    assert hidden.content == "It is sunny." and not hasattr(hidden, "reasoning_content")
    raw = client.chat.completions.create(**kwargs, extra_body={"separate_reasoning": False}).choices[0].message
    assert raw.content == THOUGHTS


def test_a_budget_ends_the_reasoning(answers):
    client = answers(THOUGHTS)

    def ask(budget, **more):
        choice = client.chat.completions.create(model="fake", messages=MESSAGES, **more,
                                                extra_body={"thinking_token_budget": budget})
        return choice.choices[0].message, choice.usage.completion_tokens_details.reasoning_tokens

    # A byte is a token. The script is not moved by what was forced, so that its later bytes are the answer.
    for budget in (0, 5, 13):
        message, _ = ask(budget)
        assert getattr(message, "reasoning_content", "") == "It is a city."[:budget] and message.content
    for budget in (40, -1, None):
        message, tokens = ask(budget)
        assert (message.reasoning_content, message.content) == ("It is a city.", "It is sunny.")
        assert tokens == ask(None)[1]
    content, reasoning, _, finish = joined(client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, extra_body={"thinking_token_budget": 5}))
    assert (reasoning, finish) == ("It is", "stop") and content == ask(5)[0].content
    several = client.chat.completions.create(model="fake", messages=MESSAGES, n=3, extra_body={"thinking_token_budget": 2})
    assert {choice.message.reasoning_content for choice in several.choices} == {"It"}


RGB = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["red", "green"]}}}
FORMATS = [{"response_format": RGB}, {"extra_body": {"guided_choice": ['"red"', '"green"']}}, {"extra_body": {"regex": '"(red|green)"'}},
           {"extra_body": {"grammar": 'root ::= "\\"red\\"" | "\\"green\\""'}}, {"extra_body": {"json_schema": {"enum": ["red", "green"]}}}]


@pytest.mark.parametrize("asked", FORMATS)
def test_a_format_holds_the_answer_and_not_the_thought(answers, asked):
    # The script goes on with what is no colour: a grammar lets it write none of that outside of the thought.
    client = answers('<think>Is it {"a": 1}?</think>"green"')
    kwargs = dict(model="fake", messages=MESSAGES, max_tokens=100, **asked)
    choice = client.chat.completions.create(**kwargs).choices[0]
    assert (choice.message.reasoning_content, choice.message.content) == ('Is it {"a": 1}?', '"green"')
    assert joined(client.chat.completions.create(**kwargs, stream=True))[:2] == ('"green"', 'Is it {"a": 1}?')
    several = client.chat.completions.create(**kwargs, n=2)
    assert {choice.message.content for choice in several.choices} == {'"green"'}
    hidden = kwargs | {"extra_body": kwargs.get("extra_body", {}) | {"include_reasoning": False}}
    assert client.chat.completions.create(**hidden).choices[0].message.content == '"green"'
    whole = kwargs | {"extra_body": kwargs.get("extra_body", {}) | {"separate_reasoning": False}}
    assert client.chat.completions.create(**whole).choices[0].message.content == '<think>Is it {"a": 1}?</think>"green"'
    # Without a thought the format holds from the first token, and a thought that has ended is none.
    over = kwargs | {"extra_body": kwargs.get("extra_body", {}) | {"chat_template_kwargs": {"enable_thinking": False}}}
    assert client.chat.completions.create(**over).choices[0].message.content in ('"red"', '"green"')


def test_a_format_beside_a_budget(answers):
    client = answers('<think>Is it blue?</think>"green"')
    for budget in (0, 2, 40):
        message = client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=100, response_format=RGB,
                                                 extra_body={"thinking_token_budget": budget}).choices[0].message
        assert getattr(message, "reasoning_content", "") == "Is it blue?"[:budget] and json.loads(message.content) in ("red", "green")


def test_a_format_behind_a_thought_on_every_endpoint(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "0", "--fake-token-us", "0", "--fake-answer", '<think>Hm.</think>"green"')
    schema = {"enum": ["red", "green"]}
    response = httpx.post(server.http + "/v1/responses", json={"model": "fake", "input": "?", "max_output_tokens": 100, "text": {
        "format": {"type": "json_schema", "name": "x", "schema": schema}}}).json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][1]["content"][0]["text"] == '"green"'
    message = httpx.post(server.http + "/v1/messages", json={"model": "fake", "messages": MESSAGES, "max_tokens": 100, "output_config": {
        "format": {"type": "json_schema", "schema": schema}}, "thinking": {"type": "enabled", "budget_tokens": 50}}).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "text"] and message["content"][1]["text"] == '"green"'
    request = pb.GenerateRequest(chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="?")]),
                                 structured_output=pb.StructuredOutput(json_schema=json.dumps(schema)))
    assert "".join(part.text for part in connect(server.grpc).Generate(request, timeout=60)) == '<think>Hm.</think>"green"'
    # A completion has no thought.
    text = httpx.post(server.http + "/v1/completions", json={"model": "fake", "prompt": "?", "max_tokens": 100, "guided_choice": ["red"]})
    assert text.json()["choices"][0]["text"] == "red"


HERMES = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("thought", ["", "<think>I look.</think>"])
def test_tools_beside_a_format_are_calls_or_the_format(answers, strict, thought):
    tool = {"type": "function", "function": WEATHER["function"] | {"strict": strict}}
    kwargs = dict(model="fake", messages=MESSAGES, max_tokens=200, tools=[tool, TIME], response_format=RGB)
    choice = answers(thought + HERMES).chat.completions.create(**kwargs).choices[0]
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    assert [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls] == [
        ("get_weather", {"city": "Paris"})]
    both = thought + HERMES + ' <tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    client = answers(both)
    assert len(client.chat.completions.create(**kwargs).choices[0].message.tool_calls) == 2
    assert len(client.chat.completions.create(**kwargs, parallel_tool_calls=False).choices[0].message.tool_calls) == 1
    choice = answers(thought + '"red"').chat.completions.create(**kwargs).choices[0]
    assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == ('"red"', "stop", None)
    # A bad format is refused by its own name.
    with pytest.raises(openai.BadRequestError, match="response_format.*made_up at #"):
        bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"made_up": 1}}}
        client.chat.completions.create(**kwargs | {"response_format": bad})


def test_strict_closes_objects(answers):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    client = answers('{"a": 1, "b": 2}')

    def ask(strict, **more):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
        kwargs = {"response_format": form} if strict is not None else {}
        return json.loads(client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=60, **kwargs, **more).choices[0].message.content)

    assert ask(False) == ask(None, extra_body={"guided_json": schema}) == {"a": 1, "b": 2}
    assert list(ask(True)) == ["a"]
    outputs = {"json": schema, "disable_additional_properties": True}
    assert list(ask(None, extra_body={"structured_outputs": outputs})) == ["a"]


def test_a_budget_over_grpc(start_server):
    stub = connect(start_server("--device", "fake", "--fake-step-us", "0", "--fake-token-us", "0", "--fake-answer", THOUGHTS).grpc)

    def text(**more):
        request = pb.GenerateRequest(chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="?")]), **more)
        return "".join(response.text for response in stub.Generate(request, timeout=60))

    assert text().startswith(THOUGHTS) and text(thinking_token_budget=-1) == text()
    assert text(thinking_token_budget=5).startswith("<think>It is</think>")
    with pytest.raises(grpc.RpcError) as error:
        text(thinking_token_budget=-2)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "thinking_token_budget" in error.value.details()


def test_a_budget_ends_the_reasoning_in_a_channel(answers):
    call = '<|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}<|call|>'
    thought = "<|channel|>analysis<|message|>Is it blue?<|end|>"
    parsers = ("--reasoning-parser", "openai_gptoss", "--tool-call-parser", "openai")
    client = answers(thought + "<|start|>assistant<|channel|>final<|message|>It is.", *parsers)
    for budget in (0, 2, 40):
        kwargs = dict(model="fake", messages=MESSAGES, max_tokens=200, extra_body={"thinking_token_budget": budget})
        message = client.chat.completions.create(**kwargs).choices[0].message
        assert getattr(message, "reasoning_content", "") == "Is it blue?"[:budget] and message.content
        message = client.chat.completions.create(**kwargs, response_format=RGB).choices[0].message
        assert getattr(message, "reasoning_content", "") == "Is it blue?"[:budget] and json.loads(message.content) in ("red", "green")
    message = answers(thought + call, *parsers).chat.completions.create(**kwargs, tools=[TIME]).choices[0].message
    assert message.reasoning_content == "Is it blue?" and message.tool_calls[0].function.name == "get_time"


def test_long_integers_pass_unchanged(start_server):
    http = start_server("--device", "fake").http
    digits = "123456789012345678901234567890"
    call = '{"id": "c", "type": "function", "function": {"name": "get_time", "arguments": %s}}'
    for arguments in ('"{\\"n\\": %s}"' % digits, '{"n": %s}' % digits):
        body = '{"model": "fake", "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": null, "tool_calls": [%s]}, %s]}' % (
            call % arguments, '{"role": "tool", "tool_call_id": "c", "content": "r"}')
        tokens = httpx.post(http + "/tokenize", content=body, headers={"content-type": "application/json"}).json()["tokens"]
        assert digits in bytes(token for token in tokens if token < 256).decode()


def test_a_budget_needs_reasoning_that_is_known(answers):
    client = answers(THOUGHTS, "--reasoning-parser", "none")
    with pytest.raises(openai.BadRequestError, match="thinking_token_budget"):
        client.chat.completions.create(model="fake", messages=MESSAGES, extra_body={"thinking_token_budget": 5})


def test_a_trigger_begins_a_tag_in_free_text(answers):
    schema = {"type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["days"],
              "additionalProperties": False}
    tags = {"type": "structural_tag", "triggers": ["<call="],
            "structures": [{"begin": "<call=weather>", "schema": schema, "end": "</call>"}]}
    kwargs = dict(model="fake", messages=MESSAGES, extra_body={"response_format": tags})
    # The model would write a string, which the schema does not allow.
    text = answers('I look. <call=weather>{"days": "x"}</call>').chat.completions.create(**kwargs).choices[0].message.content
    found = re.fullmatch(r"I look\. <call=weather>(.*)</call>.*", text, re.DOTALL)
    jsonschema.validate(json.loads(found[1]), schema)
    assert answers("Nothing to do.").chat.completions.create(**kwargs).choices[0].message.content == "Nothing to do."


def test_reasoning_can_be_left_in(answers):
    client = answers(THOUGHTS, "--reasoning-parser", "none")
    assert client.chat.completions.create(model="fake", messages=MESSAGES).choices[0].message.content == THOUGHTS


def test_a_call_in_a_thought_that_never_closes_is_a_call(answers):
    client = answers("<think>I look. " + CALLS[len("Let me look. "):])
    kwargs = dict(model="fake", messages=MESSAGES, tools=[WEATHER, TIME])
    message = client.chat.completions.create(**kwargs).choices[0].message
    assert message.reasoning_content == "I look." and not message.content
    assert [call.function.name for call in message.tool_calls] == ["get_weather", "get_time"]
    assert len(client.chat.completions.create(**kwargs, parallel_tool_calls=False).choices[0].message.tool_calls) == 1
    _, reasoning, calls, finish = joined(client.chat.completions.create(**kwargs, stream=True))
    assert reasoning == "I look." and len(calls) == 2 and finish == "tool_calls"


def test_stop_strings_are_not_searched_in_the_reasoning(answers):
    client = answers("<think>Is it a city? city.</think> It is a city.")
    kwargs = dict(model="fake", messages=MESSAGES, stop=["city"])
    choice = client.chat.completions.create(**kwargs).choices[0]
    assert (choice.message.reasoning_content, choice.message.content) == ("Is it a city? city.", "It is a ")
    assert choice.finish_reason == "stop" and choice.stop_reason == "city"
    # Reasoning that is left in the content is searched.
    choice = client.chat.completions.create(**kwargs, extra_body={"separate_reasoning": False}).choices[0]
    assert choice.message.content == "<think>Is it a "


def test_an_answer_may_go_on_inside_of_a_thought(answers):
    client = answers("more</think> Yes.")
    more = {"add_generation_prompt": False, "continue_final_message": True}
    def go_on(content):
        messages = MESSAGES + [{"role": "assistant", "content": content}]
        message = client.chat.completions.create(model="fake", messages=messages, extra_body=more).choices[0].message
        return getattr(message, "reasoning_content", None), message.content
    assert go_on("<think>Okay, the") == ("more", "Yes.")
    assert go_on("<think>Okay.</think> So") == (None, "more</think> Yes.")
    assert go_on("So") == (None, "more</think> Yes.")


def test_reasoning_in_channels_can_be_left_in(answers):
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    client = answers(text, "--reasoning-parser", "openai_gptoss", "--tool-call-parser", "openai")
    kwargs = dict(model="fake", messages=MESSAGES, extra_body={"separate_reasoning": False})
    assert client.chat.completions.create(**kwargs).choices[0].message.content == text
    assert client.chat.completions.create(**kwargs, tools=[TIME]).choices[0].message.content == text


# ---- /v1/responses ----

FLAT = {"type": "function", "name": "get_weather", "parameters": WEATHER["function"]["parameters"], "strict": False}


def test_a_response_is_kept_and_gone_on_from(answers):
    client = answers(THOUGHTS)
    first = client.responses.create(model="fake", input="What is the weather?", instructions="Be brief.")
    assert first.status == "completed" and first.output_text == "It is sunny."
    assert [item.type for item in first.output] == ["reasoning", "message"]
    assert first.usage.output_tokens_details.reasoning_tokens > 0
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model="fake", input="And tomorrow?", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens and second.previous_response_id == first.id
    # An answer's items can be sent back in place of its id.
    again = client.responses.create(model="fake", input=[{"role": "user", "content": "What is the weather?"}, *first.output,
                                                         {"role": "user", "content": "And tomorrow?"}])
    assert again.usage.input_tokens == second.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="fake", input="x", previous_response_id=first.id)
    unkept = client.responses.create(model="fake", input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_a_streamed_response(answers):
    client = answers(THOUGHTS)
    with client.responses.stream(model="fake", input="What is the weather?") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                     "response.reasoning_text.delta", "response.reasoning_text.done", "response.content_part.done",
                     "response.output_item.done", "response.output_text.delta", "response.output_text.done",
                     "response.completed"]
    assert final.output_text == "It is sunny."
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    assert client.responses.retrieve(final.id).output_text == final.output_text


def test_a_response_calls_functions(answers):
    client = answers(CALLS)
    kwargs = dict(model="fake", input="What is the weather?", tools=[FLAT])
    response = client.responses.create(**kwargs)
    text, weather, time = response.output
    assert (text.type, weather.type, weather.name) == ("message", "function_call", "get_weather")
    assert json.loads(weather.arguments) == {"city": "Paris"}
    with client.responses.stream(**kwargs) as stream:
        streamed = stream.get_final_response().output
    assert [(item.name, item.arguments) for item in streamed[1:]] == [(item.name, item.arguments) for item in (weather, time)]
    results = [{"type": "function_call_output", "call_id": item.call_id, "output": "sunny"} for item in (weather, time)]
    after = client.responses.create(model="fake", input=results, previous_response_id=response.id, tools=[FLAT])
    assert after.usage.input_tokens > response.usage.input_tokens


def test_a_response_that_is_cut_off_is_incomplete(answers):
    client = answers(THOUGHTS)
    response = client.responses.create(model="fake", input="x", max_output_tokens=35)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(model="fake", input="x", max_output_tokens=35, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.status == "incomplete"


@pytest.mark.parametrize("body, param", [
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "tools": [{"type": "file_search"}]}, "tools[0].type"),
    ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ({"input": "x", "truncation": "middle"}, "truncation"),
    ({"input": "x", "include": ["message.output_text.logprobs"]}, "include[0]"),
    ({}, "input"),
])
def test_responses_refuse_by_name(fake_server, body, param):
    refused = httpx.post(fake_server.http + "/v1/responses", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == param


def test_a_kept_response_belongs_to_its_key(start_server):
    server = start_server("--device", "fake", "--api-key", "one", "--api-key", "two")
    ask = lambda key, method, path, **kwargs: httpx.request(method, server.http + path, headers={"Authorization": f"Bearer {key}"},
                                                            **kwargs)
    made = ask("one", "POST", "/v1/responses", json={"input": "x", "max_output_tokens": 2, "ignore_eos": True}).json()
    path = "/v1/responses/" + made["id"]
    assert [ask(key, method, path).status_code for key, method in
            [("two", "GET"), ("two", "DELETE"), ("one", "GET"), ("three", "GET"), ("one", "DELETE"), ("one", "GET")]] == [
                404, 404, 200, 401, 200, 404]


# ---- A real model ----

@pytest.mark.model
def test_a_real_model_is_made_to_call(model_server):
    client = client_of(model_server)
    model = client.models.list().data[0].id
    choice = client.chat.completions.create(
        model=model, messages=MESSAGES, tools=[WEATHER], temperature=0, max_tokens=64,
        tool_choice={"type": "function", "function": {"name": "get_weather"}}).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    # Whether so small a model names the right argument is its own affair.
    assert isinstance(json.loads(choice.message.tool_calls[0].function.arguments), dict)
    # A response is the chat that it stands for.
    chat = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=20)
    answer = client.responses.create(model=model, input=MESSAGES[0]["content"], temperature=0, max_output_tokens=20)
    assert answer.output_text == chat.choices[0].message.content != ""
