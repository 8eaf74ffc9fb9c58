"""Sends inputs that are wrong, each in one way, over HTTP and gRPC, beside a stream that must not notice.

Each refusal names the field, what came and what is allowed. The tables make the cases: a field's type, and values of that type which are
refused. BAD counts them; how long refusals took is printed with -s.
"""
import json
import re
import socket
import threading
import time

import grpc
import httpx
import pytest

from conftest import Server
from daemon import wait_until
from millrace_grpc import connect, pb

pytestmark = pytest.mark.serial

HUGE = 2**31
# Values that are wrong for a type, whatever the field.
WRONG = {
    "integer": ["1", 1.5, True, [], {}, HUGE],
    "number": ["1", True, [], {}, 1e300],
    "boolean": [0, "true", [], {}],
    "string": [1, False, [], {}],
    "list": ["x", 1, True, {}],
    "object": ["x", 1, True, []],
}
TOKENS = ["1", 1, {}, True, ["x"], [1.5], [HUGE], [None], [-1], [1_000_000]]
SCHEMAS = [1, [], {"type": "strange"}, {"$ref": "#/nowhere"}, {"minLength": "x"}]

SAMPLING = {
    "temperature": ("number", [-0.1, 2.1]), "top_p": ("number", [0, 1.1]), "top_k": ("integer", [-2]),
    "min_p": ("number", [-0.1, 1.1]), "typical_p": ("number", [0, 1.1]), "repetition_penalty": ("number", [0, 101]),
    "frequency_penalty": ("number", [-2.1, 2.1]), "presence_penalty": ("number", [-2.1, 2.1]),
}
NEUTRAL = {name: (None, [value]) for name, value in {
    "cache_salt": "x", "custom_params": {"a": 1}, "kv_transfer_params": {"a": 1},
    "length_penalty": 2, "logits_processors": ["x"], "lora_path": "x", "no_stop_trim": True, "prompt_cache_key": 1, "request_id": "x",
    "return_hidden_states": True, "return_token_offsets": True, "safety_identifier": 1, "service_tier": "fastest", "store": 1,
    "stream_interval": 2, "truncate_prompt_tokens": 5, "use_beam_search": True, "user": 1, "vllm_xargs": {"a": 1}, "watermarking": True,
}.items()} | {"metadata": ("object", [{"a": 1}, {str(i): "" for i in range(17)}])}
GENERATE = SAMPLING | NEUTRAL | {
    "model": ("string", [""]), "n": ("integer", [0, -1, 129]), "stream": ("boolean", []),
    "stream_options": ("object", [{"include_usage": 1}, {"include_usage": True}, {"include_obfuscation": True}, {"other": 1}]),
    "min_tokens": ("integer", [-1, 5]), "thinking_token_budget": ("integer", [-2, 1.5]), "ignore_eos": ("boolean", []), "include_stop_str_in_output": ("boolean", []), "speculative": ("boolean", []),
    "skip_special_tokens": ("boolean", []), "stop_token_ids": (None, TOKENS), "allowed_token_ids": (None, TOKENS),
    "bad_words": (None, ["x", 1, {}, [1], [None], [""], [" "], ["x"] * 1025, ["x" * 1025]]), "priority": ("integer", []),
    "timeout_ms": ("integer", [0, -1, 86_400_001]), "return_token_ids": ("boolean", []), "prompt_logprobs": ("integer", [-1, 21]),
    "logit_bias": ("object", [{"x": 1}, {"1": "x"}, {"1": 101}, {"-1": 1}, {"1000000": 1}, {"99999999999": 1}]),
    "seed": (None, ["1", 1.5, True, [], {}, 2**64]), "stop": (None, [1, True, {}, [1], [""], "", ["x"] * 17, ["x" * 1025]]),
    "response_format": ("object", [{}, {"type": "xml"}, {"type": 1}, {"type": "json_schema"}, {"type": "text", "x": 1},
                                   {"type": "json_schema", "json_schema": {"schema": 1}},
                                   {"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}]),
    "structured_outputs": ("object", [{"json": 1}, {"regex": ""}, {"regex": "("}, {"choice": []}, {"choice": [1]}, {"grammar": "root ::= other"},
                                      {"json_object": 1}, {"structural_tag": "x"}, {"other": False},
                                      {"regex": "a", "choice": ["a"]}]),
    "guided_json": (None, SCHEMAS), "guided_regex": ("string", ["", "(", "a{3,1}"]), "guided_choice": (None, [1, "x", {}, [], [1]]),
    "guided_grammar": ("string", ["root ::= other"]), "no_such_field": (None, [1]), "temprature": (None, [1]),
}
TURN = {"role": "user", "content": "x"}
MESSAGES = [1, "x", {}, [], [1], [{}], [{"role": "user"}], [{"role": "nobody", "content": "x"}], [{"role": 1, "content": "x"}],
            [{"role": "user", "content": 1}], [{"role": "user", "content": []}], [TURN | {"x": 1}], [TURN | {"name": 1}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            [{"role": "user", "content": [{"type": "text"}]}], [{"role": "assistant", "content": None}]]
TOOL = {"type": "function", "function": {"name": "f"}}
TOOLS = [1, "x", {}, [1], [{}], [{"type": "custom"}], [{"type": "function"}], [TOOL | {"x": 1}], [TOOL] * 129,
         [{"type": "function", "function": {"name": "a b"}}], [{"type": "function", "function": {"name": "f", "parameters": 1}}]]
CHAT = {
    "messages": (None, MESSAGES + [[TURN | {"tool_calls": []}], [{"role": "assistant", "tool_calls": [{}]}]]),
    "add_generation_prompt": ("boolean", []), "continue_final_message": ("boolean", [True]),
    "chat_template_kwargs": ("object", [{"messages": []}, {str(i): 1 for i in range(257)}]),
    "tools": (None, TOOLS), "parallel_tool_calls": ("boolean", []),
    "tool_choice": (None, [1, "any", "required", {}, {"type": "x"}, {"type": "function", "function": {"name": "g"}},
                           {"type": "function", "function": {"name": "g", "x": 1}}]),
}
EMBED = {
    "model": ("string", [""]), "truncate_prompt_tokens": ("integer", []), "priority": ("integer", []),
    "timeout_ms": ("integer", [0, 86_400_001]), "user": ("string", []), "no_such_field": (None, [1]),
}
TEXTS = (None, [1, {}, "", [], [1], [""], ["x", ""], ["x"] * 2049])
SCORING = EMBED | {"use_activation": ("boolean", [])}

# For each path: a request that is valid, and wrong values for each field.
HTTP = {
    "/v1/completions": ({"prompt": "x", "max_tokens": 1}, GENERATE | {
        "prompt": (None, [None, 1, True, {}, "", [], [""], [[]], ["x", 1], [[1], "", "x"], [1, "x"], [1.5], [1_000_000], [-1], ["x"] * 129]),
        "max_tokens": ("integer", [0, -1]), "best_of": ("integer", [0, 129]), "echo": ("boolean", []), "logprobs": ("integer", [-1, 6]),
        "suffix": (None, ["x"]), "prompt_embeds": (None, ["x"]),
    }),
    "/v1/chat/completions": ({"messages": [TURN], "max_tokens": 1}, GENERATE | CHAT | {
        "max_tokens": ("integer", [0]), "max_completion_tokens": ("integer", [0, -1]), "logprobs": ("boolean", []),
        "top_logprobs": ("integer", [-1, 21, 2]), "reasoning_effort": ("string", ["", "huge"]), "include_reasoning": ("boolean", []),
        "separate_reasoning": ("boolean", []), "audio": (None, [{}]), "modalities": (None, [["audio"]]), "verbosity": (None, ["none"]),
        "functions": (None, [[{"name": "f"}]]), "prediction": ("object", [{}, {"type": "text", "content": "x"}, {"type": "content"}, {"type": "content", "content": []}, {"type": "content", "content": "x", "y": 1}]), "web_search_options": (None, [{}]),
    }),
    "/v1/messages": ({"messages": [TURN], "max_tokens": 1}, {
        "max_tokens": ("integer", [None, 0, -1]), "messages": (None, MESSAGES), "system": (None, [1, {}, [1], [{"type": "image"}]]),
        "temperature": SAMPLING["temperature"], "top_p": SAMPLING["top_p"], "top_k": SAMPLING["top_k"], "stream": ("boolean", []),
        "stop_sequences": (None, [1, [1], [""], ["x"] * 17]), "output_config": ("object", [{"effort": "huge"}, {"x": 1}]), "metadata": ("object", []), "service_tier": (None, ["flex"]),
        "tools": (None, [1, [1], [{}], [{"name": "a b"}], [{"name": "f", "input_schema": 1}], [{"name": "f", "type": "bash"}]]),
        "tool_choice": (None, [1, {}, {"type": "x"}, {"type": "tool"}, {"type": "any"}, {"type": "auto", "x": 1}]),
        "thinking": ("object", [{}, {"type": "enabled"}, {"type": "enabled", "budget_tokens": 0}, {"type": "enabled", "budget_tokens": 1 << 30}]), "container": (None, ["x"]),
        "output_format": ("object", [{}, {"type": "x"}, {"type": "json_schema", "schema": 1}]), "no_such_field": (None, [1]),
    }),
    "/v1/responses": ({"input": "x", "max_output_tokens": 1}, SAMPLING | {
        "input": (None, [None, 1, {}, [], [1], [{}], [{"role": "nobody", "content": "x"}], [{"type": "item_reference", "id": "x"}],
                         [{"role": "user", "content": [{"type": "input_image"}]}]]),
        "instructions": ("string", []), "previous_response_id": ("string", ["resp_none"]), "store": ("boolean", []),
        "max_output_tokens": ("integer", [0, -1]), "tools": (None, [1, [1], [{}], [{"type": "file_search"}], [{"type": "function"}]]),
        "tool_choice": (None, [1, "any", "required", {}, {"type": "function"}, {"type": "function", "name": "f", "x": 1}]),
        "reasoning": ("object", [{"effort": "huge"}, {"summary": "long"}, {"x": 1}]), "background": (None, [True, 1]),
        "text": ("object", [{"format": {}}, {"format": {"type": "xml"}}, {"format": {"type": "json_schema"}}, {"verbosity": "none"}]),
        "metadata": NEUTRAL["metadata"], "truncation": (None, ["middle"]), "include": (None, [["x"]]), "no_such_field": (None, [1]),
    }),
    "/v1/embeddings": ({"input": "x"}, EMBED | {
        "input": (None, [None, 1, {}, "", [], [""], [[]], ["x", 1], [1, "x"], [1.5]]), "encoding_format": ("string", ["int8"]),
        "dimensions": ("integer", []), "normalize": (None, [True]), "messages": (None, [[TURN]]),
    }),
    "/v1/score": ({"text_1": "x", "text_2": "y"}, SCORING | {"text_1": TEXTS, "text_2": TEXTS, "queries": (None, ["x"])}),
    "/v1/rerank": ({"query": "x", "documents": ["y"]}, SCORING | {
        "query": (None, [None, 1, "", [], ["x"]]), "documents": (None, [None, 1, "x", [], [1], [""]]), "top_n": ("integer", [-1]),
        "return_documents": ("boolean", []),
    }),
    "/tokenize": ({"prompt": "x"}, {
        "prompt": ("string", []), "model": ("string", [""]), "add_special_tokens": ("boolean", []), "return_token_strs": ("boolean", []),
        "no_such_field": (None, [1]),
    }),
    "/tokenize?chat": ({"messages": [TURN]}, CHAT | {"add_special_tokens": (None, [True])}),
    "/detokenize": ({"tokens": [1]}, {"tokens": (None, TOKENS + [None]), "model": ("string", [""]), "no_such_field": (None, [1])}),
}
HTTP_CASES = [(path, field, value) for path, (_, fields) in HTTP.items() for field, (kind, values) in fields.items()
              for value in WRONG.get(kind, []) + values]

# Refusals of the header, or of the body as a whole: bytes, status, a word of the message.
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HTTP_BYTES = [
    (HEAD + "Host: localhost\r\nContent-Length: 2\r\n\r\n{}", 400, "more than one Host"),
    (HEAD + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 400, "more than one Content-Type"),
    (HEAD + "Origin: http://localhost\r\nOrigin: http://evil.com\r\nContent-Length: 2\r\n\r\n{}", 400, "more than one Origin"),
    (HEAD + "Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 2\r\n\r\n{}", 400, "more than one Authorization"),
    (HEAD + "Content-Length: 2\r\n\r\n[]", 400, r"the body is \[\]; allowed: an object"),
    (HEAD + "Content-Length: 1\r\n\r\n{", 400, "the body"),
    (HEAD + "Content-Length: 3\r\n\r\n{\xff}", 400, "the body"),
    (HEAD + "Content-Length: 0\r\n\r\n", 400, "the body is empty"),
    (HEAD + 'Content-Length: 29\r\n\r\n{"prompt":"a", "prompt": "b"}', 400, "prompt"),
    (HEAD + "Content-Length: -1\r\n\r\n", 400, "not HTTP"),
    (HEAD + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400, "not HTTP"),
    (HEAD + "Content-Length: 99999999999\r\n\r\n", 413, "99999999999 bytes; allowed: at most"),
    (HEAD + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415, "gzip"),
    (HEAD + "Transfer-Encoding: gzip\r\n\r\n", 400, "Transfer-Encoding is|not HTTP"),
    (HEAD + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "not HTTP"),
    (HEAD + "Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", 417, "200-ok"),
    (HEAD + "X-Request-Timeout-Ms: 0\r\nContent-Length: 2\r\n\r\n{}", 400, 'X-Request-Timeout-Ms is "0"'),
    (HEAD + "X-Request-Timeout-Ms: soon\r\nContent-Length: 2\r\n\r\n{}", 400, 'X-Request-Timeout-Ms is "soon"'),
    (HEAD + "X-Request-Timeout-Ms: 1\r\nX-Request-Timeout-Ms: 2\r\nContent-Length: 2\r\n\r\n{}", 400, "allowed: once"),
    (HEAD + "X: " + "y" * 20000 + "\r\n\r\n", 431, "header"),
    (HEAD + "X: y\r\n" * 101 + "\r\n", 431, "more than 100 fields"),
    ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 415, 'Content-Type is ""; allowed'),
    ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", 415, "text/plain"),
    ("GET /v1/models HTTP/1.1\r\n\r\n", 400, "no Host"),
    ("GET /v1/models HTTP/1.1\r\nHost:\r\n\r\n", 400, "Host is empty"),
    ("GET /v1/models HTTP/1.1\r\nHost: evil.com\r\n\r\n", 403, 'Host "evil.com"'),
    ("GET /v1/models HTTP/1.1\r\nHost: local host\r\n\r\n", 403, "Host"),
    ("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.com\r\n\r\n", 403, 'Origin "http://evil.com"'),
    ("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: ftp://localhost\r\n\r\n", 403, 'Origin "ftp://localhost"'),
    ("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n\r\n", 403, 'Origin "null"'),
    ("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin:\r\n\r\n", 403, 'Origin ""'),
    ("GET http://evil.com/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 403, 'Host "evil.com"'),
    ("GET http:///v1/models HTTP/1.1\r\nHost: evil.com\r\n\r\n", 400, "names no host"),
    ("GET ftp://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, 'scheme is "ftp"; allowed: http, https'),
    ("GET /v1/models HTTP/3.0\r\nHost: localhost\r\n\r\n", 505, "allowed: HTTP/1.1"),
    ("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "no path /nowhere"),
    ("GET /v1/models/other HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "other"),
    ("GET /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "is POST, not GET"),
    ("PATCH /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "is GET, not PATCH"),
    ("nonsense\r\n\r\n", 400, "not HTTP"),
]

S, T = pb.SamplingOptions, pb.StopOptions
CHOICES = pb.StructuredOutput.Choices
# Refusals of Generate: the changed fields, the status, a word of the message.
INVALID, RANGE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE
GENERATE_CALLS = [
    *[(dict(sampling=S(**{name: value})), INVALID, f"{name} is ") for name, (kind, values) in SAMPLING.items() for value in values],
    *[(dict(sampling=S(**{name: float("nan")})), INVALID, f"{name} is nan") for name, (kind, _) in SAMPLING.items() if kind == "number"],
    *[(dict(n=n), INVALID, f"n is {n}; allowed: ") for n in (0, -1, 129)],
    *[(dict(logprobs=n), INVALID, f"logprobs is {n}; allowed: 0 to 20") for n in (-1, 21)],
    *[(dict(timeout_ms=n), INVALID, f"timeout_ms is {n}; allowed: 1 to ") for n in (0, -1, 86_400_001)],
    *[(dict(stopping=T(max_tokens=n)), INVALID, f"max_tokens is {n}; allowed: at least 1") for n in (0, -1)],
    (dict(stopping=T(max_tokens=10**6)), RANGE, "1000000"),
    (dict(stopping=T(max_tokens=2, min_tokens=3)), INVALID, "min_tokens is 3; allowed: at most max_tokens, which is 2"),
    (dict(stopping=T(min_tokens=-1)), INVALID, "min_tokens is -1"),
    (dict(stopping=T(stop=[""])), INVALID, r"stop\[0\] has 0 bytes; allowed: 1 to 1024"),
    (dict(stopping=T(stop=["x" * 1025])), INVALID, r"stop\[0\] has 1025 bytes"),
    (dict(stopping=T(stop=["x"] * 17)), INVALID, "stop has 17 strings; allowed: at most 16"),
    (dict(stopping=T(stop_token_ids=[-1])), INVALID, r"stop_token_ids\[0\] is -1; allowed: 0 to "),
    (dict(stopping=T(stop_token_ids=[0, 10**6])), INVALID, r"stop_token_ids\[1\] is 1000000"),
    (dict(stopping=T(stop_token_ids=[1] * 1025)), INVALID, "stop_token_ids has 1025 ids"),
    (dict(sampling=S(allowed_token_ids=[0, -1])), INVALID, r"allowed_token_ids\[1\] is -1; allowed: 0 to "),
    (dict(sampling=S(bad_words=["x", ""])), INVALID, r"bad_words\[1\] has 0 bytes; allowed: 1 to 1024"),
    (dict(sampling=S(bad_words=["x"] * 1025)), INVALID, "bad_words has 1025 strings; allowed: at most 1024"),
    (dict(sampling=S(allowed_token_ids=[120], bad_words=["x"])), INVALID, "allowed_token_ids: no token is left"),
    *[(dict(sampling=S(logit_bias=[dict(token=5, bias=bias)])), INVALID, "logit_bias has") for bias in (101, -101, float("nan"))],
    *[(dict(sampling=S(logit_bias=[dict(token=token, bias=1)])), INVALID, f"logit_bias has token {token}") for token in (-1, 10**6)],
    (dict(sampling=S(logit_bias=[dict(token=5, bias=1)] * 2)), INVALID, "logit_bias has token 5 twice"),
    (dict(sampling=S(logit_bias=[dict(token=5, bias=1)] * 1025)), INVALID, "logit_bias has 1025 tokens; allowed: at most 1024"),
    (dict(request_id="a b"), INVALID, "request_id"),
    (dict(request_id="x" * 1000), INVALID, "request_id"),
    (dict(model="none/such"), grpc.StatusCode.NOT_FOUND, "none/such"),
    (dict(text=None), INVALID, "prompt: missing"),
    (dict(text=""), INVALID, "prompt is empty"),
    (dict(text="x" * 100_000), RANGE, "100000"),
    (dict(text=None, token_ids=pb.TokenIds()), INVALID, "prompt is empty"),
    *[(dict(text=None, token_ids=pb.TokenIds(ids=[0, token])), INVALID, rf"prompt\[1\] is {token}; allowed: 0 to ") for token in (-1, 10**6)],
    (dict(text=None, chat=pb.ChatMessages()), INVALID, "messages is empty"),
    (dict(text=None, chat=pb.ChatMessages(messages=[dict(role="nobody", content="x")])), INVALID, r'messages\[0\].role is "nobody"; allowed: '),
    (dict(text=None, chat=pb.ChatMessages(messages=[dict(content="x")])), INVALID, r"messages\[0\].role is"),
    (dict(structured_output=pb.StructuredOutput()), INVALID, "structured_output: empty"),
    (dict(structured_output=pb.StructuredOutput(regex="(")), INVALID, "structured_output.regex"),
    (dict(structured_output=pb.StructuredOutput(regex="")), INVALID, "structured_output.regex"),
    (dict(structured_output=pb.StructuredOutput(json_schema="{")), INVALID, "structured_output.json_schema"),
    (dict(structured_output=pb.StructuredOutput(json_schema='{"type": "strange"}')), INVALID, "structured_output.json_schema"),
    (dict(structured_output=pb.StructuredOutput(grammar="root ::= other")), INVALID, "structured_output.grammar"),
    (dict(structured_output=pb.StructuredOutput(choice=CHOICES())), INVALID, "structured_output.choice"),
    (dict(structured_output=pb.StructuredOutput(regex="a"), stopping=T(ignore_eos=True)), INVALID, "ignore_eos is true; allowed: false beside"),
]
METHODS = ["Generate", "Embed", "Tokenize", "Detokenize", "ListModels", "GetServerInfo", "Infer", "ModelMetadata"]
UNARY_CALLS = [
    ("Tokenize", pb.TokenizeRequest(), INVALID, "prompt: missing"),
    ("Tokenize", pb.TokenizeRequest(text="x", model="other"), grpc.StatusCode.NOT_FOUND, "other"),
    ("Tokenize", pb.TokenizeRequest(chat=pb.ChatMessages()), INVALID, "messages is empty"),
    ("Tokenize", pb.TokenizeRequest(chat=pb.ChatMessages(messages=[dict(role="x")])), INVALID, r"messages\[0\].role"),
    ("Detokenize", pb.DetokenizeRequest(token_ids=[-1]), INVALID, "-1; allowed: 0 to "),
    ("Detokenize", pb.DetokenizeRequest(token_ids=[10**6]), INVALID, "1000000; allowed: 0 to "),
    ("Detokenize", pb.DetokenizeRequest(token_ids=[1], model="other"), grpc.StatusCode.NOT_FOUND, "other"),
    ("Embed", pb.EmbedRequest(), INVALID, "inputs has 0; allowed: 1 to 2048"),
    ("Embed", pb.EmbedRequest(inputs=[pb.EmbedInput(text="x")] * 2049), INVALID, "inputs has 2049; allowed: 1 to 2048"),
    ("Embed", pb.EmbedRequest(inputs=[pb.EmbedInput()]), INVALID, "inputs"),
    ("Embed", pb.EmbedRequest(inputs=[pb.EmbedInput(text="x")]), INVALID, "Embeddings API"),
    ("Embed", pb.EmbedRequest(inputs=[pb.EmbedInput(text="x")], timeout_ms=0), INVALID, "timeout_ms is 0"),
    ("Infer", pb.InferRequest(model_name="other"), grpc.StatusCode.NOT_FOUND, "other"),
    ("ModelMetadata", pb.ModelMetadataRequest(name="other"), grpc.StatusCode.NOT_FOUND, "other"),
]
BAD = len(HTTP_CASES) + len(HTTP_BYTES) + len(GENERATE_CALLS) + len(UNARY_CALLS) + len(METHODS)


class Neighbour(threading.Thread):
    """A client that streams one answer after the other."""

    TOKENS = 400

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.stopping, self.failures, self.streams, self.paces = server, False, [], 0, []

    def run(self):
        body = {"prompt": "x", "max_tokens": self.TOKENS, "ignore_eos": True, "return_token_ids": True, "stream": True}
        while not self.stopping:
            began = time.monotonic()
            with httpx.stream("POST", self.server.http + "/v1/completions", json=body, timeout=60) as response:
                lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
            parts = [json.loads(line) for line in lines[:-1]]
            count = sum(len(part["choices"][0]["token_ids"]) for part in parts if "choices" in part)
            if count != self.TOKENS or lines[-1] != "[DONE]":
                self.failures.append((count, lines[-1]))
            self.streams += 1
            self.paces.append(count / (time.monotonic() - began))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a neighbour on it, which must have had every token when the tests are over."""
    server = Server(tmp_path_factory.mktemp("bad"), "--device", "fake", "--fake-step-us", "1000", "--fake-token-us", "10")
    neighbour = Neighbour(server)
    neighbour.start()
    server.took = []
    wait_until(lambda: neighbour.streams > 0)  # alone
    yield server
    neighbour.stopping = True
    neighbour.join(60)
    took = sorted(server.took)
    alone, *beside = neighbour.paces
    print(f"\n{len(took)} refusals: median {took[len(took) // 2] * 1e3:.1f} ms, the longest {took[-1] * 1e3:.1f} ms; tokens a second of a "
          f"stream alone {alone:.0f}, of {len(beside)} beside them {sum(beside) / len(beside):.0f} on average")
    assert beside and not neighbour.failures
    server.stop()


@pytest.fixture(scope="module")
def client():
    with httpx.Client(timeout=60) as client:
        yield client


def timed(server, call):
    began = time.monotonic()
    try:
        return call()
    finally:
        server.took.append(time.monotonic() - began)


# Messages say this instead of what is allowed, where a schema or a grammar has a mistake.
MISTAKES = {
    "structured_outputs": r" at byte \d+$| the rule other is used, but not defined$| it is no JSON: ",
    "guided_json": r": \$ref at #: #/nowhere is not in the schema$",
    "guided_regex": r" at byte \d+$",
    "guided_grammar": r": the rule other is used, but not defined$",
}
# Messages say this and do not show the value, for it alone is not wrong.
UNSHOWN = {
    "bad_words": r"bad_words\[0\] has no tokens$",
    "logit_bias": r"logit_bias has token (-1|1000000)$",
    "queries": "queries is given beside text_1$",
    "structured_outputs": "structured_outputs.choice and structured_outputs.regex are both there$",
    "suffix": "suffix: the model has no tokens to fill in the middle of a text$",
    "text": "text.format.schema is null$",
    "tool_choice": "tool_choice asks for a call$",
}


def shown(value):
    """Returns an expression for what a message says of a value, or of one that is in it: short ones are whole."""
    if isinstance(value, dict):
        own = rf"\b(an object|has {len(value)} )" if value else r"\{\}"
        return "|".join([own, *map(shown, value), *map(shown, value.values())])
    if isinstance(value, list):
        own = rf"\b(a list of {len(value)}\b|has {len(value)} )" if value else r"\[\]"
        return "|".join([own, *map(shown, value[:10])])
    if isinstance(value, str):
        return re.escape(f'"{value[:20]}') + rf"|\bhas {len(value)} bytes"
    if isinstance(value, float):
        return re.escape(f"{value:g}") + "|e\\+300"
    return rf"(?<![\w.\[-]){re.escape(json.dumps(value))}\b" + (r"|1\.8446744073709552e\+19" if value == 2**64 else "")


def test_there_are_many():
    assert BAD >= 300


@pytest.mark.parametrize("path, field, value", HTTP_CASES, ids=lambda value: str(value)[:40])
def test_a_field_over_http(server, client, path, field, value):
    body = HTTP[path][0] | {field: value}
    response = timed(server, lambda: client.post(server.http + path, json=body))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    message = error["message"]
    assert re.search(rf"\b{field}\b", message), message
    said, *allowed = re.split("; allowed: |, which this server does not support; it may be left out", message)
    mistake = re.search(MISTAKES.get(field, "^$"), said)
    unknown = " is not a known field" in message
    assert allowed or mistake or unknown, message
    if value is not None and not mistake and not unknown and " is missing" not in message:
        assert re.search(shown(value), said) or re.search(UNSHOWN.get(field, "^$"), said), message
    if path != "/v1/messages":  # Anthropic's errors name the field in the message alone
        assert error["param"] and re.match(rf"{field}\b", error["param"]), error


@pytest.mark.parametrize("data, status, word", HTTP_BYTES, ids=lambda value: str(value)[:60])
def test_bytes_over_http(server, data, status, word):
    def ask():
        with socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=60) as connection:
            connection.sendall(data.encode("latin-1"))
            answer = b""
            while b"\r\n\r\n" not in answer or len(answer.split(b"\r\n\r\n", 1)[1]) < length(answer):
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
            return answer

    head, body = timed(server, ask).split(b"\r\n\r\n", 1)
    assert int(head.split()[1]) == status, head
    error = json.loads(body)["error"]
    assert re.search(word, error["message"]), error
    if status == 405:
        assert b"\r\nAllow: " in head


def length(answer):
    return int(re.search(rb"Content-Length: (\d+)", answer).group(1))


@pytest.mark.parametrize("kwargs, field", [
    ({"prompt": "x" * 9000}, "prompt"), ({"prompt": "x", "max_tokens": 10**6}, "prompt"), ({"messages": [TURN | {"content": "x" * 9000}]}, "messages"),
    ({"input": "x" * 9000}, "input"), ({"input": [TURN | {"content": "x" * 9000}]}, "input"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(server, client, kwargs, field, stream):
    path = {"prompt": "/v1/completions", "messages": "/v1/chat/completions", "input": "/v1/responses"}[field]
    response = timed(server, lambda: client.post(server.http + path, json=kwargs | {"stream": stream}))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", field)
    assert "8192" in error["message"]


@pytest.fixture(scope="module")
def stub(server):
    return connect(server.grpc)


def refused(server, call):
    with pytest.raises(grpc.RpcError) as error:
        timed(server, call)
    return error.value.code(), error.value.details()


@pytest.mark.parametrize("change, code, word", GENERATE_CALLS, ids=lambda value: str(value)[:60])
def test_a_field_of_generate(server, stub, change, code, word):
    message = pb.GenerateRequest(**({"text": "x", "stopping": T(max_tokens=4)} | change))
    got, details = refused(server, lambda: list(stub.Generate(message, timeout=60)))
    assert got == code and re.search(word, details), details


@pytest.mark.parametrize("method, message, code, word", UNARY_CALLS, ids=lambda value: str(value)[:40])
def test_a_field_of_other_calls(server, stub, method, message, code, word):
    got, details = refused(server, lambda: getattr(stub, method)(message, timeout=60))
    assert got == code and re.search(word, details), details


@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_is_no_protobuf(server, method):
    with grpc.insecure_channel(server.grpc) as channel:
        kind = channel.unary_stream if method == "Generate" else channel.unary_unary
        call = kind(f"/millrace.v1.Inference/{method}", request_serializer=lambda x: x, response_deserializer=lambda x: x)
        got, details = refused(server, lambda: list(call(b"\xff\xff\xff", timeout=60)))
    assert got == INVALID and "is not valid" in details


def test_a_method_that_is_none(server):
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/millrace.v1.Inference/Nothing", request_serializer=lambda x: x, response_deserializer=lambda x: x)
        got, _ = refused(server, lambda: call(b"", timeout=60))
    assert got == grpc.StatusCode.UNIMPLEMENTED
