"""SentencePiece's precompiled_charsmap of a small map: a trie as a double array in darts-clone's layout, then the texts."""
import struct


def build(mapping):
    texts, places = b"", {}
    for key, value in mapping.items():
        places[key.encode()] = len(texts)
        texts += value.encode() + b"\0"

    units = {}  # by place: [label, offset, has leaf, value]
    used = {0}

    def children(prefix):
        return sorted({key[len(prefix)] for key in places if key.startswith(prefix) and len(key) > len(prefix)})

    def place(prefix, index):
        labels = children(prefix)
        leaf = prefix in places
        all_labels = ([0] if leaf else []) + labels
        base = 1
        while base >= 1 << 21 or any((base ^ label) in used for label in all_labels) or (base ^ index) >= 1 << 21 or (base ^ index) == 0:
            base += 1
        used.update(base ^ label for label in all_labels)
        label = prefix[-1] if prefix else 0
        units[index] = label | (leaf << 8) | ((base ^ index) << 10)
        if leaf:
            units[base] = places[prefix] | 1 << 31
        for child in labels:
            place(prefix + bytes([child]), base ^ child)

    place(b"", 0)
    size = max(units) + 1
    size += -size % 256
    array = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(array)) + array + texts
