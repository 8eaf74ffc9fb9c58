#include "formats/tokenizers/tokenizer_pre.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/strings.h"
#include "formats/tokenizers/tokenizer_patterns.h"

namespace millrace {
namespace {

// The patterns are those of the models' own tokenizer.json files. llama.cpp spells some of them
// otherwise, as its engine lacks \p{Lu} and (?i:), and gives other pieces where the two differ.

// Parts that several patterns share.
constexpr char kContractions[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
constexpr char kWord[] = R"([^\r\n\p{L}\p{N}]?\p{L}+)";
constexpr char kSymbols[] = R"( ?[^\s\p{L}\p{N}]+[\r\n]*)";
constexpr char kSpaces[] = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// The pattern of GPT-4 (cl100k) and of its many relatives, which differ in their numbers.
std::string Gpt4(std::string_view numbers) {
  return StrCat(kContractions, "|", kWord, "|", numbers, "|", kSymbols, "|", kSpaces);
}

// The pattern of GPT-4o (o200k) and its relatives: a word ends where a capital letter follows a
// small one. `suffix` may end a word.
std::string Gpt4o(std::string_view suffix, std::string_view numbers) {
  constexpr char kBefore[] = R"([^\r\n\p{L}\p{N}]?)";
  constexpr char kUpper[] = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
  constexpr char kLower[] = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
  return StrCat(kBefore, kUpper, "*", kLower, "+", suffix, "|", kBefore, kUpper, "+", kLower, "*",
                suffix, "|", numbers, R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|)", kSpaces);
}

// Chinese by itself, and the words of other scripts without it.
std::string KimiK2() {
  constexpr char kBefore[] = R"([^\r\n\p{L}\p{N}]?)";
  constexpr char kUpper[] = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
  constexpr char kLower[] = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
  return StrCat(R"([\p{Han}]+|)", kBefore, kUpper, "*", kLower, "+", kContractions, "?|", kBefore,
                kUpper, "+", kLower, "*", kContractions, R"(?|\p{N}{1,3}|)", kSymbols, "|",
                kSpaces);
}

constexpr char kJais2Spaces[] =
    R"(\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|)"
    R"(\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})";
constexpr char kSeedCoderSymbols[] = R"(\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)";
constexpr char kBailing[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|)"
    R"(\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr char kExaoneMoe[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr char kQwen35[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                           R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kYoutuScripts[] =
    R"([\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|)"
    R"([\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c}\x{3001}-)"
    R"(\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|[\x{4e00}-\x{9fa5}\x{3040}-\x{309f})"
    R"(\x{30a0}-\x{30ff}]+)";
constexpr char kBloom[] = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)";
constexpr char kLines[] = R"([^\n]+|[\n]+)";
constexpr char kCjk[] = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";
// DeepSeek's letters and punctuation.
constexpr char kDeepSeekLetters[] =
    R"(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-)"
    R"(\x{293}\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386})"
    R"(\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f})"
    R"(\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba})"
    R"(\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-)"
    R"(\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59})"
    R"(\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-)"
    R"(\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2})"
    R"(-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d})"
    R"(\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f})"
    R"(\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-)"
    R"(\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-)"
    R"(\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21})"
    R"(-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})"
    R"(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)";
constexpr char kDeepSeekPunctuation[] =
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)";
constexpr char kThreeDigits[] = R"(\p{N}{1,3})";
constexpr char kCjkKana[] = R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
constexpr char kDeepSeek3Words[] = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
                                   R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+)";
// Groups of three digits, counted from the end of a number.
constexpr char kAfmoeDigits[] = R"((?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})++(?!\p{N}))|\p{N}{1,3})";
constexpr char kAfmoeScripts[] =
    R"([\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff})"
    R"(\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff})"
    R"(\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+)";

SplitPreTokenizer Isolate(std::string regex) {
  return {{true, std::move(regex)}, SplitBehavior::kIsolated};
}
SplitPreTokenizer Contiguous(const char* regex) {
  return {{true, regex}, SplitBehavior::kContiguous};
}

// Byte-level BPE ends with the spelling of bytes.
std::vector<PreTokenizerSpec> Bytes(std::vector<std::string> regexes) {
  std::vector<PreTokenizerSpec> steps;
  for (std::string& regex : regexes) steps.emplace_back(Isolate(std::move(regex)));
  steps.emplace_back(SimplePreTokenizer::kSpellBytes);
  return steps;
}

std::vector<GgufPreTokenizer> MakeTable() {
  constexpr const char* kGpt2 = kGpt2Pattern;
  constexpr const char* kDigit = kDigitPattern;    // a step of its own
  constexpr const char* kNumber = kNumberPattern;  // part of an expression
  const std::string llama3 = Gpt4(kThreeDigits);
  const std::string qwen2 = Gpt4(kNumber);
  const std::string contraction = StrCat(kContractions, "?");
  const std::string gpt4o = Gpt4o(contraction, kThreeDigits);
  const std::string deepseek3 = StrCat(kDeepSeek3Words, R"([\r\n]*|)", kSpaces);
  const std::string words = StrCat(kContractions, "|", kWord, "|");
  return {
      // llama.cpp's own, of no model.
      {.names = {"default"},
       .steps = Bytes({R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"})},
      {.names = {"gpt-2", "a.x-4.0", "exaone4", "gigachat", "granite-docling", "jais", "jina-de",
                 "jina-es", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es", "mellum",
                 "phi-2", "roberta-bpe", "trillion"},
       .steps = Bytes({kGpt2})},
      {.names = {"modern-bert", "mpt", "olmo"}, .steps = Bytes({kGpt2}), .nfc = true},
      {.names = {"codeshell", "exaone", "mellum2", "minerva-7b", "refact", "smollm", "starcoder"},
       .steps = Bytes({kDigit, kGpt2})},
      {.names = {"command-r"}, .steps = Bytes({kDigit, kGpt2}), .nfc = true},
      // The last steps work on GPT-2's characters, some of which are digits.
      {.names = {"falcon"},
       .steps = {Contiguous(kPunctuationPattern), Isolate(kGpt2), SimplePreTokenizer::kSpellBytes,
                 Contiguous(kDigit), Isolate("[0-9][0-9][0-9]")}},
      {.names = {"falcon-h1", "falcon3", "jina-v5-nano", "lfm2", "llama-bpe", "llama-v3", "llama3",
                 "midm-2.0", "pixtral"},
       .steps = Bytes({llama3}),
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"glm4", "glm5"}, .steps = Bytes({llama3}), .ignore_merges = true},
      {.names = {"chatglm-bpe", "dbrx", "smaug-bpe"}, .steps = Bytes({llama3})},
      {.names = {"deepseek-r1-qwen", "f2llmv2", "hunyuan", "kormo", "megrez", "qwen2", "stablelm2"},
       .steps = Bytes({qwen2}),
       .nfc = true},
      {.names = {"grok-2", "solar-open"}, .steps = Bytes({qwen2})},
      {.names = {"qwen35"}, .steps = Bytes({kQwen35}), .nfc = true},
      {.names = {"laguna"}, .steps = Bytes({kLines, qwen2})},
      {.names = {"minicpm5"},
       .steps = Bytes({kThreeDigits, Gpt4(R"(\p{N}+)")}),
       .ignore_merges = true},
      {.names = {"ufakzeka"},
       .steps = Bytes({StrCat(kWord, "|", kNumber, "|", kSymbols, "|", kSpaces)})},
      {.names = {"seed-coder"}, .steps = Bytes({StrCat(words, kSeedCoderSymbols, "|", kSpaces)})},
      {.names = {"jais-2"},
       .steps = Bytes({StrCat(words, kThreeDigits, "|", kSymbols, "|", kJais2Spaces)})},
      {.names = {"bailingmoe", "bailingmoe2", "llada-moe"}, .steps = Bytes({kBailing})},
      {.names = {"exaone-moe"}, .steps = Bytes({kExaoneMoe})},
      {.names = {"tekken"},
       .steps = Bytes({Gpt4o("", kNumber)}),
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"gpt-4o", "kanana2", "llama4", "minimax-m2", "talkie"}, .steps = Bytes({gpt4o})},
      {.names = {"granite-embed-multi-97m"}, .steps = Bytes({gpt4o}), .ignore_merges = true},
      {.names = {"cohere2moe", "tiny_aya"},
       .steps = Bytes({R"(\d{1,3}(?=(?:\d{3})*\b))", gpt4o}),
       .nfc = true},
      {.names = {"youtu"},
       .steps = Bytes({kYoutuScripts, Gpt4o(contraction, kNumber)}),
       .ignore_merges = true},
      {.names = {"kimi-k2"}, .steps = Bytes({KimiK2()})},
      {.names = {"deepseek-coder"},
       .steps = Bytes({R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjk, kDigit})},
      {.names = {"deepseek-llm"},
       .steps =
           Bytes({R"([\r\n])", kDeepSeekLetters, kDeepSeekPunctuation, R"(\s+$)", kCjk, kDigit})},
      {.names = {"deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"},
       .steps = Bytes({kThreeDigits, kCjkKana, deepseek3})},
      {.names = {"spark2_5"},
       .steps = Bytes(
           {kThreeDigits, kCjkKana, StrCat(kDeepSeek3Words, R"(|[\r\n]|\s+(?!\S)|\s+)"), kNumber})},
      {.names = {"afmoe"}, .steps = Bytes({kAfmoeDigits, kAfmoeScripts, deepseek3})},
      {.names = {"bloom", "gpt3-finnish", "poro-chat"}, .steps = Bytes({kBloom})},
      {.names = {"viking"}, .steps = Bytes({kBloom, kDigit})},
      {.names = {"superbpe"}, .steps = Bytes({R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"})},
      {.names = {"chameleon"},
       .steps = {Isolate("<sentinel:[0-9]+>"), Isolate("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
                 Isolate(R"(([\t\n]|    |  ))"), Isolate(kDigit), Isolate(kPunctuationPattern),
                 Isolate(kGpt2), SimplePreTokenizer::kSpellBytes},
       .add_bos = true},
      // Words of characters, not of bytes.
      {.names = {"whitespace"},
       .steps = {SplitPreTokenizer{{true, kWhiteSpacePattern}, SplitBehavior::kRemoved}}},
  };
}

constexpr std::string_view kSentencePieceNames[] = {"gemma4", "granite-embed-multi-311m",
                                                    "sarvam-moe"};

}  // namespace

std::span<const GgufPreTokenizer> GgufPreTokenizers() {
  static const auto& table = *new std::vector<GgufPreTokenizer>(MakeTable());
  return table;
}

const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name) {
  for (const GgufPreTokenizer& pre : GgufPreTokenizers()) {
    if (std::find(pre.names.begin(), pre.names.end(), name) != pre.names.end()) return &pre;
  }
  return nullptr;
}

bool IsSentencePiecePre(std::string_view name) {
  return std::find(std::begin(kSentencePieceNames), std::end(kSentencePieceNames), name) !=
         std::end(kSentencePieceNames);
}

std::vector<std::string_view> GgufPreNames() {
  std::vector<std::string_view> names(std::begin(kSentencePieceNames),
                                      std::end(kSentencePieceNames));
  for (const GgufPreTokenizer& pre : GgufPreTokenizers()) {
    names.insert(names.end(), pre.names.begin(), pre.names.end());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace millrace
