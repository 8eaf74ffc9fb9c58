"""Small tokenizers, one for each part that a tokenizer.json may have and for pipelines in use.

Where the model is `revealing()`, a text's ids are the bytes of what the parts before it made of the text, with a mark at the end of
each piece: no difference can hide.
"""
import hashlib
import json
import pathlib

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

import make_tokenizer_reference

HERE = pathlib.Path(__file__).parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
          r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def revealing():
    return Tokenizer(models.BPE({f"<0x{byte:02X}>": byte for byte in range(256)}, [], byte_fallback=True, end_of_word_suffix="|"))


def lines():
    text = (HERE / "text.txt").read_text(encoding="utf-8").split("\n")
    return text + make_tokenizer_reference.SENTENCES + make_tokenizer_reference.CODE


# Trained models, {digest of a training: fields of a model}, since training is not reproducible.
LEARNED = {}
# Models trained by this process, in the same form.
TRAININGS = {}


def learned_of(model):
    return {field: model[field] for field in ("vocab", "merges") if field in model}


def trained(tokenizer, trainer):
    """Returns the tokenizer trained on lines(), or as LEARNED has it for the same tokenizer, trainer and lines."""
    settings = json.loads(trainer.__getstate__())
    for fields in settings.values():
        fields["initial_alphabet"] = sorted(fields.get("initial_alphabet", []))  # in no order
    digest = hashlib.sha256(json.dumps([tokenizer.to_str(), settings, lines()]).encode()).hexdigest()
    tokenizer.train_from_iterator(lines(), trainer)
    known = TRAININGS.get(digest) or LEARNED.get(digest)
    TRAININGS[digest] = known or learned_of(json.loads(tokenizer.to_str())["model"])
    return changed(tokenizer, **TRAININGS[digest])


def trained_bpe(size=800, normalizer=None, pre_tokenizer=None, special=(), alphabet=(), **options):
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    affixes = {name: options[name] for name in ("continuing_subword_prefix", "end_of_word_suffix") if name in options}
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False,
                                                  initial_alphabet=list(alphabet), limit_alphabet=400, **affixes))


def changed(tokenizer, **fields):
    """Returns the tokenizer with fields of its model set that training resets."""
    document = json.loads(tokenizer.to_str())
    document["model"].update(fields)
    return Tokenizer.from_str(json.dumps(document))


def byte_level_bpe(pattern=None, normalizer=None, add_prefix_space=False, **fields):
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=pattern is None))
    tokenizer = trained_bpe(1200, normalizer, pre_tokenizer=pre_tokenizers.Sequence(steps), special=SPECIALS,
                            alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.decoder = decoders.ByteLevel()
    return changed(tokenizer, **fields)


def byte_tokens():
    return [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_bpe():
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = trained_bpe(1500, normalizer, special=SPECIALS + byte_tokens(), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def unigram(special=SPECIALS, normalizer=None, scheme="always", **fields):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer or normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme=scheme)
    tokenizer = trained(tokenizer, trainers.UnigramTrainer(vocab_size=2500, special_tokens=special, unk_token="<unk>",
                                                           show_progress=False))
    return changed(tokenizer, **fields)


def word_piece(**options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", **options))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = trained(tokenizer, trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False,
                                                             limit_alphabet=300))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return trained(tokenizer, trainers.WordLevelTrainer(vocab_size=900, special_tokens=SPECIALS, show_progress=False))


def charsmap():
    """A precompiled map of a few characters: darts-clone's double array, built by hand."""
    import precompiled_map
    return precompiled_map.build({"ﬁ": "fi", "①": "1", "Ａ": "A", "\u3000": " ", "é": "e", "e\u0301": "é", "㌔": "キロ", "\u200b": "",
                                  "ab": "AB", "\t": " ", "½": "1/2"})


def with_normalizer(*steps):
    tokenizer = revealing()
    tokenizer.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(list(steps))
    return tokenizer


def with_pre_tokenizer(*steps, normalizer=None):
    tokenizer = revealing()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(list(steps))
    return tokenizer


def normalizer_shapes():
    n = normalizers
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"):
        yield name, with_normalizer(getattr(n, name)())
    yield "NFD StripAccents", with_normalizer(n.NFD(), n.StripAccents(), n.Lowercase())
    for left in (True, False):
        for right in (True, False):
            yield f"Strip {left} {right}", with_normalizer(n.Strip(left, right))
    for i in range(16):
        clean, chinese, strip, lower = (bool(i >> bit & 1) for bit in range(4))
        yield f"BertNormalizer {i}", with_normalizer(n.BertNormalizer(clean, chinese, strip, lower))
    yield "BertNormalizer", with_normalizer(n.BertNormalizer())
    yield "Prepend", with_normalizer(n.Prepend("▁x"))
    yield "Replace", with_normalizer(n.Replace("a", "bb"), n.Replace(Regex(r"\s+"), " "), n.Replace(Regex(r"(?<=\d)(?=\d)"), ","))
    yield "Replace with nothing", with_normalizer(n.Replace(Regex("[aeiou ]"), ""))
    yield "Precompiled", with_normalizer(n.Precompiled(charsmap()))


def pre_tokenizer_shapes():
    p = pre_tokenizers
    for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"):
        yield name, with_pre_tokenizer(getattr(p, name)())
    for space in (True, False):
        for regex in (True, False):
            yield f"ByteLevel {space} {regex}", with_pre_tokenizer(p.ByteLevel(space, use_regex=regex))
    for scheme in ("first", "never", "always"):
        for split in (True, False):
            yield f"Metaspace {scheme} {split}", with_pre_tokenizer(p.Metaspace("▁", scheme, split))
    yield "Metaspace after others", with_pre_tokenizer(p.WhitespaceSplit(), p.Digits(), p.Metaspace("▁", "first"))
    yield "Metaspace after Strip", with_pre_tokenizer(p.Metaspace("_", "first"), normalizer=normalizers.Strip(True, False))
    yield "Metaspace after Replace", with_pre_tokenizer(p.Metaspace("_", "first"),
                                                       normalizer=normalizers.Replace(Regex("^[^a-z]+"), "~"))
    yield "CharDelimiterSplit", with_pre_tokenizer(p.CharDelimiterSplit("e"))
    for individual in (True, False):
        yield f"Digits {individual}", with_pre_tokenizer(p.Digits(individual))
    yield "FixedLength", with_pre_tokenizer(p.FixedLength(3))
    for behavior in BEHAVIORS:
        yield f"Punctuation {behavior}", with_pre_tokenizer(p.Punctuation(behavior))
        for invert in (True, False):
            for name, pattern in (("regex", Regex(r"\s+|\d|aa?")), ("text", " "), ("empty", Regex("x*")), ("gpt2", Regex(GPT2)),
                                  ("end", Regex(r"\s+$")), ("look", Regex(r"(?<=[a-z])(?=[A-Z ])"))):
                yield f"Split {name} {behavior} {invert}", with_pre_tokenizer(p.Split(pattern, behavior, invert))
    yield "Sequence", with_pre_tokenizer(p.Whitespace(), p.Punctuation("contiguous"), p.ByteLevel(True), p.Digits(True))


def model_shapes():
    yield "byte-level BPE", byte_level_bpe()
    yield "byte-level BPE, prefix", byte_level_bpe(add_prefix_space=True)
    yield "byte-level BPE, Llama 3", byte_level_bpe(LLAMA3, ignore_merges=True)
    yield "byte-level BPE, Qwen2", byte_level_bpe(QWEN2, normalizers.NFC())
    yield "byte-level BPE, tekken", byte_level_bpe(TEKKEN)
    yield "byte-level BPE, gaps", changed(trained_bpe(500, pre_tokenizer=pre_tokenizers.ByteLevel(False)), unk_token=None)
    yield "byte-level BPE, CLIP", trained_bpe(
        900, normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"),
                                                      "removed", invert=True), pre_tokenizers.ByteLevel(False)]),
        special=["<|startoftext|>", "<|endoftext|>"], unk_token="<|endoftext|>", end_of_word_suffix="</w>")
    yield "SentencePiece BPE", sentencepiece_bpe()
    yield "BPE, unknown", trained_bpe(special=SPECIALS, unk_token="<unk>")
    yield "BPE, fused unknown", trained_bpe(special=SPECIALS, unk_token="<unk>", fuse_unk=True)
    some = byte_tokens()[0x80:0xE1]  # so that some characters have all their bytes, and others not
    for fuse in (True, False):
        yield f"BPE, some bytes {fuse}", trained_bpe(special=SPECIALS + some, unk_token="<unk>", fuse_unk=fuse, byte_fallback=True)
    yield "BPE, no unknown", trained_bpe(pre_tokenizer=pre_tokenizers.Whitespace())
    yield "BPE, prefix", trained_bpe(pre_tokenizer=pre_tokenizers.Whitespace(), special=SPECIALS, unk_token="<unk>",
                                     continuing_subword_prefix="##")
    yield "BPE, suffix", trained_bpe(pre_tokenizer=pre_tokenizers.WhitespaceSplit(), special=SPECIALS, unk_token="<unk>",
                                     end_of_word_suffix="</w>")
    yield "Unigram", unigram()
    yield "Unigram, first", unigram(scheme="first")
    yield "Unigram, bytes", unigram(special=SPECIALS + byte_tokens(), byte_fallback=True)
    yield "WordPiece", word_piece()
    yield "WordPiece, short words", word_piece(max_input_chars_per_word=6)
    yield "WordLevel", word_level()


def frame_shapes():
    tokenizer = byte_level_bpe()
    ids = {token: tokenizer.token_to_id(token) for token in SPECIALS}
    pairs = list(ids.items())
    for name, processor in (
            ("TemplateProcessing", processors.TemplateProcessing("<s> $A </s> </s>", special_tokens=pairs)),
            ("TemplateProcessing twice", processors.TemplateProcessing("$A <s> $A", special_tokens=pairs)),
            ("RobertaProcessing", processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))),
            ("ByteLevel after", processors.ByteLevel()),
            ("Sequence after", processors.Sequence([processors.ByteLevel(),
                                                    processors.TemplateProcessing("<s> $A", special_tokens=pairs)]))):
        made = Tokenizer.from_str(tokenizer.to_str())
        made.post_processor = processor
        yield name, made


def added_token_shapes():
    texts = ["<x>", "the", "of ", " and", "<|im", "<|im_end|>", "été", "ES", "12", "\n\n", "  "]
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for i in range(32):
        tokenizer = with_normalizer(normalizers.NFD(), normalizers.Lowercase())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first")
        token = {flag: bool(i >> bit & 1) for bit, flag in enumerate(flags)}
        tokenizer.add_tokens([AddedToken(text, **token) for text in texts])
        yield f"added tokens {i}", tokenizer
    mixed = sentencepiece_bpe()
    mixed.add_tokens([AddedToken("the", single_word=True, normalized=True), AddedToken(" of", lstrip=True, rstrip=True, normalized=False),
                      AddedToken("▁and", normalized=False), AddedToken("é", normalized=True)])
    yield "added tokens, mixed", mixed


def all_shapes():
    yield from normalizer_shapes()
    yield from pre_tokenizer_shapes()
    yield from model_shapes()
    yield from frame_shapes()
    yield from added_token_shapes()
