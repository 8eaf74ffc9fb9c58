#!/usr/bin/env python3
"""Makes sentence_reference.json: embeddings by a tiny MPNet as sentence-transformers computes them, with which the server's are compared.

`make parity` runs it:

    make_sentence_reference.py FOLDER

The model is the one that tests/tiny_mpnet.py writes, in float64. The file holds for each text its number of tokens, with the default
prompt before it, and the embedding: the mean of the last hidden states, through the Dense layer and its tanh, normalized; of the
longest text, of its first tokens. sentence-transformers 6.2.0 makes the same of the folder.
"""
import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModel, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import tiny_mpnet  # noqa: E402

TEXTS = [
    "The river turns the mill.",
    "A stone, a second stone and the mill of the river",
    "?",
    "Größe und Maß: 12 Mühlen – 数学",
    "text with </s> and <mask> in it",
    "the river " * 60,  # distances that share buckets
    "the river and the mill " * 60,
]


def main():
    with tempfile.TemporaryDirectory() as work:
        folder = tiny_mpnet.write(work)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        model = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", add_pooling_layer=False).eval()
        dense = {name: values.double() for name, values in load_file(folder / "2_Dense/model.safetensors").items()}

        def embed(text):
            ids = tokenizer(tiny_mpnet.PROMPT + text, truncation=True, max_length=tiny_mpnet.LONGEST)["input_ids"]
            with torch.no_grad():
                pooled = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
            made = torch.tanh(torch.nn.functional.linear(pooled, dense["linear.weight"], dense["linear.bias"]))
            return len(ids), [round(value, 7) for value in torch.nn.functional.normalize(made, dim=0).tolist()]

        reference = [dict(zip(("text", "tokens", "embedding"), (text, *embed(text)), strict=True)) for text in TEXTS]
    lines = [json.dumps(entry, ensure_ascii=False) for entry in reference]
    (pathlib.Path(sys.argv[1]) / "sentence_reference.json").write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
