#!/usr/bin/env python3
"""Makes decoder_embedding_reference.json: transformers' embeddings by a tiny Qwen3, with which the server's are compared.

`make parity` runs it:

    make_decoder_embedding_reference.py FOLDER

The model is the one that tests/tiny_qwen3.py writes, in float64 (transformers computes rotations in float32). The file holds for each
text its number of tokens, with the end of the text, and the last token's normed state, normalized.
"""
import pathlib
import sys

import torch

import text_embeddings  # first, for the path of tests
import tiny_qwen3

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


def embed(folder, tokenizer, model):
    def made_of(text):
        ids = tokenizer(text)["input_ids"]
        return ids, model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]

    return made_of


def main():
    text_embeddings.write(pathlib.Path(sys.argv[1]) / "decoder_embedding_reference.json", tiny_qwen3, TEXTS, embed, 8)


if __name__ == "__main__":
    main()
