"""Writes a GGUF file of OLMoE's widths with four layers of random Q4_K weights, for both sides (bench/README.md). Run by run.sh.

    experts_file.py FILE

A mixture's speed depends on its shapes and on how its router spreads the tokens. A random router spreads them evenly, as trained ones nearly do.
"""
import pathlib
import random
import struct
import sys

LAYERS, HIDDEN, HEADS, EXPERTS, CHOSEN, EXPERT_SIZE, VOCABULARY = 4, 2048, 16, 64, 8, 1024, 50304
F32, Q4_K = 0, 12  # ggml's types
BLOCK, BLOCK_BYTES = 256, 144
UINT32, FLOAT32, STRING = 4, 6, 8  # GGUF's types of values
ALIGNMENT = 32
PATTERN_BLOCKS = 8191  # a prime: rows differ


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    return text(key) + (struct.pack("<If", FLOAT32, value) if isinstance(value, float) else struct.pack("<II", UINT32, value))


METADATA = {
    "general.architecture": "olmoe", "olmoe.context_length": 4096, "olmoe.embedding_length": HIDDEN, "olmoe.block_count": LAYERS,
    "olmoe.feed_forward_length": EXPERT_SIZE, "olmoe.attention.head_count": HEADS, "olmoe.attention.head_count_kv": HEADS,
    "olmoe.attention.layer_norm_rms_epsilon": 1e-5, "olmoe.rope.freq_base": 10000.0, "olmoe.expert_count": EXPERTS,
    "olmoe.expert_used_count": CHOSEN, "olmoe.vocab_size": VOCABULARY, "tokenizer.ggml.model": "no_vocab",
}


def tensors():
    """Yields each tensor's name, type and shape, innermost dimension first."""
    yield "token_embd.weight", Q4_K, (HIDDEN, VOCABULARY)
    for layer in range(LAYERS):
        def name(part):
            return f"blk.{layer}.{part}.weight"

        for norm in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"):
            yield name(norm), F32, (HIDDEN,)
        for linear in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield name(linear), Q4_K, (HIDDEN, HIDDEN)
        yield name("ffn_gate_inp"), F32, (HIDDEN, EXPERTS)
        yield name("ffn_gate_exps"), Q4_K, (HIDDEN, EXPERT_SIZE, EXPERTS)
        yield name("ffn_up_exps"), Q4_K, (HIDDEN, EXPERT_SIZE, EXPERTS)
        yield name("ffn_down_exps"), Q4_K, (EXPERT_SIZE, HIDDEN, EXPERTS)
    yield "output_norm.weight", F32, (HIDDEN,)
    yield "output.weight", Q4_K, (HIDDEN, VOCABULARY)


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def quantized_pattern(draw):
    """Random codes and scales. The minimum of a block is about 7.5 times its scale, so that weights lie on both sides of 0."""
    return b"".join(struct.pack("<ee", 0.001, 0.0075) + draw.randbytes(BLOCK_BYTES - 4) for _ in range(PATTERN_BLOCKS))


def main(path):
    draw = random.Random(1)
    pattern = quantized_pattern(draw)
    infos, offset = [], 0
    for name, kind, shape in tensors():
        size = elements(shape) * 4 if kind == F32 else elements(shape) // BLOCK * BLOCK_BYTES
        infos.append((name, kind, shape, offset, size))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(METADATA)) + b"".join(pair(*item) for item in METADATA.items())
    for name, kind, shape, at, _ in infos:
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
    with open(path, "wb") as file:
        file.write(header.ljust(-(-len(header) // ALIGNMENT) * ALIGNMENT, b"\0"))
        for name, kind, shape, _, size in infos:
            if kind == F32:
                numbers = [draw.gauss(0, 0.02) if "inp" in name else 1.0 for _ in range(elements(shape))]
                data = struct.pack(f"<{len(numbers)}f", *numbers)
            else:
                data = (pattern * (size // len(pattern) + 1))[:size]
            file.write(data.ljust(-(-size // ALIGNMENT) * ALIGNMENT, b"\0"))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
