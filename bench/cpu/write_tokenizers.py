"""Writes NAME.json, a tokenizer.json, for each of the vocabularies that tokenizers are measured with:
    write_tokenizers.py MODEL.gguf MODELS FOLDER    MODELS: the folder of llama.cpp's sources with its vocabularies
Run with the Python of the group bench (scripts/pypi/bench.in)."""
import pathlib
import sys

from texts import ROOT, VOCABULARIES

sys.path.insert(0, str(ROOT / "tests/reference"))

import tokenizer_vocabularies  # noqa: E402: needs the line above


def main():
    model, models, folder = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for name in VOCABULARIES:
        path = model if name == "smollm2" else models / f"ggml-vocab-{name}.gguf"
        tokenizer_vocabularies.load(path, name).save(str(folder / f"{name}.json"))


if __name__ == "__main__":
    main()
