"""Conversations under chat templates that take little, of our own making: nothing gets lost, and every answer can be sent back."""
import subprocess

import httpx
import pytest

import daemon
import tiny_qwen3

# One system message at the beginning, turns in alternation, one call a turn without content, ids of nine letters and digits.
STRICT = """
{%- set rest = messages[1:] if messages[0].role == 'system' else messages -%}
{%- if messages[0].role == 'system' %}<system>{{ messages[0].content }}</system>{% endif -%}
{%- if action_tools %}<actions>{{ action_tools }}</actions>{% endif -%}
{%- set n = namespace(turns=0) -%}
{%- for m in rest -%}
  {%- if m.tool_calls -%}
    {%- if m.tool_calls | length > 1 %}{{ raise_exception('one call a turn') }}{% endif -%}
    {%- if m.tool_calls[0].id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif -%}
    <call {{ m.tool_calls[0].id }}>{{ m.tool_calls[0].function.name }} {{ m.tool_calls[0].function.arguments | tojson }}</call>
  {%- elif m.role == 'tool' -%}
    <result {{ m.tool_call_id }}>{{ m.content }}</result>
  {%- elif (m.role == 'user') != (n.turns % 2 == 0) or m.role not in ['user', 'assistant'] -%}
    {{ raise_exception('turns must alternate') }}
  {%- else -%}
    {%- set n.turns = n.turns + 1 -%}
    <{{ m.role }}>{{ m.content }}</{{ m.role }}>
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<assistant>{% endif -%}
"""
NOW = {"type": "object", "properties": {}, "additionalProperties": False}
CHAT_TOOLS = [{"type": "function", "function": {"name": "now", "description": "The time", "parameters": NOW}}]
QUESTION = {"role": "user", "content": "When?"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tiny_qwen3.write(tmp_path_factory.mktemp("strict"), modules=False, max_position_embeddings=8192)
    (folder / "chat_template.jinja").write_text(STRICT)
    return folder


@pytest.fixture
def post(start_server, folder):
    """Returns post(path, body), the answer of a server with the template, which must be 200."""
    server = start_server("--model", str(folder), "--tool-call-parser", "hermes")

    def post(path, body):
        answer = httpx.post(server.http + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return post


def test_every_text_of_a_conversation_is_in_the_prompt(post):
    conversation = [
        {"role": "system", "content": "alpha"}, {"role": "developer", "content": "bravo"},
        {"role": "user", "content": [{"type": "text", "text": "charlie"}, {"type": "text", "text": "delta"}]},
        {"role": "assistant", "content": "echo", "tool_calls": [
            {"id": "toolu_0123456789", "type": "function", "function": {"name": "foxtrot", "arguments": "{\"golf\": \"hotel\"}"}},
            {"id": "call_0123456789", "type": "function", "function": {"name": "india", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "toolu_0123456789", "content": "juliett"},
        {"role": "tool", "tool_call_id": "call_0123456789", "content": "kilo"},
        {"role": "assistant", "content": "lima"}, {"role": "user", "content": "mike"}, {"role": "user", "content": "november"},
        {"role": "assistant", "content": "oscar", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "papa", "arguments": None}}]},
        {"role": "tool", "tool_call_id": "1", "content": "quebec"}, {"role": "system", "content": "romeo"}]
    tokens = post("/tokenize", {"messages": conversation, "tools": CHAT_TOOLS})["tokens"]
    prompt = post("/detokenize", {"tokens": tokens})["prompt"]
    missing = [word for word in "alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november oscar papa quebec "
               "romeo".split() if word not in prompt]
    assert not missing, prompt
    assert "The time" in prompt and prompt.count("{}") == 3  # two calls, and the tool without properties


def test_answers_of_a_chat_come_back(post):
    messages = [QUESTION]
    for _ in range(3):
        body = {"messages": messages, "tools": CHAT_TOOLS, "tool_choice": "required", "max_tokens": 200}
        answer = post("/v1/chat/completions", body)["choices"][0]["message"]
        call = answer["tool_calls"][0]
        answer["content"] = "I look."  # as models that speak before they call
        messages += [answer, {"role": "tool", "tool_call_id": call["id"], "content": "noon"}]
    messages += [{"role": "assistant", "content": "Noon."}, QUESTION]
    post("/v1/chat/completions", {"messages": messages, "tools": CHAT_TOOLS, "max_tokens": 2})


def test_answers_of_messages_come_back(post):
    messages = [QUESTION]
    for _ in range(3):
        body = {"messages": messages, "max_tokens": 200, "tool_choice": {"type": "any"},
                "tools": [{"name": "now", "description": "The time", "input_schema": NOW}]}
        content = post("/v1/messages", body)["content"]
        call = content[-1]
        assert call["type"] == "tool_use"
        messages += [{"role": "assistant", "content": [{"type": "text", "text": "I look."}, *content]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "noon"}]}]


def test_answers_of_responses_come_back(post):
    body = {"tools": [{"type": "function", "name": "now", "description": "The time", "parameters": NOW}],
            "tool_choice": "required", "max_output_tokens": 200}
    items, previous, latest = [QUESTION], {}, "When?"
    for _ in range(3):
        output = post("/v1/responses", {"input": items, **body})["output"]
        items += [*output, {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "noon"}]
        response = post("/v1/responses", {"input": latest, **previous, **body})
        previous = {"previous_response_id": response["id"]}
        latest = [{"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": "noon"}]


def test_the_doctor_says_what_the_template_takes(folder):
    done = subprocess.run([daemon.program(), "doctor", "--model", str(folder), "--tool-call-parser", "hermes"], capture_output=True, text=True)
    for line in ("system messages: joined to one at the beginning", "tools: in the variable action_tools",
                 "calls: arguments as an object, one call a turn, ids of nine letters and digits",
                 "content beside calls: in one turn of the assistant"):
        assert line in done.stdout, done.stdout
