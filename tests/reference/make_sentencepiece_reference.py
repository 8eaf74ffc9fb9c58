#!/usr/bin/env python3
"""Makes sentencepiece_reference.json: tiny tokenizer.model and tekken.json files, and what SentencePiece and mistral-common make of texts.

    make_sentencepiece_reference.py FOLDER

SentencePiece trains the models on text.txt. Each has the file in base64, texts, their ids without special tokens, and the text that
the ids are decoded to.
"""
import base64
import contextlib
import io
import json
import pathlib
import random
import sys
import tempfile

import sentencepiece
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

HERE = pathlib.Path(__file__).parent
TEXTS = 60
SEED = 4
# Code points of a text and of what it becomes.
RULES = [("A", "a"), ("\u00e9", "e"), ("e\u0301", "e"), ("\ufb01", "fi"), ("\u3000", " "), ("\u200b", ""), ("\t", " "), ("\u2163", "IV")]
USER = ["<mark>", "--", "ab ab", "\n"]
PARTS = ["the", " a", "water", "  ", " ", "\t", "\n", "A", "caf\u00e9", "e\u0301", "\ufb01ne", "\u3000", "\u200b", "\u2163", "\U0001f600", "\u4e2d\u6587",
         "<s>", "</s>", "<unk>", "<pad>", "<0x41>", "<mark>", "--", "-", "ab ab", "\u2581", "\u2581\u2581", "aaaa", "12", ".", "x\u00ffz"]
MODELS = {
    "bpe": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "bpe rules": {"model_type": "bpe", "user_defined_symbols": USER},
    "bpe without a prefix": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, "user_defined_symbols": USER,
                             "split_digits": True, "remove_extra_whitespaces": False},
    "unigram": {"model_type": "unigram"},
    "unigram bytes": {"model_type": "unigram", "byte_fallback": True, "user_defined_symbols": USER, "remove_extra_whitespaces": False},
    "unigram suffix": {"model_type": "unigram", "treat_whitespace_as_suffix": True, "pad_id": 3, "control_symbols": ["<ctrl>"]},
}


def texts_of(generator):
    fixed = ["", " ", "   ", "a", " a", "a ", "the water", "  the  water  ", "<mark>", "<mark> the", "a<mark>b", "\u200b", "\u200b "]
    return fixed + ["".join(generator.choices(PARTS, k=generator.randint(1, 12))) for _ in range(TEXTS)]


def train(options, work):
    rules = "rules.tsv"  # a relative path, since the model holds it
    (work / rules).write_text("".join(f"{' '.join(f'{ord(c):X}' for c in old)}\t{' '.join(f'{ord(c):X}' for c in new)}\n" for old, new in RULES))
    model = io.BytesIO()
    settings = {"vocab_size": 420, "character_coverage": 1.0, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2} | options
    if "normalization_rule_name" not in settings:
        settings["normalization_rule_tsv"] = rules
    sentences = iter((HERE / "text.txt").read_text(encoding="utf-8").split("\n"))
    with contextlib.chdir(work):
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=model, **settings)
    return model.getvalue()


def tekken(words):
    """Returns a tekken.json whose merges are those of the commonest pairs of bytes."""
    tokens = [bytes([byte]) for byte in range(256)]
    pieces = [[bytes([byte]) for byte in word.encode()] for word in words]
    while len(tokens) < 400:
        pairs = {}
        for piece in pieces:
            for pair in zip(piece, piece[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        left, right = max(sorted(pairs), key=pairs.get)
        if left + right not in tokens:
            tokens.append(left + right)
        for piece in pieces:
            at = 0
            while at + 1 < len(piece):
                if piece[at : at + 2] == [left, right]:
                    piece[at : at + 2] = [left + right]
                at += 1
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
    return {
        "config": {"pattern": r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", "num_vocab_tokens": len(tokens), "default_vocab_size": 400,
                   "default_num_special_tokens": 10, "version": "v13"},
        "vocab": [{"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for i, token in enumerate(tokens)],
        "special_tokens": [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(special)],
    }


def main():
    generator = random.Random(SEED)
    reference = {}
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for name, options in MODELS.items():
            model = train(options, work)
            own = sentencepiece.SentencePieceProcessor(model_proto=model)
            texts = texts_of(generator)
            ids = own.encode(texts)
            reference[name] = {"file": base64.b64encode(model).decode(), "texts": texts, "ids": ids, "decoded": [own.decode(i) for i in ids]}
        document = tekken((HERE / "text.txt").read_text(encoding="utf-8").split()[:2000])
        path = work / "tekken.json"
        path.write_text(json.dumps(document))
        own = Tekkenizer.from_file(str(path))
        texts = texts_of(generator)
        ids = [own.encode(text, False, False) for text in texts]
        reference["tekken"] = {"file": base64.b64encode(path.read_bytes()).decode(), "texts": texts, "ids": ids,
                               "decoded": [own.decode(i) for i in ids]}
    path = pathlib.Path(sys.argv[1]) / "sentencepiece_reference.json"
    path.write_text(json.dumps(reference, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
