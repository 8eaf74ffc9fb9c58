#!/usr/bin/env python3
"""Measures what a server computes of agents' conversations, which go on by tools' results.

  loadtest/agents.py [--url http://127.0.0.1:8002] [--agents 32] [--turns 10] [--result-len 200] [--keep-reasoning] ...

Each agent sends its whole conversation in every turn to /v1/chat/completions, as coding agents do: instructions that all share, a
question, and of each turn before the answer, as the server returned it, with a call and the tool's result. The server renders all of it
by its chat template, which may leave thoughts out or write answers otherwise than they were generated. Lengths are words.

For each turn: the time to the first token, the tokens of all prompts, those of them that were cached, computed and new. New are those
beyond the prompt of the agent's turn before, and of first turns the questions' share by words; what is computed beyond them is the cache's loss. A cache that keeps answers, too, computes
less. Any server with OpenAI's API that returns usage.prompt_tokens_details (vLLM: --enable-prompt-tokens-details).
docs/load-testing.md has an example.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import sys
import time
import urllib.parse

WORDS = "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not".split()


def words(count, *seed):
    draw = random.Random(repr(seed))
    return " ".join(draw.choice(WORDS) for _ in range(count))


class Agent:
    def __init__(self, options, model, number):
        self.options, self.model, self.number = options, model, number
        seed = (options.seed, number)
        self.messages = [
            {"role": "system", "content": words(options.prefix_len, options.seed)},
            {"role": "user", "content": words(options.question_len, *seed)},
        ]
        self.own_share = options.question_len / (options.prefix_len + options.question_len)  # of the first prompt, by words
        self.prompt_tokens = 0  # of the turn before

    def take_turn(self, turn):
        """Returns the figures of the next turn, and notes its answer and the tool's result."""
        body = {"model": self.model, "messages": self.messages, "max_tokens": self.options.output_len, "stream": True}
        body |= {"stream_options": {"include_usage": True}, "temperature": self.options.temperature, "seed": self.number}
        body |= json.loads(self.options.extra_body)
        content, reasoning, first, usage = "", "", None, None
        begin = time.perf_counter()
        for event in events(self.options, body):
            for choice in event.get("choices", []):
                delta = choice["delta"]
                thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
                said = delta.get("content") or ""
                if first is None and (thought or said or delta.get("tool_calls")):
                    first = time.perf_counter() - begin
                content, reasoning = content + said, reasoning + thought
            usage = event.get("usage") or usage
        if usage is None:
            sys.exit("the server returned no usage")
        call = {"id": f"call{turn:05}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        answer = {"role": "assistant", "content": content, "tool_calls": [call]}
        if self.options.keep_reasoning and reasoning:
            answer["reasoning_content"] = reasoning
        result = words(self.options.result_len, self.options.seed, self.number, turn)
        self.messages += [answer, {"role": "tool", "tool_call_id": call["id"], "content": result}]
        prompt = usage["prompt_tokens"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        new, self.prompt_tokens = prompt - self.prompt_tokens, prompt
        return {"ttft": first or time.perf_counter() - begin, "prompt": prompt, "cached": cached, "computed": prompt - cached, "new": new}


def connect(options):
    url = urllib.parse.urlsplit(options.url)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    return kind(url.hostname, url.port, timeout=600)


def headers(options):
    return {"Content-Type": "application/json", "Authorization": f"Bearer {options.api_key}"}


def events(options, body):
    """Yields the events of a stream."""
    connection = connect(options)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers(options))
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{answer.status}: {answer.read().decode()}")
    for line in answer:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])
    connection.close()


def first_model(options):
    connection = connect(options)
    connection.request("GET", "/v1/models", headers=headers(options))
    return json.loads(connection.getresponse().read())["data"][0]["id"]


def run(options):
    model = options.model or first_model(options)
    agents = [Agent(options, model, number) for number in range(options.agents)]
    totals = dict.fromkeys(("prompt", "cached", "computed", "new"), 0)
    print(f"{'turn':>4} {'TTFT p50':>9} {'p99 (ms)':>9} {'prompt':>9} {'cached':>9} {'computed':>9} {'new':>9}")
    with concurrent.futures.ThreadPoolExecutor(options.agents) as threads:
        for turn in range(options.turns):
            figures = list(threads.map(lambda agent: agent.take_turn(turn), agents))
            if turn == 0:  # What all share is new once: of the others, what differs from the first agent's.
                for figure, agent in zip(figures[1:], agents[1:]):
                    figure["new"] = round(figure["prompt"] * agent.own_share)
            times = sorted(figure["ttft"] * 1e3 for figure in figures)
            sums = {name: sum(figure[name] for figure in figures) for name in totals}
            for name, value in sums.items():
                totals[name] += value
            print(
                f"{turn + 1:>4} {times[len(times) // 2]:>9.0f} {times[min(int(len(times) * 0.99), len(times) - 1)]:>9.0f}"
                f" {sums['prompt']:>9} {sums['cached']:>9} {sums['computed']:>9} {sums['new']:>9}",
                flush=True,
            )
    later = f"{totals['computed'] / totals['new']:.2f} times the new ones" if totals["new"] else "none"
    print(f" all {'':>19} {totals['prompt']:>9} {totals['cached']:>9} {totals['computed']:>9} {totals['new']:>9}: computed {later}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8002")
    parser.add_argument("--model", help="the first that the server lists")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"))
    parser.add_argument("--agents", type=int, default=32, help="at once (32)")
    parser.add_argument("--turns", type=int, default=10, help="of each (10)")
    parser.add_argument("--prefix-len", type=int, default=2000, help="instructions that all share (2000)")
    parser.add_argument("--question-len", type=int, default=100)
    parser.add_argument("--result-len", type=int, default=200, help="of a tool's result (200)")
    parser.add_argument("--output-len", type=int, default=100, help="tokens of an answer at most (100)")
    parser.add_argument("--keep-reasoning", action="store_true", help="send thoughts back, too")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--extra-body", default="{}", help='further fields of each request, as {"ignore_eos": true}')
    run(parser.parse_args())


if __name__ == "__main__":
    main()
