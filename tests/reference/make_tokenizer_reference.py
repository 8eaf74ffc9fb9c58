#!/usr/bin/env python3
"""Writes tokenizer_smollm2.jsonl: the results of Hugging Face's tokenizer for 2,000 strings and 300 lists of ids.

`make parity` runs it:

    make_tokenizer_reference.py PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf FOLDER

A line is one of
    {"text": ..., "ids": [...], "plain": [...]}   ids with special-token text parsed; `plain`, where it differs, without
    {"decode": [...], "kept": ..., "skipped": ...}  the ids' text with special tokens, and, where it differs, without
"""

import functools
import json
import pathlib
import random
import sys
import unicodedata

import reference_tokenizer

SENTENCES = """\
The quick brown fox jumps over the lazy dog; it didn't stop, and I'll bet they've seen it. We're sure he'd agree: I'm right.
It's 7 o'clock, isn't it? 'Tis said that O'Neill's cat 's gone. DON'T SHOUT, THEY'LL HEAR. Rock 'n' roll!
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Straßenbahnhaltestellenschilder aufräumen.
Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis. C'est l'été qu'ils attendaient, n'est-ce pas ?
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío. ¿Cuánto cuesta? ¡Muchísimo!
Luís argüia à Júlia que brações, fé, chá, óxido, pôr, zângão eram palavras do português.
Pchnąć w tę łódź jeża lub ośm skrzyń fig. Zażółć gęślą jaźń.
Nechť již hříšné saxofony ďáblů rozezvučí síň úděsnými tóny waltzu, tanga a quickstepu.
Árvíztűrő tükörfúrógép. Egy hűtlen vejét fülöncsípő, dühös mexikói úr Wesselényinél mázol Quitóban.
Hyvää yötä! Törkylempijävongahdus. Albert osti fagotin ja töräytti puhkuvan melodian.
Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul'da ışıklar sönüyor.
Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация южных губерний.
Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п'яне знаємо.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὁ βίος βραχύς, ἡ δὲ τέχνη μακρή.
דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם עֲלֵיכֶם
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق. اَلْعَرَبِيَّةُ ١٢٣٤
بر اثر چنین تلقین و شستشوی مغزی جامعی، سطح و پایه‌ی ذهن و فهم و نظر بعضی اشخاص واژگونه می‌شود. ۱۲۳۴
ٹھنڈ میں، ایک قحط زدہ گاؤں سے گذرتے وقت ایک چڑچڑے، باأثر و فارغ شخص کو بعض جل پری نما اژدہے نظر آئے۔
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार भगवान श्रीराम। १२३४५
বিষণ্ণ ঔদাসীন্যে ঊষাবৌদি বাংলাভাষায় প্রচলিত নিখুঁত গল্পটি অর্ধেক বলতেই ঋতু ভুঁইঞা আর ঐন্দ্রিলা ধড়ফড় করে হৈহৈ করে উঠল।
ਸਤ ਸ੍ਰੀ ਅਕਾਲ। ਗੁਰਮੁਖੀ ਲਿਪੀ ਵਿੱਚ ਲਿਖਿਆ ਹੋਇਆ ਪਾਠ।
ગુજરાતી ભાષામાં લખાયેલું વાક્ય, જેમાં ઘણા અક્ષરો છે.
யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்.
తెలుగు భాషలో వ్రాసిన ఒక చిన్న వాక్యం, దీనిలో గుణింతాలు ఉన్నాయి.
ಕನ್ನಡ ಭಾಷೆಯಲ್ಲಿ ಬರೆದ ವಾಕ್ಯ ಇದು. ಬೆಂಗಳೂರು ನಗರ.
അജവും ആനയും ഐരാവതവും ഗരുഡനും കഠോര സ്വരം പൊഴിക്കെ ഹാരവും ഒഢ്യാണവും ഫാലത്തില്‍ മഞ്ഞളും.
සිංහල භාෂාවෙන් ලියූ වාක්‍යයකි. ශ්‍රී ලංකාව.
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน จงฝ่าฟันพัฒนาวิชาการ ๑๒๓๔
ຂອບໃຈຫຼາຍໆ ສະບາຍດີ ພາສາລາວ. နေကောင်းလား မြန်မာဘာသာစကား။ សួស្តី ភាសាខ្មែរ។
བཀྲ་ཤིས་བདེ་ལེགས། བོད་སྐད། ༡༢༣
ქართული ენა, თბილისი. აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ
Բել դղյակի ձախ ժամն օֆ ազգությանը ցպահանջ չճշտած վնաս էր եւ փառք։
የአማርኛ ቋንቋ በኢትዮጵያ ይነገራል። ሰላም ለዓለም፡፡ ፩፪፫
我能吞下玻璃而不伤身体。天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。「你好」，世界！１２３ 〇一二三
視野無限廣，窗外有藍天。微風迎客，軟語伴茶。臺灣注音ㄅㄆㄇㄈ
いろはにほへと ちりぬるを 色は匂へど散りぬるを。コンピューターでｶﾀｶﾅも書けます。東京特許許可局、①②③㈱
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 다람쥐 헌 쳇바퀴에 타고파. ㄱㄴㄷ
Do bạch kim rất quý nên sẽ dùng để lắp vô xương. Tiếng Việt có sáu thanh điệu: ngang, huyền, sắc, hỏi, ngã, nặng.
ᓄᓇᕗᒻᒥ ᐃᓄᒃᑎᑐᑦ. ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ. ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ. ᠮᠣᠩᠭᠣᠯ ᠬᠡᠯᠡ. ⴰⵣⵓⵍ. ߒߞߏ. 𐌰𐌱𐌲 𓀀𓁐 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 𐤀𐤁
Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa. Ċuqlajta ħobż. Žluťoučký kůň; Šķūņu rūķīši.
""".splitlines()

CODE = r"""
def f(x: int = 10_000) -> list[str]:
    '''Doc.'''
    return [f"{i:>4}\t{x!r}" for i in range(x) if i % 3 != 0]  # 100%
---
#include <vector>
template <typename T, int N = 1 << 20>
constexpr auto kTable = [] { std::array<T, N> a{}; for (int i = 0; i < N; ++i) a[i] = i * i; return a; }();
---
SELECT a.id, COUNT(*) AS n FROM "users" a JOIN b ON a.id=b.uid WHERE x<>'it''s' GROUP BY 1 HAVING n>=10;
---
{"key": [1, 2.5e-10, null, true], "nested": {"a\u00e9": "\\n"}, "0xDEADBEEF": -0}
---
<!DOCTYPE html><div class="a b" id='x1'>&nbsp;&#x1F600;</div><!-- c --><br/>
---
for i in $(seq 1 10); do echo "${i}" >> /tmp/out_$$.log 2>&1 || exit 1; done
---
fn main() { let v: Vec<_> = (0..=9).map(|x| x.pow(2)).collect(); println!("{v:?}"); }
---
\documentclass{article}\begin{document}$\int_0^1 x^2\,dx=\frac{1}{3}$ \\ \LaTeX{}\end{document}
---
https://example.com:8080/a/b.html?q=1&r=%20x#frag user.name+tag@mail.example.org 192.168.0.1 2001:db8::1
---
diff --git a/x b/x
@@ -1,3 +1,4 @@
-	old line
+	new line
---
1,234,567.89 $3.50 50% 1e9 0x1F 12:34:56 2026-11-21 +49 (0)30 123456 v1.2.3-rc4 3rd 42nd x2 a1b2c3
""".strip().split("\n---\n")

EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "🇯🇵🇫🇷", "❤️", "☃", "1️⃣", "🧑🏿‍🚀", "™️", "🫠", "🀄", "♥︎", "👨‍💻", "🫶🏼", "⌚", "©"]

SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u200b", "\u2009", "\x0b", "\x0c",
          "\x85", "\ufeff", "\t\t ", "    ", "\n\n\n\n", " " * 17, "\x1f", "\x00"]


@functools.lru_cache
def characters():
    """Returns each assigned character that can occur in a text, by general category."""
    by_category = {}
    for code in range(0x110000):
        character = chr(code)
        category = unicodedata.category(character)
        if category not in ("Cn", "Cs", "Co"):
            by_category.setdefault(category, []).append(character)
    return by_category


def mangled_special(rng, special):
    cut = rng.randrange(1, len(special))
    return rng.choice([special[:cut], special[cut:], special.upper(), special[:cut] + " " + special[cut:], special * 2,
                       special[:cut] + special, "<" + special + ">"])


def strings(specials, count=2000):
    rng = random.Random(20261121)
    by_category = characters()
    categories = sorted(by_category)
    words = [word for sentence in SENTENCES for word in sentence.split()]

    def character():
        return rng.choice(by_category[rng.choice(categories)])

    def slice_of(text, longest):
        begin = rng.randrange(len(text))
        return text[begin:begin + rng.randrange(1, longest)]

    def white_space():
        return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 5)))

    def piece():
        kind = rng.randrange(9)
        if kind == 0:
            return rng.choice(words)
        if kind == 1:
            return slice_of(rng.choice(CODE), 24)
        if kind == 2:
            return rng.choice(EMOJI)
        if kind == 3:
            return white_space()
        if kind == 4:
            return rng.choice(specials)
        if kind == 5:
            return mangled_special(rng, rng.choice(specials))
        if kind == 6:
            return str(rng.randrange(10 ** rng.randrange(1, 9)))
        if kind == 7:
            return rng.choice(["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "''", "'", "'l", "'r"])
        return character()

    yield from SENTENCES
    yield from CODE
    yield from EMOJI
    yield from SPACES
    yield from specials
    yield from ("", "a", " a", "a ", "\x00", "a" * 300, " " * 200, "ab" * 100, "0" * 50, "é" * 60, "😀" * 20, "!" * 120)
    fixed = len(SENTENCES) + len(CODE) + len(EMOJI) + len(SPACES) + len(specials) + 12
    makers = [
        lambda: slice_of(rng.choice(SENTENCES), 60),
        lambda: " ".join(slice_of(rng.choice(SENTENCES), 12) for _ in range(3)),
        lambda: slice_of(rng.choice(CODE), 70),
        lambda: "".join(character() for _ in range(rng.randrange(1, 12))),
        lambda: "".join(rng.choice([" ", ""]) + character() for _ in range(rng.randrange(1, 12))),
        lambda: "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 30))),
        lambda: white_space() + rng.choice(words) + white_space() + str(rng.randrange(1000)) + white_space(),
        lambda: "".join(piece() for _ in range(rng.randrange(2, 7))),
        lambda: " ".join(piece() for _ in range(rng.randrange(2, 6))),
        lambda: "".join(rng.choice(EMOJI + [" ", "a", "1"]) for _ in range(rng.randrange(1, 8))),
    ]
    for index in range(count - fixed):
        yield makers[index % len(makers)]()


def main():
    model = pathlib.Path(sys.argv[1]).expanduser()
    tokenizer = reference_tokenizer.load(model).backend_tokenizer
    specials = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]

    lines = []
    for text in strings(specials):
        line = {"text": text, "ids": tokenizer.encode(text).ids}
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = False
        if plain != line["ids"]:
            line["plain"] = plain
        lines.append(line)
    assert len(lines) == 2000

    rng = random.Random(7)
    for _ in range(300):
        # Mostly tokens of one or few bytes, so that broken characters are frequent.
        ids = [rng.randrange(rng.choice([30, 252, 252, 2000, 49152])) for _ in range(rng.randrange(1, 16))]
        line = {"decode": ids, "kept": tokenizer.decode(ids, skip_special_tokens=False)}
        skipped = tokenizer.decode(ids, skip_special_tokens=True)
        if skipped != line["kept"]:
            line["skipped"] = skipped
        lines.append(line)

    path = pathlib.Path(sys.argv[2]) / "tokenizer_smollm2.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{path}: {len(lines)} lines, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
