"""Tests of the server with tiny mixtures of experts, whose log-probabilities transformers computed (tests/reference)."""
import json
import os
import pathlib
import subprocess

import httpx
import pytest

from daemon import device_flags, on_a_gpu

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = json.loads((ROOT / "tests/reference/family_reference.json").read_text())
# Shares of the largest logit. With quantized weights, the CPU rounds the inputs of linears to eight bits.
TOLERANCES = {"mixtral": 1e-5, "qwen3moe": 1e-5, "gpt_oss_mxfp4": 3e-2}
BY_EXPERT = ["--tensor-parallel-size", "3", "--enable-expert-parallel"]


def write_tokenizer(folder):
    """Writes a tokenizer in which each of 128 characters is a token."""
    vocabulary = {chr(0x100 + i): i for i in range(128)}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}, "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": chr(0x100 + 2)}))


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twins")
    subprocess.run([pathlib.Path(os.environ["MILLRACED"]).parent / "write_tiny_folders", folder, "families"], check=True)
    return folder


@pytest.mark.parametrize("name,flags", [*((name, []) for name in TOLERANCES), ("qwen3moe", BY_EXPERT)])
def test_its_logprobs_are_those_of_transformers(start_server, twins, name, flags):
    if flags and on_a_gpu():
        pytest.skip("ranks are on the CPU alone")
    write_tokenizer(twins / name)
    server = start_server("--model", str(twins / name), "--kv-cache-dtype", "float32", "--kv-cache-memory", "16MiB",
                          *device_flags(), *flags)
    twin = REFERENCE["twins"][name]
    body = {"prompt": REFERENCE["prompt"], "echo": True, "logprobs": 1, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    first, again = (httpx.post(server.http + "/v1/completions", json=body, timeout=60).json() for _ in range(2))
    (choice,) = first["choices"]
    found = choice["logprobs"]["token_logprobs"][1:len(REFERENCE["prompt"])]
    worst = max(abs(a - b) for a, b in zip(found, twin["logprobs"], strict=False)) / twin["largest"]
    assert worst < TOLERANCES[name]
    assert again["choices"] == first["choices"]
    # The log-probabilities behind the prompt's last token begin after those of the tokens and of the row before.
    behind = twin["logprobs"][len(found) + 128:]
    assert choice["logprobs"]["tokens"][len(REFERENCE["prompt"])] == chr(0x100 + behind.index(max(behind)))
