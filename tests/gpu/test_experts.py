"""Mixtures of experts at the widths that people serve, on a GPU, against transformers on the same one: two layers of Qwen3-30B-A3B,
Mixtral-8x7B and OLMoE-1B-7B, and of gpt-oss-20b two, one with a window.

The weights are random BF16; the reference computes with them in float32. Where two experts' logits are almost equal, rounding to BF16
sends a token to another one, which is as far off as any wrong number; so the bar is what transformers in BF16, which rounds at the same
places, is off by, times 1.2, and that most positions are as close as dense layers are (test_transformers.py).
"""
import copy
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, MixtralConfig, OlmoeConfig, Qwen3MoeConfig

import fake_fp8
from millrace_grpc import connect
from scoring import DEVICE, reference, relative, score

PEER = 1.2
TYPICAL = 0.03
PROMPT, ANSWER = 700, 32
SERVER = ["--device", "cuda", "--kv-cache-memory", "1GiB", "--max-num-seqs", "8", "--max-model-len", "2048"]
ROPE = {"rope_type": "default", "rope_theta": 1000000.0}

SHAPES = {
    "qwen3_30b_a3b": Qwen3MoeConfig(
        hidden_size=2048, moe_intermediate_size=768, intermediate_size=6144, num_hidden_layers=2, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, vocab_size=151936,
        max_position_embeddings=4096, rms_norm_eps=1e-6, rope_parameters=ROPE, tie_word_embeddings=False),
    "mixtral_8x7b": MixtralConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8,
        num_local_experts=8, num_experts_per_tok=2, vocab_size=49152, max_position_embeddings=4096, rms_norm_eps=1e-5,
        sliding_window=None, rope_parameters=ROPE, tie_word_embeddings=False),
    "olmoe_1b_7b": OlmoeConfig(
        hidden_size=2048, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=16,
        num_experts=64, num_experts_per_tok=8, norm_topk_prob=False, vocab_size=50304, max_position_embeddings=4096,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=False),
    "gpt_oss_20b": GptOssConfig(
        hidden_size=2880, intermediate_size=2880, num_hidden_layers=2, num_attention_heads=64, num_key_value_heads=8, head_dim=64,
        num_local_experts=32, num_experts_per_tok=4, vocab_size=201088, max_position_embeddings=4096, rms_norm_eps=1e-5,
        sliding_window=128, layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0}, tie_word_embeddings=False),
}


@pytest.fixture(scope="module", params=SHAPES)
def checkpoint(request, tmp_path_factory):
    """Returns (folder, the model in BF16, the same in float32). As in trained models, norms differ from 1 and biases from 0, and
    routers are sure of their choice."""
    torch.manual_seed(3)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(SHAPES[request.param], dtype=torch.bfloat16).eval()
        for name, weight in model.named_parameters():
            if "norm" in name:
                torch.nn.init.normal_(weight, 1.2, 0.2)
            elif name.endswith("router.weight") or name.endswith("mlp.gate.weight"):
                torch.nn.init.normal_(weight, 0, 0.1)
            elif name.endswith("bias") or name.endswith("sinks"):
                torch.nn.init.normal_(weight, 0, 0.5)
            elif "experts" in name:
                torch.nn.init.normal_(weight, 0, 0.02)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder, max_shard_size="1GB")
    exact = copy.deepcopy(model).float()
    exact.set_attn_implementation("eager")  # the definition itself
    yield folder, model, exact
    shutil.rmtree(folder)


def test_logprobs_agree(checkpoint, start_server, tokenizer_flags, show):
    folder, model, exact = checkpoint
    prompt = torch.randint(0, 49152, (PROMPT,), generator=torch.Generator().manual_seed(5)).tolist()
    server = start_server("--model", str(folder), *tokenizer_flags, *SERVER)
    scored = score(connect(server.grpc), prompt, ANSWER)
    again = start_server("--model", str(folder), *tokenizer_flags, *SERVER, "--max-num-batched-tokens", "128")
    assert score(connect(again.grpc), prompt, ANSWER).same(scored), "steps of 128 tokens give other numbers"

    theirs, deviations = reference(exact, scored)
    off = relative(scored.logprobs, theirs, deviations)
    peer = relative(reference(model, scored)[0], theirs, deviations)
    of_positions = (scored.logprobs - theirs).pow(2).mean(-1).sqrt() / deviations
    typical = of_positions.median().item()
    figures = f"{len(scored.tokens)} tokens, off by {off:.4f} (the median {typical:.4f}), transformers in BF16 {peer:.4f}"
    show("so", figures)
    assert off <= PEER * peer and typical <= TYPICAL, figures


def by_expert(tensors):
    """Yields (name, tensor) with stacked experts taken apart."""
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                for part, rows in zip(("gate", "up"), both.chunk(2)):
                    yield name.replace("gate_up_proj", f"{expert}.{part}_proj.weight"), rows
        elif name.endswith("experts.down_proj"):
            for expert, rows in enumerate(tensor):
                yield name.replace("down_proj", f"{expert}.down_proj.weight"), rows
        else:
            yield name, tensor


@torch.inference_mode()
def quantize(folder, model):
    """Stores the folder's linears in FP8 by blocks of 128x128, as Qwen3's and DeepSeek's own checkpoints have them, and gives `model`
    their values. Blocks of weights differ by up to four."""
    values = {}
    for path in sorted(folder.glob("*.safetensors")):
        stored = {}
        for name, weight in by_expert(load_file(path)):
            if ".layers." not in name or not name.endswith("_proj.weight"):
                stored[name] = weight
                continue
            weight = weight.to(DEVICE).float()
            rows, columns = weight.shape
            draw = torch.Generator(DEVICE).manual_seed(len(values))
            blocks = torch.empty(-(-rows // 128), -(-columns // 128), device=DEVICE).uniform_(-1, 1, generator=draw).exp2()
            weight = weight * fake_fp8.spread(blocks, rows, columns)
            padded = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
            scales = fake_fp8.scale_of(padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128)).abs().amax((1, 3)))
            spread = fake_fp8.spread(scales, rows, columns)
            codes = fake_fp8.codes(weight, spread)
            values[name] = codes.float() * spread
            stored[name] = codes.cpu()
            stored[name + "_scale_inv"] = scales.cpu()
        save_file(stored, path)
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 1, "without an index there is one file"
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    for name, parameter in model.named_parameters():
        if name in values:
            parameter.copy_(values[name])
        elif name.endswith("experts.gate_up_proj"):
            for expert in range(len(parameter)):
                parts = [values[name.replace("gate_up_proj", f"{expert}.{part}_proj.weight")] for part in ("gate", "up")]
                parameter[expert].copy_(torch.cat(parts))
        elif name.endswith("experts.down_proj"):
            for expert in range(len(parameter)):
                parameter[expert].copy_(values[name.replace("down_proj", f"{expert}.down_proj.weight")])


def test_blocks_of_fp8_give_the_same_however_a_prompt_is_cut(start_server, tokenizer_flags, tmp_path, show):
    """Experts quantize their inputs on the way in short steps, and before it in long ones: with the same bits."""
    torch.manual_seed(4)
    config = copy.deepcopy(SHAPES["qwen3_30b_a3b"])
    config.vocab_size = 49152
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval()
        for name, weight in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                torch.nn.init.normal_(weight, 0, 0.1)
            elif "experts" in name:
                torch.nn.init.normal_(weight, 0, 0.02)
    model.save_pretrained(tmp_path, max_shard_size="20GB")
    exact = model.float()
    quantize(tmp_path, exact)
    prompt = torch.randint(0, 49152, (PROMPT,), generator=torch.Generator().manual_seed(5)).tolist()
    server = start_server("--model", str(tmp_path), *tokenizer_flags, *SERVER)
    scored = score(connect(server.grpc), prompt, ANSWER)
    for tokens in ("128", "40"):
        again = start_server("--model", str(tmp_path), *tokenizer_flags, *SERVER, "--max-num-batched-tokens", tokens)
        assert score(connect(again.grpc), prompt, ANSWER).same(scored), f"steps of {tokens} tokens give other numbers"
    theirs, deviations = reference(exact, scored)
    off = relative(scored.logprobs, theirs, deviations)
    typical = ((scored.logprobs - theirs).pow(2).mean(-1).sqrt() / deviations).median().item()
    figures = f"off by {off:.4f} (the median {typical:.4f}) from the same weights with inputs in float32"
    show("so", figures)
    assert typical <= 0.2, figures  # what FP8 costs dense layers (test_fp8_checkpoints.py)
