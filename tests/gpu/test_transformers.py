"""Two layers of the widths of Llama-3-8B, Qwen3-8B, Qwen2.5-7B (biases) and Mistral-7B (windows) on a GPU, against transformers on the
same one.

The weights are random BF16; the reference computes with them in float32. The vocabularies are whole: the matrices' sizes are what
these tests are for, and a checkpoint of gigabytes tells how fast it is read.

The bound, in units of what rounding to BF16 costs, e = 0.0016 (relative, root mean square). Attention rounds five times on the way of
values (norm, product with qkv, weights, output, product with o) and six on that of scores (norm, product and rotation, of q and k), whose
error returns as one of the weights, s times as large where scores deviate by s: 2.4 in Llama here, 1.5 in Qwen3, which norms q and k.
The feed-forward part adds five. So behind a layer it is √(10 + 6 s²) e, which the second layer's attention takes in with √(1 + 2 s²) times
the weight: in all between 7 e and 24 e for Llama and between 5 e and 12 e for Qwen3, as much as the second attention's share of
the residual stream makes it. The bar is 0.03; and that transformers in BF16, which rounds at the same places and the residual stream
besides, is off by more.
"""
import copy
import re
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import fake_fp8
from millrace_grpc import connect
from scoring import DEVICE, change_config, reference, relative, score

BOUND = 0.03
ANSWER = 48
PROMPTS = {"short": 300, "long": 4200}
DTYPE = torch.bfloat16
SERVER = ["--device", "cuda", "--kv-cache-memory", "1GiB", "--max-num-seqs", "8", "--max-model-len", "5000"]

SHAPES = {
    "llama": LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5,
                         rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, tie_word_embeddings=False),
    "qwen3": Qwen3Config(hidden_size=4096, intermediate_size=12288, num_hidden_layers=2, num_attention_heads=32,
                         num_key_value_heads=8, head_dim=128, vocab_size=151936, max_position_embeddings=40960, rms_norm_eps=1e-6,
                         rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, tie_word_embeddings=False),
    "qwen2": Qwen2Config(hidden_size=3584, intermediate_size=18944, num_hidden_layers=2, num_attention_heads=28,
                         num_key_value_heads=4, vocab_size=152064, max_position_embeddings=32768, rms_norm_eps=1e-6,
                         rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, tie_word_embeddings=False),
    "mistral": MistralConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, num_attention_heads=32,
                             num_key_value_heads=8, vocab_size=131072, max_position_embeddings=32768, rms_norm_eps=1e-5,
                             sliding_window=1000, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
                             tie_word_embeddings=False),
}
WRONG = [{"rope_theta": 10000.0}, {"rms_norm_eps": 1e-2}]


@pytest.fixture(scope="module", params=SHAPES)
def checkpoint(request, tmp_path_factory):
    """Returns (folder, the model in BF16, the same in float32). As in trained models, norms differ from 1 and biases from 0."""
    torch.manual_seed(3)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(SHAPES[request.param], dtype=DTYPE).eval()
        for name, weight in model.named_parameters():
            if "norm" in name:
                torch.nn.init.normal_(weight, 1.2, 0.2)
            elif name.endswith("bias"):
                torch.nn.init.normal_(weight, 0, 0.5)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder, max_shard_size="1GB")
    exact = copy.deepcopy(model).float()
    exact.set_attn_implementation("eager")  # the definition itself
    yield folder, model, exact
    shutil.rmtree(folder)


def prompts():
    draw = torch.Generator().manual_seed(5)
    return {name: torch.randint(0, 49152, (length,), generator=draw).tolist() for name, length in PROMPTS.items()}


def test_logprobs_agree(checkpoint, start_server, tokenizer_flags, show):
    folder, model, exact = checkpoint
    server = start_server("--model", str(folder), *tokenizer_flags, *SERVER)
    stub = connect(server.grpc)
    ours = {name: score(stub, prompt, ANSWER) for name, prompt in prompts().items()}

    again = start_server("--model", str(folder), *tokenizer_flags, *SERVER, "--max-num-batched-tokens", "512")
    chunked = connect(again.grpc)
    for name, prompt in prompts().items():
        assert score(chunked, prompt, ANSWER).same(ours[name]), f"{name}: steps of 512 tokens give other numbers"
    for name, log in (("from the file", server.log), ("from memory", again.log)):
        show(name, re.search(r"read \d+ MiB of weights in .* GB/s", log.read_text())[0])

    for name, scored in ours.items():
        theirs, deviations = reference(exact, scored)
        off = relative(scored.logprobs, theirs, deviations)
        answer = slice(PROMPTS[name] - 1, None)
        answer_off = relative(scored.logprobs[answer], theirs[answer], deviations[answer])
        peer = relative(reference(model, scored)[0], theirs, deviations)
        largest = ((scored.logprobs - theirs).abs() / deviations[:, None]).max().item()
        figures = (f"{len(scored.tokens)} tokens, off by {off:.4f} (the answer {answer_off:.4f}), transformers in BF16 "
                   f"{peer:.4f}; the largest {largest:.4f}")
        show(name, figures)
        assert off <= BOUND and off < peer and answer_off <= BOUND and largest <= 8 * BOUND, figures


def test_quantized_while_it_is_read(checkpoint, start_server, tokenizer_flags, show):
    folder, _, exact = checkpoint
    server = start_server("--model", str(folder), *tokenizer_flags, *SERVER, "--quantization", "fp8", "--kv-cache-dtype", "fp8")
    scored = score(connect(server.grpc), prompts()["long"], ANSWER)
    theirs, deviations = reference(fake_fp8.quantize(copy.deepcopy(exact)), scored, fake_fp8.Fp8Cache())
    off = relative(scored.logprobs, theirs, deviations)
    peer = relative(reference(fake_fp8.quantize(copy.deepcopy(exact), fake_fp8.Bf16Linear), scored, fake_fp8.Fp8Cache())[0],
                    theirs, deviations)
    cost = relative(reference(exact, scored)[0], theirs, deviations)
    figures = f"off by {off:.3f}, two right ones {peer:.3f}, FP8 costs {cost:.3f}"
    show("FP8", figures)
    assert off <= fake_fp8.PEER * peer, figures


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: next(iter(wrong)))
def test_a_wrong_number_in_the_config_shows(checkpoint, start_server, tokenizer_flags, tmp_path, show, wrong):
    folder, _, exact = checkpoint
    for file in folder.iterdir():
        if file.name == "config.json":
            shutil.copy(file, tmp_path)
        else:
            (tmp_path / file.name).symlink_to(file)
    change_config(tmp_path, wrong)
    server = start_server("--model", str(tmp_path), *tokenizer_flags, *SERVER)
    scored = score(connect(server.grpc), prompts()["short"])
    off = relative(scored.logprobs, *reference(exact, scored))
    show("so", f"off by {off:.3f}")
    assert off > 10 * BOUND
