"""Converts the tokenizer and template of a GGUF file to the files of a Hugging Face folder."""
import json
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL, UNKNOWN = 3, 2


def read_metadata(path):
    """Returns the key-value pairs, read by the format's specification (ggml's docs/gguf.md)."""
    with open(path, "rb") as file:
        def scalar(code):
            return struct.unpack("<" + code, file.read(struct.calcsize(code)))[0]

        def value(kind):
            if kind == STRING:
                return file.read(scalar("Q")).decode()
            if kind == ARRAY:
                of, count = scalar("I"), scalar("Q")
                return [value(of) for _ in range(count)]
            return scalar(SCALARS[kind])

        assert file.read(4) == b"GGUF" and scalar("I") in (2, 3)  # version 3 added other byte orders
        scalar("Q")  # tensors
        pairs = scalar("Q")
        return {value(STRING): value(scalar("I")) for _ in range(pairs)}


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
