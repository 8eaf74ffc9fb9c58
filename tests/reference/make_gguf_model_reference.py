#!/usr/bin/env python3
"""Makes gguf_model_reference.json: what llama.cpp computes of the tiny GGUF files of encoders and of cross-encoders.

`make parity` runs it:

    make_gguf_model_reference.py WRITE_TINY_FOLDERS FOLDER

The first is the program of that name; llama.cpp is that of PyPI's xllamacpp. The file holds the tokens of the text, and for each file
its embedding, normalized as llama.cpp's server does, or the one number of a pair's score.
"""
import ctypes
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import llama_cpp
from make_family_reference import ENCODED, PROMPT


def embedding(lib, path, size):
    model = llama_cpp.load(lib, path)
    context = lib.llama_init_from_model(model, lib.llama_context_default_params())
    lib.llama_set_embeddings(context, True)
    tokens = (ctypes.c_int32 * ENCODED)(*PROMPT[:ENCODED])
    if lib.llama_encode(context, lib.llama_batch_get_one(tokens, ENCODED)) != 0:
        raise SystemExit(f"llama.cpp does not compute {path}")
    values = lib.llama_get_embeddings_seq(context, 0)[:size]
    lib.llama_free(context)
    lib.llama_model_free(model)
    length = math.sqrt(sum(value * value for value in values)) if size > 1 else 1
    return [round(value / length, 7) for value in values]


def main():
    lib = llama_cpp.library()
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.argv[1], work, "gguf"], check=True)
        files = sorted(path for path in pathlib.Path(work).iterdir() if "bert" in path.name)
        lines = [f'"prompt": {json.dumps(PROMPT[:ENCODED])}']
        for path in files:
            values = embedding(lib, path, 1 if "pairs" in path.name else 64)
            lines.append(f'"{path.stem}": {json.dumps(values, separators=(",", ":"))}')
    (pathlib.Path(sys.argv[2]) / "gguf_model_reference.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
