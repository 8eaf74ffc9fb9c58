"""Embeddings of texts by a tiny model, for programs that compare the server's with them."""
import json
import pathlib
import sys
import tempfile

import torch
from transformers import AutoModel, PreTrainedTokenizerFast

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))


def write(made, tiny, texts, embed, digits, **options):
    """Writes the file `made`: of each text its number of tokens and its embedding, of length 1.

    The model is the one that `tiny`, a module of tests, writes, in float64 (transformers computes rotations in float32); options are of
    its loading. embed(folder, tokenizer, model) returns a function that makes a text's token ids and its embedding.
    """
    with tempfile.TemporaryDirectory() as work, torch.no_grad():
        folder = tiny.write(work)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        model = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", **options).eval()
        made_of = embed(folder, tokenizer, model)
        lines = []
        for text in texts:
            ids, values = made_of(text)
            values = torch.nn.functional.normalize(values, dim=0).tolist()
            entry = {"text": text, "tokens": len(ids), "embedding": [round(value, digits) for value in values]}
            lines.append(json.dumps(entry, ensure_ascii=False))
    made.write_text("[" + ",\n".join(lines) + "]\n", encoding="utf-8")
