"""Tokenizers as their authors publish them, for the vocabularies in llama-cpp-python's source package.

A GGUF file has the vocabulary and a name for its pre-tokenizer. This file defines these names independently, from the authors'
tokenizer.json, with Hugging Face's tokenizers; formats/tokenizers/tokenizer_gguf.cc is tested against it.
"""
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from gguf_text import read_metadata  # noqa: E402: needs the line above

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}\x{370}-"
    r"\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-"
    r"\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}"
    r"\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}"
    r"-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-"
    r"\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-"
    r"\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}"
    r"\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-"
    r"\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}"
    r"\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}"
    r"-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}"
    r"\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+")


def isolate(regex):
    return pre_tokenizers.Split(Regex(regex), "isolated")


def byte_level(use_regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=use_regex)


def digits():
    return pre_tokenizers.Digits(individual_digits=True)


def before_model(name):
    """Returns the normalizer (or None) and the pre-tokenizers of a byte-level BPE, by the vocabulary's name."""
    nfc = normalizers.NFC()
    cjk = isolate("[一-龥ࠀ-一가-퟿]+")
    return {
        "aquila": (None, [byte_level()]),
        "command-r": (nfc, [digits(), byte_level()]),
        "deepseek-coder": (None, [isolate("[\r\n]"), isolate(r"\s?\p{L}+"), isolate(r"\s?\p{P}+"), cjk, digits(),
                                  byte_level(use_regex=False)]),
        "deepseek-llm": (None, [isolate("[\r\n]"), isolate(DEEPSEEK_LETTERS),
                                isolate("\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"), isolate(r"\s+$"), cjk, digits(),
                                byte_level(use_regex=False)]),
        "falcon": (None, [pre_tokenizers.Punctuation("contiguous"), byte_level(), pre_tokenizers.Digits(False),
                          isolate("[0-9][0-9][0-9]")]),
        "gpt-2": (None, [byte_level()]),
        "gpt-neox": (None, [byte_level()]),
        "llama-bpe": (None, [isolate(LLAMA3), byte_level(use_regex=False)]),
        "mpt": (nfc, [byte_level()]),
        "qwen2": (nfc, [isolate(QWEN2), byte_level(use_regex=False)]),
        "qwen35": (nfc, [isolate(QWEN35), byte_level(use_regex=False)]),
        "refact": (None, [digits(), byte_level()]),
        "smollm2": (None, [digits(), byte_level()]),
        "starcoder": (None, [digits(), byte_level()]),
    }[name]


def build_bpe(name, vocab, merges):
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ", 1)) for merge in merges], ignore_merges=name == "llama-bpe"))
    normalizer, steps = before_model(name)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def build_sentencepiece(vocab, merges, prefix, unknown):
    """Builds it like transformers' LlamaConverter and GemmaConverter."""
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] +
                                          [decoders.Strip(" ", 1, 0)] * prefix)
    return tokenizer


def build_unigram(tokens, scores, unknown, charsmap):
    """Builds it like transformers' XLMRobertaConverter."""
    tokenizer = Tokenizer(models.Unigram(list(zip(tokens, scores)), unknown, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Strip(),
                                                 normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return tokenizer


def build_word_piece(tokens):
    def plain(token):
        if token.startswith("▁"):
            return token[1:]
        return token if token.startswith("[") and token.endswith("]") else "##" + token

    tokenizer = Tokenizer(models.WordPiece({plain(token): i for i, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def merges_by_score(vocab, scores):
    """Returns every pair of tokens that forms a token, in the order of transformers' generate_merges()."""
    merges = []
    for token, score in zip(vocab, scores):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
        merges += [(left, right, score) for left, right in sorted(cuts, key=lambda cut: (vocab[cut[0]], vocab[cut[1]]))]
    merges.sort(key=lambda merge: (merge[2], len(merge[0]), len(merge[1])), reverse=True)
    return [merge[:2] for merge in merges]


def load(path, name):
    """Returns the tokenizer of models/ggml-vocab-NAME.gguf, or of another GGUF file that is to be read like it."""
    told = read_metadata(path)

    def get(key, otherwise=None):
        return told.get("tokenizer.ggml." + key, otherwise)

    kind, tokens, types = get("model"), get("tokens"), get("token_type")
    added = [i for i, t in enumerate(types) if t in (CONTROL, UNKNOWN, USER_DEFINED)]
    vocab = {token: i for i, token in enumerate(tokens)}
    unknown = get("unknown_token_id")
    if kind == "gpt2":
        tokenizer = build_bpe(name, vocab, get("merges"))
    elif kind == "llama":
        merges = merges_by_score(vocab, get("scores"))
        tokenizer = build_sentencepiece(vocab, merges, get("add_space_prefix", True), None if unknown is None else tokens[unknown])
    elif kind == "gemma4":
        merges = [(m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:]) for m in get("merges")]
        tokenizer = build_sentencepiece(vocab, merges, get("add_space_prefix", True), tokens[unknown])
    elif kind == "t5":
        tokenizer = build_unigram(tokens, get("scores"), unknown, bytes(get("precompiled_charsmap")))
    else:
        tokenizer = build_word_piece(tokens)
    for i in added:
        token = AddedToken(tokens[i], normalized=False, special=types[i] != USER_DEFINED)
        (tokenizer.add_tokens if types[i] == USER_DEFINED else tokenizer.add_special_tokens)([token])
        assert tokenizer.token_to_id(tokens[i]) == i
    before, after = [get("bos_token_id")] * bool(get("add_bos_token")), [get("eos_token_id")] * bool(get("add_eos_token"))
    if kind == "bert":
        before, after = [get("cls_token_id")], [get("seperator_token_id")]
    if before or after:
        names = [[tokens[i] for i in side] for side in (before, after)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=names[0] + ["$A"] + names[1], special_tokens=[(tokens[i], i) for i in before + after])
    return tokenizer
