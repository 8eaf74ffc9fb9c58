"""Folders of tiny models of random weights, with a tokenizer in which every character is a token."""
import json
import os
import pathlib
import shutil
import subprocess

SPECIAL = {"<|endoftext|>": 1, "<|im_start|>": 3, "<|im_end|>": 4, "<think>": 5, "</think>": 6}
LETTERS = "abcdefghijklmnopqrstuvwxyz     "
# Answers come back as they were, as LFM2's.
PLAIN = """
{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def write_tokenizer(folder):
    """Writes a tokenizer in which every character is a token, beside the special ones."""
    vocabulary = {chr(i) if i == 10 or 32 <= i < 127 else chr(0x100 + i): i for i in range(128)}
    added = [{"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for text, i in SPECIAL.items()]
    for token in added:
        del vocabulary[chr(0x100 + token["id"])]
        vocabulary[token["content"]] = token["id"]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}, "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))


def make_tiny_folder(name, tmp_path_factory, template=PLAIN, length=8192):
    """Returns the folder of a tiny model of that family, whose texts have up to `length` tokens."""
    made = tmp_path_factory.mktemp("made")
    subprocess.run([pathlib.Path(os.environ["MILLRACED"]).parent / "write_tiny_folders", made, "families"], check=True)
    folder = tmp_path_factory.mktemp("tiny") / name
    shutil.copytree(made / name, folder)
    shutil.rmtree(made)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": length}))
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder
