"""Agents on models with recurrent layers: of prompts that go on from others, or begin as others do, little is computed but what is new."""
import concurrent.futures
import hashlib
import json
import pathlib
import random
import subprocess

import httpx
import pytest

from daemon import device_flags, program
from tiny_folders import LETTERS, PLAIN, SPECIAL, make_tiny_folder

LOADTEST = pathlib.Path(program()).resolve().parent / "millrace-loadtest"

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
TURNS = 10


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


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_of_one_beginning(serve, name):
    """64 that come at once, and differ in the 100 tokens behind 2,000: one computes those, and the others wait for it."""
    server = serve(name)
    shared = [ord(letter) for letter in text(2000, "shared")]
    bodies = [{"prompt": shared + [ord(letter) for letter in text(100, "own", i)], "max_tokens": 4, "ignore_eos": True} for i in range(64)]
    usages = [answer["usage"] for answer in at_once([lambda body=body: post(server, "/v1/completions", body, "none") for body in bodies])]
    hits = sum(usage["prompt_tokens_details"]["cached_tokens"] >= 1984 for usage in usages)
    assert hits >= 60


def trace_of(agents):
    """Returns a trace of agents: each has the same instructions, a question, and then a tool's result in every turn."""
    lines = []
    for number in agents:
        turns = [{"messages": [{"role": "system", "content": text(SYSTEM, "system")},
                               {"role": "user", "content": text(QUESTION, "question", number)}], "max_tokens": ANSWER}]
        for turn in range(1, TURNS):
            call = {"id": f"call{turn}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            turns.append({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]},
                                       {"role": "tool", "tool_call_id": call["id"], "content": text(RESULT, "result", number, turn)}], "max_tokens": ANSWER})
        lines.append(json.dumps({"session_id": str(number), "turns": turns}))
    return "\n".join(lines)


def replay(server, folder, key, agents):
    """Replays the agents. Returns the run's JSON with the details of each request."""
    trace, result = folder / f"{key}.jsonl", folder / f"{key}.json"
    trace.write_text(trace_of(agents))
    # No special tokens but the end of a thought: a text would not have them.
    bias = {str(i): -100 for text, i in SPECIAL.items() if text != "</think>"}
    done = subprocess.run([LOADTEST, "replay", trace, "--url", server.http, "--api-key", key, "--concurrency", str(len(agents)), "--temperature", "1",
                           "--extra-body", json.dumps({"logit_bias": bias}), "--json", result, "--save-detailed", "--quiet"],
                          capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(result.read_text())


def sums(result):
    """Returns the prompts' tokens that were computed, and those that were not known: beyond the prompt before and its answer, if that came back."""
    requests = zip(result["sessions"], result["turns"], result["input_lens"], result["cached_lens"], result["generated_texts"])
    known = dict.fromkeys(result["sessions"], SYSTEM) | {0: 0}  # of all but the first, what it computed
    computed = new = 0
    for session, _, prompt, cached, answer in sorted(requests):
        computed += prompt - cached
        new += prompt - known[session]
        known[session] = prompt + (ANSWER - 1 if len(answer) == ANSWER else 0)
    return computed, new


@pytest.mark.parametrize("name,places,tenants", [("qwen3_5", 128, 1), ("qwen3_5", 64, 1), ("qwen3_5", 128, 2), ("lfm2", 1024, 1)])
def test_turns_of_agents(serve, tmp_path, name, places, tenants):
    """Ten turns of 32 agents, four times as many as run at once, whose tokens are computed little more than once."""
    keys = [f"key-{tenant}" for tenant in range(tenants)]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"name": key, "sha256": hashlib.sha256(key.encode()).hexdigest()} for key in keys]}))
    state = httpx.get(serve(name).http + "/v1/models", timeout=60).json()["data"][0]["state"]
    bytes_of_one = next(group["bytes"] for group in state if group["kind"] == "slots")
    server = serve(name, "--keys", str(file), "--state-cache-memory", str(max(places * bytes_of_one, 1 << 20)))
    results = at_once([lambda key=key, first=first: replay(server, tmp_path, key, range(first, 32, tenants)) for first, key in enumerate(keys)])
    assert sum(result["completed"] for result in results) == 32 * TURNS
    computed, new = (sum(part) for part in zip(*map(sums, results)))
    most = 1.1 if tenants == 1 else 1.4  # a tenant over its share is preempted, and computes a turn again
    assert computed <= most * new, f"{computed} tokens were computed of {new} new ones"
