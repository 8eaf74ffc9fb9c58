"""Converts the tokenizer and template of a GGUF file to the files of a Hugging Face folder."""
import json
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL, UNKNOWN = 3, 2


class Reader:
    """Reads a file's header from front to back, by the format's specification (ggml's docs/gguf.md)."""

    def __init__(self, file):
        self.file = file
        assert file.read(4) == b"GGUF" and self.scalar("I") in (2, 3)  # version 3 added other byte orders
        self.tensors, self.pairs = self.scalar("Q"), self.scalar("Q")

    def scalar(self, code):
        return struct.unpack("<" + code, self.file.read(struct.calcsize(code)))[0]

    def value(self, kind):
        if kind == STRING:
            return self.file.read(self.scalar("Q")).decode()
        if kind == ARRAY:
            of, count = self.scalar("I"), self.scalar("Q")
            return [self.value(of) for _ in range(count)]
        return self.scalar(SCALARS[kind])

    def metadata(self):
        return {self.value(STRING): self.value(self.scalar("I")) for _ in range(self.pairs)}


def read_metadata(path):
    with open(path, "rb") as file:
        return Reader(file).metadata()


def write_folder_text(gguf, folder):
    """Writes the text files of SmolLM2's folder, in its authors' form, from its GGUF file."""
    told = read_metadata(gguf)
    tokens, kinds = told["tokenizer.ggml.tokens"], told["tokenizer.ggml.token_type"]
    special = [{"id": i, "content": token, "special": True, "normalized": False, "single_word": False, "lstrip": False,
                "rstrip": False} for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (CONTROL, UNKNOWN)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": told["tokenizer.ggml.merges"]},
    }
    config = {f"{name}_token": tokens[told[f"tokenizer.ggml.{key}_token_id"]]
              for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))}
    config["chat_template"] = told["tokenizer.chat_template"]
    config["added_tokens_decoder"] = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in special}
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content))
