#!/usr/bin/env python3
"""Makes decoder_embedding_reference.json: transformers' embeddings by a tiny Qwen3, with which the server's are compared.

`make parity` runs it:

    make_decoder_embedding_reference.py FOLDER

The model is the one that tests/tiny_qwen3.py writes, in float64 (transformers computes rotations in float32). The file holds for each
text its number of tokens, with the end of the text, and the last token's normed state, normalized.
"""
import json
import pathlib
import sys
import tempfile

import torch
from transformers import AutoModel, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import tiny_qwen3  # noqa: E402

TEXTS = [
    "What is the capital of China?",
    "The capital of China is Beijing.",
    "Gravity is a force that attracts two bodies towards each other.",
    "a",
    " two  spaces\tand a tab\n",
    "Ein Satz mit Umlauten: größer, schöner, Übermut – 数学 and an emoji 🙂.",
    "text with <|endoftext|> in it",
    " ".join(f"word {i}" for i in range(60)),
    " ".join(f"the {i}th of many sentences." for i in range(30)),
]


def main():
    with tempfile.TemporaryDirectory() as work:
        folder = tiny_qwen3.write(work)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        model = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()

        def embed(text):
            ids = tokenizer(text)["input_ids"]
            with torch.no_grad():
                state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
            return len(ids), [round(value, 8) for value in torch.nn.functional.normalize(state, dim=0).tolist()]

        reference = [dict(zip(("text", "tokens", "embedding"), (text, *embed(text)), strict=True)) for text in TEXTS]
    lines = [json.dumps(entry, ensure_ascii=False) for entry in reference]
    (pathlib.Path(sys.argv[1]) / "decoder_embedding_reference.json").write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
