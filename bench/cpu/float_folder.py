"""Makes a Hugging Face folder of a Llama's GGUF file: its weights dequantized, in BF16.
    float_folder.py MODEL.gguf FOLDER
Run with the Python of the group bench (scripts/pypi/bench.in)."""
import json
import pathlib
import struct
import sys

import numpy
from gguf import GGUFReader
from gguf.quants import dequantize

OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_LAYERS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def folder_name(name):
    parts = name.removesuffix(".weight").split(".")
    middle = OUTSIDE[parts[0]] if len(parts) == 1 else f"model.layers.{parts[1]}.{OF_LAYERS[parts[2]]}"
    return f"{middle}.weight"


def bfloat16(numbers):
    """Rounds to nearest, ties to even."""
    bits = numpy.ascontiguousarray(numbers, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def main():
    reader, folder = GGUFReader(sys.argv[1]), pathlib.Path(sys.argv[2])

    def value(key):
        return reader.fields[f"llama.{key}"].contents()

    heads = {"attn_q": value("attention.head_count"), "attn_k": value("attention.head_count_kv")}
    header, blobs, end = {}, [], 0
    for tensor in reader.tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type)
        if count := heads.get(tensor.name.split(".")[-2]):
            # GGUF stores the two elements of a rotary pair next to each other, folders half a head apart.
            numbers = numbers.reshape(count, -1, 2, numbers.shape[-1]).swapaxes(1, 2).reshape(numbers.shape)
        blobs.append(bfloat16(numbers).tobytes())
        header[folder_name(tensor.name)] = {"dtype": "BF16", "shape": numbers.shape, "data_offsets": [end, end + len(blobs[-1])]}
        end += len(blobs[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "torch_dtype": "bfloat16",
        "vocab_size": value("vocab_size"), "hidden_size": value("embedding_length"), "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"), "num_attention_heads": heads["attn_q"], "num_key_value_heads": heads["attn_k"],
        "max_position_embeddings": value("context_length"), "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base"), "tie_word_embeddings": "lm_head.weight" not in header}, indent=1) + "\n")


if __name__ == "__main__":
    main()
