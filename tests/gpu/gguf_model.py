"""The default model for transformers, from its GGUF file: that machine's Python has no package that reads them.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
import struct

import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM

NUMBERS = dict(enumerate(["B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d"]))
STRING, ARRAY = 8, 9
NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def f32(data):
    return numpy.frombuffer(data, numpy.float32)


def q8_0(data):
    blocks = numpy.frombuffer(data, [("scale", "<f2"), ("codes", "i1", 32)])
    return blocks["codes"] * blocks["scale"].astype("f4")[:, None]


def q4_1(data):
    blocks = numpy.frombuffer(data, [("scale", "<f2"), ("least", "<f2"), ("codes", "u1", 16)])
    codes = numpy.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], 1)
    return codes * blocks["scale"].astype("f4")[:, None] + blocks["least"].astype("f4")[:, None]


TYPES = {0: (f32, 1, 4), 3: (q4_1, 32, 20), 8: (q8_0, 32, 34)}  # by number: elements and bytes of a block


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def string(self):
        size = self.number("Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at]).decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(NUMBERS[kind])
        kind = self.number("I")
        return [self.value(kind) for _ in range(self.number("Q"))]


def read(path):
    """(metadata, {name: float32 numpy array})"""
    reader = Reader(memoryview(numpy.memmap(path, numpy.uint8, "r")))
    assert bytes(reader.data[:4]) == b"GGUF"
    reader.at = 8
    tensors, fields = reader.number("Q"), reader.number("Q")
    metadata = {}
    for _ in range(fields):
        name = reader.string()
        metadata[name] = reader.value(reader.number("I"))
    infos = []
    for _ in range(tensors):
        name = reader.string()
        shape = [reader.number("Q") for _ in range(reader.number("I"))]
        infos.append((name, shape[::-1], TYPES[reader.number("I")], reader.number("Q")))
    begin = -(-reader.at // 32) * 32
    weights = {}
    for name, shape, (decode, elements, size), offset in infos:
        first = begin + offset
        weights[name] = decode(reader.data[first:first + numpy.prod(shape) // elements * size]).reshape(shape)
    return metadata, weights


def load(path, device):
    """Returns the model in float32, with weights rounded to BF16 as on a GPU."""
    metadata, weights = read(path)
    of = lambda name: metadata["llama." + name]
    heads, kv_heads = of("attention.head_count"), of("attention.head_count_kv")
    config = LlamaConfig(
        hidden_size=of("embedding_length"), intermediate_size=of("feed_forward_length"), num_hidden_layers=of("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=of("vocab_size"), max_position_embeddings=of("context_length"),
        rms_norm_eps=of("attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": of("rope.freq_base")})
    state = {}
    for name, weight in weights.items():
        tensor = torch.from_numpy(weight.astype(numpy.float32))
        module = name.removesuffix(".weight")
        layer = ""
        if module.startswith("blk."):
            _, number, module = module.split(".")
            layer = f"layers.{number}."
        if module in ("attn_q", "attn_k"):  # the elements of a rotary pair are adjacent here, half a head apart there
            tensor = tensor.unflatten(0, (heads if module == "attn_q" else kv_heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        state[f"model.{layer}{NAMES[module]}.weight"] = tensor
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected  # which is the embedding
    model.tie_weights()
    return model.bfloat16().float().to(device).eval()
