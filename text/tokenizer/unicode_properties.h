// How properties in the Oniguruma of Hugging Face's tokenizers 0.23.3, which is of Unicode 16,
// differ from those of version 6.9.8, which is of Unicode 14. Found by asking both about every
// character. The letters, marks and symbols that Unicode 15 and 16 have added are not here.
#ifndef MILLRACE_TEXT_TOKENIZER_UNICODE_PROPERTIES_H_
#define MILLRACE_TEXT_TOKENIZER_UNICODE_PROPERTIES_H_

#include <string_view>

namespace millrace {

// The difference of one property: members of a class of a regular expression.
struct PropertyChange {
  std::string_view name;  // "[:alpha:]", "\\d", or a name for \p{} in lower case, without _ and -
  std::string_view added;
  std::string_view removed = {};
};

#define MILLRACE_ALPHABETIC \
  R"(\x{363}-\x{36f}\x{c04}\x{f82}-\x{f83}\x{1dd3}-\x{1de6}\x{11080}-\x{11081})"
#define MILLRACE_LU R"(\x{1c89}\x{a7cb}-\x{a7cc}\x{a7da}\x{a7dc}\x{10d50}-\x{10d65})"
#define MILLRACE_LL R"(\x{1c8a}\x{a7cd}\x{a7db}\x{10d70}-\x{10d85}\x{1df25}-\x{1df2a})"
#define MILLRACE_LOWER MILLRACE_LL R"(\x{10fc}\x{a7f2}-\x{a7f4}\x{ab69}\x{1e030}-\x{1e06d})"
#define MILLRACE_ND                                                                           \
  R"(\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59}\x{16130}-)" \
  R"(\x{16139}\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})"
#define MILLRACE_PO                                                                                \
  R"(\x{1b4e}-\x{1b4f}\x{1b7f}\x{113d4}-\x{113d5}\x{113d7}-\x{113d8}\x{11b00}-\x{11b09}\x{11be1})" \
  R"(\x{11f43}-\x{11f4f}\x{16d6d}-\x{16d6f}\x{1e5ff})"
#define MILLRACE_CONTINUE R"(\x{200c}-\x{200d}\x{30fb}\x{ff65})"

inline constexpr PropertyChange kPropertyChanges[] = {
    {"[:alnum:]", MILLRACE_ALPHABETIC MILLRACE_ND},
    {"[:alpha:]", MILLRACE_ALPHABETIC},
    {"[:digit:]", MILLRACE_ND},
    {"[:lower:]", MILLRACE_LOWER},
    {"[:punct:]", MILLRACE_PO R"(\x{10d6e}\p{S})"},
    {"[:upper:]", MILLRACE_LU},
    {"\\d", MILLRACE_ND},
    {"alnum", MILLRACE_ALPHABETIC MILLRACE_ND},
    {"alpha", MILLRACE_ALPHABETIC},
    {"alphabetic", MILLRACE_ALPHABETIC},
    {"cased", MILLRACE_LU MILLRACE_LOWER},
    {"decimalnumber", MILLRACE_ND},
    {"digit", MILLRACE_ND},
    {"idcontinue", MILLRACE_CONTINUE},
    {"ll", MILLRACE_LL},
    {"lower", MILLRACE_LOWER},
    {"lowercase", MILLRACE_LOWER},
    {"lowercaseletter", MILLRACE_LL},
    {"lu", MILLRACE_LU},
    {"mc", R"(\x{1171e})"},
    {"mn", "", R"(\x{1171e})"},
    {"n", MILLRACE_ND R"(\x{1d2c0}-\x{1d2d3})"},
    {"nd", MILLRACE_ND},
    {"nonspacingmark", "", R"(\x{1171e})"},
    {"number", MILLRACE_ND R"(\x{1d2c0}-\x{1d2d3})"},
    {"p", MILLRACE_PO R"(\x{10d6e})"},
    {"po", MILLRACE_PO},
    {"punct", MILLRACE_PO R"(\x{10d6e})"},
    {"punctuation", MILLRACE_PO R"(\x{10d6e})"},
    {"sm", R"(\x{10d8e}-\x{10d8f})"},
    {"spacingmark", R"(\x{1171e})"},
    {"upper", MILLRACE_LU},
    {"uppercase", MILLRACE_LU},
    {"uppercaseletter", MILLRACE_LU},
    {"word", R"(\x{b2}-\x{b3}\x{b9}\x{bc}-\x{be})"},
    {"xidcontinue", MILLRACE_CONTINUE},
};

#undef MILLRACE_ALPHABETIC
#undef MILLRACE_LU
#undef MILLRACE_LL
#undef MILLRACE_LOWER
#undef MILLRACE_ND
#undef MILLRACE_PO
#undef MILLRACE_CONTINUE

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_UNICODE_PROPERTIES_H_
