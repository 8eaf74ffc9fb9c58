"""Sets of code points. A set is a byte for each, 0 or 1, in the order of TEXT."""
import re

# Every code point but surrogates, which no text has.
TEXT = "".join(map(chr, [*range(0xd800), *range(0xe000, 0x110000)]))


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
