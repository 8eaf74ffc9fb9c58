#!/usr/bin/env python3
"""Makes gguf_reference.json: what llama.cpp makes of the vocabularies of tiny GGUF files, whose keys are missing, wrong or odd.

    make_gguf_reference.py FOLDER

llama.cpp is that of PyPI's xllamacpp. The file is a list of
    {"name": ..., "keys": {key: value}, "ends": [ids that end an answer], "special": [ids], "user_defined": [ids], "texts": [[text, ids], ...],
     "chat_tokens": the prompt's of one user message, CHAT, if the file has a chat template}
A number among the keys stands for a uint32, a list of integers for int32s, one with a point for float32s. Ids of texts have what the
file adds around a text, and special tokens' text is read as the tokens.
"""
import ctypes
import json
import pathlib
import sys
import tempfile

import gguf
import numpy
import xllamacpp

import llama_cpp

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTES = [chr(c) for c in range(33, 127)] + [chr(c) for c in range(161, 256) if c != 173] + [chr(c) for c in range(256, 324)]
WORDS = ["Hi hit hithit", "Éa hÍ, a-b 12.5 数学 naïve [SEP] x", "[CLS] hi [mask][MASK] hi", "supercalifragilistic" * 9]  # of WordPiece
CHAT = "Hi there"
TEXTS = ["", "Hi there", " a 12345 !?=+b", "<|a|>  x\n\n<|end|> y", "x</s>  y", "<|im_end|>\n<|channel|>z<PRE>"]


def bpe(specials, types=None, **keys):
    """A byte-level BPE whose special tokens come first."""
    tokens = list(specials) + BYTES + ["Hi", "he", "12"]
    kinds = types or [CONTROL] * len(specials)
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds + [NORMAL] * (len(tokens) - len(kinds)), "tokenizer.ggml.merges": ["H i", "h e", "1 2"]} | keys


def llama(specials=(), types=None, without=(), **keys):
    """SentencePiece's BPE: <unk>, <s>, </s>, bytes, letters, and then special tokens."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["▁"] + [chr(c) for c in range(33, 127)] + ["▁H", "▁Hi"] + list(specials)
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    kinds += [NORMAL] * (len(tokens) - len(kinds) - len(specials)) + (types or [CONTROL] * len(specials))
    made = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": [-float(i) for i in range(len(tokens))]} | keys
    return {key: value for key, value in made.items() if key not in without}


def unigram(**keys):
    tokens = ["<pad>", "</s>", "<unk>", "▁"] + [chr(c) for c in range(33, 127)] + ["▁Hi", "▁there"]
    kinds = [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * (len(tokens) - 3)
    return {"tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": [0.0] * 3 + [-2.0 - i / 64 for i in range(len(tokens) - 3)]} | keys


def bert(cased=False, without=(), unused=99, **keys):
    """WordPiece, as converters write it: a space before what begins a word, nothing before what continues one."""
    specials = ["[PAD]"] + [f"[unused{i}]" for i in range(unused)] + ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"▁{chr(c)}" for c in range(33, 127) if cased or not chr(c).isupper()] + ["▁hi", "▁12", "▁é", "▁数", "▁Hi", "▁na"]
    parts = [chr(c) for c in range(97, 123)] + ["hi", "it", "5", "ive"]
    tokens = specials + words + parts
    made = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "jina-v2-en", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [CONTROL] + [UNUSED] * unused + [UNKNOWN, CONTROL, CONTROL, CONTROL] + [NORMAL] * (len(tokens) - unused - 5),
            "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.unknown_token_id": unused + 1, "tokenizer.ggml.cls_token_id": unused + 2,
            "tokenizer.ggml.seperator_token_id": unused + 3, "tokenizer.ggml.mask_token_id": unused + 4} | keys
    return {key: value for key, value in made.items() if key not in without}


def roberta(**keys):
    """RoBERTa's byte-level BPE."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    frame = {"bos": 0, "padding": 1, "eos": 2, "unknown": 3, "seperator": 2, "cls": 0, "mask": 4}
    return bpe(specials, **{f"tokenizer.ggml.{name}_token_id": token for name, token in frame.items()}) | {"tokenizer.ggml.pre": "roberta-bpe"} | keys


ENDS = ["<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|flush|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>",
        "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<｜end▁of▁sentence｜>", "[e~["]
FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
HARMONY = ["<|a|>", "<|return|>", "<|call|>", "<|end|>", "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"]
EOS = "tokenizer.ggml.eos_token_id"


def cases():
    for text in ENDS:
        yield f"end {text}", bpe(["<|a|>", text], **{EOS: 0})
    yield "all ends are plain tokens", bpe(["<|a|>", *ENDS], [CONTROL] + [NORMAL] * len(ENDS), **{EOS: 0})
    yield "all ends are unused tokens", bpe(["<|a|>", *ENDS], [CONTROL] + [UNUSED] * len(ENDS), **{EOS: 0})
    yield "all ends are user-defined tokens", bpe(["<|a|>", *ENDS], [CONTROL] + [USER] * len(ENDS), **{EOS: 0})
    yield "all ends have no type", bpe(["<|a|>", *ENDS], [CONTROL] + [0] * len(ENDS), **{EOS: 0})
    yield "fim", bpe(["<|a|>", *FIM], **{EOS: 0})
    yield "fim, plain", bpe(["<|a|>", *FIM], [CONTROL] + [NORMAL] * 6, **{EOS: 0})
    yield "fim of CodeLlama", bpe(["<|a|>", "<PRE>", "<SUF>", "<MID>", "<PAD>", "<REPO>"], [CONTROL] + [NORMAL] * 5, **{EOS: 0})
    yield "fim by keys", bpe(["<|a|>", "pad", "repo", "file"], **{EOS: 0, "tokenizer.ggml.fim_pad_token_id": 1, "tokenizer.ggml.fim_rep_token_id": 2,
                                                          "tokenizer.ggml.fim_sep_token_id": 3})
    yield "gpt-oss", bpe(HARMONY, **{EOS: 1})
    yield "gpt-oss, plain", bpe(HARMONY, [CONTROL] + [NORMAL] * 7, **{EOS: 1})
    yield "call without return", bpe(["<|a|>", "<|call|>", "<|end|>"], **{EOS: 0})
    yield "solar-open", bpe(["<|a|>", "<|flush|>", "<|calls|>", "<|end|>"], **{EOS: 0})
    yield "gemma 4", bpe(["<|a|>", "</s>", "<|tool_response>", "<turn|>"], **{EOS: 0})
    yield "eot and eom by keys", bpe(["<|a|>", "stop", "pause"], **{EOS: 0, "tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 2})
    yield "ids beyond the vocabulary", bpe(["<|a|>", "<|im_end|>"], **{EOS: 1, "tokenizer.ggml.padding_token_id": 99999,
                                                                      "tokenizer.ggml.eot_token_id": 4294967295})
    yield "pre default", bpe(["<|a|>"], **{EOS: 0, "tokenizer.ggml.pre": "default"})
    yield "llama", llama(**{EOS: 2, "tokenizer.ggml.bos_token_id": 1})
    yield "llama without ids", llama()
    yield "llama without scores", llama(without=["tokenizer.ggml.scores"])
    yield "llama, no bos", llama(**{"tokenizer.ggml.add_bos_token": False})
    yield "llama, eos", llama(**{"tokenizer.ggml.add_eos_token": True})
    yield "llama, odd ids", llama(**{EOS: 1 << 30, "tokenizer.ggml.bos_token_id": 4294967295, "tokenizer.ggml.unknown_token_id": 70000})
    yield "llama, whole scores", llama() | {"tokenizer.ggml.scores": [-i for i in range(len(llama()["tokenizer.ggml.tokens"]))]}
    phi = ["<|a|>", "<|end|>", "<|endoftext|>"]
    yield "phi-3", llama(phi, **{EOS: 2, "general.name": "Phi-3 mini"})
    yield "phi3, plain </s>", llama(phi, [USER, CONTROL, NORMAL], **{"general.name": "my PHI3 tune"})
    yield "unigram", unigram(**{EOS: 1})
    yield "unigram without ids", unigram()
    yield "unigram, no eos", unigram(**{"tokenizer.ggml.add_eos_token": False})


    cls, separator = "tokenizer.ggml.cls_token_id", "tokenizer.ggml.seperator_token_id"
    bos = "tokenizer.ggml.bos_token_id"
    yield "bert", bert()
    yield "bert, nomic", bert(**{bos: 101, EOS: 102})
    yield "bert of 2025", bert(without=[cls], **{bos: 101, EOS: 102})
    yield "bert whose bos is not its cls", bert(**{bos: 103, EOS: 102})
    yield "bert with other ids", bert(without=[cls], unused=0, **{bos: 2, EOS: 3})
    yield "bert without ids", bert(without=[cls, separator, "tokenizer.ggml.unknown_token_id"])
    yield "bert without pre", bert(without=["tokenizer.ggml.pre"])
    yield "bert, no frame", bert(**{"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False})
    yield "bert, cased", bert(cased=True, **{"tokenizer.ggml.normalizer.lowercase": False})
    yield "bert, lower case with accents", bert(**{"tokenizer.ggml.normalizer.strip_accents": False})
    yield "bert without types", bert(without=["tokenizer.ggml.token_type"])
    around = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    yield "roberta", roberta()
    yield "roberta, framed", roberta(**around, **{"tokenizer.ggml.add_sep_token": True})
    yield "xlm-roberta", unigram(**around, **{bos: 0, EOS: 1, cls: 0, separator: 1, "tokenizer.ggml.add_space_prefix": True,
                                              "tokenizer.ggml.remove_extra_whitespaces": True})
    yield "unigram that keeps spaces", unigram(**{"tokenizer.ggml.add_space_prefix": True})

    template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"
    framed = "{{ bos_token }}" + template + "{{ eos_token }}"
    for add_bos, add_eos in ((True, False), (True, True), (False, True)):
        frame = {"tokenizer.ggml.add_bos_token": add_bos, "tokenizer.ggml.add_eos_token": add_eos}
        for name, text in (("plain", template), ("framed", framed)):
            yield f"chat, {name}, bos {add_bos}, eos {add_eos}", llama(**frame, **{"tokenizer.chat_template": text})


def write(path, keys):
    writer = gguf.GGUFWriter(path, "llama")
    size, width = len(keys["tokenizer.ggml.tokens"]), 32
    for name, value in (("block_count", 1), ("context_length", 64), ("embedding_length", width), ("feed_forward_length", width),
                        ("attention.head_count", 1), ("vocab_size", size)):
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    shapes = {"token_embd.weight": (size, width), "output_norm.weight": (width,), "blk.0.attn_norm.weight": (width,), "blk.0.ffn_norm.weight": (width,)}
    shapes |= {f"blk.0.{name}.weight": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")}
    for name, shape in shapes.items():
        writer.add_tensor(name, numpy.zeros(shape, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def reference(lib, path, keys):
    model = llama_cpp.load(lib, path)
    vocab = lib.llama_model_get_vocab(model)
    ids = range(len(keys["tokenizer.ggml.tokens"]))
    attributes = [lib.llama_vocab_get_attr(vocab, i) for i in ids]
    texts = []
    for text in TEXTS + (WORDS if keys["tokenizer.ggml.model"] == "bert" else []):
        data, room = text.encode(), (ctypes.c_int32 * 512)()
        count = lib.llama_tokenize(vocab, data, len(data), room, 512, True, True)
        texts.append([text, list(room[:count])])
    made = {"ends": [i for i in ids if lib.llama_vocab_is_eog(vocab, i)],
            "special": [i for i in ids if attributes[i] & (1 << 0 | 1 << 3)],  # unknown, control
            "user_defined": [i for i in ids if attributes[i] & 1 << 4], "texts": texts}
    lib.llama_model_free(model)
    return made


def chat_tokens(path):
    """Returns how many tokens llama.cpp's server makes of CHAT."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = 64
    parameters.n_parallel = parameters.cpuparams.n_threads = 1
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    answer = server.handle_chat_completions({"messages": [{"role": "user", "content": CHAT}], "max_tokens": 1})
    return answer["usage"]["prompt_tokens"]


def main():
    lib = llama_cpp.library()
    lines = []
    with tempfile.TemporaryDirectory() as work:
        for name, keys in cases():
            path = pathlib.Path(work) / "vocabulary.gguf"
            write(path, keys)
            made = {"name": name, "keys": keys} | reference(lib, path, keys)
            if "tokenizer.chat_template" in keys:
                made["chat_tokens"] = chat_tokens(path)
            lines.append(json.dumps(made, ensure_ascii=False, separators=(",", ":")))
    (pathlib.Path(sys.argv[1]) / "gguf_reference.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
