// Unicode's scripts, as a regular expression with a group for each.
#ifndef MILLRACE_TEXT_TOKENIZER_UNICODE_SCRIPTS_H_
#define MILLRACE_TEXT_TOKENIZER_UNICODE_SCRIPTS_H_

namespace millrace {

// The group of what is of any script, beside spaces: what was assigned later than the Unicode that
// Hugging Face's tokenizers have of scripts (version 10).
inline constexpr int kAnyScript = 1;

// SentencePiece takes the three Japanese scripts for one.
inline constexpr char kScriptsPattern[] =
    R"(([)"
    R"(\x{558}\x{560}\x{588}\x{58b}-\x{58c}\x{5c8}-\x{5c9}\x{5ef}\x{61d}\x{7fd}-\x{7ff})"
    R"(\x{860}-\x{89f}\x{8b5}\x{8be}-\x{8d3}\x{9fc}-\x{9fe}\x{a76}\x{afa}-\x{aff})"
    R"(\x{b53}-\x{b55}\x{c04}\x{c3c}\x{c5c}-\x{c5d}\x{c77}\x{c84}\x{cdc}-\x{cdd}\x{cf3}-\x{d00})"
    R"(\x{d04}\x{d3b}-\x{d3c}\x{d81}\x{e86}\x{e89}\x{e8c}\x{e8e}-\x{e93}\x{e98}\x{ea0})"
    R"(\x{ea8}-\x{ea9}\x{eac}\x{eba}\x{ece}\x{170d}\x{1715}-\x{171f}\x{180f}\x{1878})"
    R"(\x{1abf}-\x{1af0}\x{1b4c}-\x{1b4f}\x{1b7d}-\x{1b7f}\x{1c89}-\x{1cbf}\x{1cf7}\x{1cfa})"
    R"(\x{1df6}-\x{1dfa}\x{208f}\x{209d}-\x{209f}\x{20bf}-\x{20c4}\x{23ff}\x{2427}-\x{2429})"
    R"(\x{2b96}-\x{2b97}\x{2bba}-\x{2bbc}\x{2bc9}\x{2bd2}-\x{2beb}\x{2bf0}-\x{2bff}\x{2c2f})"
    R"(\x{2c5f}\x{2e45}-\x{2e63}\x{2ffc}-\x{2fff}\x{312e}-\x{312f}\x{31bb}-\x{31bf})"
    R"(\x{31e4}-\x{31ef}\x{32ff}\x{4db6}-\x{4dbf}\x{9fd6}-\x{9fff}\x{a7af}\x{a7b8}-\x{a7f6})"
    R"(\x{a82c}\x{a8fe}-\x{a8ff}\x{ab66}-\x{ab6d}\x{fbc2}-\x{fbd2}\x{fd40}-\x{fd4f})"
    R"(\x{fd90}-\x{fd91}\x{fdc8}-\x{fdcf}\x{fdfe}-\x{fdff}\x{1019c}\x{1032d}-\x{1032f})"
    R"(\x{10780}-\x{107bf}\x{10a34}-\x{10a35}\x{10a48}\x{10ec2}-\x{10eff}\x{11070}-\x{11075})"
    R"(\x{110c2}-\x{110cd}\x{11144}-\x{11147}\x{111ce}-\x{111cf}\x{1123f}-\x{11241}\x{1133b})"
    R"(\x{1145a}\x{1145e}-\x{11461}\x{116b8}-\x{116b9}\x{116d0}-\x{116e3}\x{1171a})"
    R"(\x{11740}-\x{11746}\x{11ab0}-\x{11abf}\x{11b00}-\x{11b67}\x{11df0}-\x{11fff}\x{1246f})"
    R"(\x{12475}-\x{1247f}\x{12550}-\x{12686}\x{1342f}-\x{143fa}\x{16f45}-\x{16f4f})"
    R"(\x{16f7f}-\x{16f87}\x{16fe2}-\x{16ff6}\x{187ed}-\x{187ff}\x{18af3}-\x{1affe})"
    R"(\x{1b002}-\x{1b168}\x{1cc00}-\x{1cfc3}\x{1d127}-\x{1d128}\x{1d1e9}-\x{1d1ff})"
    R"(\x{1d250}-\x{1d2f3}\x{1d372}-\x{1d378}\x{1d6a6}\x{1db00}-\x{1dfff}\x{1e030}-\x{1e7fe})"
    R"(\x{1e94b}\x{1ec71}-\x{1ed3d}\x{1f10d}-\x{1f10f}\x{1f12f}\x{1f16c}-\x{1f16f})"
    R"(\x{1f1ad}-\x{1f1ae}\x{1f260}-\x{1f265}\x{1f6d3}-\x{1f6df}\x{1f6f7}-\x{1f6fc})"
    R"(\x{1f774}-\x{1f77f}\x{1f7d5}-\x{1f7ff}\x{1f8b0}-\x{1f90f}\x{1f91f}\x{1f928}-\x{1f92f})"
    R"(\x{1f931}-\x{1f932}\x{1f93f}\x{1f94c}-\x{1f94f}\x{1f95f}-\x{1f97f}\x{1f992}-\x{1f9bf})"
    R"(\x{1f9c1}-\x{1fbfa}\x{2a6d7}-\x{2a6df}\x{2b735}-\x{2b73f}\x{2b81e}\x{2cea2}-\x{2ee5d})"
    R"(\x{30000}-\x{33479})"
    R"(]+)|)"
    R"(([\p{Han}\p{Hiragana}\p{Katakana}\x{30fc}]+)|)"
    R"(([[\p{Common}\x{589}\x{61c}]&&[^ \x{30fc}]]+)|([\p{Inherited}&&[^\x{953}\x{954}]]+)|)"
    R"((\p{Latin}+)|(\p{Cyrillic}+)|(\p{Greek}+)|([\p{Arabic}&&[^\x{61c}]]+)|(\p{Hebrew}+)|)"
    R"((\p{Hangul}+)|([\p{Devanagari}\x{953}\x{954}]+)|(\p{Thai}+)|(\p{Adlam}+)|(\p{Ahom}+)|)"
    R"((\p{Anatolian_Hieroglyphs}+)|([\p{Armenian}&&[^\x{589}]]+)|(\p{Avestan}+)|)"
    R"((\p{Balinese}+)|(\p{Bamum}+)|(\p{Bassa_Vah}+)|(\p{Batak}+)|(\p{Bengali}+)|)"
    R"((\p{Bhaiksuki}+)|(\p{Bopomofo}+)|(\p{Brahmi}+)|(\p{Braille}+)|(\p{Buginese}+)|)"
    R"((\p{Buhid}+)|(\p{Canadian_Aboriginal}+)|(\p{Carian}+)|(\p{Caucasian_Albanian}+)|)"
    R"((\p{Chakma}+)|(\p{Cham}+)|(\p{Cherokee}+)|(\p{Coptic}+)|(\p{Cuneiform}+)|(\p{Cypriot}+)|)"
    R"((\p{Deseret}+)|(\p{Duployan}+)|(\p{Egyptian_Hieroglyphs}+)|(\p{Elbasan}+)|)"
    R"((\p{Ethiopic}+)|(\p{Georgian}+)|(\p{Glagolitic}+)|(\p{Gothic}+)|(\p{Grantha}+)|)"
    R"((\p{Gujarati}+)|(\p{Gurmukhi}+)|(\p{Hanunoo}+)|(\p{Hatran}+)|(\p{Imperial_Aramaic}+)|)"
    R"((\p{Inscriptional_Pahlavi}+)|(\p{Inscriptional_Parthian}+)|(\p{Javanese}+)|)"
    R"((\p{Kaithi}+)|(\p{Kannada}+)|(\p{Kayah_Li}+)|(\p{Kharoshthi}+)|(\p{Khmer}+)|)"
    R"((\p{Khojki}+)|(\p{Khudawadi}+)|(\p{Lao}+)|(\p{Lepcha}+)|(\p{Limbu}+)|(\p{Linear_A}+)|)"
    R"((\p{Linear_B}+)|(\p{Lisu}+)|(\p{Lycian}+)|(\p{Lydian}+)|(\p{Mahajani}+)|)"
    R"((\p{Malayalam}+)|(\p{Mandaic}+)|(\p{Manichaean}+)|(\p{Marchen}+)|(\p{Meetei_Mayek}+)|)"
    R"((\p{Mende_Kikakui}+)|(\p{Meroitic_Cursive}+)|(\p{Meroitic_Hieroglyphs}+)|(\p{Miao}+)|)"
    R"((\p{Modi}+)|(\p{Mongolian}+)|(\p{Mro}+)|(\p{Multani}+)|(\p{Myanmar}+)|(\p{Nabataean}+)|)"
    R"((\p{New_Tai_Lue}+)|(\p{Newa}+)|(\p{Nko}+)|(\p{Ogham}+)|(\p{Ol_Chiki}+)|)"
    R"((\p{Old_Hungarian}+)|(\p{Old_Italic}+)|(\p{Old_North_Arabian}+)|(\p{Old_Permic}+)|)"
    R"((\p{Old_Persian}+)|(\p{Old_South_Arabian}+)|(\p{Old_Turkic}+)|(\p{Oriya}+)|(\p{Osage}+)|)"
    R"((\p{Osmanya}+)|(\p{Pahawh_Hmong}+)|(\p{Palmyrene}+)|(\p{Pau_Cin_Hau}+)|(\p{Phags_Pa}+)|)"
    R"((\p{Phoenician}+)|(\p{Psalter_Pahlavi}+)|(\p{Rejang}+)|(\p{Runic}+)|(\p{Samaritan}+)|)"
    R"((\p{Saurashtra}+)|(\p{Sharada}+)|(\p{Shavian}+)|(\p{Siddham}+)|(\p{SignWriting}+)|)"
    R"((\p{Sinhala}+)|(\p{Sora_Sompeng}+)|(\p{Sundanese}+)|(\p{Syloti_Nagri}+)|(\p{Syriac}+)|)"
    R"((\p{Tagalog}+)|(\p{Tagbanwa}+)|(\p{Tai_Le}+)|(\p{Tai_Tham}+)|(\p{Tai_Viet}+)|)"
    R"((\p{Takri}+)|(\p{Tamil}+)|(\p{Tangut}+)|(\p{Telugu}+)|(\p{Thaana}+)|(\p{Tibetan}+)|)"
    R"((\p{Tifinagh}+)|(\p{Tirhuta}+)|(\p{Ugaritic}+)|(\p{Vai}+)|(\p{Warang_Citi}+)|(\p{Yi}+))";

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_UNICODE_SCRIPTS_H_
