"""Sends the same requests over HTTP and gRPC: both must answer with the same tokens, or refuse alike.

Requests are drawn with a fixed seed from all fields that POST /v1/completions and Generate share. A failure prints the request.
"""
import concurrent.futures
import json
import random
import re
import urllib.error
import urllib.request

import grpc
import pytest

from millrace_grpc import connect, pb

REQUESTS = 1000
VOCABULARY = 258  # of the fake model: bytes, <s> and </s>
STATUSES = {400: {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE}, 404: {grpc.StatusCode.NOT_FOUND}}

# Values that are taken, and values that are refused. gRPC's types cannot hold every value that JSON can: those are HTTP's own.
SAMPLING = {
    "temperature": ([0, 0.3, 1.0, 2.0], [-0.1, 2.5, 1e30]),
    "top_k": ([-1, 0, 1, 5, 1000], [-2]),
    "top_p": ([0.1, 0.9, 1.0], [0.0, 1.5, -1.0]),
    "min_p": ([0.0, 0.2, 1.0], [-0.5, 1.5]),
    "typical_p": ([0.3, 1.0], [0.0, 2.0]),
    "repetition_penalty": ([0.5, 1.0, 1.5, 100.0], [0.0, -1.0, 101.0]),
    "frequency_penalty": ([-2.0, 0.0, 1.5], [-2.5, 3.0]),
    "presence_penalty": ([-1.0, 0.0, 2.0], [-3.0, 2.5]),
}
STOPPING = {
    "min_tokens": ([0, 1, 3], [-1, 50]),
    "stop": ([["a"], ["e", "zz"], ["\n", "é"]], [[""], [str(i) for i in range(17)], ["x" * 1025]]),
    "stop_token_ids": ([[101], [10, 32, 97]], [[-1], [VOCABULARY], [1_000_000]]),
    "ignore_eos": ([True, False], []),
    "include_stop_str_in_output": ([True, False], []),
}
OTHERS = {
    "logprobs": ([0, 1, 5], [-1, 21]),
    "echo": ([True, False], []),
    "skip_special_tokens": ([True, False], []),
    "priority": ([-3, 0, 7], []),
    "n": ([1, 2, 4], [0, -1, 129]),
    "timeout_ms": ([60_000, 86_400_000], [0, -5, 86_400_001]),
    "model": ([""], ["none/such"]),
    "thinking_token_budget": ([-1], [-2]),
    "speculative": ([True, False], []),
}
TAG = '{"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": %s, "end": ">"}}'
GRAMMARS = {
    "json_object": ([True], []),
    "json": (['{"type": "object", "properties": {"a": {"type": "integer"}}}', '{"enum": ["x", 1, null]}'],
             ['{"type": "strange"}', "{", '{"$ref": "#/nowhere"}']),
    "regex": (["[ab]{2,6}", "(x|yz)+"], ["(", "a{3,1}"]),
    "choice": ([["yes", "no"], ["ab", "abc"]], []),
    "grammar": (['root ::= "a" [0-9]+'], ["root ::= ", "root ::= other"]),
    "structural_tag": ([TAG % '{"type": "regex", "pattern": "[ab]{1,3}"}'], [TAG % '{"type": "any_tokens"}', TAG % "1", "{"]),
}
BOUNDS = {
    "allowed_token_ids": ([[97, 98, 99], list(range(97, 123))], [[-1], [VOCABULARY]]),
    "bad_words": ([["a"], ["e", "th", "é"], [" x"]], [[""], ["x" * 1025], [" "]]),
}
BIASES = ([{97: 5.0}, {10: -100.0, 32: 100.0}], [{97: 101.0}, {VOCABULARY: 1.0}])
PROMPTS = (["Hello", "a", "Žluťoučký kůň\n", list(b"tokens"), [256, 104]], [[VOCABULARY], [-1], "x" * 100_000])


def draw(rng):
    """Returns the fields of a request. Half of all requests have one value that is refused."""
    groups = {**SAMPLING, **STOPPING, **OTHERS, **BOUNDS}
    request = {name: rng.choice(groups[name][0]) for name in groups if rng.random() < 0.3}
    request |= {"prompt": rng.choice(PROMPTS[0]), "max_tokens": rng.randrange(1, 12)}
    request["min_tokens"] = min(request.get("min_tokens", 0), request["max_tokens"])
    if request.get("temperature") != 0:
        request["seed"] = rng.randrange(2**63)
    if rng.random() < 0.3:
        request["logit_bias"] = rng.choice(BIASES[0])
    if rng.random() < 0.3:
        kind = rng.choice(list(GRAMMARS))
        request["structured"] = (kind, rng.choice(GRAMMARS[kind][0]))
        request["ignore_eos"] = False  # true is refused beside it: one refusal a request is enough
        request = {name: value for name, value in request.items() if name not in BOUNDS}  # together they may leave nothing
    if rng.random() < 0.5:
        return request
    wrong = [(name, value) for name in groups for value in groups[name][1]]
    wrong += [("structured", (kind, value)) for kind, (_, values) in GRAMMARS.items() for value in values]
    wrong += [("logit_bias", value) for value in BIASES[1]] + [("prompt", value) for value in PROMPTS[1]] + [("max_tokens", 0)]
    name, value = rng.choice(wrong)
    return request | {name: value}


def over_http(server, request):
    """Returns (200, answers by index, usage) or (status, message, None)."""
    body = dict(request, return_token_ids=True)
    if not body.get("model", "x"):
        del body["model"]
    if "logit_bias" in body:
        body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
    if "structured" in body:
        kind, value = body.pop("structured")
        body["structured_outputs"] = {kind: value}
    post = urllib.request.Request(server.http + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        answer = json.load(urllib.request.urlopen(post, timeout=60))
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"], None
    choices = {}
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]["token_logprobs"] if choice.get("logprobs") else []
        choices[choice["index"]] = (choice["text"], choice["token_ids"], choice["finish_reason"], choice.get("stop_reason"), logprobs)
    return 200, choices, (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"])


def message_of(request):
    prompt = request["prompt"]
    message = pb.GenerateRequest(**({"text": prompt} if isinstance(prompt, str) else {"token_ids": pb.TokenIds(ids=prompt)}))
    for name, value in request.items():
        if name in SAMPLING or name == "seed":
            setattr(message.sampling, name, value)
        elif name in BOUNDS:
            getattr(message.sampling, name).extend(value)
        elif name in ("stop", "stop_token_ids"):
            getattr(message.stopping, name).extend(value)
        elif name in STOPPING or name == "max_tokens":
            setattr(message.stopping, name, value)
        elif name in OTHERS:
            setattr(message, name, value)
    for token, bias in request.get("logit_bias", {}).items():
        message.sampling.logit_bias.add(token=token, bias=bias)
    if "structured" in request:
        kind, value = request["structured"]
        if kind == "choice":
            message.structured_output.choice.choices.extend(value)
        else:
            setattr(message.structured_output, {"json": "json_schema"}.get(kind, kind), value)
    return message


def over_grpc(stub, request):
    """Returns (OK, answers by index, usage) or (code, message, None), in over_http's terms."""
    try:
        responses = list(stub.Generate(message_of(request), timeout=60))
    except grpc.RpcError as error:
        return error.code(), error.details(), None
    choices, usage = {}, [0, 0]
    for index in range(request.get("n", 1)):
        prompt = [r for r in responses if r.echo]  # HTTP repeats it in every choice.
        own = [r for r in responses if r.index == index and not r.echo]
        finish = own[-1].finish
        stopped_by = finish.WhichOneof("stopped_by")
        text = "".join(r.text for r in prompt + own)
        logprobs = [one.logprob if one.HasField("logprob") else None for r in prompt + own for one in r.logprobs]
        choices[index] = (text, [t for r in own for t in r.token_ids],
                          {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}[finish.reason],
                          getattr(finish, stopped_by) if stopped_by else None, logprobs)
        usage = [finish.usage.prompt_tokens, usage[1] + finish.usage.completion_tokens]
    return grpc.StatusCode.OK, choices, tuple(usage)


def named(message):
    """Returns the field that a refusal begins with: vLLM's structured_outputs.json is Generate's structured_output.json_schema."""
    return re.split(r"[ .:]", message)[0].rstrip("s")


def compare(server, stub, request):
    """Returns what differs, or None, and whether the request was taken."""
    status, answers, usage = over_http(server, request)
    code, others, other_usage = over_grpc(stub, request)
    if status != 200 or code != grpc.StatusCode.OK:
        alike = code in STATUSES.get(status, set()) and named(answers) == named(others)
        return None if alike else f"{status} {answers} and {code} {others}", False
    if usage != other_usage or answers.keys() != others.keys():
        return f"usage {usage} and {other_usage}, choices {list(answers)} and {list(others)}", True
    for index, answer in answers.items():
        if answer[:4] != others[index][:4] or answer[4] != pytest.approx(others[index][4], abs=1e-5):
            return f"choice {index}: {answer} and {others[index]}", True
    return None, True


def test_both_protocols_answer_and_refuse_alike(fake_server):
    rng = random.Random(22)
    requests = [draw(rng) for _ in range(REQUESTS)]
    stub = connect(fake_server.grpc)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda request: compare(fake_server, stub, request), requests))
    different = [f"{request}\n    {result[0]}" for request, result in zip(requests, results) if result[0]]
    assert not different, "\n".join(different[:10]) + f"\n{len(different)} of {REQUESTS}"
    taken = sum(result[1] for result in results)
    assert REQUESTS * 0.3 < taken < REQUESTS * 0.7
