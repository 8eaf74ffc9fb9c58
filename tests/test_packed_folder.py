"""Tests of the server with folders whose linears have four bits, beside folders of the floats that those stand for."""
import array
import json
import os
import random
import struct

import httpx
import pytest

from daemon import device_flags, run
from gguf_text import write_folder_text
from packed_folder import pack
from test_folder import CONFIG, LAYER_SHAPES, VOCAB, HIDDEN

CONFIGS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True, "lm_head": False,
             "checkpoint_format": "gptq", "true_sequential": True, "damp_percent": 0.01},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm",
            "modules_to_not_convert": None},
}
# A mixture, whose router is packed with the rest. Every token goes to all experts: 8-bit activations change no choice.
EXPERTS, EXPERT_FFN = 8, 64
MIXTURE = {"architectures": ["Qwen3MoeForCausalLM"], "head_dim": HIDDEN, "num_experts": EXPERTS,
           "num_experts_per_tok": EXPERTS, "moe_intermediate_size": EXPERT_FFN, "norm_topk_prob": True}
MIXTURE_SHAPES = {
    **{name: shape for name, shape in LAYER_SHAPES.items() if not name.startswith("mlp.")},
    "self_attn.q_norm": (HIDDEN,), "self_attn.k_norm": (HIDDEN,), "mlp.gate": (EXPERTS, HIDDEN),
    **{f"mlp.experts.{i}.{name}_proj": (HIDDEN, EXPERT_FFN) if name == "down" else (EXPERT_FFN, HIDDEN)
       for i in range(EXPERTS) for name in ("gate", "up", "down")},
}

PROMPTS = ["The sky is blue because", "Once upon a time", "1 + 1 =", "def main():", "Hello", "To be or not", "x", "Paris is"]
MARGIN = 0.06  # by which 8-bit activations may move the best tokens' log-probabilities against each other


def safetensors(tensors):
    """Writes a file: the header's length, a JSON header, then the data."""
    header, data = {}, bytearray()
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def floats(draw, shape):
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    numbers = [draw.gauss(0, 0.3) for _ in range(min(count, 65537))]  # a prime: the embedding's rows differ
    return (numbers * (count // len(numbers) + 1))[:count]


def stored(shape, numbers):
    return "F32", shape, array.array("f", numbers).tobytes()


def write_folders(method, mixture, packed, twin):
    """Writes a model with packed linears to one folder, with the floats that they stand for to the other."""
    draw = random.Random(1)
    both = {"model.embed_tokens.weight": stored((VOCAB, HIDDEN), floats(draw, (VOCAB, HIDDEN))),
            "model.norm.weight": stored((HIDDEN,), floats(draw, (HIDDEN,)))}
    quantized, plain = dict(both), dict(both)
    for seed, (module, shape) in enumerate((MIXTURE_SHAPES if mixture else LAYER_SHAPES).items()):
        name, numbers = f"model.layers.0.{module}", floats(draw, shape)
        if len(shape) == 1 or module == "mlp.gate_proj":  # one linear is left as it is
            quantized[name + ".weight"] = plain[name + ".weight"] = stored(shape, numbers)
            continue
        rows = [numbers[n * shape[1]:(n + 1) * shape[1]] for n in range(shape[0])]
        tensors, values = pack(method, rows, CONFIGS[method]["group_size"], seed=seed if method == "gptq" else None)
        quantized.update({f"{name}.{part}": tensor for part, tensor in tensors.items()})
        plain[name + ".weight"] = stored(shape, [value for row in values for value in row])
    for folder, tensors, config in ((packed, quantized, {"quantization_config": CONFIGS[method]}), (twin, plain, {})):
        folder.mkdir()
        config = {**CONFIG, **(MIXTURE if mixture else {}), "vocab_size": VOCAB, **config}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
        write_folder_text(os.environ["MILLRACE_MODEL"], folder)


def top_logprobs(choice):
    return [sorted(top.values(), reverse=True) for top in choice["logprobs"]["top_logprobs"]]


@pytest.mark.model
@pytest.mark.parametrize("mixture", [False, True], ids=["dense", "mixture"])
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_it_answers_as_its_dequantized_twin(start_server, tmp_path, method, mixture):
    if method == "gptq" and "--tensor-parallel-size" in os.environ.get("MILLRACED_ARGS", ""):
        pytest.skip("ranks do not divide groups of any inputs")
    packed, twin = tmp_path / "packed", tmp_path / "twin"
    write_folders(method, mixture, packed, twin)
    flags = ["--kv-cache-memory", "64MiB", *device_flags()]
    servers = [start_server("--model", str(folder), *flags) for folder in (packed, twin)]
    compared = 0
    for prompt in PROMPTS:
        body = {"prompt": prompt, "max_tokens": 6, "ignore_eos": True, "temperature": 0, "logprobs": 5,
                "return_token_ids": True}
        answers = [httpx.post(server.http + "/v1/completions", json=body, timeout=60).json()["choices"][0]
                   for server in servers]
        for ours, right, (best, second, *_) in zip(*(answer["token_ids"] for answer in answers),
                                                   top_logprobs(answers[1])):
            if best - second < MARGIN:
                break
            assert ours == right
            compared += 1
    assert compared > len(PROMPTS)

    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"]["bits"] = 3
    (packed / "config.json").write_text(json.dumps(config))
    code, log = run("--model", str(packed), *flags)
    assert code == 1 and "config.json: quantization_config.bits: 3 is not supported (supported: 4)" in log
    config["quantization_config"].update(bits=4, group_size=128)
    (packed / "config.json").write_text(json.dumps(config))
    code, log = run("--model", str(packed), *flags)
    assert code == 1 and "q_proj.qweight: has 64 inputs, must be a multiple of the groups' size, 128" in log
