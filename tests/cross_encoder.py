"""Writes a cross-encoder's folder: all-MiniLM-L6-v2 with a classifier of fixed numbers, for tests of scores."""
import array
import json
import math
import pathlib
import struct


def write(minilm, folder, activation=None):
    """Writes the folder and returns it. `activation`: sbert_ce_default_activation_function."""
    minilm, folder = pathlib.Path(minilm), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_bytes((minilm / name).read_bytes())
    config = json.loads((minilm / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    if activation is not None:
        config["sbert_ce_default_activation_function"] = activation
    (folder / "config.json").write_text(json.dumps(config))
    data = (minilm / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, tensors = json.loads(data[8:8 + size]), data[8 + size:]
    header = {name if name == "__metadata__" else "bert." + name: value for name, value in header.items()}
    for name, shape, values in (("classifier.weight", [1, 384], [math.sin(i) / 2 for i in range(384)]), ("classifier.bias", [1], [0.25])):
        added = array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(tensors), len(tensors) + len(added)]}
        tensors += added
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + tensors)
    return folder
