#!/usr/bin/env python3
"""Makes cross_encoder_reference.json: transformers' logits of pairs of texts, with which the server's scores are compared.

`make parity` runs it:

    make_cross_encoder_reference.py PATH/TO/all-MiniLM-L6-v2 FOLDER

The model is the one that tests/cross_encoder.py writes. The file holds for each pair its texts, its number of tokens and its logit in
float32; "cut" is that of the pair cut to 12 tokens, and its number.
"""
import json
import pathlib
import sys
import tempfile

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import cross_encoder  # noqa: E402

QUERY = "What do people eat for breakfast?"
PAIRS = [
    (QUERY, "A man is eating a piece of bread."),
    (QUERY, "The girl is carrying a baby."),
    (QUERY, "Das ist ein Satz mit Umlauten: größer, schöner, Übermut."),
    ("A man is eating food.", "?"),
    ("?", "数学 and 音楽, naïve café, ﬁne ligatures — and an emoji 🙂."),
    ("text with [SEP] in it", "and [CLS] here"),
    ("antidisestablishmentarianism " * 12, "short"),
]


def main():
    with tempfile.TemporaryDirectory() as work:
        folder = cross_encoder.write(sys.argv[1], work)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

        def logit(pair, **options):
            encoded = tokenizer(*pair, return_tensors="pt", **options)
            with torch.no_grad():
                return len(encoded["input_ids"][0]), round(model(**encoded).logits.item(), 6)

        reference = [{"pair": pair, "logit": logit(pair), "cut": logit(pair, truncation="longest_first", max_length=12)} for pair in PAIRS]
    lines = [json.dumps(entry, ensure_ascii=False) for entry in reference]
    (pathlib.Path(sys.argv[2]) / "cross_encoder_reference.json").write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
