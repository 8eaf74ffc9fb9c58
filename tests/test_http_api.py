"""Tests of the real daemon's HTTP endpoint with the fake executor: OpenAI's and vLLM's fields and errors, as JSON."""
import json
import re
import threading

import httpx
import pytest

from daemon import cancelled, wait_until

COMPLETION = {"prompt": "Hello", "max_tokens": 4}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
PATHS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}


def post(server, path, body, **kwargs):
    return httpx.post(server.http + path, json=body, timeout=60, **kwargs)


def error(response, status):
    assert response.status_code == status, response.text
    shape = response.json()["error"]
    assert set(shape) == {"message", "type", "param", "code"} and shape["message"]
    return shape


def events(response):
    """Returns the JSON of each event of a stream. [DONE] must be the last event."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


@pytest.mark.parametrize("path", PATHS)
def test_whole_and_streamed_answers_are_the_same(fake_server, path):
    body = {**PATHS[path], "max_tokens": 40, "seed": 5, "ignore_eos": True}
    whole = post(fake_server, path, body).json()
    stream = post(fake_server, path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(stream)
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 40
    assert all(chunk["usage"] is None and chunk["id"] == usage["id"] for chunk in chunks)
    if path == "/v1/completions":
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text == whole["choices"][0]["text"]
        assert whole["object"] == chunks[0]["object"] == "text_completion"
        assert whole["id"].startswith("cmpl-")
    else:
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == whole["choices"][0]["message"]["content"]
        assert (whole["object"], chunks[0]["object"]) == ("chat.completion", "chat.completion.chunk")
        assert whole["id"].startswith("chatcmpl-")
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["length"]
    assert whole["choices"][0]["finish_reason"] == "length"


def test_a_completion_has_16_tokens_unless_told_otherwise(fake_server):
    body = {"prompt": "Hello", "ignore_eos": True}
    assert post(fake_server, "/v1/completions", body).json()["usage"]["completion_tokens"] == 16


def test_prompts_of_every_kind(fake_server):
    texts = post(fake_server, "/v1/completions", {**COMPLETION, "prompt": ["ab", "cd", "ef"], "echo": True}).json()
    assert [c["text"][:2] for c in texts["choices"]] == ["ab", "cd", "ef"]
    assert [c["index"] for c in texts["choices"]] == [0, 1, 2]
    assert texts["usage"]["prompt_tokens"] == 6
    tokens = post(fake_server, "/v1/completions", {**COMPLETION, "prompt": [[97, 98], [99]], "echo": True}).json()
    assert [c["text"][:1] for c in tokens["choices"]] == ["a", "c"]
    one = post(fake_server, "/v1/completions", {**COMPLETION, "prompt": [97, 98], "echo": True}).json()
    assert one["choices"][0]["text"].startswith("ab")
    streamed = events(post(fake_server, "/v1/completions", {**COMPLETION, "prompt": ["ab", "cd"], "stream": True}))
    assert {c["choices"][0]["index"] for c in streamed} == {0, 1}


def test_a_long_prompt_is_echoed_with_its_logprobs(fake_server):
    """It is larger than what may lie unread of an answer, whose first token follows it at once."""
    body = {**COMPLETION, "prompt": "x" * 6000, "echo": True, "logprobs": 5, "ignore_eos": True}
    whole = post(fake_server, "/v1/completions", body)
    assert whole.status_code == 200 and len(whole.json()["choices"][0]["logprobs"]["tokens"]) == 6004
    assert post(fake_server, "/v1/completions", {**body, "stream": True}).text.endswith("data: [DONE]\n\n")


def test_logprobs_of_prompt_and_answer(fake_server):
    body = {**COMPLETION, "echo": True, "logprobs": 2, "ignore_eos": True}
    choice = post(fake_server, "/v1/completions", body).json()["choices"][0]
    lists = choice["logprobs"]
    assert [len(lists[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [9] * 4
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    assert all(p <= 0 for p in lists["token_logprobs"][1:])
    assert lists["tokens"][:5] == list("Hello") and lists["text_offset"][:5] == [0, 1, 2, 3, 4]
    assert all(t in top for t, top in list(zip(lists["tokens"], lists["top_logprobs"]))[1:])
    body = {**CHAT, "logprobs": True, "top_logprobs": 3, "ignore_eos": True}
    content = post(fake_server, "/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 4 and all(len(entry["top_logprobs"]) == 3 for entry in content)
    assert all(set(entry) == {"token", "logprob", "bytes", "top_logprobs"} for entry in content)


def test_a_stream_of_prompts_one_of_which_is_too_long_is_refused(fake_server):
    """Whatever the others have got by the time that it is read."""
    prompts = ["Hello"] * 8 + ["x" * 1_000_000]
    for _ in range(10):
        answer = post(fake_server, "/v1/completions", {**COMPLETION, "prompt": prompts, "stream": True})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"
    answer = post(fake_server, "/v1/completions", {**COMPLETION, "prompt": prompts[:8], "stream": True})
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")


def test_return_token_ids(fake_server):
    body = {**COMPLETION, "return_token_ids": True, "ignore_eos": True}
    choice = post(fake_server, "/v1/completions", body).json()["choices"][0]
    assert choice["prompt_token_ids"] == list(b"Hello") and len(choice["token_ids"]) == 4
    assert not choice["text"].startswith("Hello")
    chat = post(fake_server, "/v1/chat/completions", {**CHAT, "return_token_ids": True}).json()
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", PATHS)
def test_what_changes_nothing_is_accepted(fake_server, path):
    body = {**PATHS[path], "n": 1, "presence_penalty": 0, "frequency_penalty": None, "logit_bias": {}, "user": "me",
            "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "stop": None, "seed": None,
            "repetition_penalty": 1.0, "stream_options": None}
    if path == "/v1/chat/completions":
        body.update(tools=[], tool_choice="none", response_format={"type": "text"}, modalities=["text"])
    assert post(fake_server, path, body).status_code == 200


def test_what_can_never_fit_is_refused_with_both_numbers(fake_server):
    info = httpx.get(fake_server.http + "/v1/models").json()["data"][0]
    shape = error(post(fake_server, "/v1/completions", {"prompt": "x" * (info["max_model_len"] + 1)}), 400)
    assert str(info["max_model_len"]) in shape["message"] and str(info["max_model_len"] + 1) in shape["message"]
    assert (shape["code"], shape["param"]) == ("context_length_exceeded", "prompt")
    chat = {"messages": [{"role": "user", "content": "x" * info["max_model_len"]}]}
    assert error(post(fake_server, "/v1/chat/completions", chat), 400)["param"] == "messages"
    stream = {"prompt": "x" * (info["max_model_len"] + 1), "stream": True}
    error(post(fake_server, "/v1/completions", stream), 400)
    shape = error(post(fake_server, "/v1/completions", {"prompt": "x", "max_tokens": 10**6}), 400)
    assert shape["param"] == "prompt"
    assert "1000000" in shape["message"] and str(info["max_model_len"]) in shape["message"]


def test_models(fake_server):
    listed = httpx.get(fake_server.http + "/v1/models").json()
    model = listed["data"][0]
    assert listed["object"] == "list" and model["object"] == "model" and "batch_invariant" in model
    assert httpx.get(f"{fake_server.http}/v1/models/{model['id']}").json() == model
    assert post(fake_server, "/v1/completions", {**COMPLETION, "model": model["id"]}).json()["model"] == model["id"]
    for response in (httpx.get(fake_server.http + "/v1/models/other"),
                     post(fake_server, "/v1/chat/completions", {**CHAT, "model": "other"})):
        assert error(response, 404)["code"] == "model_not_found"


def test_tokenize_and_detokenize(fake_server):
    got = post(fake_server, "/tokenize", {"prompt": "hé", "return_token_strs": True}).json()
    assert got["tokens"] == [0x68, 0xC3, 0xA9] and got["count"] == 3 and len(got["token_strs"]) == 3
    assert got["max_model_len"] > 0
    assert post(fake_server, "/tokenize", {"prompt": "h"}).json()["token_strs"] is None
    assert post(fake_server, "/detokenize", {"tokens": got["tokens"]}).json() == {"prompt": "hé"}
    chat = post(fake_server, "/tokenize", {"messages": CHAT["messages"]}).json()
    usage = post(fake_server, "/v1/chat/completions", CHAT).json()["usage"]
    assert chat["count"] == usage["prompt_tokens"]
    error(post(fake_server, "/tokenize", {}), 400)
    error(post(fake_server, "/detokenize", {"tokens": [10**6]}), 400)


def rendered(server, **fields):
    tokens = post(server, "/tokenize", fields).json()["tokens"]
    return post(server, "/detokenize", {"tokens": tokens}).json()["prompt"]


TURNS = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, "}]
WRITTEN = "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n1, 2, "


@pytest.mark.parametrize("fields, text", [
    ({}, WRITTEN + "<|im_end|>\n<|im_start|>assistant\n"),
    ({"add_generation_prompt": False}, WRITTEN + "<|im_end|>\n"),
    ({"add_generation_prompt": False, "continue_final_message": True}, WRITTEN),
    ({"chat_template_kwargs": {"enable_thinking": False, "other": [{"a": None}]}},
     WRITTEN + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ({"chat_template_kwargs": {}}, WRITTEN + "<|im_end|>\n<|im_start|>assistant\n"),
])
def test_a_request_says_how_its_conversation_is_rendered(fake_server, fields, text):
    assert rendered(fake_server, messages=TURNS, **fields) == text
    chat = {"messages": TURNS, "max_tokens": 2, "return_token_ids": True, **fields}
    answer = post(fake_server, "/v1/chat/completions", chat).json()
    assert bytes(answer["prompt_token_ids"]).decode() == text
    assert answer["usage"]["prompt_tokens"] == len(text)


@pytest.mark.parametrize("fields, param", [
    ({"continue_final_message": True}, "continue_final_message"),
    ({"add_generation_prompt": "no"}, "add_generation_prompt"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
])
def test_a_rendering_that_cannot_be_is_refused(fake_server, fields, param):
    for path in ("/v1/chat/completions", "/tokenize"):
        assert error(post(fake_server, path, {"messages": TURNS, **fields}), 400)["param"] == param


def test_health_version_and_metrics(fake_server):
    for base in (fake_server.http, fake_server.admin):
        for path in ("/livez", "/readyz", "/health"):
            assert httpx.get(base + path).status_code == 200
        assert re.fullmatch(r"\d+\.\d+\.\d+", httpx.get(base + "/version").json()["version"])
        metrics = httpx.get(base + "/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "vllm:num_requests_running" in metrics.text


@pytest.mark.parametrize("method, path, kwargs, status", [
    ("GET", "/nowhere", {}, 404), ("POST", "/nowhere", {}, 404), ("POST", "/", {}, 405), ("GET", "/v1/completions", {}, 405),
    ("DELETE", "/livez", {}, 405), ("POST", "/v1/completions", {"content": b"{}"}, 415),
    ("POST", "/v1/completions", {"data": {"prompt": "x"}}, 415),
    ("POST", "/v1/completions", {"content": b"{", "headers": {"Content-Type": "application/json"}}, 400),
    ("POST", "/v1/completions", {"content": b"", "headers": {"Content-Type": "application/json"}}, 400),
    ("POST", "/v1/completions", {"json": [1]}, 400),
    ("POST", "/v1/completions", {"content": b"[" * 10**6, "headers": {"Content-Type": "application/json"}}, 400),
    ("POST", "/v1/completions", {"json": COMPLETION, "headers": {"Content-Encoding": "gzip"}}, 415),
    ("GET", "/version", {"headers": {"Host": "evil.com"}}, 403),
    ("GET", "/livez", {"headers": {"Origin": "http://evil.com"}}, 403),
    ("GET", "/livez", {"headers": {"X": "y" * 20000}}, 431),
    ("POST", "/log", {"content": b"http=debug"}, 404),
])
def test_every_error_has_openais_shape(fake_server, method, path, kwargs, status):
    error(httpx.request(method, fake_server.http + path, **kwargs), status)


def test_a_body_too_large_is_refused(fake_server):
    headers = {"Content-Type": "application/json"}
    error(httpx.post(fake_server.http + "/v1/completions", content=b" " * (33 << 20), headers=headers), 413)
    assert httpx.get(fake_server.http + "/livez").status_code == 200


def test_log_levels_are_set_live(fake_server):
    url = fake_server.admin + "/log"
    before = httpx.get(url).text
    assert "http=debug" in httpx.put(url, content="http=debug").text
    httpx.get(fake_server.http + "/livez", headers={"X-Request-Id": "seen-in-the-log"})
    wait_until(lambda: "seen-in-the-log" in fake_server.log.read_text())
    error(httpx.put(url, content="http=loud"), 400)
    assert httpx.put(url, content=before).text == before


def test_keys_guard_everything_but_health(start_server):
    server = start_server("--device", "fake", "--api-key", "sesame")
    for path in ("/livez", "/readyz", "/health"):
        assert httpx.get(server.http + path).status_code == 200
    for path in ("/v1/models", "/metrics", "/version", "/nowhere"):
        refused = httpx.get(server.http + path)
        assert error(refused, 401)["code"] == "invalid_api_key"
        assert refused.headers["www-authenticate"] == "Bearer"
    error(post(server, "/v1/completions", COMPLETION, headers={"Authorization": "Bearer wrong"}), 401)
    assert post(server, "/v1/completions", COMPLETION, headers={"Authorization": "Bearer sesame"}).status_code == 200
    assert httpx.get(server.admin + "/metrics").status_code == 200


def test_allowed_hosts(start_server):
    server = start_server("--device", "fake", "--allowed-hosts", "ai.example.com")
    assert httpx.get(server.http + "/livez", headers={"Host": "ai.example.com"}).status_code == 200
    error(httpx.get(server.http + "/v1/models", headers={"Host": "evil.com"}), 403)


def running(server):
    text = httpx.get(server.admin + "/metrics").text
    return sum(float(v) for v in re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", text, re.M))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(start_server, stream):
    server = start_server("--device", "fake", "--fake-step-us", "20000")
    body = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True, "stream": stream}
    with httpx.Client(timeout=60) as client:
        request = client.build_request("POST", server.http + "/v1/completions", json=body)
        if stream:
            response = client.send(request, stream=True)
            lines = response.iter_lines()
            next(lines)
            assert running(server) == 1
            response.close()
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.send(client.build_request("POST", server.http + "/v1/completions", json=body, timeout=0.5))
    wait_until(lambda: cancelled(server, "client_gone") == 1)
    wait_until(lambda: running(server) == 0)


def test_a_full_queue_is_429_with_a_hint(start_server):
    server = start_server("--device", "fake", "--max-num-seqs", "1", "--max-waiting", "1", "--fake-step-us", "5000")
    body = {"prompt": "Hello", "max_tokens": 400, "ignore_eos": True}
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(post(server, "/v1/completions", body)))
               for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [a for a in answers if a.status_code != 200]
    assert refused and len(refused) < 6
    for answer in refused:
        assert error(answer, 429)["code"] == "rate_limit_exceeded"
        assert int(answer.headers["retry-after"]) >= 1


def test_drain_finishes_streams_and_refuses_new_work(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "10000")
    body = {"prompt": "Hello", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.Client(timeout=60) as client, httpx.Client(timeout=60) as other:
        with client.stream("POST", server.http + "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            assert other.get(server.http + "/readyz").status_code == 200
            server.signal()
            wait_until(lambda: other.get(server.http + "/readyz").status_code == 503)
            refused = post(server, "/v1/completions", COMPLETION)
            error(refused, 503)
            assert int(refused.headers["retry-after"]) >= 1
            assert httpx.get(server.http + "/livez").status_code == 200
            rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert server.wait() == 0


@pytest.mark.parametrize("path", PATHS)
def test_what_routers_and_client_libraries_always_send_is_taken(fake_server, path):
    body = {**PATHS[path], "no_stop_trim": False, "return_hidden_states": False, "separate_reasoning": True,
            "stream_reasoning": True, "prompt_cache_key": "k", "safety_identifier": "s", "parallel_tool_calls": False}
    assert post(fake_server, path, body).status_code == 200
    for field, value in (("no_stop_trim", True), ("return_hidden_states", True), ("prompt_cache_key", 1)):
        assert error(post(fake_server, path, {**body, field: value}), 400)["param"] == field


@pytest.mark.parametrize("path", PATHS)
def test_each_chunk_has_the_usage_so_far(fake_server, path):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**PATHS[path], "ignore_eos": True, "stream": True, "stream_options": options}
    *chunks, total = [chunk["usage"] for chunk in events(post(fake_server, path, body))]
    counts = [chunk["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == total["completion_tokens"] == 4
    for chunk in chunks:
        assert chunk["prompt_tokens"] == total["prompt_tokens"] > 0
        assert chunk["total_tokens"] == chunk["prompt_tokens"] + chunk["completion_tokens"]


def test_unknown_fields_are_ignored_if_the_operator_says_so(start_server):
    server = start_server("--device", "fake", "--unknown-fields", "ignore")
    assert post(server, "/v1/completions", {**COMPLETION, "nonsense": 1}).status_code == 200
    assert error(post(server, "/v1/completions", {**COMPLETION, "tools": 1, "temperature": "1"}), 400)["param"] == "temperature"


def test_what_sglangs_routers_ask_of_a_worker(fake_server):
    name = httpx.get(fake_server.http + "/v1/models").json()["data"][0]["id"]
    for path in ("/server_info", "/get_server_info"):
        info = httpx.get(fake_server.http + path).json()
        assert info["model_id"] == info["model_path"] == info["served_model_name"] == name
        assert (info["dp_size"], info["tp_size"]) == (1, 1) and info["max_total_tokens"] > 0
    for path in ("/model_info", "/get_model_info"):
        info = httpx.get(fake_server.http + path).json()
        assert info["model_path"] == name and info["is_generation"] is True
        assert info["architectures"] == [info["model_type"]]
    assert httpx.get(fake_server.http + "/health_generate").status_code == 200
