// The regular expressions that tokenizers name instead of spelling them out.
#ifndef MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_PATTERNS_H_
#define MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_PATTERNS_H_

namespace millrace {

inline constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// A word character of Unicode (UTS #18) and of Rust: Oniguruma's \w lacks the two joiners.
inline constexpr char kWordCharacterPattern[] =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])";
inline constexpr char kWordPattern[] = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|)"
                                       R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";
inline constexpr char kWhiteSpacePattern[] = R"(\s)";
// The punctuation of ASCII and of Unicode 8, which Hugging Face's Punctuation knows.
inline constexpr char kPunctuationPattern[] =
    R"([[\p{P}$+<=>^`|~\x{166d}\x{111c9}]&&[^)"
    R"(\x{61d}\x{9fd}\x{a76}\x{c77}\x{c84}\x{1b4e}-\x{1b4f}\x{1b7d}-\x{1b7f}\x{2e43}-\x{2e4f}\x{2e52}-\x{2e5d})"
    R"(\x{10d6e}\x{10ead}\x{10f55}-\x{10f59}\x{10f86}-\x{10f89}\x{1144b}-\x{1144f}\x{1145a}-\x{1145b})"
    R"(\x{113d4}-\x{113d5}\x{113d7}-\x{113d8}\x{11b00}-\x{11b09}\x{11be1}\x{11f43}-\x{11f4f})"
    R"(\x{16d6d}-\x{16d6f}\x{1e5ff}\x{1145d}\x{11660}-\x{1166c}\x{116b9}\x{1183b}\x{11944}-\x{11946}\x{119e2})"
    R"(\x{11a3f}-\x{11a46}\x{11a9a}-\x{11a9c}\x{11a9e}-\x{11aa2}\x{11c41}-\x{11c45})"
    R"(\x{11c70}-\x{11c71}\x{11ef7}-\x{11ef8}\x{11fff}\x{12ff1}-\x{12ff2}\x{16e97}-\x{16e9a})"
    R"(\x{16fe2}\x{1e95e}-\x{1e95f})"
    R"(]])";
inline constexpr char kNumberPattern[] = R"(\p{N})";
// The numbers of Unicode 17, which Hugging Face's Digits knows.
inline constexpr char kDigitPattern[] = R"([\p{N}\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6}])";

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_PATTERNS_H_
