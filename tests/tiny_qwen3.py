"""Writes a tiny random Qwen3 that makes embeddings, as Qwen3-Embedding's folder has it, for tests of decoders' embeddings.

Its tokens are bytes, and the tokenizer's post-processor puts <|endoftext|> behind a text, whose last hidden state is pooled.
"""
import array
import json
import math
import pathlib
import random
import struct

CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 258,
          "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
          "attention_bias": False, "bos_token_id": 256, "eos_token_id": 256, "tie_word_embeddings": True, "torch_dtype": "float32"}
END = 256  # <|endoftext|>


def byte_characters():
    """Byte-level BPE's character for each byte: its own where it is printable, else one behind U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def tokenizer():
    special = [{"id": END + i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
               for i, text in enumerate(["<|endoftext|>", "<|im_start|>"])]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"}, "behavior": "Isolated", "invert": False}
    end = {"type": "TemplateProcessing",
           "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
           "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [END], "tokens": ["<|endoftext|>"]}}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": {"type": "Sequence", "processors": [byte_level, end]}, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {character: byte for byte, character in enumerate(byte_characters())}, "merges": []}}


def tensors():
    """Names, shapes, and values drawn from a seed."""
    draw = random.Random(7)
    hidden, heads, ffn = CONFIG["hidden_size"], CONFIG["head_dim"], CONFIG["intermediate_size"]
    queries, keys = CONFIG["num_attention_heads"] * heads, CONFIG["num_key_value_heads"] * heads
    yield "embed_tokens.weight", [CONFIG["vocab_size"], hidden], draw
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"layers.{i}."
        for name, shape in (("input_layernorm", [hidden]), ("post_attention_layernorm", [hidden]),
                            ("self_attn.q_proj", [queries, hidden]), ("self_attn.k_proj", [keys, hidden]),
                            ("self_attn.v_proj", [keys, hidden]), ("self_attn.o_proj", [hidden, queries]),
                            ("self_attn.q_norm", [heads]), ("self_attn.k_norm", [heads]),
                            ("mlp.gate_proj", [ffn, hidden]), ("mlp.up_proj", [ffn, hidden]), ("mlp.down_proj", [hidden, ffn])):
            yield f"{layer}{name}.weight", shape, draw
    yield "norm.weight", [hidden], draw


def write(folder, modules=True, **changes):
    """Writes the folder, with `changes` to config.json, and returns it. Without `modules` nothing says that it makes embeddings."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "add_bos_token": False}))
    if modules:
        kinds = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
        (folder / "modules.json").write_text(json.dumps(
            [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (kind, path) in enumerate(kinds)]))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(
            {"word_embedding_dimension": CONFIG["hidden_size"], "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}))
        (folder / "config_sentence_transformers.json").write_text(json.dumps(
            {"prompts": {"query": "Instruct: search\nQuery:", "document": ""}, "default_prompt_name": None}))
    header, data = {}, b""
    for name, shape, draw in tensors():
        centre = 1.0 if name.endswith("norm.weight") else 0.0
        values = array.array("f", (centre + draw.uniform(-0.35, 0.35) for _ in range(math.prod(shape)))).tobytes()
        header[name if modules else "model." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder
