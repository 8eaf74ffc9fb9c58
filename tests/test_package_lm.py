"""Tests of --device torch with a language model's AOTInductor package, compared with the same model in our own ops."""
import concurrent.futures
import json
import os

import httpx
import pytest

from conftest import Server
from daemon import run
from test_folder import CONFIG, FFN, HIDDEN, VOCAB, safetensors

pytestmark = [pytest.mark.model, pytest.mark.torch, pytest.mark.timeout(900)]  # To make a package takes a minute, on a busy machine several.
LAYERS, HEADS, KV_HEADS = 2, 4, 2
KV_WIDTH = HIDDEN // HEADS * KV_HEADS
LAYER_SHAPES = {
    "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,), "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV_WIDTH, HIDDEN), "self_attn.v_proj": (KV_WIDTH, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    config = {**CONFIG, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
              "vocab_size": VOCAB}
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in LAYER_SHAPES.items()}
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(safetensors(shapes))
    return path


@pytest.fixture(scope="module")
def package(make_package, folder):
    return make_package("llama", folder)


@pytest.fixture(scope="module")
def servers(package, folder, tmp_path_factory):
    """Starts the package's server, with steps of at most 24 tokens, and the folder's, which is the reference."""
    flags = ["--device", "torch", "--threads", "1", "--tokenizer", os.environ["MILLRACE_MODEL"], "--served-model-name", "m",
             "--kv-cache-memory", "64MiB"]
    both = [Server(tmp_path_factory.mktemp("package"), "--model", str(package), "--max-num-batched-tokens", "24",
                   "--max-num-seqs", "24", *flags),
            Server(tmp_path_factory.mktemp("folder"), "--model", str(folder), *flags)]
    yield both
    for server in both:
        server.stop()


def prompt(length, seed=0):
    return [(seed * 101 + i * 37 + i * i) % VOCAB for i in range(length)]


def complete(server, tokens, **fields):
    body = {"model": "m", "prompt": tokens, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
            **fields}
    answer = httpx.post(server.http + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 70])
def test_its_logits_are_the_models(servers, length):
    """Covers every token of a prompt, in one step or several, and generated tokens, which end and begin blocks of 16."""
    ours, reference = [complete(server, prompt(length), logprobs=1, echo=True) for server in servers]
    assert ours["token_ids"] == reference["token_ids"] and len(ours["token_ids"]) == 12
    logprobs, expected = [choice["logprobs"]["token_logprobs"] for choice in (ours, reference)]
    assert len(logprobs) == length + 12 and logprobs[0] is None and expected[0] is None
    assert logprobs[1:] == pytest.approx(expected[1:], abs=1e-3)


def test_sequences_that_run_together_do_not_mind(servers):
    """Prompts of many lengths share steps with sequences that decode, first computed and then from the prefix cache."""
    ours, reference = servers
    prompts = [prompt(3 + 11 * i, seed=i + 1) for i in range(8)]
    expected = [complete(reference, tokens)["token_ids"] for tokens in prompts]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda tokens: complete(ours, tokens)["token_ids"], prompts * 2))
    assert answers == expected * 2


def test_a_long_sequence_and_many_short_ones_decode_apart(servers):
    """The long prompt ends while the others are decoding, and they are not padded to its length."""
    asked = [(prompt(3, seed=i), 100) for i in range(18)] + [(prompt(240), 10)]

    def ask_all(server):
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            return list(pool.map(lambda ask: complete(server, ask[0], max_tokens=ask[1])["token_ids"], asked))

    ours, reference = map(ask_all, servers)
    assert ours == reference


def test_a_choice_continues_on_its_own_copy_of_a_block(servers):
    """n > 1 forks a partial block."""
    body = {"model": "m", "prompt": prompt(21), "max_tokens": 6, "temperature": 1.0, "seed": 5, "n": 3, "ignore_eos": True,
            "return_token_ids": True}
    answers = [httpx.post(server.http + "/v1/completions", json=body, timeout=60).json()["choices"] for server in servers]
    ours, reference = [sorted((c["index"], c["token_ids"]) for c in choices) for choices in answers]
    assert ours == reference and len({str(tokens) for _, tokens in ours}) > 1


def test_it_is_a_model_like_others(servers):
    (model,) = httpx.get(servers[0].http + "/v1/models").json()["data"]
    assert (model["architecture"], model["max_model_len"], model["batch_invariant"]) == ("pytorch_aotinductor", 256, False)


@pytest.mark.parametrize("name, flags, says", [
    ("llama", [], "is a language model; allowed without --tokenizer: a package that takes tensors"),
    ("llama", ["--tokenizer", "MODEL", "--dtype", "bfloat16"], "dtype is bfloat16; allowed with a package: float32"),
    ("llama", ["--tokenizer", "MODEL", "--max-model-len", "257"], "max_model_len is 257, allowed: up to the model's 256"),
    ("classifier", ["--tokenizer", "MODEL"], "takes tensors, not tokens: it is served for Infer, without --tokenizer"),
])
def test_a_start_that_cannot_be_says_why(package, make_package, name, flags, says):
    path = package if name == "llama" else make_package(name)
    flags = [os.environ["MILLRACE_MODEL"] if flag == "MODEL" else flag for flag in flags]
    status, error = run("--device", "torch", "--model", str(path), *flags)
    assert status == 1 and says in error
