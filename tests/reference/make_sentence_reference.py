#!/usr/bin/env python3
"""Makes sentence_reference.json: embeddings by a tiny MPNet as sentence-transformers computes them, with which the server's are compared.

`make parity` runs it:

    make_sentence_reference.py FOLDER

The model is the one that tests/tiny_mpnet.py writes, in float64. The file holds for each text its number of tokens, with the default
prompt before it, and the embedding: the mean of the last hidden states, through the Dense layer and its tanh, normalized; of the
longest text, of its first tokens. sentence-transformers 6.2.0 makes the same of the folder.
"""
import pathlib
import sys

import torch
from safetensors.torch import load_file

import text_embeddings  # first, for the path of tests
import tiny_mpnet

TEXTS = [
    "The river turns the mill.",
    "A stone, a second stone and the mill of the river",
    "?",
    "Größe und Maß: 12 Mühlen – 数学",
    "text with </s> and <mask> in it",
    "the river " * 60,  # distances that share buckets
    "the river and the mill " * 60,
]


def embed(folder, tokenizer, model):
    dense = {name: values.double() for name, values in load_file(folder / "2_Dense/model.safetensors").items()}

    def made_of(text):
        ids = tokenizer(tiny_mpnet.PROMPT + text, truncation=True, max_length=tiny_mpnet.LONGEST)["input_ids"]
        pooled = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
        return ids, torch.tanh(torch.nn.functional.linear(pooled, dense["linear.weight"], dense["linear.bias"]))

    return made_of


def main():
    text_embeddings.write(pathlib.Path(sys.argv[1]) / "sentence_reference.json", tiny_mpnet, TEXTS, embed, 7, add_pooling_layer=False)


if __name__ == "__main__":
    main()
