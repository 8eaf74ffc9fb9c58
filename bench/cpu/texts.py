"""What tokenizers are measured on: texts of this tree, and texts that a careless algorithm takes quadratic time for."""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from gguf_text import write_folder_text  # noqa: E402: found by the line above

REPEATED = {"letter": "a", "spaces": " ", "pairs": "a1"}
MIB = 1 << 20
MOST = 1_000_000  # characters


def write(model, folder):
    """Writes the model's tokenizer.json and the texts; {name: path}."""
    write_folder_text(model, folder)
    texts = {"prose": joined("**/*.md", "tests/reference/text.txt"), "code": joined("*/**/*.cc", "*/**/*.h")}
    for name, unit in REPEATED.items():
        for size in (MIB // 2, MIB):
            texts[f"{name}_{size}"] = unit * (size // len(unit))
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.txt" for name in texts}


def joined(*patterns):
    paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if "build" not in path.relative_to(ROOT).parts[0]})
    return "".join(path.read_text(encoding="utf-8") for path in paths)[:MOST]


def megabytes(path):
    return path.stat().st_size / 1e6
