"""A Hugging Face folder behind the server, its tokenizer from a GGUF file."""
import array
import json
import os
import random
import shlex
import struct

import httpx
import pytest

from daemon import run

VOCAB, HIDDEN, FFN = 49152, 64, 128  # the default model's tokenizer; small for the rest
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": VOCAB, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32",
}
SHAPES = {
    "model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,),
    "model.layers.0.input_layernorm": (HIDDEN,), "model.layers.0.post_attention_layernorm": (HIDDEN,),
    **{f"model.layers.0.self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"},
    "model.layers.0.mlp.gate_proj": (FFN, HIDDEN), "model.layers.0.mlp.up_proj": (FFN, HIDDEN),
    "model.layers.0.mlp.down_proj": (HIDDEN, FFN),
}


def write_folder(folder):
    """A model of random numbers, as safetensors: a JSON header behind its length, then the numbers."""
    draw = random.Random(1)
    numbers = array.array("f", [draw.gauss(0, 0.3) for _ in range(4099)])  # a prime: rows differ
    header, data = {}, bytearray()
    for name, shape in SHAPES.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        begin = len(data)
        data += (numbers * (count // len(numbers) + 1))[:count].tobytes()
        header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(CONFIG))


@pytest.mark.model
def test_it_is_served_with_the_tokenizer_of_a_gguf_file(start_server, tmp_path):
    write_folder(tmp_path)
    server = start_server("--model", str(tmp_path), "--tokenizer", os.environ["MILLRACE_MODEL"],
                          "--kv-cache-memory", "64MiB", *shlex.split(os.environ.get("MILLRACED_ARGS", "")))
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
             *shlex.split(os.environ.get("MILLRACED_ARGS", ""))]
    body = {"prompt": "Hello", "max_tokens": 5, "temperature": 0, "return_token_ids": True}

    def complete():
        server = start_server(*flags)
        (choice,) = httpx.post(server.http + "/v1/completions", json=body, timeout=60).json()["choices"]
        return choice

    first = complete()
    assert first["finish_reason"] == "length"
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1000, first["token_ids"][0]]}))
    assert complete()["finish_reason"] == "stop"


def test_without_one_it_is_refused(tmp_path):
    code, log = run("--model", str(tmp_path))
    assert code == 1
    assert "allowed: --tokenizer with a .gguf file" in log
