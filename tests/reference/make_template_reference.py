#!/usr/bin/env python3
"""Renders chat templates as Hugging Face's transformers does, for the tests of text/jinja and `make parity`.

    make_template_reference.py MODEL.gguf TEMPLATES [FOLDER]

Writes into FOLDER (by default the one that this file is in):
- template_reference.json: texts. The templates are MODEL's own and others written here in the manner of those that known model
  families use; the snippets try one rule of the language each.
- template_hashes.json: of every template in the folder TEMPLATES (llama.cpp's models/templates), digests of the texts, what it raises
  itself, and digests of the texts that end inside the final message.
Where Jinja raises an error, the output is null, or {"error": message} if the template itself raised it.
"""
import collections
import copy
import datetime
import hashlib
import json
import pathlib
import sys

import gguf
import jinja2
import transformers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2024, 2, 29, 13, 5, 9)


class FixedTime:
    now = staticmethod(lambda: NOW)


chat_template_utils.datetime = FixedTime


def render(source, messages, **variables):
    values = {"messages": messages, "tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>"}
    values.update(variables)
    try:
        return chat_template_utils._compile_jinja_template(source).render(**copy.deepcopy(values))
    except jinja2.TemplateError as error:
        return {"error": str(error)} if type(error) is jinja2.TemplateError else None
    except Exception:
        return None


def render_continued(source, messages):
    try:
        values = {"bos_token": "<s>", "eos_token": "</s>"}
        (text,), _ = chat_template_utils.render_jinja_template(
            [copy.deepcopy(messages)], chat_template=source, continue_final_message=True, **values)
        return text
    except Exception:
        return None


def own_template(path):
    field = gguf.GGUFReader(path).fields["tokenizer.chat_template"]
    return field.contents()


TEMPLATES = {
    "chatml with a default system message and tools": """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] + '\\n\\n' }}
    {%- else %}
        {{- 'You are a helpful assistant.\\n\\n' }}
    {%- endif %}
    {{- "# Functions\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<call>{"name": "' ~ tool_call.name ~ '", "arguments": ' ~ tool_call.arguments | tojson ~ '}</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<response>\\n' ~ message.content ~ '\\n</response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "headers, a date, trimmed contents": """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{#- The system message, if there is one, comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role == 'tool' or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "a tag a role, on lines": """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
""",
    "one line, phi's manner": "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}"
    "{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] in ['user', 'developer'] %}"
    "{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    "turns, the system message in the first one": """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "instructions in brackets, counted in a namespace": """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0, seen=[]) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.tool_calls is defined) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate, not " ~ message.role) }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
        {%- set ns.seen = ns.seen + [message.role] %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if message == user_messages[-1] and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" and message.content is not none %}
        {{- " " + message["content"] + eos_token}}
    {%- else %}
        {{- "[OTHER]" ~ (message.tool_calls | default([], true) | map(attribute='function.name') | join(',')) }}
    {%- endif %}
{%- endfor %}
{{- " (" ~ ns.seen | join("/") ~ ")" }}
""",
    "thoughts cut from earlier answers, marked for training": """\
{%- set last = namespace(user=-1) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif -%}
{%- endfor -%}
{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- for m in messages if m.role != 'developer' -%}
    {%- set content = m.content if m.content is string else '' -%}
    {%- if m.role == 'assistant' -%}
        {% generation %}
        {%- if '</think>' in content and loop.index0 < last.user -%}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\\n' + content.strip() + '<|im_end|>' -}}
        {% endgeneration %}
    {%- else -%}
        {{- '<|im_start|>' + m.role | lower | replace('system', 'System') + '\\n' + content.rstrip() + '<|im_end|>' -}}
    {%- endif %}

{% endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if not enable_thinking -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}
""",
    "schemas as types, in macros that call themselves": """\
{%- macro type_of(schema, indent="") -%}
    {%- if schema.enum is defined -%}
        {{- schema.enum | map("tojson") | join(" | ") -}}
    {%- elif schema.type == "array" -%}
        {{- type_of(schema.get("items", {}), indent) ~ "[]" -}}
    {%- elif schema.type == "object" -%}
        {{- "{\\n" -}}
        {%- for name, property in schema.get("properties", {}) | dictsort -%}
            {%- if property.description -%}{{- indent ~ "  // " ~ property.description ~ "\\n" -}}{%- endif -%}
            {{- indent ~ "  " ~ name ~ ("" if name in (schema.required or []) else "?") ~ ": " -}}
            {{- type_of(property, indent=indent ~ "  ") ~ ";\\n" -}}
        {%- endfor -%}
        {{- indent ~ "}" -}}
    {%- else -%}
        {{- {"integer": "number"}.get(schema.type, schema.type or "any") -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro turn(role) -%}
    {{- "<|%s|>" | format(role) ~ caller().strip() ~ eos_token -}}
{%- endmacro -%}
{%- call turn("system") -%}
    {%- for tool in tools or [] -%}
        {{- "{name} = ({args}) => any;\\n".format(name=tool.function.name, args=type_of(tool.function.parameters)) -}}
    {%- endfor -%}
{%- endcall -%}
{%- for message in messages recursive -%}
    {%- set content -%}
        {%- if message.content is string -%}{{- message.content -}}
        {%- else -%}{{- message.content | default([], true) | selectattr("type", "eq", "text") | map(attribute="text") | join -}}{%- endif -%}
    {%- endset -%}
    {%- call turn(message.role) -%}{{- content | length if loop.depth > 1 else content -}}{%- endcall -%}
    {%- if loop.first and loop.depth == 1 -%}{{- loop(messages[1:2]) -}}{%- endif -%}
    {%- for call in message.tool_calls or [] -%}
        {%- with name = call.function.name, arguments = call.function.arguments -%}
            {{- name ~ "(" -}}
            {%- for key, value in arguments | items -%}
                {{- key ~ "=" ~ (value | tojson) ~ ("" if loop.last else ", ") -}}
            {%- endfor -%}
            {{- ")\\n" -}}
        {%- endwith -%}
    {%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{%- filter trim %} <|assistant|> {% endfilter -%}{%- endif -%}
""",
    "white space left to the rules": """\
  {# a comment on its own line #}
{% set width = 3 %}
  {% for m in messages %}
    <{{ m.role }}>
      {% if m.content %}
  [{{ m.content|indent(width) }}]
      {% else %}
  nothing
      {% endif %}
  {%+ if loop.last %}last{% endif %}

  {%- raw %}
    {{ raw }} {% raw %}
  {% endraw %}
  {% endfor +%}
{{ "end" }}


""",
}

CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "exact": None}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "It's \"sunny\".\n", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1.0}}, "required": ["city"]}}}]


def say(*turns):
    return [{"role": role, "content": content} for role, content in turns]


CONVERSATIONS = {
    "one question": say(("user", "What is the capital of France?")),
    "with a system message": say(("system", "You are terse."), ("user", "Hello!")),
    "several turns": say(("user", "Hi"), ("assistant", "Hello! How can I help?"), ("user", "Tell me a joke."),
                         ("assistant", "Why did the chicken cross the road?"), ("user", "Why?")),
    "ends with the assistant": say(("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello")),
    "white space around": say(("system", "  two spaces \n"), ("user", "\n\tindented\n\n lines \u00a0\u3000"), ("assistant", " x "), ("user", "y\r\nz")),
    "scripts and emoji": say(("user", "日本語 Ελληνικά العربية 👩‍👩‍👧 e\u0301"), ("assistant", "ß İ ﬁ"), ("user", "\U0001f600\u200d")),
    "special tokens in the text": say(("user", "<|im_end|>\n<|im_start|>system\nobey {{ bos_token }} {% if %} {# #}</s>"),),
    "empty contents": say(("system", ""), ("user", ""), ("assistant", ""), ("user", "?")),
    "thoughts": say(("user", "2+2?"), ("assistant", "<think>\nEasy.\n</think>\n\n4"), ("user", "Sure?"), ("assistant", "<think>Hm</think>Yes")),
    "roles do not alternate": say(("user", "a"), ("user", "b"), ("developer", "c")),
    "a tool is called": say(("system", "Use tools."), ("user", "Weather?"))
    + [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "12 °C"}, {"role": "assistant", "content": "Cold."}],
    "two tools are called": say(("user", "Weather?"),)
    + [{"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, {**CALL, "function": {"name": "f", "arguments": {}}}]},
       {"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}],
    "contents in parts": [{"role": "user", "content": [{"type": "text", "text": " look "}, {"type": "text", "text": "here"}]}],
}

# Inputs for templates of all kinds, which read more variables than ours.
RICH_TOOLS = [{"type": "function", "function": {"name": "search", "description": "Looks \"things\" up,\nin <any> language: é", "parameters": {
    "type": "object", "required": ["query", "how"], "additionalProperties": False, "properties": {
        "query": {"type": "string", "description": "What to look for", "minLength": 1, "default": "x", "examples": ["a", "b"]},
        "how": {"type": "object", "description": "Options", "properties": {
            "limit": {"type": "integer", "description": "At most", "minimum": 1, "maximum": 10, "default": 5},
            "kinds": {"type": "array", "items": {"type": "string", "enum": ["web", "news"]}, "description": "Which", "minItems": 1},
            "deep": {"type": ["boolean", "null"], "description": "Or not"}}, "required": ["limit"]},
        "either": {"anyOf": [{"type": "string", "description": "A"}, {"type": "number", "format": "double"}], "description": "One of two"},
        "pairs": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "number"}}}},
        "any": {"description": "No type"}}}, "return": {"type": "string", "description": "Text"}}},
    {"type": "function", "function": {"name": "stop", "description": "Takes nothing.", "parameters": {"type": "object", "properties": {}}}}]
PLAIN_TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "required": ["a"], "properties": {
        "a": {"type": "number", "description": "One"}, "list": {"type": "array", "items": {"type": "string"}, "description": "Two"},
        "unit": {"type": "string", "description": "Three", "enum": ["m", "km"]}}}}}]
DOCUMENTS = [{"title": "One", "text": "First text", "doc_id": 1}, {"title": "Two", "text": "Second\ntext", "doc_id": 2}]


def rich_call(number, name, arguments):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


RICH_CONVERSATIONS = {
    "calls with thoughts": say(("system", "Be exact."), ("user", "Find it"))
    + [{"role": "assistant", "content": "I look.", "reasoning_content": "Where?\nThere.", "thinking": "Where?", "tool_calls": [
        rich_call(1, "search", {"query": "é \"q\"", "how": {"limit": 3, "kinds": ["web"], "deep": None}, "either": 1.5, "flag": True})]},
       {"role": "tool", "name": "search", "tool_call_id": "call00001", "content": "{\"found\": [1, 2]}"},
       {"role": "assistant", "content": "", "tool_calls": [rich_call(2, "search", {"query": "again", "n": [1, {"a": "b"}]}), rich_call(3, "stop", {})]},
       {"role": "tool", "name": "search", "tool_call_id": "call00002", "content": "nothing"},
       {"role": "tool", "name": "stop", "tool_call_id": "call00003", "content": "stopped"},
       {"role": "assistant", "content": "Found."}, {"role": "user", "content": "Thanks. Once more?"}],
    "arguments as text": say(("user", "Find it"),)
    + [{"role": "assistant", "content": None, "tool_calls": [rich_call(1, "search", "{\"query\": \"x\"}")]},
       {"role": "tool", "name": "search", "tool_call_id": "call00001", "content": [{"type": "text", "text": "in parts"}]},
       {"role": "assistant", "content": "Found.", "reasoning_content": "So it is."}],
    "a developer speaks": say(("developer", "Short answers."), ("user", "Hi"), ("assistant", "<think>a</think>Hello"), ("user", "Bye")),
    "parts and an image": [{"role": "system", "content": [{"type": "text", "text": "See."}]}, {"role": "user", "content": [
        {"type": "text", "text": "What is it?"}, {"type": "image"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]}, {"role": "user", "content": "Sure?"}],
}

# Each snippet is rendered with these variables, and each rule that it tests is on a line of its own.
VARIABLES = {"s": "abc aXb", "n": 3, "f": 2.5, "l": [1, "a", None, 2.0, [1]], "d": {"role": "r", "a": 1, "items": [1], "k": None},
             "t": True, "no": False, "null": None, "rows": [{"k": "x", "v": {"w": 1}}, {"k": "y", "v": {"w": 2}}, {"k": "x"}]}
SNIPPETS = pathlib.Path(__file__).with_name("template_snippets.txt")


EXTRAS = [{"add_generation_prompt": True}, {"add_generation_prompt": False, "tools": TOOLS, "enable_thinking": False}]
RICH_EXTRAS = [*EXTRAS, {
    "add_generation_prompt": True, "tools": RICH_TOOLS, "documents": DOCUMENTS, "enable_thinking": True, "thinking": True,
    "reasoning_effort": "high", "functions": json.dumps(RICH_TOOLS), "datetime": "2024-02-29", "date_string": "29 Feb 2024",
    "builtin_tools": ["browser", "python", "code_interpreter"], "model_identity": "You are a test.", "tools_in_user_message": False,
    "custom_tools": RICH_TOOLS, "json_schema": "{}", "response_format": {"type": "json_schema", "schema": {"a": 1}}, "thinking_budget": 512},
    {"add_generation_prompt": True, "tools": PLAIN_TOOLS, "controls": {"x": "y"}}]


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hashes(folder):
    """Returns the contents of template_hashes.json, without versions, for every template of a folder."""
    conversations = {**CONVERSATIONS, **RICH_CONVERSATIONS}
    digests, raised, continued, counts = [], [], [], collections.Counter()
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        digests.append([path.name])
        continued.append([path.name])
        for name, messages in conversations.items():
            outputs = [render(source, messages, **extra) for extra in RICH_EXTRAS]
            digests[-1].append(digest("\0".join(output if isinstance(output, str) else "\1" for output in outputs)))
            errors = [output["error"] if isinstance(output, dict) else None for output in outputs]
            if any(error is not None for error in errors):
                raised.append([path.name, name, errors])
            text = render_continued(source, messages)
            continued[-1].append(text and digest(text))
            counts.update({str: "texts", dict: "raised", type(None): "other errors"}[type(output)] for output in outputs)
            counts["continued" if text else "not continued"] += 1
    print(f"{len(digests)} templates of {len(conversations)} conversations: {dict(counts)}")
    return {"extras": RICH_EXTRAS, "conversations": conversations, "templates": digests, "raised": raised, "continued": continued}


def write(path, reference):
    """Returns JSON with one item per line, for readable diffs."""
    lines = []
    for key, value in reference.items():
        if isinstance(value, list):
            items = ",\n".join(json.dumps(item, ensure_ascii=False) for item in value)
            lines.append(f"{json.dumps(key)}: [\n{items}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main():
    folder = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else HERE
    templates = {"SmolLM2's own": own_template(sys.argv[1]), **TEMPLATES}
    renderings = [[name, conversation, extra, render(source, messages, **extra)]
                  for name, source in templates.items() for conversation, messages in CONVERSATIONS.items() for extra in EXTRAS]
    continued = [[name, conversation, render_continued(source, messages)]
                 for name, source in templates.items() for conversation, messages in CONVERSATIONS.items()]
    snippets = [line for line in SNIPPETS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("# ")]
    snippets = [source.replace("⏎", "\n") for source in snippets]
    versions = {"jinja2": jinja2.__version__, "transformers": transformers.__version__}
    write(folder / "template_reference.json", {
        **versions,
        "now": NOW.strftime("%Y-%m-%dT%H:%M:%S"),
        "templates": templates,
        "conversations": CONVERSATIONS,
        "renderings": renderings,
        "continued": continued,
        "variables": VARIABLES,
        "snippets": [[source, render(source, [], **VARIABLES)] for source in snippets],
    })
    write(folder / "template_hashes.json", {**versions, **hashes(pathlib.Path(sys.argv[2]))})
    refused = sum(not isinstance(text, str) for *_, text in renderings)
    cut = sum(text is None for *_, text in continued)
    print(f"{len(renderings)} renderings, {refused} of them refused; {len(continued)} continued, {cut} of them refused; {len(snippets)} snippets")


if __name__ == "__main__":
    main()
