#!/usr/bin/env python3
"""Writes tokenizer_shapes.json: the tokenizers of tokenizer_shapes.py, and what Hugging Face's make of the texts in
tokenizer_smollm2.jsonl, for server/text/tokenizer_shapes_test.cc.

    make_shape_reference.py FOLDER [train]

Models are taken from the committed file, unless `train` asks for new ones: training is not the same twice.
    {"models": [a tokenizer.json's "model", ...],
     "shapes": [{"name": ..., "model": its place, "rest": the other fields of tokenizer.json, "hashes": [...]}, ...]}
A hash is of the ids of 200 texts: FNV-1a over each text's ids with special text parsed, -1, its ids without, -1, in 4 bytes each,
the lowest first; as 16 hexadecimal digits.
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer

import tokenizer_shapes

HERE = pathlib.Path(__file__).parent
GROUP = 200


def fnv(numbers):
    value = 0xCBF29CE484222325
    for byte in b"".join(number.to_bytes(4, "little", signed=True) for number in numbers):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def hashes(tokenizer, texts):
    both = []
    for plain in (False, True):
        tokenizer.encode_special_tokens = plain
        both.append([encoding.ids for encoding in tokenizer.encode_batch_fast(texts)])
    lines = [parsed + [-1] + plain + [-1] for parsed, plain in zip(*both)]
    return [fnv(sum(lines[i:i + GROUP], [])) for i in range(0, len(lines), GROUP)]


def trained():
    models, shapes = [], []
    for name, tokenizer in tokenizer_shapes.all_shapes():
        rest = json.loads(tokenizer.to_str())
        model = rest.pop("model")
        if model not in models:
            models.append(model)
        shapes.append({"name": name, "model": models.index(model), "rest": rest})
    return {"models": models, "shapes": shapes}


def main():
    lines = (HERE / "tokenizer_smollm2.jsonl").read_text(encoding="utf-8").split("\n")
    texts = [line["text"] for line in map(json.loads, filter(None, lines)) if "text" in line]
    reference = trained() if "train" in sys.argv[2:] else json.loads((HERE / "tokenizer_shapes.json").read_text(encoding="utf-8"))
    for shape in reference["shapes"]:
        tokenizer = Tokenizer.from_str(json.dumps(shape["rest"] | {"model": reference["models"][shape["model"]]}))
        shape["hashes"] = hashes(tokenizer, texts)
    path = pathlib.Path(sys.argv[1]) / "tokenizer_shapes.json"
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"models":[\n')
        file.write(",\n".join(json.dumps(model, ensure_ascii=False, separators=(",", ":")) for model in reference["models"]))
        file.write('\n],"shapes":[\n')
        file.write(",\n".join(json.dumps(shape, ensure_ascii=False, separators=(",", ":")) for shape in reference["shapes"]))
        file.write("\n]}\n")
    print(f"{len(reference['models'])} models, {len(reference['shapes'])} shapes, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
