"""Inputs for measuring tokenizers: vocabularies of every kind, texts of this tree, and texts for which a careless algorithm
takes quadratic time."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Vocabularies: the default model's, and those of llama.cpp's sources, unless another source is named.
VOCABULARIES = {"smollm2": "byte-level BPE, SmolLM2", "llama-bpe": "byte-level BPE, Llama 3", "qwen2": "byte-level BPE, Qwen2",
                "deepseek-llm": "byte-level BPE, DeepSeek", "llama-spm": "SentencePiece BPE, Llama 2",
                "nomic-bert-moe": "Unigram, Nomic", "bert-bge": "WordPiece, BGE"}
REPEATED = {"letter": "a", "spaces": " ", "pairs": "a1"}
SIZES = 1 << 19, 1 << 20
MOST = 1_000_000  # characters


def write(folder):
    """Writes the texts and returns {name: path}."""
    texts = {"prose": joined("**/*.md", "tests/reference/text.txt"), "code": joined("*/**/*.cc", "*/**/*.h")}
    for name, unit in REPEATED.items():
        for size in SIZES:
            texts[f"{name}_{size}"] = unit * (size // len(unit))
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.txt" for name in texts}


def joined(*patterns):
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if "build" not in path.relative_to(ROOT).parts[0]})
    return "".join(path.read_text(encoding="utf-8") for path in paths)[:MOST]


def megabytes(path):
    return path.stat().st_size / 1e6
