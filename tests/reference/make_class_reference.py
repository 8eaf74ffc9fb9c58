#!/usr/bin/env python3
"""Writes unicode_classes.h, unicode_tables.h and class_reference.json: how Hugging Face's tokenizers see each character.

    make_class_reference.py FOLDER

Every name of a property, bracket and escape is asked about every code point. unicode_classes.h (text/tokenizer) has the differences
from libonig.so.5 of this machine, and unicode_tables.h those from libutf8proc.so.2. Both libraries should be the oldest that
Millrace runs with: Debian 12's. class_reference.json has digests of the classes, for text/tokenizer/regex_encoding_test.cc, and of
what normalizers and pre-tokenizers make of characters, for text/tokenizer/unicode_test.cc:
    {"tokenizers": version, "names": {name of \\p{}: digest}, "expressions": {regular expression: digest},
     "parts": {pre-tokenizer: digest of its class}, "normalizers": [{"normalizer": as in tokenizer.json, "digest": of the text}, ...],
     "scripts": [digest of the sizes in bytes of the pieces, ...]}
A digest is the first 16 digits of SHA-256; that of a class is over the first and the last code point of each run, where U+E000 is
the next after U+D7FF. Numbers have four bytes, the lowest first.
"""
import hashlib
import json
import pathlib
import re
import sys

import tokenizers
from tokenizers import NormalizedString, Regex, Tokenizer, models, normalizers, pre_tokenizers

import unicode_headers
from code_points import TEXT, members_of, runs, without

# The others are unassigned, or for private use, in every version of Unicode.
ASSIGNED = "".join(map(chr, [*range(0xd800), *range(0xe000, 0x40000), *range(0xe0000, 0xe1000)]))
BRACKETS = "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit".split()
# Classes by themselves, in other classes, negated, at boundaries and under the option i.
EXPRESSIONS = [r"\w", r"\W", r"[\w]", r"[^\w]", r"\d", r"\s", r"\S", r"\h", r"(?m:\b.)", r"(?m:\B.)", r"\P{L}", r"\p{^Lu}", r"\p{S}", r"[^\p{S}]",
               r"\p{Word}", r"\p{Punct}", r"[[:^punct:]]", r"(?i)\p{Lu}", r"(?i:[a-z])", r"(?i:ſ)",
               r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"]


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def digest_of(members):
    return digest(b"".join(code.to_bytes(4, "little") for run in runs(members) for code in run))


class Tokenizers:
    def __init__(self):
        self.text = NormalizedString(TEXT)
        self.path = next(pathlib.Path(tokenizers.__file__).parent.glob("*.so"))

    @staticmethod
    def takes(regex):
        try:
            Regex(regex)
            return True
        except Exception:  # noqa: BLE001  tokenizers has no narrower one
            return False

    def members(self, regex):
        others = self.text.split(Regex(f"(?:{regex})++"), "removed")
        return without(b"\x01" * len(TEXT), members_of((ord(part.original[0]), ord(part.original[-1])) for part in others))


def words_of(path):
    """Returns the strings in a library that can be names of properties: Oniguruma keeps them in one piece."""
    return {word.decode() for word in re.findall(rb"(?<=\0)[a-z0-9.=]{1,59}(?=\0)", pathlib.Path(path).read_bytes())}


def parts():
    """Returns the members of the classes that tokenizers' other parts have."""
    yield "Punctuation", outside(pre_tokenizers.Punctuation("removed"))
    yield "WhitespaceSplit", outside(pre_tokenizers.WhitespaceSplit())
    yield "Digits", joined(pre_tokenizers.Digits(), "1")
    yield "Whitespace", joined(pre_tokenizers.Whitespace(), "a")


def outside(part):
    """Returns the characters that a pre-tokenizer removes."""
    others = [offsets for _, offsets in part.pre_tokenize_str(TEXT)]
    return without(b"\x01" * len(TEXT), members_of((ord(TEXT[begin]), ord(TEXT[end - 1])) for begin, end in others))


def joined(part, known):
    """Returns the characters that a pre-tokenizer does not separate from a known one before them."""
    text = "".join(f"\n{known}{character}" for character in TEXT)
    members = bytearray(b"\x01" * len(TEXT))
    for _, (begin, _) in part.pre_tokenize_str(text):
        if begin % 3 == 2:
            members[begin // 3] = 0
    for removed in (TEXT.index(c) for c in TEXT if c.isspace()):
        members[removed] = 0
    return bytes(members)


def normalized():
    """Yields each normalizer and the digest of its text. Characters are on lines of their own, and between marks to be ordered."""
    text = "".join(f"{character}\na{character}\u0301\u0323\n" for character in ASSIGNED)
    n = normalizers
    for normalizer in [n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Lowercase(), n.StripAccents(), n.Nmt(), n.BertNormalizer(True, False, False, False),
                       n.BertNormalizer(False, True, False, False), n.BertNormalizer(False, False, True, False)]:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizer
        yield {"normalizer": json.loads(tokenizer.to_str())["normalizer"], "digest": digest(normalizer.normalize_str(text).encode())}


def scripts():
    """Returns digests of the pieces of all characters in the order of their codes, and of the assigned ones in another."""
    other = "".join(ASSIGNED[i * 7919 % len(ASSIGNED)] for i in range(len(ASSIGNED)))
    cut = pre_tokenizers.UnicodeScripts().pre_tokenize_str
    return [digest(b"".join(len(piece.encode()).to_bytes(4, "little") for piece, _ in cut(text))) for text in (TEXT, other)]


def main():
    folder = pathlib.Path(sys.argv[1])
    system, theirs = unicode_headers.System(), Tokenizers()
    words = words_of(theirs.path) | words_of(system.path())
    names = {name: theirs.members(rf"\p{{{name}}}") for name in sorted(words) if theirs.takes(rf"\p{{{name}}}")}
    missing = [name for name in words if system.number(name) is not None and name not in names]
    assert len(names) > 800 and not missing, f"{len(names)} names; tokenizers lack {missing}"
    brackets = {name: theirs.members(f"[[:{name}:]]") for name in BRACKETS}
    header = unicode_headers.header_of(system, names, brackets)
    tables = unicode_headers.tables_text(unicode_headers.Utf8proc())
    (folder / "unicode_tables.h").write_text(tables, encoding="utf-8")
    (folder / "unicode_classes.h").write_text(header, encoding="utf-8")
    expressions = {f"[[:{name}:]]": digest_of(members) for name, members in brackets.items()}
    expressions |= {regex: digest_of(theirs.members(regex)) for regex in EXPRESSIONS}
    reference = {"tokenizers": tokenizers.__version__, "names": {name: digest_of(members) for name, members in names.items()},
                 "expressions": expressions, "parts": {name: digest_of(members) for name, members in parts()}, "normalizers": list(normalized()),
                 "scripts": scripts()}
    (folder / "class_reference.json").write_text(json.dumps(reference, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(f"{len(names)} names, {len(expressions)} expressions; the headers have {len(header) + len(tables)} bytes")


if __name__ == "__main__":
    main()
