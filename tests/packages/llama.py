"""A Llama out of a Hugging Face folder, which the environment names in FOLDER, with the paged KV cache of a causal_lm package."""
import json
import os
import pathlib
import struct

import torch
from torch.nn import functional as F

FOLDER = pathlib.Path(os.environ["FOLDER"])


def read_weights():
    weights = {}
    for path in sorted(FOLDER.glob("*.safetensors")):
        data = bytearray(path.read_bytes())
        (size,) = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                flat = torch.frombuffer(data, dtype=torch.float32, offset=8 + size + begin, count=(end - begin) // 4)
                weights[name] = flat.reshape(entry["shape"]).clone()
    return weights


def norm(x, weight, epsilon):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def rotate(x, cosines, sines):
    """x: [rows, length, heads, head_size]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosines - b * sines, b * cosines + a * sines], -1)


class Llama(torch.nn.Module):
    def __init__(self, config, weights):
        super().__init__()
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.size = config["hidden_size"] // self.heads
        self.epsilon = config["rms_norm_eps"]
        base = config.get("rope_theta", 10000.0)
        self.register_buffer("frequencies", base ** (-torch.arange(0, self.size, 2, dtype=torch.float64) / self.size))
        self.names = {}
        for name, weight in weights.items():
            self.names[name] = name.replace(".", "_")
            self.register_buffer(self.names[name], weight)

    def weight(self, name):
        return getattr(self, self.names[f"model.{name}.weight"])

    def attention(self, layer, x, cosines, sines, places, context, hidden_from, keys, values):
        rows, length, _ = x.shape
        prefix = f"layers.{layer}.self_attn"
        heads = (rows, length, -1, self.size)
        q = rotate(F.linear(x, self.weight(f"{prefix}.q_proj")).view(heads), cosines, sines)
        k = rotate(F.linear(x, self.weight(f"{prefix}.k_proj")).view(heads), cosines, sines)
        v = F.linear(x, self.weight(f"{prefix}.v_proj")).view(heads)
        keys.index_put_((places,), k)
        values.index_put_((places,), v)
        q = q.view(rows, length, self.kv_heads, self.heads // self.kv_heads, self.size)
        scores = torch.einsum("rtkgd,rpkd->rkgtp", q, keys[context]) * self.size ** -0.5
        scores = scores.masked_fill(hidden_from[:, None, None], float("-inf"))
        out = torch.einsum("rkgtp,rpkd->rtkgd", scores.softmax(-1), values[context])
        return F.linear(out.reshape(rows, length, -1), self.weight(f"{prefix}.o_proj"))

    def forward(self, tokens, positions, context, wanted, keys, values):
        places = context.gather(1, positions)
        angles = positions.unsqueeze(-1).to(torch.float64) * self.frequencies
        cosines, sines = angles.cos().float().unsqueeze(2), angles.sin().float().unsqueeze(2)
        hidden_from = torch.arange(context.shape[1])[None, None, :] > positions.unsqueeze(-1)
        x = F.embedding(tokens, self.weight("embed_tokens"))
        for layer in range(self.layers):
            normed = norm(x, self.weight(f"layers.{layer}.input_layernorm"), self.epsilon)
            x = x + self.attention(layer, normed, cosines, sines, places, context, hidden_from, keys[layer], values[layer])
            normed = norm(x, self.weight(f"layers.{layer}.post_attention_layernorm"), self.epsilon)
            gate = F.silu(F.linear(normed, self.weight(f"layers.{layer}.mlp.gate_proj")))
            up = F.linear(normed, self.weight(f"layers.{layer}.mlp.up_proj"))
            x = x + F.linear(gate * up, self.weight(f"layers.{layer}.mlp.down_proj"))
        x = norm(x, self.weight("norm"), self.epsilon).flatten(0, 1)[wanted]
        return F.linear(x, self.weight("embed_tokens"))


def package():
    config = json.loads((FOLDER / "config.json").read_text())
    module = Llama(config, read_weights())
    return {"module": module,
            "causal_lm": {"layers": module.layers, "kv_heads": module.kv_heads, "head_size": module.size,
                          "vocab_size": config["vocab_size"], "context_length": config["max_position_embeddings"],
                          "end_tokens": []}}
