"""Tokenizers for the vocabularies in mistral-common, each with mistral-common's or sentencepiece's own encoder."""
import base64
import json
import pathlib

import mistral_common
import sentencepiece
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tokenizer_vocabularies import build_sentencepiece, byte_level, isolate, merges_by_score


def spelled(token):
    """Returns bytes in GPT-2's spelling."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = sorted(set(range(256)) - printable)
    return "".join(chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in token)


def load_tekken(path):
    """Returns, for mistral-common's tekken file, the tokenizer and mistral-common's encoder without special tokens."""
    document = json.loads(path.read_text(encoding="utf-8"))
    config = document["config"]
    special = config["default_num_special_tokens"]
    tokens = [base64.b64decode(token["token_bytes"]) for token in document["vocab"][:config["default_vocab_size"] - special]]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    names = {token: spelled(token) for token in tokens}
    merges = []
    for token in tokens:
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(names[left], names[right]) for left, right in sorted(cuts, key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))]
    tokenizer = Tokenizer(models.BPE({names[token]: rank + special for token, rank in ranks.items()}, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([isolate(config["pattern"]), byte_level(use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    own = Tekkenizer.from_file(str(path))
    return tokenizer, lambda text: own.encode(text, False, False)


def load_sentencepiece(path):
    """Returns the same for a SentencePiece file."""
    own = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokens = [own.id_to_piece(i) for i in range(own.vocab_size())]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = merges_by_score(vocab, [own.get_score(i) for i in range(len(tokens))])
    tokenizer = build_sentencepiece(vocab, merges, True, "<unk>")
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token, i in vocab.items()
                                  if own.is_control(i) or own.is_unknown(i)])
    return tokenizer, own.encode


def mistral():
    """Yields all of mistral-common's vocabularies: file, tokenizer, and an independent encoder."""
    folder = pathlib.Path(mistral_common.__file__).parent / "data"
    for path in sorted(folder.glob("tekken_*.json")):
        yield (path, *load_tekken(path))
    for path in sorted(folder.glob("*.model*")):
        yield (path, *load_sentencepiece(path))
