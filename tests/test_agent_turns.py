"""Agents on models with recurrent layers: of prompts that go on from others, or begin as others do, little is computed but what is new."""
import concurrent.futures
import hashlib
import json
import random

import httpx
import pytest

from daemon import device_flags
from tiny_folders import LETTERS, PLAIN, SPECIAL, make_tiny_folder

# Turns as Qwen3.5's template has them: a tool's result is the user's, and an answer since the last question has its thought, here an
# empty one where the client does not send it back.
QWEN = """
{%- set n = namespace(asked=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set n.asked = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
  {%- if m.role == 'assistant' -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if loop.index0 > n.asked -%}{{- '<think>\\n' + (m.reasoning_content or '') | trim + '\\n</think>\\n\\n' -}}{%- endif -%}
    {{- (m.content or '') + '<|im_end|>\\n' -}}
  {%- elif m.role == 'tool' -%}
    {{- '<|im_start|>user\\n[' + m.content + ']<|im_end|>\\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""
TEMPLATES = {"qwen3_5": QWEN, "lfm2": PLAIN}
SYSTEM, QUESTION, RESULT, ANSWER = 2000, 100, 300, 24  # tokens, which are characters


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """The folders of the models by name."""
    return {name: make_tiny_folder(name, tmp_path_factory, template) for name, template in TEMPLATES.items()}


@pytest.fixture
def serve(start_server, twins):
    return lambda name, *flags: start_server("--model", str(twins[name]), "--kv-cache-memory", "256MiB", "--max-num-seqs", "8",
                                             "--max-num-batched-tokens", "512", *device_flags(), *flags)


def text(length, *seed):
    draw = random.Random(repr(seed))
    return "".join(draw.choice(LETTERS) for _ in range(length))


def post(server, path, body, key):
    answer = httpx.post(server.http + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


def at_once(calls):
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        return [result.result() for result in [threads.submit(call) for call in calls]]


class Agent:
    """A conversation that a client goes on with by sending all of it, but for thoughts."""

    def __init__(self, server, number, key):
        self.server, self.number, self.key = server, number, key
        self.messages = [{"role": "system", "content": text(SYSTEM, "system")}, {"role": "user", "content": text(QUESTION, "question", number)}]
        self.known = 0  # tokens that the next prompt begins with, and that were computed
        self.new = self.computed = 0

    def take_turn(self):
        # No special tokens but the end of a thought: a text would not have them.
        bias = {str(i): -100 for text, i in SPECIAL.items() if text != "</think>"}
        body = {"messages": self.messages, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 1, "seed": self.number, "logit_bias": bias}
        answer = post(self.server, "/v1/chat/completions", body, self.key)
        usage, message = answer["usage"], answer["choices"][0]["message"]
        self.computed += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        self.new += usage["prompt_tokens"] - self.known
        comes_back = message["content"] is not None and len(message["content"]) == ANSWER
        self.known = usage["prompt_tokens"] + (ANSWER - 1 if comes_back else 0)
        turn = len(self.messages)
        self.messages += [{"role": "assistant", "content": message["content"] or "",
                           "tool_calls": [{"id": f"call{turn}", "type": "function", "function": {"name": "read", "arguments": "{}"}}]}]
        self.messages += [{"role": "tool", "tool_call_id": f"call{turn}", "content": text(RESULT, "result", self.number, turn)}]


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_of_one_beginning(serve, name):
    """64 that come at once, and differ in the 100 tokens behind 2,000: one computes those, and the others wait for it."""
    server = serve(name)
    shared = [ord(letter) for letter in text(2000, "shared")]
    bodies = [{"prompt": shared + [ord(letter) for letter in text(100, "own", i)], "max_tokens": 4, "ignore_eos": True} for i in range(64)]
    usages = [answer["usage"] for answer in at_once([lambda body=body: post(server, "/v1/completions", body, "none") for body in bodies])]
    hits = sum(usage["prompt_tokens_details"]["cached_tokens"] >= 1984 for usage in usages)
    assert hits >= 60


@pytest.mark.parametrize("name,places,tenants", [("qwen3_5", 128, 1), ("qwen3_5", 64, 1), ("qwen3_5", 128, 2), ("lfm2", 1024, 1)])
def test_turns_of_agents(serve, tmp_path, name, places, tenants):
    """Ten turns of 32 agents, four times as many as run at once, whose tokens are computed little more than once."""
    keys = [f"key-{tenant}" for tenant in range(tenants)]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"name": key, "sha256": hashlib.sha256(key.encode()).hexdigest()} for key in keys]}))
    state = httpx.get(serve(name).http + "/v1/models", timeout=60).json()["data"][0]["state"]
    bytes_of_one = next(group["bytes"] for group in state if group["kind"] == "slots")
    server = serve(name, "--keys", str(file), "--state-cache-memory", str(max(places * bytes_of_one, 1 << 20)))
    agents = [Agent(server, i, keys[i % tenants]) for i in range(32)]
    for agent in agents[tenants:]:
        agent.known = SYSTEM  # of another one of its tenant
    for _ in range(10):
        at_once([agent.take_turn for agent in agents])
    computed, new = sum(agent.computed for agent in agents), sum(agent.new for agent in agents)
    most = 1.1 if tenants == 1 else 1.4  # a tenant over its share is preempted, and computes a turn again
    assert computed <= most * new, f"{computed} tokens were computed of {new} new ones"
