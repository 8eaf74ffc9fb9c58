#!/usr/bin/env python3
"""Makes embedding_reference.json: transformers' embeddings of all-MiniLM-L6-v2, with which the server is compared.

`make parity` runs it:

    make_embedding_reference.py PATH/TO/all-MiniLM-L6-v2 FOLDER

The file holds for each text its number of tokens and the embedding, as sentence-transformers defines it for this model: the mean
of the last hidden states, normalized, in float32; of a text of more than 256 tokens, of the first 256 of them. Six digits are
kept: a text's embedding has a length of 1.
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModel, AutoTokenizer

HERE = pathlib.Path(__file__).parent
LONGEST = json.loads((pathlib.Path(sys.argv[1]) / "sentence_bert_config.json").read_text())["max_seq_length"]

TEXTS = [
    "This is an example sentence.",
    "Each sentence is converted.",
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Das ist ein Satz mit Umlauten: größer, schöner, Übermut.",
    "数学 and 音楽, naïve café, ﬁne ligatures — and an emoji 🙂.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "?",
    "antidisestablishmentarianism " * 12,
    (HERE / "text.txt").read_text(encoding="utf-8")[:4000],
]


def main():
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModel.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").eval()
    reference = []
    for text in TEXTS:
        encoded = tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.no_grad():
            states = model(**encoded).last_hidden_state[0]
        embedding = torch.nn.functional.normalize(states.mean(0), dim=0)
        reference.append({"text": text, "tokens": len(encoded["input_ids"][0]),
                          "embedding": [round(value, 6) for value in embedding.tolist()]})
    lines = [json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in reference]
    (pathlib.Path(sys.argv[2]) / "embedding_reference.json").write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
