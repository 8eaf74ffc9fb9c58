"""Coding agents: requests as they send them, with the real `openai` and `anthropic` clients, and what the access log says of them."""
import hashlib
import json
import re

import anthropic
import grpc
import httpx
import openai
import pytest

import millrace_grpc
from daemon import cancelled, wait_until

FAKE = ["--device", "fake", "--fake-step-us", "0", "--fake-token-us", "0"]
ANSWER = '<think>I read it.</think> One moment. <tool_call>{"name": "read", "arguments": {"path": "a.c"}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}


def claude_of(server):
    return anthropic.Anthropic(base_url=server.http, api_key="none", max_retries=0, timeout=60)


def codex_of(server, retries=0):
    return openai.OpenAI(base_url=server.http + "/v1", api_key="none", max_retries=retries, timeout=60)


CLAUDE = dict(
    model="fake", max_tokens=32000, extra_body={"temperature": 1}, betas=["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
    system=[{"type": "text", "text": "You work on code.", "cache_control": {"type": "ephemeral"}}],
    tools=[{"name": "read", "description": "Reads a file.", "eager_input_streaming": True,
            "input_schema": SCHEMA | {"$schema": "https://json-schema.org/draft/2020-12/schema"}},
           {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
    metadata={"user_id": "somebody"}, context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    thinking={"type": "enabled", "budget_tokens": 31999}, output_config={"effort": "high"})

CODEX = dict(
    model="fake", instructions="You work on code.", store=False, parallel_tool_calls=True, tool_choice="auto",
    tools=[{"type": "function", "name": "read", "description": "Reads a file.", "strict": False, "parameters": SCHEMA},
           {"type": "custom", "name": "apply_patch", "description": "Changes files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
           {"type": "web_search", "external_web_access": False}],
    reasoning={"effort": "medium", "summary": "auto"}, include=["reasoning.encrypted_content"], prompt_cache_key="0199",
    text={"verbosity": "low"}, service_tier="priority", extra_body={"client_metadata": {"session": "0199"}})


@pytest.mark.parametrize("flags", [[], ["--reasoning-parser", "none"], ["--max-model-len", "2048"]], ids=["thinks", "does not", "short"])
def test_a_task_of_claude_code(start_server, flags):
    """A call, its result, and a reminder of the system's, with a thought sent back; also of models without thoughts, and of short ones."""
    client = claude_of(start_server(*FAKE, "--fake-answer", ANSWER, *flags))
    turns = [{"role": "user", "content": [{"type": "text", "text": "Fix a.c"}]}]
    for _ in range(2):
        with client.beta.messages.stream(messages=turns, **CLAUDE) as stream:
            answer = stream.get_final_message()
        call = answer.content[-1]
        assert (answer.stop_reason, call.name, call.input) == ("tool_use", "read", {"path": "a.c"})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "int a;"}], "is_error": True}
        turns += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
                  {"role": "user", "content": [result]}, {"role": "system", "content": "The file has changed."}]
    counted = client.beta.messages.count_tokens(messages=turns, **{name: CLAUDE[name] for name in (
        "model", "betas", "system", "tools", "thinking", "context_management", "output_config")})
    assert counted.input_tokens > 100


@pytest.mark.parametrize("flags", [[], ["--reasoning-parser", "none"]], ids=["thinks", "does not"])
def test_a_task_of_codex(start_server, flags):
    client = codex_of(start_server(*FAKE, "--fake-answer", ANSWER, *flags))
    items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Ask."}]},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix a.c"}]}]
    for _ in range(2):
        events = list(client.responses.create(input=items, stream=True, **CODEX))
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert events[-1].type == "response.completed" and done[-1].name == "read"
        for item in done:  # a thought comes back without its text, as Codex has it
            sent = item.model_dump(exclude_none=True, exclude={"id", "status"})
            items.append({"type": "reasoning", "summary": [], "encrypted_content": None} if item.type == "reasoning" else sent)
        items.append({"type": "function_call_output", "call_id": done[-1].call_id, "output": "int a;"})
    assert [model.id for model in client.models.list()] == ["fake"]


def test_what_does_not_fit_is_cut(start_server):
    server = start_server(*FAKE, "--max-model-len", "256")
    turn = {"messages": [{"role": "user", "content": "hi"}]}
    ask = lambda path, **body: httpx.post(server.http + path, json=body, timeout=60)
    message = ask("/v1/messages", **turn, max_tokens=32000).json()
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["input_tokens"] + message["usage"]["output_tokens"] == 256
    assert ask("/v1/messages", **turn, max_tokens=3).json()["stop_reason"] == "max_tokens"
    response = ask("/v1/responses", input="hi", max_output_tokens=32000).json()
    assert response["status"] == "incomplete" and response["usage"]["total_tokens"] == 256
    assert response["max_output_tokens"] == 32000
    # A chat's number is refused where it does not fit, as by vLLM and SGLang.
    refused = ask("/v1/chat/completions", **turn, max_tokens=32000)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    # A prompt that does not fit is refused everywhere, whatever truncation says.
    long = "x" * 300
    assert ask("/v1/responses", input=long, truncation="auto").json()["error"]["code"] == "context_length_exceeded"
    assert ask("/v1/messages", messages=[{"role": "user", "content": long}], max_tokens=1).status_code == 400


def test_a_deadline_costs_one_generation(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "20000", "--fake-token-us", "0")
    client = codex_of(server, retries=2)
    with pytest.raises(openai.APIStatusError) as error:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=100,
                                       extra_body={"timeout_ms": 100, "ignore_eos": True})
    assert error.value.status_code == 504 and error.value.response.headers["x-should-retry"] == "false"
    wait_until(lambda: cancelled(server, "deadline"))
    assert cancelled(server, "deadline") == 1


def test_lines_of_the_log_have_fields(start_server, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "crew", "sha256": hashlib.sha256(b"key").hexdigest()}]}))
    server = start_server(*FAKE, "--keys", str(keys), "--log", "warning,http=info", "--log-format", "json")
    ask = lambda path, key="key", **body: httpx.post(server.http + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    turn = {"messages": [{"role": "user", "content": "hi"}]}
    used = ask("/v1/messages", **turn, max_tokens=3).json()["usage"]
    streamed = ask("/v1/chat/completions", **turn, max_tokens=4, stream=True, ignore_eos=True)
    assert streamed.status_code == 200
    ask("/v1/completions", prompt="x", max_tokens=0)
    ask("/v1/messages", **turn, max_tokens=0)
    ask("/v1/completions", prompt="x", **{"a field=1 tenant=other": 1})
    ask("/v1/completions", key="wrong", prompt="x")
    lines = lambda: [json.loads(line) for line in server.log.read_text().splitlines()]
    wait_until(lambda: len(lines()) == 6)
    whole, stream, completion, message, unknown, foreign = lines()
    assert (whole["method"], whole["path"], whole["status"], whole["tenant"]) == ("POST", "/v1/messages", 200, "crew")
    assert whole["prompt_tokens"] == used["input_tokens"] + used["cache_read_input_tokens"]
    assert whole["completion_tokens"] == used["output_tokens"]
    assert isinstance(whole["duration_ms"], float) and whole["duration_ms"] > 0 and whole["response_bytes"] > 100
    assert (stream["status"], stream["completion_tokens"]) == (200, 4)
    for refused in (completion, message):
        assert (refused["status"], refused["reason"], refused["param"], refused["tenant"]) == (400, "invalid_value", "max_tokens", "crew")
        assert refused["message"].endswith(" tenant=crew reason=invalid_value param=max_tokens") and "prompt_tokens" not in refused
    assert unknown["message"].endswith(" reason=unknown_parameter param=a_field=1_tenant=other")
    assert foreign["status"] == 401 and "tenant" not in foreign


# ---- Tools that take a text ----

PATCH = '*** Begin Patch\n+int "a";\n*** End Patch\n'
LARK = """start: begin change+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
change: ("+" | "-") /(.*)/ LF
%import common.LF
"""
CALL = f'<think>I patch.</think><tool_call>{{"name": "apply_patch", "arguments": {{"input": {json.dumps(PATCH)}}}}}</tool_call>'
CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Changes files.",
          "format": {"type": "grammar", "syntax": "lark", "definition": LARK}}


def test_codex_patches_files(start_server):
    """Events and items of custom tools, and the conversation that goes on with them, stored or sent back."""
    client = codex_of(start_server(*FAKE, "--fake-answer", CALL))
    kwargs = dict(model="fake", tools=[CUSTOM, CODEX["tools"][0]])
    events = list(client.responses.create(input="Fix a.c", stream=True, **kwargs))
    assert "".join(event.delta for event in events if event.type == "response.custom_tool_call_input.delta") == PATCH
    assert [event.input for event in events if event.type == "response.custom_tool_call_input.done"] == [PATCH]
    response = events[-1].response
    call = response.output[-1]
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", PATCH)
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done"}
    stored = client.responses.create(input=[output], previous_response_id=response.id, **kwargs)
    sent = client.responses.create(input=[{"role": "user", "content": "Fix a.c"}, *response.output, output], **kwargs)
    assert stored.output[-1].input == sent.output[-1].input == PATCH
    assert stored.usage.input_tokens == sent.usage.input_tokens


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "custom": {"name": "apply_patch"}},
                                    {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                                        {"type": "custom", "custom": {"name": "apply_patch"}}]}}], ids=["auto", "required", "named", "allowed"])
def test_custom_tools_of_chats(start_server, choice):
    answer = CALL if choice == "auto" else json.dumps({"input": PATCH}) + "}</tool_call>"
    if choice == "required":
        answer = 'apply_patch", "arguments": ' + answer
    client = codex_of(start_server(*FAKE, "--fake-answer", answer))
    grammar = {"syntax": "lark", "definition": LARK}
    tools = [{"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "grammar", "grammar": grammar}}},
             {"type": "function", "function": {"name": "read", "parameters": SCHEMA}}]
    turns = [{"role": "user", "content": "Fix a.c"}]
    kwargs = dict(model="fake", tools=tools, tool_choice=choice)
    message = client.chat.completions.create(messages=turns, **kwargs).choices[0].message
    call = message.tool_calls[0]
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "apply_patch", PATCH)
    deltas = [delta for chunk in client.chat.completions.create(messages=turns, stream=True, **kwargs)
              for delta in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].type == "custom" and "".join(delta.custom["input"] for delta in deltas) == PATCH
    turns += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "Done"}]
    assert client.chat.completions.create(messages=turns, **kwargs).choices[0].message.tool_calls[0].custom.input == PATCH


def test_calls_are_held_to_the_grammar(start_server):
    """The fake device's answer is no patch: the grammar lets it write none of that. A grammar that cannot be held is refused by name."""
    client = codex_of(start_server(*FAKE, "--fake-answer", 'nothing of the kind"}}</tool_call>'))
    tool = CUSTOM | {"format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"}}
    ask = lambda tool: client.responses.create(model="fake", input="Count", tools=[tool], max_output_tokens=200,
                                               tool_choice={"type": "custom", "name": "apply_patch"})
    assert re.fullmatch("[0-9]{3}", ask(tool).output[-1].input)
    for syntax, definition, what in [("regex", r"(a)\1", "format of apply_patch"), ("lark", "begin: /x/", "no rule start"),
                                     ("lark", 'start: "a"i', "a flag")]:
        with pytest.raises(openai.BadRequestError) as error:
            ask(CUSTOM | {"format": {"type": "grammar", "syntax": syntax, "definition": definition}})
        assert what in str(error.value) and error.value.param == "tools"


# ---- Models, logs, browsers ----

def test_the_models_of_anthropics_client(start_server):
    client = claude_of(start_server(*FAKE, "--served-model-name", "one,two,three"))
    assert [model.id for model in client.models.list()] == ["one", "two", "three"]
    page = client.models.list(limit=2)
    assert (page.has_more, page.first_id, page.last_id, len(page.data)) == (True, "one", "two", 2)
    assert [model.id for model in page] == ["one", "two", "three"]  # the client asks for the next page
    assert [model.id for model in client.models.list(before_id="three", limit=1).data] == ["two"]
    model = client.models.retrieve("two")
    assert (model.type, model.id, model.display_name, model.lifecycle) == ("model", "two", "two", "active")
    assert model.created_at.year >= 2020 and model.max_input_tokens > 0
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("four")
    with pytest.raises(anthropic.BadRequestError):
        client.models.list(limit=0)
    # Others get OpenAI's form.
    assert httpx.get(str(client.base_url) + "/v1/models").json()["object"] == "list"


def test_lines_of_grpc_have_fields(start_server, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"name": "crew", "sha256": hashlib.sha256(b"key").hexdigest()}]}))
    server = start_server(*FAKE, "--keys", str(keys), "--log", "warning,grpc=debug", "--log-format", "json")
    stub = millrace_grpc.connect(server.grpc)
    metadata = [("authorization", "Bearer key")]
    ask = lambda **fields: list(stub.Generate(millrace_grpc.pb.GenerateRequest(text="hi", **fields), metadata=metadata, timeout=60))
    ask(stopping={"max_tokens": 3, "ignore_eos": True})
    with pytest.raises(grpc.RpcError):
        ask(sampling={"temperature": -1})
    with pytest.raises(grpc.RpcError):
        stub.Embed(millrace_grpc.pb.EmbedRequest(), metadata=metadata, timeout=60)
    lines = lambda: [line for line in map(json.loads, server.log.read_text().splitlines()) if "method" in line]
    wait_until(lambda: len(lines()) == 3)
    done, refused, embed = lines()
    assert (done["method"], done["status"], done["tenant"]) == ("/millrace.v1.Inference/Generate", "OK", "crew")
    assert done["completion_tokens"] == 3 and done["prompt_tokens"] > 0 and done["duration_ms"] > 0
    assert (refused["status"], refused["param"], refused["tenant"]) == ("INVALID_ARGUMENT", "temperature", "crew")
    assert refused["message"].endswith(" tenant=crew param=temperature") and "prompt_tokens" not in refused
    assert embed["tenant"] == "crew" and embed["status"] != "OK"


def test_pages_may_read_what_clients_read(start_server):
    server = start_server(*FAKE, "--allowed-origins", "https://app.example.com")
    answer = httpx.post(server.http + "/v1/chat/completions", json={"messages": []}, headers={"Origin": "https://app.example.com"}, timeout=60)
    exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert answer.headers["x-should-retry"] == "false"
    assert {"x-request-id", "retry-after", "x-should-retry", "inference-header-content-length"} <= exposed
