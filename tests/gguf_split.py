"""Splits a GGUF file into several, as llama.cpp's gguf-split does."""
import struct

from gguf_text import STRING, Reader


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def padding(size, alignment=32):
    return bytes(-size % alignment)


def split(path, folder, name, count):
    """Writes the parts, of which the first has the metadata and each has some of the tensors. Returns their paths."""
    with open(path, "rb") as file:
        reader = Reader(file)
        begin = file.tell()
        alignment = reader.metadata().get("general.alignment", 32)
        end = file.tell()
        tensors = []  # name, dimensions, type, offset
        for _ in range(reader.tensors):
            tensors.append((reader.value(STRING), [reader.scalar("Q") for _ in range(reader.scalar("I"))], reader.scalar("I"),
                            reader.scalar("Q")))
        file.seek(len(padding(file.tell(), alignment)), 1)
        data = memoryview(file.read())
        file.seek(begin)
        pairs = file.read(end - begin)
    offsets = sorted(offset for *_, offset in tensors) + [len(data)]
    paths = []
    for i in range(count):
        part = tensors[len(tensors) * i // count:len(tensors) * (i + 1) // count]
        header = (string("split.no") + struct.pack("<IH", 2, i) + string("split.count") + struct.pack("<IH", 2, count)
                  + string("split.tensors.count") + struct.pack("<Ii", 5, len(tensors)))
        header = struct.pack("<4sIQQ", b"GGUF", 3, len(part), 3 + (reader.pairs if i == 0 else 0)) + (pairs if i == 0 else b"") + header
        body = bytearray()
        for tensor, shape, kind, offset in part:
            header += string(tensor) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
            body += data[offset:offsets[offsets.index(offset) + 1]]
            body += padding(len(body))
        paths.append(folder / f"{name}-{i + 1:05}-of-{count:05}.gguf")
        paths[-1].write_bytes(header + padding(len(header)) + body)
    return paths
