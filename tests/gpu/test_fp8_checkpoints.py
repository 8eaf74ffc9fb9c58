"""Checkpoints whose linears are stored in FP8, in every dialect that formats/huggingface/hf_quantization.h reads, against transformers.

Each is a small random Llama, quantized here; the reference is the same model in float32, its linears' weights and inputs (and where it
is asked for keys and values) rounded to FP8 as the checkpoint says.

The bound is what the reference is off by itself when BF16 rounds beside FP8 (fake_fp8.Bf16Linear), 1.1 times.

What is not used would hardly show in models like those that one meets, since FP8 numbers are floats: a scale twice too large costs one
of many binades. Here it does: blocks of weights differ by up to four, static scales are a third of what the largest input asks for, keys
and values lie beyond 448 where there are scales for them.
"""
import copy
import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import fake_fp8
from millrace_grpc import connect
from scoring import DEVICE, reference, relative, score

SERVER = ["--device", "cuda", "--kv-cache-memory", "256MiB", "--max-num-seqs", "8"]
NO_KV_SCALES = "kv_cache_dtype is fp8 and the model has no k_scale and v_scale: 1 is taken"


@dataclasses.dataclass
class Dialect:
    method: str       # quant_method
    weights: str      # tensor, channel or block
    inputs: str       # static, token or group
    scale: str = "weight_scale"
    scale_type: torch.dtype = torch.float32
    kv: tuple = ()    # names of the scales of keys and values; empty without such scales
    hidden: int = 512
    ffn: int = 1408
    kv_heads: int = 2

    def fields(self):
        static = self.inputs == "static"
        if self.method == "fp8":
            blocks = {"weight_block_size": [128, 128]} if self.weights == "block" else {}
            return {"quant_method": "fp8", "activation_scheme": "static" if static else "dynamic", "fmt": "e4m3", **blocks}
        number = {"num_bits": 8, "type": "float", "symmetric": True}
        blocks = {"block_structure": [128, 128]} if self.weights == "block" else {}
        groups = {"group_size": 128} if self.inputs == "group" else {}
        return {
            "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "kv_cache_scheme": {**number, "strategy": "tensor", "dynamic": False} if self.kv else None,
            "config_groups": {"group_0": {
                "targets": ["Linear"], "output_activations": None,
                "weights": {**number, "strategy": self.weights, "dynamic": False, **blocks},
                "input_activations": {**number, "strategy": "tensor" if static else self.inputs, "dynamic": not static, **groups}}}}


DIALECTS = {
    "compressed_channel_token": Dialect("compressed-tensors", "channel", "token", scale_type=torch.bfloat16),
    "compressed_channel_token_of_576": Dialect("compressed-tensors", "channel", "token", hidden=576, ffn=1536, kv_heads=3),
    "compressed_tensor_token": Dialect("compressed-tensors", "tensor", "token"),
    "compressed_tensor_static_kv": Dialect("compressed-tensors", "tensor", "static", kv=("self_attn.k_scale", "self_attn.v_scale")),
    "compressed_block_group": Dialect("compressed-tensors", "block", "group"),
    "fp8_tensor_static_kv": Dialect("fp8", "tensor", "static",
                                    kv=("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale")),
    "fp8_tensor_dynamic": Dialect("fp8", "tensor", "token"),
    "fp8_block_deepseek": Dialect("fp8", "block", "group", scale="weight_scale_inv"),
}


def make_model(dialect):
    torch.manual_seed(11)
    config = LlamaConfig(hidden_size=dialect.hidden, intermediate_size=dialect.ffn, num_hidden_layers=2,
                         num_attention_heads=dialect.hidden // 64, num_key_value_heads=dialect.kv_heads, head_dim=64,
                         vocab_size=49152, max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True,
                         initializer_range=0.05, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    with torch.device(DEVICE):
        model = LlamaForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for _, _, path, module in fake_fp8.linears(model):
        rows, columns = module.weight.shape
        blocks = torch.empty(-(-rows // 128), -(-columns // 128), device=DEVICE).uniform_(-1, 1).exp2()
        module.weight.data.mul_(fake_fp8.spread(blocks, rows, columns))
        if dialect.kv:  # powers of two, which only shift the range of keys and values
            module.weight.data.mul_({"k_proj": 1024, "q_proj": 1 / 1024, "v_proj": 1024, "o_proj": 1 / 1024}.get(path.split(".")[-1], 1))
    return model.bfloat16().float()  # unquantized tensors are stored in BF16


@torch.inference_mode()
def measure_inputs(model, tokens):
    """Returns the largest input magnitude of each linear, and of each layer those of keys and values."""
    largest = {}
    hooks = [module.register_forward_pre_hook(lambda _, args, path=path: largest.__setitem__(path, args[0].abs().max().item()))
             for _, _, path, module in fake_fp8.linears(model)]
    cache = fake_fp8.DynamicCache()
    model(torch.tensor([tokens], device=DEVICE), past_key_values=cache)
    for hook in hooks:
        hook.remove()
    return largest, [(layer.keys.abs().max().item(), layer.values.abs().max().item()) for layer in cache.layers]


@dataclasses.dataclass
class Checkpoint:
    weights: dict                              # by path: (codes, scales as stored, dequantized)
    inputs: dict                               # by path: a static scale, "token" or "group"
    kv: dict = dataclasses.field(default_factory=dict)  # by layer: (k, v)


def quantize(model, dialect, tokens):
    largest, kv = measure_inputs(model, tokens)
    made = Checkpoint({}, {})
    for _, _, path, module in fake_fp8.linears(model):
        weight = module.weight.detach()
        rows, columns = weight.shape
        if dialect.weights == "tensor":
            stored = fake_fp8.scale_of(weight.abs().max())
        elif dialect.weights == "channel":
            stored = fake_fp8.channel_scales(weight)
        else:
            padded = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
            stored = fake_fp8.scale_of(padded.unflatten(1, (-1, 128)).unflatten(0, (-1, 128)).abs().amax((1, 3)))
        stored = stored.to(dialect.scale_type).float()
        full = fake_fp8.spread(stored, rows, columns) if dialect.weights == "block" else stored
        codes = fake_fp8.codes(weight, full)
        made.weights[path] = codes, stored, codes.float() * full
        static = torch.tensor(0.3 * largest[path] / fake_fp8.LARGEST).item()
        made.inputs[path] = static if dialect.inputs == "static" else dialect.inputs
    if dialect.kv:
        made.kv = {layer: tuple(torch.tensor(value / fake_fp8.LARGEST).item() for value in pair) for layer, pair in enumerate(kv)}
    return made


def write(folder, model, dialect, made):
    tensors = {name: tensor.detach().bfloat16().contiguous() for name, tensor in model.named_parameters()}
    one = [] if dialect.method == "fp8" else [1]  # the shape of a single scale: both occur
    for path, (codes, scales, _) in made.weights.items():
        tensors[f"{path}.weight"] = codes
        tensors[f"{path}.{dialect.scale}"] = (scales if scales.dim() else scales.reshape(one)).to(dialect.scale_type)
        if dialect.inputs == "static":
            tensors[f"{path}.input_scale"] = torch.tensor(made.inputs[path]).reshape(one)
    for layer, pair in made.kv.items():
        for name, scale in zip(dialect.kv, pair):
            tensors[f"model.layers.{layer}.{name}"] = torch.tensor(scale)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads(model.config.to_json_string(use_diff=False))
    config.update(architectures=["LlamaForCausalLM"], dtype="bfloat16", quantization_config=dialect.fields())
    (folder / "config.json").write_text(json.dumps(config))


def fake(model, made, kind=fake_fp8.FakeLinear):
    model = copy.deepcopy(model)
    for parent, name, path, _ in fake_fp8.linears(model):
        setattr(parent, name, kind(made.weights[path][2], made.inputs[path]))
    return model


def wrong(dialect, made):
    """Yields the numbers that result if a part of the checkpoint is ignored or misread."""
    def full(path, scales):
        if dialect.weights == "tensor":  # one scale for all of a fused matrix
            return made.weights[path.replace("k_proj", "q_proj").replace("v_proj", "q_proj")][1]
        if dialect.weights == "channel":
            return scales.flip(0)
        return fake_fp8.spread(scales.flip(1), *made.weights[path][0].shape)

    yield "other scales of weights", dataclasses.replace(made, weights={
        path: (codes, scales, codes.float() * full(path, scales)) for path, (codes, scales, _) in made.weights.items()})
    if dialect.inputs == "static":
        yield "dynamic inputs", dataclasses.replace(made, inputs=dict.fromkeys(made.inputs, "token"))


def cache_of(kv_fp8, made):
    return fake_fp8.Fp8Cache(made.kv) if kv_fp8 else None


@pytest.mark.parametrize("name", DIALECTS)
def test_stored_fp8_is_what_transformers_computes(start_server, tokenizer_flags, tmp_path, show, name):
    dialect = DIALECTS[name]
    model = make_model(dialect)
    draw = torch.Generator().manual_seed(2)
    prompt = torch.randint(0, 49152, (300,), generator=draw).tolist()
    made = quantize(model, dialect, prompt)
    write(tmp_path, model, dialect, made)
    exact, rounded = fake(model, made), fake(model, made, fake_fp8.Bf16Linear)
    for kv_fp8 in (False, True):
        server = start_server("--model", str(tmp_path), *tokenizer_flags, *SERVER, *(["--kv-cache-dtype", "fp8"] if kv_fp8 else []))
        scored = score(connect(server.grpc), prompt, answer_tokens=16)
        theirs, deviations = reference(exact, scored, cache_of(kv_fp8, made))
        off = relative(scored.logprobs, theirs, deviations)
        peer = relative(reference(rounded, scored, cache_of(kv_fp8, made))[0], theirs, deviations)
        unquantized = relative(reference(model, scored)[0], theirs, deviations)
        wrongs = {what: relative(scored.logprobs, *reference(fake(model, other), scored, cache_of(kv_fp8, made)))
                  for what, other in wrong(dialect, made)}
        if kv_fp8 and made.kv:
            wrongs["keys and values with 1"] = relative(scored.logprobs, *reference(exact, scored, fake_fp8.Fp8Cache()))
        figures = (f"off by {off:.3f}, two right ones {peer:.3f}, FP8 costs {unquantized:.3f}; were it wrong: "
                   + ", ".join(f"{what} {by:.3f}" for what, by in wrongs.items()))
        show("FP8 cache" if kv_fp8 else "BF16 cache", figures)
        assert off <= fake_fp8.PEER * peer, figures
        assert all(by > 2 * off for by in wrongs.values()), figures
        assert (NO_KV_SCALES in server.log.read_text()) == (kv_fp8 and not made.kv)
