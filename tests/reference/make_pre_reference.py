#!/usr/bin/env python3
"""Writes pre_reference.json: the pieces into which Hugging Face's tokenizers cut texts where a GGUF file has a tokenizer.ggml.pre.

    make_pre_reference.py FOLDER

What a name stands for is spelled out here once more, in the words of Hugging Face's tokenizers and with the patterns as the
models' tokenizer.json have them (in llama.cpp's src/llama-vocab.cpp as "original regex"): formats/tokenizers/tokenizer_pre.cc is held against
it by text/tokenizer/pre_tokenizer_test.cc.
    {"texts": [...], "pre": [{"names": [...], "nfc": ..., "ignore_merges": ..., "add_bos": ..., "pieces": [[sizes in bytes], ...]}, ...]}
"""
import json
import pathlib
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

import tokenizer_shapes
import tokenizer_vocabularies

TEXTS = [
    "It's  12,500 zł\n\n x", "I'LL we'Ve don'T 's'S x'y 'd'M", "HelloWorld helloWORLD HTTPServer iPhone éÉaÀB ǅǆ",
    "1 12 123 1234 12345 1234567 3.14159 1,000,000 ½Ⅷ٣٤٥٦ x1234y ²³", "   three  spaces \t\ttabs\n\n  \r\n\r\nline  ends \n", " " * 9 + "x" + " " * 40,
    "你好，世界！今天是2024年5月。 日本語のテキスト、カタカナ… 한국어 문장입니다. ㄅㄆㄇ", "漢字abc漢字's Han的s A漢b ㄱㄴ ｱｲｳ ไทย ລາວ ខ្មែរ မြန်မာ",
    "हिन्दी में পাঠ తెలుగు العربية، עברית é e\u0301 a\u0308o\u0308 नमस्ते।", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ a!b @name #tag $5 x=y+z; foo(bar);",
    "<tag/> //comment\n/* x */\r\n/ ?! … — “quoted” ‘single’ «x»", "emoji 😀👩‍👩‍👧 ✓✔ €£¥ ±× ∑∫ © ™ 🇩🇪", "a(b|c)d . , ! ? e|f [g] {h}",
    "<sentinel:12> IMGIMGABCZ IMGIMGABCDEZ <s> </s> [INST]", "def f(x):\n    if x:\n\t\treturn 'a' + \"b\"  # c\n\n\n    pass\n", "don’t it’s ＡＢＣ １２３ ﬁ ª º",
    "a\u00a0b\u3000c\u200bd\u200de\ufefff\u2028g\u0085h", "ÀÈÌ àèì ßẞ ΑΒΓ αβγ ДЖ дж ﬀ ʕ ǀ", "'s 't 're 've 'm 'll 'd'S'LL 'x", "end's\n'll \n\n\n 7\n8 ",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3, QWEN2, QWEN35 = tokenizer_vocabularies.LLAMA3, tokenizer_vocabularies.QWEN2, tokenizer_vocabularies.QWEN35
WORD_CASES = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
              r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|")
GPT4O = WORD_CASES + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
YOUTU = WORD_CASES + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = YOUTU.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
JAIS2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|"
         r"\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}")
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}" + "\r\n" + r"]+|\s*[" + "\r\n"
        + r"]+|\s+(?!\S)|\s+")
EXAONE_MOE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|"
              r"\s*[\r\n]|\s+(?!\S)|\s+")
MINICPM5 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")
UFAKZEKA = QWEN2.removeprefix("(?i:'s|'t|'re|'ve|'m|'ll|'d)|")
DEEPSEEK3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
             "\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
SPARK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|"
         "[\r\n]|\\s+(?!\\S)|\\s+")
YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
# A word of digits in threes from its end.
AFMOE_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
AFMOE_SCRIPTS = "[一-鿿㐀-䶿豈-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
KANA = "[一-龥\u3040-ゟ゠-ヿ]+"

# Where a Metaspace prepends to what stems from a text's first character.
FIRST_TEXTS = ["½", "½ x", "½½", " ½", "\u200b½", "ﬁ a", "①②", "e\u0301x", "\u1e9b\u0323", "Ａ b", "㌔a", "\u0344x", "각", "가\u11a8", "a",
               "a b", "İi", "中文", "\u0301a", "q\u0307\u0323", "\u1e0b\u0323", "\u3000a", "…", "\ufdfa x", "\t½", "12 3", "aba", "Ǆx"]

isolate, digits = tokenizer_vocabularies.isolate, tokenizer_vocabularies.digits


def named(*names, steps, nfc=False, ignore_merges=False, add_bos=False):
    return {"names": list(names), "nfc": nfc, "ignore_merges": ignore_merges, "add_bos": add_bos}, steps


def pres():
    """Without the last step, which spells bytes, but for falcon, which has it in the middle."""
    gpt2 = isolate(GPT2)
    punctuation = pre_tokenizers.Punctuation
    # llama.cpp's own.
    yield named("default", steps=[isolate(r"[\p{P}$+<=>^~|]+"), gpt2, isolate(r"\p{N}+"), isolate("[0-9][0-9][0-9]")])
    yield named("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "exaone4", "jais",
                "trillion", "granite-docling", "jina-v1-en", "jina-v2-code", "roberta-bpe", steps=[gpt2])
    yield named("mpt", "olmo", "modern-bert", steps=[gpt2], nfc=True)
    yield named("starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2", steps=[digits(), gpt2])
    yield named("command-r", steps=[digits(), gpt2], nfc=True)
    yield named("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", steps=[isolate(LLAMA3)],
                ignore_merges=True, add_bos=True)
    yield named("glm4", "glm5", steps=[isolate(LLAMA3)], ignore_merges=True)
    yield named("chatglm-bpe", "dbrx", "smaug-bpe", steps=[isolate(LLAMA3)])
    yield named("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", steps=[isolate(QWEN2)], nfc=True)
    yield named("grok-2", "solar-open", steps=[isolate(QWEN2)])
    yield named("qwen35", steps=[isolate(QWEN35)], nfc=True)
    yield named("laguna", steps=[isolate("[^\n]+|[\n]+"), isolate(QWEN2)])
    yield named("minicpm5", steps=[isolate(r"\p{N}{1,3}"), isolate(MINICPM5)], ignore_merges=True)
    yield named("ufakzeka", steps=[isolate(UFAKZEKA)])
    yield named("seed-coder", steps=[isolate(SEED)])
    yield named("jais-2", steps=[isolate(JAIS2)])
    yield named("bailingmoe", "bailingmoe2", "llada-moe", steps=[isolate(BAILING)])
    yield named("exaone-moe", steps=[isolate(EXAONE_MOE)])
    yield named("tekken", steps=[isolate(TEKKEN)], ignore_merges=True, add_bos=True)
    yield named("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", steps=[isolate(GPT4O)])
    yield named("granite-embed-multi-97m", steps=[isolate(GPT4O)], ignore_merges=True)
    yield named("tiny_aya", "cohere2moe", steps=[isolate(r"\d{1,3}(?=(?:\d{3})*\b)"), isolate(GPT4O)], nfc=True)
    yield named("youtu", steps=[isolate(YOUTU_SCRIPTS), isolate(YOUTU)], ignore_merges=True)
    yield named("kimi-k2", steps=[isolate(KIMI)])
    yield named("deepseek-coder", steps=tokenizer_vocabularies.before_model("deepseek-coder")[1][:-1])
    yield named("deepseek-llm", steps=tokenizer_vocabularies.before_model("deepseek-llm")[1][:-1])
    yield named("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4", steps=[isolate(r"\p{N}{1,3}"), isolate(KANA), isolate(DEEPSEEK3)])
    yield named("spark2_5", steps=[isolate(r"\p{N}{1,3}"), isolate(KANA), isolate(SPARK), isolate(r"\p{N}")])
    yield named("afmoe", steps=[isolate(AFMOE_DIGITS), isolate(AFMOE_SCRIPTS), isolate(DEEPSEEK3)])
    yield named("bloom", "gpt3-finnish", "poro-chat", steps=[isolate(BLOOM)])
    yield named("viking", steps=[isolate(BLOOM), digits()])
    yield named("superbpe", steps=[isolate(r"\p{N}+"), isolate(r"(?=(\d{3})+(?!\d))")])
    yield named("chameleon", steps=[isolate("<sentinel:[0-9]+>"), isolate("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"), isolate(r"([\t\n]|    |  )"),
                                    digits(), punctuation("isolated"), gpt2], add_bos=True)
    yield named("falcon", steps=tokenizer_vocabularies.before_model("falcon")[1])
    yield named("whitespace", steps=[pre_tokenizers.WhitespaceSplit()])


def first_pipelines():
    """(normalizer or None, pre-tokenizers)"""
    n, p = normalizers, pre_tokenizers
    befores = [None, n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Lowercase(), n.BertNormalizer(), n.Nmt(), n.ByteLevel(), n.Prepend("▁x"), n.Strip(),
               n.Replace("½", "1/2"), n.Replace(Regex("[^a-z]"), "~~"), n.Replace(Regex("^.b?"), ""), n.Precompiled(tokenizer_shapes.charsmap()),
               n.Sequence([n.NFD(), n.StripAccents()]), n.Sequence([n.NFKC(), n.Lowercase(), n.Replace(" ", "")]),
               n.Sequence([n.Prepend("½"), n.NFKC(), n.Replace("⁄", "of")])]
    afters = [[p.Metaspace("_", "first")], [p.FixedLength(1), p.Metaspace("_", "first", False)], [p.Digits(True), p.Metaspace("_", "first")],
              [p.ByteLevel(True, use_regex=False), p.FixedLength(1), p.Metaspace("_", "first")],
              [p.Metaspace("_", "always", False), p.FixedLength(1), p.Metaspace("=", "first", False)]]
    for before in befores:
        for after in afters:
            yield before, after


def first_pieces():
    result = []
    for before, after in first_pipelines():
        tokenizer = tokenizer_shapes.revealing()
        if before is not None:
            tokenizer.normalizer = before
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(after)
        document = json.loads(tokenizer.to_str())
        pieces = []
        for text in FIRST_TEXTS:
            # The ids are the bytes of the pieces, whose last character has "|" behind it.
            encoding = tokenizer.encode(text, add_special_tokens=False)
            pieces.append(bytes(encoding.ids).hex())
        result.append({"normalizer": document["normalizer"], "pre_tokenizer": document["pre_tokenizer"], "ids": pieces})
    return result


def main():
    groups = []
    for group, steps in pres():
        cut = pre_tokenizers.Sequence(steps)
        normalize = normalizers.NFC().normalize_str if group["nfc"] else str
        group["pieces"] = [[len(piece.encode()) for piece, _ in cut.pre_tokenize_str(normalize(text))] for text in TEXTS]
        groups.append(group)
    path = pathlib.Path(sys.argv[1]) / "pre_reference.json"
    lines = [json.dumps(group, ensure_ascii=False, separators=(",", ":")) for group in groups]
    texts = json.dumps(TEXTS, ensure_ascii=False, indent=0)
    first = [json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in first_pieces()]
    path.write_text(f'{{"texts":{texts},"pre":[\n' + ",\n".join(lines) + f'\n],"first_texts":{json.dumps(FIRST_TEXTS, ensure_ascii=False)},"first":[\n'
                    + ",\n".join(first) + "\n]}\n", encoding="utf-8")
    print(f"{len(groups)} pre-tokenizers, {sum(len(group['names']) for group in groups)} names, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
