#!/usr/bin/env python3
"""Compares our tokenizers with Hugging Face's. `make parity` runs it.

    tokenizer_parity.py TOKENIZE_LINES MODELS [pre] [vocabularies] [mistral] [shapes] [only=NAME]...

TOKENIZE_LINES is the program of that name, MODELS the folder of llama.cpp's sources with its vocabularies. A NAME is of one
vocabulary or shape, with ~ for a space. Ends with 1 where an id differs.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata

import make_tokenizer_reference
import mistral_vocabularies
import tokenizer_shapes
import tokenizer_vocabularies

STRINGS = 20_000


def ids_of(tokenizer, texts, parse_special):
    tokenizer.encode_special_tokens = not parse_special
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]


def ours(program, path, texts, work):
    lines = work / "lines.jsonl"
    lines.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    run = subprocess.run([program, path, lines], capture_output=True, text=True)
    if run.returncode != 0:
        return None, run.stderr.strip()
    # splitlines() would split at further characters.
    return [line.split("\t") for line in run.stdout.rstrip("\n").split("\n")], ""


def compare(name, theirs, program, path, texts, work):
    """Returns the number of differing answers, in ids or decoded text, and prints the first ones."""
    mine, error = ours(program, path, texts, work)
    if mine is None:
        print(f"{name:24} refused: {error}")
        return len(texts)
    wrong = 0
    parsed = ids_of(theirs, texts, True)
    for skip, side in ((False, 2), (True, 3)):
        for text, expected, got in zip(texts, theirs.decode_batch(parsed, skip_special_tokens=skip), mine, strict=True):
            # Invalid parts of a run of byte tokens are decoded differently (docs/models-and-formats.md).
            if expected != json.loads(got[side]) and "\ufffd" not in expected:
                wrong += 1
                if wrong <= SHOWN:
                    print(f"  {text!r} skip={skip}\n    {expected!r}\n    {json.loads(got[side])!r}")
    for parse_special, side in ((True, 0), (False, 1)):
        for text, expected, got in zip(texts, ids_of(theirs, texts, parse_special), mine, strict=True):
            if " ".join(map(str, expected)) != got[side]:
                wrong += 1
                if wrong <= SHOWN:
                    print(f"  {text!r} special={parse_special}\n    {expected}\n    {got[side]}")
    print(f"{name:24} {len(texts)} texts, {wrong} differ", flush=True)
    return wrong


def specials_of(tokenizer):
    tokens = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    return [token for token in tokens if len(token) > 1] or ["<s>"]


def texts_for(tokenizer, count=STRINGS):
    return list(make_tokenizer_reference.strings(specials_of(tokenizer)[:200], count))


def expected_by_llama_cpp(path):
    """Returns the texts and ids of llama.cpp's own test of a vocabulary, without special tokens."""
    inputs, outputs = pathlib.Path(f"{path}.inp"), pathlib.Path(f"{path}.out")
    if not inputs.exists():
        return [], []
    texts = inputs.read_text(encoding="utf-8").removesuffix("\n__ggml_vocab_test__\n").split("\n__ggml_vocab_test__\n")
    ids = [line.strip() for line in outputs.read_text().splitlines()]
    # Hugging Face's tokenizers compose characters here and llama.cpp does not, so it expects other ids.
    composed = [(text, i) for text, i in zip(texts, ids, strict=True) if unicodedata.normalize("NFC", text) == text]
    return [text for text, _ in composed], [i for _, i in composed]


def check_vocabularies(program, models, work):
    wrong = 0
    paths = sorted(models.glob("ggml-vocab-*.gguf"))
    assert len(paths) == 19, f"{len(paths)} vocabularies"
    for path in paths:
        name = path.stem.removeprefix("ggml-vocab-")
        if ONLY and name not in ONLY:
            continue
        theirs = tokenizer_vocabularies.load(path, name)
        texts = texts_for(theirs)
        wrong += compare(name, theirs, program, path, texts, work)
        theirs.save(str(work / "tokenizer.json"))
        wrong += compare(name + ", as JSON", theirs, program, work / "tokenizer.json", texts, work)
        texts, expected = expected_by_llama_cpp(path)
        if texts:
            frame = theirs.encode("").ids
            begin = " ".join(map(str, frame[:1])) if frame else ""
            mine, _ = ours(program, path, texts, work)
            bad = [(text, got[1], want) for text, got, want in zip(texts, mine, expected, strict=True)
                   if stripped(got[1], frame) != want]
            for text, got, want in bad[:SHOWN]:
                print(f"  {text!r}\n    {want}\n    {got}")
            print(f"{'':24} {len(texts)} of llama.cpp's own, {len(bad)} differ")
            wrong += len(bad)
    return wrong


def stripped(ids, frame):
    ids = ids.split()
    frame = [str(i) for i in frame]
    if frame and ids[:1] == frame[:1]:
        ids = ids[1:]
    if len(frame) > 1 and ids[-1:] == frame[-1:]:
        ids = ids[:-1]
    return " ".join(ids)


def check_pre(_, models, work):
    """Whether pre_reference.json has every tokenizer.ggml.pre that llama.cpp reads."""
    source = (models.parent / "src/llama-vocab.cpp").read_text(encoding="utf-8")
    reference = json.loads((pathlib.Path(__file__).parent / "pre_reference.json").read_text(encoding="utf-8"))
    known = {name for group in reference["pre"] for name in group["names"]} | {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}
    missing = set(re.findall(r'tokenizer_pre == "([^"]+)"', source)) - known
    print(f"{'tokenizer.ggml.pre':24} {len(known)} names, missing: {sorted(missing) or 'none'}")
    return len(missing)


def check_mistral(program, _, work):
    wrong = 0
    for file, theirs, own in mistral_vocabularies.mistral():
        if ONLY and file.name not in ONLY:
            continue
        path = work / "tokenizer.json"
        theirs.save(str(path))
        texts = texts_for(theirs)
        wrong += compare(file.name, theirs, program, path, texts, work)
        # The file as it is, in a folder.
        folder = work / file.name
        folder.mkdir()
        shutil.copy(file, folder / ("tekken.json" if file.suffix == ".json" else "tokenizer.model"))
        (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}')
        expected = [" ".join(map(str, own(text))) for text in texts]
        for source, what in ((path, "tokenizer.json"), (folder, "the file itself")):
            mine, error = ours(program, source, texts, work)
            assert mine is not None, error
            bad = [text for text, got, ids in zip(texts, mine, expected, strict=True) if got[1] != ids]
            for text in bad[:SHOWN]:
                print(f"  {text!r}")
            print(f"{'':24} {what} by its own library, {len(bad)} differ")
            wrong += len(bad)
    return wrong


def check_shapes(program, _, work):
    wrong = 0
    for name, theirs in tokenizer_shapes.all_shapes():
        if ONLY and name not in ONLY:
            continue
        path = work / "tokenizer.json"
        theirs.save(str(path))
        # Tokenizers that only reveal the parts before the model need fewer texts.
        count = STRINGS if theirs.get_vocab_size() > 300 else STRINGS // 10
        wrong += compare(name, theirs, program, path, texts_for(theirs, count) + every_character(), work)
    return wrong


def every_character():
    """Returns texts with each assigned character by itself, since parts depend on character categories."""
    characters = [c for group in make_tokenizer_reference.characters().values() for c in group]
    return ["".join(f"{c}a" for c in characters[i:i + 100]) for i in range(0, len(characters), 100)]


def main():
    global ONLY
    program, models = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    parts = [part for part in sys.argv[3:] if not part.startswith("only=")] or ["pre", "vocabularies", "mistral", "shapes"]
    ONLY = [part[5:].replace("~", " ") for part in sys.argv[3:] if part.startswith("only=")]
    checks = {"pre": check_pre, "vocabularies": check_vocabularies, "mistral": check_mistral, "shapes": check_shapes}
    with tempfile.TemporaryDirectory() as work:
        wrong = sum(checks[part](program, models, pathlib.Path(work)) for part in parts)
    sys.exit(wrong != 0)


SHOWN = 3
ONLY = []

if __name__ == "__main__":
    main()
