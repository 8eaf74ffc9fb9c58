"""Tests of `suffix`: the answer fills in what is between the prompt and it."""
import json

import grpc
import httpx
import pytest

import tiny_qwen3
from conftest import Server
from millrace_grpc import connect, pb

PREFIX, SUFFIX, MIDDLE, PAD = 258, 259, 260, 261


def serve(tmp_path_factory, names, special):
    """Starts a tiny random model whose tokenizer has these tokens behind its own."""
    folder = tmp_path_factory.mktemp("fill_in") / "tiny"
    config = dict(tiny_qwen3.CONFIG)
    try:
        tiny_qwen3.CONFIG["vocab_size"] = PAD + 1
        tiny_qwen3.write(folder, modules=False)
    finally:
        tiny_qwen3.CONFIG.update(config)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    for id, name in enumerate(names, PREFIX):
        tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": id, "content": name, "special": special})
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return Server(tmp_path_factory.mktemp("fill_in_server"), "--model", str(folder))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    server = serve(tmp_path_factory, ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"], special=False)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def codestral(tmp_path_factory):
    server = serve(tmp_path_factory, ["[PREFIX]", "[SUFFIX]"], special=True)
    yield server
    server.stop()


def post(server, **fields):
    body = {"prompt": "def f(", "suffix": "):\n", "temperature": 0, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True, **fields}
    return httpx.post(server.http + "/v1/completions", json=body, timeout=60)


def choice(server, **fields):
    answer = post(server, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_the_parts_stand_behind_their_tokens(qwen, codestral):
    first = choice(qwen)
    assert first["prompt_token_ids"] == [PREFIX, *b"def f(", SUFFIX, *b"):\n", MIDDLE]
    assert choice(qwen, prompt=list(b"def f("))["prompt_token_ids"] == first["prompt_token_ids"], "tokens stand for a text"
    assert choice(codestral)["prompt_token_ids"] == [SUFFIX, *b"):\n", PREFIX, *b"def f("], "without a middle the suffix comes first"
    assert choice(qwen, prompt="")["prompt_token_ids"] == [PREFIX, SUFFIX, *b"):\n", MIDDLE], "a file may begin with what is to be filled in"
    written = choice(qwen, prompt=first["prompt_token_ids"], suffix="")
    assert written["token_ids"] == first["token_ids"] and written["text"] == first["text"]


def test_a_text_that_names_a_special_token_is_a_text(codestral):
    prompt = choice(codestral, prompt="a[SUFFIX]", suffix="<|endoftext|>b")["prompt_token_ids"]
    assert prompt == [SUFFIX, *b"<|endoftext|>b", PREFIX, *b"a[SUFFIX]"]


def test_what_fills_in_ends_where_models_of_code_end_it(qwen):
    bias = {"logit_bias": {str(PAD): 100}, "ignore_eos": False}
    ended = choice(qwen, **bias)
    assert ended["finish_reason"] == "stop" and ended["token_ids"] == [PAD] and ended["text"] == ""
    assert choice(qwen, **bias, min_tokens=4)["token_ids"][3:] != [] and choice(qwen, **bias, suffix="")["finish_reason"] == "length"


def test_a_list_of_prompts_streams_and_choices(qwen):
    answer = post(qwen, prompt=["a", "b"], n=2, temperature=1, seed=4).json()
    assert [c["prompt_token_ids"][1] for c in answer["choices"]] == [97, 97, 98, 98]
    lines = post(qwen, stream=True).text.splitlines()
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {")]
    assert "".join(texts) == choice(qwen)["text"]


def test_over_grpc(qwen):
    events = list(connect(qwen.grpc).Generate(pb.GenerateRequest(
        text="def f(", suffix="):\n", sampling=pb.SamplingOptions(temperature=0), stopping=pb.StopOptions(max_tokens=12, ignore_eos=True))))
    assert [token for event in events for token in event.token_ids] == choice(qwen)["token_ids"]
    with pytest.raises(grpc.RpcError) as error:
        list(connect(qwen.grpc).Generate(pb.GenerateRequest(
            chat=pb.ChatMessages(messages=[dict(role="user", content="x")]), suffix="x")))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and error.value.details() == "suffix is set; allowed: none beside messages"
    with pytest.raises(grpc.RpcError) as error:
        list(connect(qwen.grpc).Generate(pb.GenerateRequest(text="x", suffix="x", echo=True)))
    assert error.value.details() == "echo is true; allowed: false beside suffix"


def test_refusals(qwen, fake_server):
    refused = post(fake_server)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "suffix: the model has no tokens to fill in the middle of a text; allowed: none"
    assert post(fake_server, suffix="").status_code == 200
    for fields, says in (({"echo": True}, "echo is true; allowed: false beside suffix"), ({"suffix": 1}, "suffix is 1"),
                         ({"suffix": "x" * 2000}, "the model's length is 1024")):
        refused = post(qwen, **fields)
        assert refused.status_code == 400 and says in refused.json()["error"]["message"], refused.text
