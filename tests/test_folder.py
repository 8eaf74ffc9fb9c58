"""Tests of the server with a Hugging Face folder, with the folder's own tokenizer or a GGUF file's."""
import array
import json
import os
import random
import struct

import httpx
import pytest

from daemon import device_flags, run
from gguf_text import write_folder_text

VOCAB, HIDDEN, FFN = 49152, 64, 128  # the default model's tokenizer; small for the rest
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32",
}
LAYER_SHAPES = {
    "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
    **{f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"},
    "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN),
}


def safetensors(shapes):
    """Writes a file of random numbers: the header's length, a JSON header, then the numbers."""
    draw = random.Random(1)
    numbers = array.array("f", [draw.gauss(0, 0.3) for _ in range(4099)])  # a prime: rows differ
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        begin = len(data)
        data += (numbers * (count // len(numbers) + 1))[:count].tobytes()
        header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def model_files(vocab=VOCAB):
    """Returns a random model as two files and their index, by name."""
    parts = {"model-1-of-2.safetensors": {"model.embed_tokens": (vocab, HIDDEN)},
             "model-2-of-2.safetensors": {"model.norm": (HIDDEN,), **{f"model.layers.0.{name}": shape
                                                                     for name, shape in LAYER_SHAPES.items()}}}
    index = {"metadata": {}, "weight_map": {f"{name}.weight": file for file, shapes in parts.items() for name in shapes}}
    return {"config.json": json.dumps({**CONFIG, "vocab_size": vocab}).encode(),
            "model.safetensors.index.json": json.dumps(index).encode(),
            **{name: safetensors(shapes) for name, shapes in parts.items()}}


def write_folder(folder):
    for name, data in model_files().items():
        (folder / name).write_bytes(data)


@pytest.mark.model
def test_it_is_served_with_the_tokenizer_of_a_gguf_file(start_server, tmp_path):
    write_folder(tmp_path)
    server = start_server("--model", str(tmp_path), "--tokenizer", os.environ["MILLRACE_MODEL"],
                          "--kv-cache-memory", "64MiB", *device_flags())
    (model,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert model["id"] == tmp_path.name and model["max_model_len"] == 256
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "ignore_eos": True, "temperature": 0}
    answers = [httpx.post(server.http + "/v1/chat/completions", json=body, timeout=60).json() for _ in range(2)]
    assert answers[0]["usage"]["completion_tokens"] == 5
    assert answers[0]["choices"][0]["message"]["content"] == answers[1]["choices"][0]["message"]["content"] != ""


@pytest.mark.model
def test_its_generation_config_says_what_ends_an_answer(start_server, tmp_path):
    write_folder(tmp_path)
    flags = ["--model", str(tmp_path), "--tokenizer", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "64MiB",
             *device_flags()]
    body = {"prompt": "Hello", "max_tokens": 5, "temperature": 0, "return_token_ids": True}

    def complete():
        server = start_server(*flags)
        (choice,) = httpx.post(server.http + "/v1/completions", json=body, timeout=60).json()["choices"]
        return choice

    first = complete()
    assert first["finish_reason"] == "length"
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1000, first["token_ids"][0]]}))
    assert complete()["finish_reason"] == "stop"


TEXTS = ["Hello, world! It's 2026: 3.14 != 42", "  leading\n\n\ttabs   and spaces ", "čeština, 日本語, 🦀👩‍💻",
         "<|im_start|>user\nspecial<|im_end|>", "x"]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"}, {"role": "user", "content": "🦀"}]


@pytest.mark.model
def test_its_own_tokenizer_and_template_are_those_of_its_gguf_file(start_server, tmp_path):
    write_folder(tmp_path)
    write_folder_text(os.environ["MILLRACE_MODEL"], tmp_path)
    flags = ["--model", str(tmp_path), "--kv-cache-memory", "64MiB", *device_flags()]
    servers = [start_server(*flags), start_server(*flags, "--tokenizer", os.environ["MILLRACE_MODEL"])]

    def both(path, body):
        own, given = (httpx.post(server.http + path, json=body, timeout=60).json() for server in servers)
        for answer in (own, given):
            for varies in ("id", "created"):
                answer.pop(varies, None)
        assert own == given
        return own

    for text in TEXTS:
        tokens = both("/tokenize", {"prompt": text, "return_token_strs": True})["tokens"]
        assert both("/detokenize", {"tokens": tokens})["prompt"] == text
        both("/v1/completions", {"prompt": text, "max_tokens": 8, "temperature": 0, "logprobs": 1, "echo": True})
    prompt = both("/detokenize", {"tokens": both("/tokenize", {"messages": CHAT})["tokens"]})["prompt"]
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n") and prompt.endswith("<|im_start|>assistant\n")
    both("/v1/chat/completions", {"messages": CHAT, "max_tokens": 8, "temperature": 0, "logprobs": True})


GENERATION = {"temperature": 0, "top_k": 5, "max_new_tokens": 3, "do_sample": True, "no_repeat_ngram_size": 3, "num_beams": 1}


@pytest.mark.model
def test_its_generation_config_says_how_it_is_sampled(start_server, tmp_path):
    write_folder(tmp_path)
    write_folder_text(os.environ["MILLRACE_MODEL"], tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(GENERATION))
    flags = ["--model", str(tmp_path), "--kv-cache-memory", "64MiB", *device_flags()]
    body = {"messages": CHAT, "ignore_eos": True}

    def ask(server, **more):
        answer = httpx.post(server.http + "/v1/chat/completions", json={**body, **more}, timeout=60).json()
        return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]

    server = start_server(*flags)
    models = httpx.get(server.http + "/v1/models").text
    assert '"default_sampling_params":{"temperature":0,"top_k":5,"max_tokens":3}' in models
    assert "sampled with: temperature 0, top_k 5, max_tokens 3" in server.log.read_text()
    assert "generation_config.json has what is not followed: no_repeat_ngram_size\n" in server.log.read_text()
    greedy, tokens = ask(server)
    assert tokens == 3 and ask(server) == ask(server, temperature=0) == (greedy, 3)
    assert ask(server, max_tokens=2)[1] == 2
    assert len({ask(server, temperature=1.5, top_k=0, seed=seed)[0] for seed in range(8)}) > 1

    server = start_server(*flags, "--generation-config", "vllm")
    (model,) = httpx.get(server.http + "/v1/models").json()["data"]
    assert model["default_sampling_params"] == {}
    assert len({ask(server, max_tokens=3, seed=seed)[0] for seed in range(8)}) > 1

    (tmp_path / "generation_config.json").write_text('{"temperature": 7}')
    code, log = run(*flags)
    assert code == 1 and "generation_config.json: temperature: is 7" in log
    assert "is no folder; allowed: auto, vllm" in run(*flags, "--generation-config", "none")[1]


def test_without_a_tokenizer_it_is_refused(tmp_path):
    write_folder(tmp_path)
    code, log = run("--model", str(tmp_path), "--kv-cache-memory", "64MiB")
    assert code == 1
    assert "tokenizer.json: the folder has none" in log and "--tokenizer" in log
