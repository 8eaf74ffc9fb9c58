"""Writes a BF16 checkpoint of the shape that a Llama's config.json says, of random bytes, to measure how fast it is read:

    write_checkpoint.py CONFIG FOLDER
"""

import json
import os
import shutil
import sys


def layer(config: dict, index: int) -> dict:
    """The shapes of a layer's tensors by name."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
        "self_attn.q_proj": [hidden, hidden],
        "self_attn.k_proj": [kv, hidden],
        "self_attn.v_proj": [kv, hidden],
        "self_attn.o_proj": [hidden, hidden],
        "mlp.gate_proj": [ffn, hidden],
        "mlp.up_proj": [ffn, hidden],
        "mlp.down_proj": [hidden, ffn],
    }
    return {f"model.layers.{index}.{name}.weight": shape for name, shape in shapes.items()}


def write_file(path: str, tensors: dict, noise: bytes) -> None:
    header, end = {}, 0
    for name, shape in tensors.items():
        begin = end
        end += 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        while end > 0:
            end -= out.write(noise[:end])


def main() -> None:
    source, folder = sys.argv[1:]
    with open(source) as file:
        config = json.load(file)
    table = [config["vocab_size"], config["hidden_size"]]
    files = [{"model.embed_tokens.weight": table, "lm_head.weight": table, "model.norm.weight": table[1:]}]
    files += [layer(config, index) for index in range(config["num_hidden_layers"])]
    os.makedirs(folder)
    shutil.copy(source, folder + "/config.json")
    noise = bytes(byte & 0x3F for byte in os.urandom(1 << 20)) * 16  # BF16 from 0 to 1
    places = {}
    for number, tensors in enumerate(files):
        name = f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        write_file(f"{folder}/{name}", tensors, noise)
        places.update(dict.fromkeys(tensors, name))
    with open(folder + "/model.safetensors.index.json", "w") as index:
        json.dump({"metadata": {}, "weight_map": places}, index)


main()
