// Times grammars of JSON schemas over the vocabulary of a GGUF file.
//
//   grammar_masks VOCABULARY.gguf < LINES    one JSON object a line: {"schema": {…}, "valid":
//   ["…"]}
//
// The first line that it writes is the vocabulary, {"tokens": [hex], "special": [ids], "end":
// [ids], "size": n}, so that other engines can be given the same. It answers each line with one:
// {"compile_us": x, "error": "…"}, or {"compile_us": x, "tokens": [[ids] of each instance],
// "accepted": [bool], "mask_us": [x of every token]}. bench/grammars compares engines with it.
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/thread_clock.h"
#include "formats/gguf/gguf.h"
#include "formats/tokenizers/tokenizer_gguf.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;  // a schema's properties have an order

// Returns the time that this thread has computed, in microseconds. The machine may have other work.
double Micros() {
  return std::chrono::duration<double, std::micro>(ThreadClock::now().time_since_epoch()).count();
}

struct Text {
  std::unique_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
};

absl::StatusOr<Text> Load(const char* path) {
  const auto file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  auto read = ReadGgufTokenizer(*file);
  if (!read.ok()) return read.status();
  auto spec = MakeTokenizerSpec(*std::move(read));
  if (!spec.ok()) return spec.status();
  auto tokenizer = PipelineTokenizer::Create(*std::move(spec));
  if (!tokenizer.ok()) return tokenizer.status();
  Text text;
  text.tokenizer = *std::move(tokenizer);
  std::vector<VocabularyToken> tokens(text.tokenizer->vocab_size());
  Json written = {{"tokens", Json::array()}, {"special", Json::array()}, {"size", tokens.size()}};
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<Token>(i);
    tokens[i] = {text.tokenizer->TokenBytes(token), text.tokenizer->IsSpecial(token)};
    written["tokens"].push_back(absl::BytesToHexString(std::string(tokens[i].bytes)));
    if (tokens[i].special) written["special"].push_back(i);
  }
  const auto ends = text.tokenizer->end_of_generation();
  written["end"] = std::vector<Token>(ends.begin(), ends.end());
  std::cout << written.dump() << std::endl;
  text.vocabulary = std::make_shared<GrammarVocabulary>(
      tokens, std::vector<Token>(ends.begin(), ends.end()), static_cast<int32_t>(tokens.size()));
  return text;
}

// Follows one instance; adds the time of the mask before each token, and of the one at its end.
bool Follow(GrammarMatcher matcher, const std::vector<Token>& tokens, Json* micros) {
  for (size_t i = 0; i <= tokens.size(); ++i) {
    const double begin = Micros();
    const auto mask = matcher.Mask();
    micros->push_back(Micros() - begin);
    if (!mask.ok()) return false;
    if (i == tokens.size()) return matcher.accepting();
    if (!MaskAllows(**mask, tokens[i]) || !matcher.Accept(tokens[i])) return false;
  }
  return true;
}

Json Answer(const Text& text, const Json& line) {
  const std::string schema = line["schema"].dump();
  const double begin = Micros();
  const auto grammar = Grammar::Compile({.kind = GrammarSpec::Kind::kJsonSchema, .text = schema});
  Json answer = {{"compile_us", Micros() - begin}};
  if (!grammar.ok()) {
    answer["error"] = std::string(grammar.status().message());
    return answer;
  }
  answer["accepted"] = Json::array();
  answer["mask_us"] = Json::array();
  for (const Json& instance : line["valid"]) {
    const auto tokens = text.tokenizer->Encode(instance.get<std::string>(), {.add_special = false});
    answer["tokens"].push_back(tokens.value_or(std::vector<Token>()));
    answer["accepted"].push_back(tokens.ok() &&
                                 Follow({*grammar, text.vocabulary}, *tokens, &answer["mask_us"]));
  }
  return answer;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: grammar_masks VOCABULARY.gguf < LINES\n";
    return 2;
  }
  const auto text = millrace::Load(argv[1]);
  if (!text.ok()) {
    std::cerr << text.status() << '\n';
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << millrace::Answer(*text, millrace::Json::parse(line)).dump() << std::endl;
  }
}
