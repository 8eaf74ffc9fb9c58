// Tokenizes the texts that tokenizer_parity.py gives to Hugging Face's tokenizers:
//     tokenize_lines TOKENIZER LINES    TOKENIZER: a GGUF file, a tokenizer.json, or a folder
// LINES has a JSON string a line. For each: its ids with special text parsed, " | ", and without.
// "!" and a message stand for what is refused.
//     tokenize_lines TOKENIZER LINES seconds N
// Reads LINES as one text and prints how long encoding it took, the fastest of N times.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf/gguf.h"
#include "formats/model_text.h"
#include "formats/tokenizers/tokenizer_gguf.h"
#include "formats/tokenizers/tokenizer_json.h"
#include "text/detokenizer.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    MILLRACE_ASSIGN_OR_RETURN(const ModelText text, ReadFolderText(path));
    return PipelineTokenizer::Create(text.tokenizer);
  }
  if (path.ends_with(".json")) {
    MILLRACE_ASSIGN_OR_RETURN(const TokenizerSpec spec,
                              ReadTokenizerJson(ReadAll(path), "tokenizer.json"));
    return PipelineTokenizer::Create(spec);
  }
  MILLRACE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  MILLRACE_ASSIGN_OR_RETURN(const GgufTokenizer config, ReadGgufTokenizer(file));
  MILLRACE_ASSIGN_OR_RETURN(const TokenizerSpec spec, MakeTokenizerSpec(config));
  return PipelineTokenizer::Create(spec);
}

void PrintIds(const Tokenizer& tokenizer, const std::string& text, bool parse_special) {
  const auto ids = tokenizer.Encode(text, {.add_special = true, .parse_special = parse_special});
  if (!ids.ok()) {
    std::printf("!%s", std::string(ids.status().message()).c_str());
    return;
  }
  for (size_t i = 0; i < ids->size(); ++i) std::printf(i == 0 ? "%d" : " %d", (*ids)[i]);
}

double Seconds(const Tokenizer& tokenizer, const std::string& text, int times) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const Clock::time_point begin = Clock::now();
    if (const auto ids = tokenizer.Encode(text, {}); !ids.ok()) {
      std::fprintf(stderr, "%s\n", std::string(ids.status().message()).c_str());
      return -1;
    }
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

int Main(int argc, char** argv) {
  if (argc != 3 && argc != 5) {
    std::fputs("usage: tokenize_lines TOKENIZER LINES [seconds N]\n", stderr);
    return 2;
  }
  const auto tokenizer = Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str());
    return 1;
  }
  if (argc == 5) {
    std::printf("%.6f\n", Seconds(**tokenizer, ReadAll(argv[2]), std::stoi(argv[4])));
    return 0;
  }
  std::ifstream lines(argv[2]);
  for (std::string line; std::getline(lines, line);) {
    const std::string text = nlohmann::json::parse(line);
    PrintIds(**tokenizer, text, true);
    std::putchar('\t');
    PrintIds(**tokenizer, text, false);
    const std::vector<Token> ids =
        (*tokenizer)->Encode(text, {.parse_special = true}).value_or(std::vector<Token>());
    for (const bool skip_special : {false, true}) {
      const nlohmann::json shown = Decode(**tokenizer, ids, skip_special);
      std::printf("\t%s", shown.dump().c_str());
    }
    std::putchar('\n');
  }
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::Main(argc, argv); }
