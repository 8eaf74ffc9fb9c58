"""Draws the soak's requests: what a client sends, how it behaves, and which answers are right. A function of the generator alone."""
import dataclasses
import json

from test_both_protocols import BIASES, GRAMMARS, SAMPLING, message_of

# A model's name in requests, its vocabulary's size, and whether it makes embeddings.
MODELS = {"fake": ("fake", 258, False), "cpu": ("SmolLM2-135M-Instruct.Q4_1", 49152, False), "embed": ("all-MiniLM-L6-v2", 30522, True)}
MODELS["cuda"] = MODELS["cpu"]

WORDS = ["sea", "Why is the sky blue?", "42", "Žluťoučký kůň", "日本語の文章", "🦆🦆", "def f(x):\n\treturn x", "<|im_end|>", "\u202e", "e\u0301", "{\"a\": 1}"]
PREFIXES = ["", "You are a pirate. " * 12, "Numbers: " + ", ".join(map(str, range(60))) + ". "]
STOPS = [["a"], ["e", "zz"], ["\n", "é"], ["the", " and", "."], ["never to be seen in any answer"]]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a town", "strict": True,
                                         "parameters": {"type": "object", "properties": {"town": {"type": "string", "maxLength": 6}},
                                                        "required": ["town"], "additionalProperties": False}}}
KEYS = ["alice", "bob", "low", "few", "one"]
BAD_BODIES = [b"", b"{", b"[]", b"null", b"{\"prompt\": 1}", b"\xff\xfe\x00", b"{\"prompt\": \"x\", \"prompt\": \"y\"}", b"[" * 5000,
              b"{\"prompt\": \"\\ud800\"}", b"{\"messages\": [{\"role\": \"nobody\", \"content\": \"x\"}]}", b"{\"prompt\": \"x\", \"n\": 1e99}"]
BAD_FIELDS = [{"temperature": -1}, {"max_tokens": 0}, {"n": 0}, {"n": 129}, {"stop": [""]}, {"logprobs": 99}, {"none_such": 1}, {"priority": "x"},
              {"model": "none/such"}, {"timeout_ms": 0}, {"structured_outputs": {"json": {"type": "strange"}}}, {"structured_outputs": {"regex": "("}},
              {"logit_bias": {"x": 1}}, {"seed": "x"}, {"top_p": 7}, {"prompt": [-1]}, {"prompt": [10**8]}, {"prompt": "x " * 40_000}]
BAD_REQUESTS = [b"\x00" * 64, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
                b"GET /" + b"x" * 20_000, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]


@dataclasses.dataclass
class Request:
    protocol: str  # http, grpc, or bytes: no protocol at all
    path: str  # of HTTP, or gRPC's method
    body: object  # a JSON value or bytes; of gRPC a message or bytes
    key: str
    behaviour: str = "read"  # how the client reads: see clients.py
    moment: float = 0  # seconds until it leaves, or for how long it is slow
    good: bool = True  # False: must be refused
    method: str = "POST"
    deadline: float = 0  # seconds that the request grants; 0: as many as it takes

    @property
    def stream(self):
        return self.protocol == "http" and isinstance(self.body, dict) and self.body.get("stream", False)


def text(rng):
    words = rng.choice([1, 2, 5, 20, 60])
    return rng.choice(PREFIXES) + " ".join(rng.choices(WORDS, k=words))


def length(rng):
    return rng.choice([1, 2, 8, 16, 32, 64, 150])


def sampling(rng):
    fields = {name: rng.choice(values[0]) for name, values in SAMPLING.items() if rng.random() < 0.2}
    if rng.random() < 0.5:
        fields["seed"] = rng.randrange(2**53)
    return fields


def completion(rng, vocabulary):
    """Returns the fields of POST /v1/completions, without stream; message_of makes the same of them for gRPC."""
    prompt = text(rng) if rng.random() < 0.7 else rng.choices(range(32, min(vocabulary, 250)), k=rng.choice([1, 7, 90, 300]))
    body = {"prompt": prompt, "max_tokens": length(rng), **sampling(rng)}
    if rng.random() < 0.3:
        body["stop"] = rng.choice(STOPS)
        body["include_stop_str_in_output"] = rng.random() < 0.5
    if rng.random() < 0.2:
        body["stop_token_ids"] = rng.sample(range(vocabulary), 3)
    if rng.random() < 0.3:
        body["n"] = rng.choice([1, 2, 3, 8])
    if rng.random() < 0.3:
        body["logprobs"] = rng.choice([0, 1, 5])
    if rng.random() < 0.2:
        body["echo"] = True
    if rng.random() < 0.2:
        body["logit_bias"] = rng.choice(BIASES[0])
    if rng.random() < 0.2:
        body["priority"] = rng.randrange(3, 10)
    if rng.random() < 0.3:
        kind = rng.choice(list(GRAMMARS))
        body["structured"] = (kind, rng.choice(GRAMMARS[kind][0]))
    elif rng.random() < 0.5:
        body["ignore_eos"] = True
        body["min_tokens"] = rng.randrange(body["max_tokens"] + 1)
    return body


def deadline(rng):
    return rng.choice([0, 0, 0, 0, 0.001, 0.02, 0.2, 2, 60])


def for_http(fields):
    body = dict(fields)
    if "structured" in body:
        kind, value = body.pop("structured")
        body["structured_outputs"] = {kind: value}
    if "logit_bias" in body:
        body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
    return body


def stream_it(rng, body):
    if rng.random() < 0.6:
        body["stream"] = True
        if rng.random() < 0.5:
            body["stream_options"] = {"include_usage": True}
    return body


def completions(rng, name, vocabulary):
    return "/v1/completions", stream_it(rng, for_http(completion(rng, vocabulary)))


def chat(rng, name, vocabulary):
    messages = [{"role": "system", "content": rng.choice(PREFIXES[1:])}] if rng.random() < 0.3 else []
    for turn in range(rng.choice([1, 1, 1, 3])):
        messages.append({"role": "assistant" if turn % 2 else "user", "content": text(rng)})
    body = {"messages": messages, rng.choice(["max_tokens", "max_completion_tokens"]): length(rng), **sampling(rng)}
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": rng.choice([0, 3, 20])}
    if rng.random() < 0.2:
        body["n"] = rng.choice([2, 4])
    draw = rng.random()
    if draw < 0.15:
        body |= {"tools": [TOOL], "tool_choice": rng.choice(["required", "auto", "none", {"type": "function", "function": {"name": "get_weather"}}])}
        if body["tool_choice"] == "auto":
            body["tools"] = [{"type": "function", "function": {key: value for key, value in TOOL["function"].items() if key != "strict"}}]
    elif draw < 0.3:
        body["response_format"] = rng.choice([{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}])
    elif draw < 0.5:
        body["stop"] = rng.choice(STOPS)
    return "/v1/chat/completions", stream_it(rng, body)


def responses(rng, name, vocabulary):
    # Stored responses would grow: clients.py deletes them, and so only those that read to the end may store.
    body = {"input": text(rng), "max_output_tokens": max(16, length(rng)), "store": False}
    if rng.random() < 0.3:
        body["text"] = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
    if rng.random() < 0.5:
        body["stream"] = True
    return "/v1/responses", body


def messages(rng, name, vocabulary):
    body = {"model": name, "messages": [{"role": "user", "content": text(rng)}], "max_tokens": length(rng)}
    if rng.random() < 0.3:
        body["stop_sequences"] = rng.choice(STOPS)
    if rng.random() < 0.3:
        body["temperature"] = rng.choice([0, 0.7, 1])
    if rng.random() < 0.5:
        body["stream"] = True
    return "/v1/messages", body


def embeddings(rng, name, vocabulary):
    inputs = [text(rng) for _ in range(rng.choice([1, 1, 3, 20]))]
    draw = rng.random()
    if draw < 0.2:
        return "/v1/score", {"text_1": inputs[0], "text_2": inputs, "truncate_prompt_tokens": -1}
    if draw < 0.4:
        return "/v1/rerank", {"query": inputs[0], "documents": inputs, "top_n": rng.choice([0, 1, 3]), "truncate_prompt_tokens": -1}
    return "/v1/embeddings", {"input": inputs if rng.random() < 0.7 else inputs[0], "truncate_prompt_tokens": -1,
                              "encoding_format": rng.choice(["float", "base64"])}


def small(rng, name, vocabulary):
    """The requests without a model's step."""
    return rng.choice([("/tokenize", {"prompt": text(rng)}), ("/detokenize", {"tokens": rng.choices(range(200), k=20)}), ("/v1/models", None),
                       ("/livez", None), ("/readyz", None), ("/version", None), ("/server_info", None)])


def behave(rng, request):
    """Sets how the client reads, and when it leaves."""
    request.moment = rng.choice([0, 0.001, 0.01, 0.05, 0.2, 0.6]) * rng.random() * 2
    kinds = {"http": ["slow", "close", "reset", "half", "torn", "trickle"], "grpc": ["slow", "cancel", "drop"]}
    if rng.random() < 0.45 and request.protocol in kinds:
        request.behaviour = rng.choice(kinds[request.protocol])
    return request


def bad(rng, name, vocabulary):
    if rng.random() < 0.2:
        return Request("bytes", rng.choice(["http", "grpc"]), rng.choice(BAD_REQUESTS), "", good=False)
    key = rng.choice(KEYS)
    if rng.random() < 0.15:
        return Request("http", rng.choice(["/nowhere", "/v1/completions/", "/v1/models/none", "/%00", "//"]), None, key, method="GET", good=False)
    if rng.random() < 0.15:
        return Request("http", "/v1/completions", {"prompt": "x"}, rng.choice(["nobody", ""]), good=False)
    if rng.random() < 0.4:
        method = rng.choice(["Generate", "Embed", "Tokenize", "Detokenize", "Infer", "None"])
        return Request("grpc", method, rng.choice([b"\xff", b"\x0a\xff\xff\xff\xff\x0f"]), key, good=False)
    if rng.random() < 0.4:
        return Request("http", rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"]),
                       rng.choice(BAD_BODIES), key, good=False)
    path = "/v1/embeddings" if MODELS_BY_NAME[name][2] else "/v1/completions"
    body = {"input": "x", **rng.choice([{"dimensions": 7}, {"none_such": 1}, {"encoding_format": "x"}, {"input": []}, {"input": [[-1]]}])} \
        if MODELS_BY_NAME[name][2] else {"prompt": "x", "max_tokens": 3, **rng.choice(BAD_FIELDS)}
    return Request("http", path, body, key, good=False)


MODELS_BY_NAME = {model[0]: model for model in MODELS.values()}


def over_grpc(rng, name, vocabulary, embeds, pb):
    if embeds:
        message = pb.EmbedRequest(inputs=[pb.EmbedInput(text=text(rng)) for _ in range(rng.choice([1, 2, 9]))], truncate_prompt_tokens=-1)
        return "Embed", message
    if rng.random() < 0.15:
        return rng.choice([("Tokenize", pb.TokenizeRequest(text=text(rng))), ("Detokenize", pb.DetokenizeRequest(token_ids=rng.choices(range(200), k=30))),
                           ("ListModels", pb.ListModelsRequest()), ("GetServerInfo", pb.GetServerInfoRequest())])
    fields = completion(rng, vocabulary)
    message = message_of(fields)
    if rng.random() < 0.3 and isinstance(fields["prompt"], str):
        message.chat.messages.add(role="user", content=fields["prompt"])
        message.echo = False
    return "Generate", message


def draw(rng, target, pb):
    """Returns a request to a target of MODELS. pb: the messages of millrace.v1."""
    name, vocabulary, embeds = MODELS[target]
    if rng.random() < 0.12:
        return bad(rng, name, vocabulary)
    granted = deadline(rng)
    if rng.random() < 0.45:
        method, message = over_grpc(rng, name, vocabulary, embeds, pb)
        return behave(rng, Request("grpc", method, message, rng.choice(KEYS), deadline=granted))
    kinds = [embeddings] if embeds else [completions, completions, chat, chat, responses, messages]
    path, body = rng.choice(kinds + [small])(rng, name, vocabulary)
    request = Request("http", path, body, rng.choice(KEYS), method="GET" if body is None else "POST")
    if granted and path.startswith("/v1/") and body is not None:
        request.deadline = granted
    return behave(rng, request)


def payload(request):
    if request.body is None or isinstance(request.body, bytes):
        return request.body or b""
    return json.dumps(request.body).encode()

