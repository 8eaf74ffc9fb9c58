#!/usr/bin/env python3
"""Writes tokenizer_shapes.json: the tokenizers of tokenizer_shapes.py, and Hugging Face's ids for the texts in
tokenizer_smollm2.jsonl, for text/tokenizer/tokenizer_shapes_test.cc.

    make_shape_reference.py FOLDER

Trained models are taken from the committed file if it has them, since training is not reproducible; all else comes from
tokenizer_shapes.py.
    {"trainings": {digest of what is trained, how and on what: the place of a model that has what was learned},
     "models": [a tokenizer.json's "model", ...],
     "shapes": [{"name": ..., "model": its place, "rest": the other fields of tokenizer.json, "hashes": [...], "long": [...]}, ...]}
A hash is of the ids of 200 texts: FNV-1a over each text's ids with special text parsed, -1, its ids without, -1, in 4 bytes each,
the lowest first; as 16 hexadecimal digits. "long", of some shapes, has those of 1 MiB of each of REPEATED, without special text.
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer

import tokenizer_shapes

HERE = pathlib.Path(__file__).parent
GROUP = 200
REPEATED = ("a", " ", "a1")
# One tokenizer for each model type, and for each pattern in use.
LONG = ("byte-level BPE", "byte-level BPE, Llama 3", "byte-level BPE, Qwen2", "byte-level BPE, tekken", "SentencePiece BPE",
        "BPE, suffix", "Unigram", "WordPiece")


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


def long_hashes(tokenizer):
    tokenizer.encode_special_tokens = True
    return [fnv(tokenizer.encode_batch_fast([unit * ((1 << 20) // len(unit))])[0].ids) for unit in REPEATED]


def made(committed):
    """Returns the shapes and their models, and the places of trained models."""
    tokenizer_shapes.LEARNED = {digest: tokenizer_shapes.learned_of(committed["models"][place])
                                for digest, place in committed["trainings"].items()}
    trainings, models, shapes = {}, [], []
    for name, tokenizer in tokenizer_shapes.all_shapes():
        rest = json.loads(tokenizer.to_str())
        model = rest.pop("model")
        if model not in models:
            models.append(model)
        shapes.append({"name": name, "model": models.index(model), "rest": rest})
        # This is the first shape with a new training.
        trainings = {digest: models.index(model) for digest in tokenizer_shapes.TRAININGS} | trainings
    return {"trainings": trainings, "models": models, "shapes": shapes}


def main():
    lines = (HERE / "tokenizer_smollm2.jsonl").read_text(encoding="utf-8").split("\n")
    texts = [line["text"] for line in map(json.loads, filter(None, lines)) if "text" in line]
    reference = made(json.loads((HERE / "tokenizer_shapes.json").read_text(encoding="utf-8")))
    for shape in reference["shapes"]:
        tokenizer = Tokenizer.from_str(json.dumps(shape["rest"] | {"model": reference["models"][shape["model"]]}))
        shape["hashes"] = hashes(tokenizer, texts)
        if shape["name"] in LONG:
            shape["long"] = long_hashes(tokenizer)
    path = pathlib.Path(sys.argv[1]) / "tokenizer_shapes.json"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{{"trainings":{json.dumps(reference["trainings"], indent=0)},"models":[\n')
        file.write(",\n".join(json.dumps(model, ensure_ascii=False, separators=(",", ":")) for model in reference["models"]))
        file.write('\n],"shapes":[\n')
        file.write(",\n".join(json.dumps(shape, ensure_ascii=False, separators=(",", ":")) for shape in reference["shapes"]))
        file.write("\n]}\n")
    print(f"{len(reference['models'])} models, {len(reference['shapes'])} shapes, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
