#!/usr/bin/env python3
"""Writes unicode_classes.h and class_reference.json: which characters the Oniguruma inside of Hugging Face's tokenizers has in
each of its classes.

    make_class_reference.py FOLDER

Every name of a property, bracket and escape is asked about every code point. unicode_classes.h (text/tokenizer) has the differences
from libonig.so.5 of this machine, which should be the oldest that Millrace runs with: Debian 12's. class_reference.json has digests
of the classes, for text/tokenizer/regex_encoding_test.cc, and of what normalizers and pre-tokenizers make of characters, for
text/tokenizer/unicode_test.cc:
    {"tokenizers": version, "names": {name of \\p{}: digest}, "expressions": {regular expression: digest},
     "parts": {pre-tokenizer: digest of its class}, "normalizers": [{"normalizer": as in tokenizer.json, "digest": of the text}, ...],
     "scripts": [digest of the sizes in bytes of the pieces, ...]}
A digest is the first 16 digits of SHA-256; that of a class is over the first and the last code point of each run, where U+E000 is
the next after U+D7FF. Numbers have four bytes, the lowest first.
"""
import collections
import ctypes
import hashlib
import json
import pathlib
import re
import sys
import textwrap

import tokenizers
from tokenizers import NormalizedString, Regex, Tokenizer, models, normalizers, pre_tokenizers

TEXT = "".join(map(chr, [*range(0xd800), *range(0xe000, 0x110000)]))
# The others are unassigned, or for private use, in every version of Unicode.
ASSIGNED = "".join(map(chr, [*range(0xd800), *range(0xe000, 0x40000), *range(0xe0000, 0xe1000)]))
BRACKETS = "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit".split()
# Classes by themselves, in other classes, negated, at boundaries and under the option i.
EXPRESSIONS = [r"\w", r"\W", r"[\w]", r"[^\w]", r"\d", r"\s", r"\S", r"\h", r"(?m:\b.)", r"(?m:\B.)", r"\P{L}", r"\p{^Lu}", r"\p{S}", r"[^\p{S}]",
               r"\p{Word}", r"\p{Punct}", r"[[:^punct:]]", r"(?i)\p{Lu}", r"(?i:[a-z])", r"(?i:ſ)",
               r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"]
# Classes that a new one may be written down as a change of.
LIKE = ["p", "punct", "word", "graphemeextend"]


class Encoding(ctypes.Structure):
    """Oniguruma's OnigEncodingType, as far as it is used."""
    _fields_ = [(name, ctypes.c_void_p) for name in ("mbc_enc_len", "name")]
    _fields_ += [(name, ctypes.c_int) for name in ("max_enc_len", "min_enc_len")]
    _fields_ += [(name, ctypes.c_void_p) for name in ("is_mbc_newline", "mbc_to_code", "code_to_mbclen", "code_to_mbc", "mbc_case_fold",
                                                      "apply_all_case_fold", "get_case_fold_codes_by_str")]
    _fields_ += [("property_name_to_ctype", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)),
                 ("is_code_ctype", ctypes.c_void_p),
                 ("get_ctype_code_range", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_void_p,
                                                           ctypes.POINTER(ctypes.POINTER(ctypes.c_uint))))]


class System:
    """The installed Oniguruma."""
    NAME = "libonig.so.5"

    def __init__(self):
        self.library = ctypes.CDLL(self.NAME)
        self.library.onig_version.restype = ctypes.c_char_p
        self.version = self.library.onig_version().decode()
        self.encoding = Encoding.in_dll(self.library, "OnigEncodingUTF8")

    def path(self):
        return next(line.split()[-1] for line in open("/proc/self/maps") if "/libonig.so" in line)

    def number(self, name):
        """Returns the number of the class \\p{name}, None if there is none."""
        buffer = ctypes.create_string_buffer(name.encode())
        begin = ctypes.addressof(buffer)
        number = self.encoding.property_name_to_ctype(ctypes.addressof(self.encoding), begin, begin + len(name))
        return number if number >= 0 else None

    def members(self, number):
        single, ranges = ctypes.c_uint(), ctypes.POINTER(ctypes.c_uint)()
        assert self.encoding.get_ctype_code_range(number, ctypes.byref(single), ctypes.byref(ranges)) == 0
        return members_of((ranges[2 * i + 1], ranges[2 * i + 2]) for i in range(ranges[0]))


# A set of code points is a byte for each, 0 or 1, in the order of TEXT.

def place(code):
    return code - 0x800 if code >= 0xe000 else min(code, 0xd800)


def members_of(ranges):
    members = bytearray(len(TEXT))
    for first, last in ranges:
        begin, end = place(first), place(last + 1)
        members[begin:end] = b"\x01" * (end - begin)
    return bytes(members)


def without(left, right):
    result = int.from_bytes(left, "little") & ~int.from_bytes(right, "little")
    return result.to_bytes(len(left), "little")


def runs(members):
    return [(ord(TEXT[run.start()]), ord(TEXT[run.end() - 1])) for run in re.finditer(b"\x01+", members)]


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


class Header:
    """Collects the rows of unicode_classes.h; equal lists of ranges are kept once."""

    def __init__(self):
        self.ranges, self.slices, self.changes, self.additions = [], {}, [], []

    def slice(self, members):
        found = tuple(runs(members))
        if found and found not in self.slices:
            self.slices[found] = f"{{{len(self.ranges)}, {len(found)}}}"
            self.ranges += found
        return self.slices.get(found, "{}")

    def change(self, name, old, new):
        if old != new:
            self.changes.append(f'    {{"{name}", {self.slice(without(new, old))}, {self.slice(without(old, new))}}},')

    def add(self, name, like, old, new):
        self.additions.append(f'    {{"{name}", "{like}", {self.slice(without(new, old))}, {self.slice(without(old, new))}}},')

    def text(self, system):
        return HEADER.format(version=tokenizers.__version__, system=system.version, changes="\n".join(self.changes),
                             additions="\n".join(self.additions),
                             ranges=textwrap.fill(" ".join(f"{{{first:#x},{last:#x}}}," for first, last in self.ranges), 100))


HEADER = """// The classes of characters in which the Oniguruma of Hugging Face's tokenizers {version} differs from version {system}.
// Generated by tests/reference/make_class_reference.py, which `scripts/parity.sh --update` runs: do not edit.
#ifndef MILLRACE_TEXT_TOKENIZER_UNICODE_CLASSES_H_
#define MILLRACE_TEXT_TOKENIZER_UNICODE_CLASSES_H_

#include <cstddef>
#include <string_view>

#include "text/tokenizer/code_range.h"

namespace millrace {{

// Elements of kClassRanges.
struct ClassSlice {{
  size_t begin;
  size_t size;
}};

// A class that the older version has, by one of its names.
struct ClassChange {{
  std::string_view name;
  ClassSlice added;
  ClassSlice removed;
}};

// A name that the older version lacks, or has for another class; it stands for the class `like` of
// the older version, or for none, with these differences.
struct ClassAddition {{
  std::string_view name;
  std::string_view like;
  ClassSlice added;
  ClassSlice removed;
}};

// clang-format off
inline constexpr ClassChange kClassChanges[] = {{
{changes}
}};

inline constexpr ClassAddition kClassAdditions[] = {{
{additions}
}};

inline constexpr CodeRange kClassRanges[] = {{
{ranges}
}};
// clang-format on

}}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_UNICODE_CLASSES_H_
"""


def header_of(system, names, brackets):
    """`names` and `brackets` have the members of \\p{name} and of [[:name:]]."""
    header = Header()
    none = bytes(len(TEXT))
    by_number, new = collections.defaultdict(list), []
    for name in names:
        number = system.number(name)
        (new if number is None else by_number[number]).append(name)
    like = {name: system.members(system.number(name)) for name in LIKE}
    for number, group in sorted(by_number.items()):
        old = system.members(number)
        # A bracket has its class by number.
        bracket = next((name for name in group if name in brackets), None)
        now = brackets[bracket] if bracket else names[group[0]]
        header.change(group[0], old, now)
        new += [name for name in group if names[name] != now]
    for name in sorted(new):
        best = min(["", *LIKE], key=lambda other: len(runs(without(names[name], like.get(other, none))))
                   + len(runs(without(like.get(other, none), names[name]))))
        header.add(name, best, like.get(best, none), names[name])
    return header.text(system)


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
    system, theirs = System(), Tokenizers()
    words = words_of(theirs.path) | words_of(system.path())
    names = {name: theirs.members(rf"\p{{{name}}}") for name in sorted(words) if theirs.takes(rf"\p{{{name}}}")}
    missing = [name for name in words if system.number(name) is not None and name not in names]
    assert len(names) > 800 and not missing, f"{len(names)} names; tokenizers lack {missing}"
    brackets = {name: theirs.members(f"[[:{name}:]]") for name in BRACKETS}
    header = header_of(system, names, brackets)
    (folder / "unicode_classes.h").write_text(header, encoding="utf-8")
    expressions = {f"[[:{name}:]]": digest_of(members) for name, members in brackets.items()}
    expressions |= {regex: digest_of(theirs.members(regex)) for regex in EXPRESSIONS}
    reference = {"tokenizers": tokenizers.__version__, "names": {name: digest_of(members) for name, members in names.items()},
                 "expressions": expressions, "parts": {name: digest_of(members) for name, members in parts()}, "normalizers": list(normalized()),
                 "scripts": scripts()}
    (folder / "class_reference.json").write_text(json.dumps(reference, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(f"{len(names)} names, {len(expressions)} expressions; unicode_classes.h has {len(header)} bytes")


if __name__ == "__main__":
    main()
