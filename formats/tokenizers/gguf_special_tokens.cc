#include "formats/tokenizers/gguf_special_tokens.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "base/strings.h"

namespace millrace {
namespace {

// The texts are those of llama.cpp's src/llama-vocab.cpp (llama-cpp-python 0.3.36).
constexpr std::string_view kEnds[] = {"<|eot_id|>",
                                      "<|im_end|>",
                                      "<|end|>",
                                      "<|return|>",
                                      "<|call|>",
                                      "<|flush|>",
                                      "<|calls|>",
                                      "<end_of_turn>",
                                      "<|endoftext|>",
                                      "</s>",
                                      "<|eom_id|>",
                                      "<EOT>",
                                      "_<EOT>",
                                      "[EOT]",
                                      "[EOS]",
                                      "<|end_of_text|>",
                                      "<end_of_utterance>",
                                      "<eos>",
                                      "<turn|>",
                                      "<|tool_response>",
                                      "<｜end▁of▁sentence｜>",
                                      "[e~["};
constexpr std::string_view kFimPrefixes[] = {"<|fim_prefix|>",  "<fim-prefix>", "<fim_prefix>",
                                             "<｜fim▁begin｜>", "<PRE>",        "▁<PRE>",
                                             "<|code_prefix|>", "<|prefix|>"};
constexpr std::string_view kFimSuffixes[] = {"<|fim_suffix|>",  "<fim-suffix>", "<fim_suffix>",
                                             "<｜fim▁hole｜>",  "<SUF>",        "▁<SUF>",
                                             "<|code_suffix|>", "<|suffix|>"};
constexpr std::string_view kFimMiddles[] = {"<|fim_middle|>",  "<fim-middle>", "<fim_middle>",
                                            "<｜fim▁end｜>",   "<MID>",        "▁<MID>",
                                            "<|code_middle|>", "<|middle|>"};
constexpr std::string_view kFimPaddings[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>",
                                             "[PAD]"};
constexpr std::string_view kFimRepositories[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                                 "<REPO>", "<reponame>"};
constexpr std::string_view kFimSeparators[] = {"<|file_sep|>"};
// gpt-oss's, which are matched in any text where the file does not make control tokens of them.
constexpr std::string_view kChannels[] = {"<|channel|>", "<|message|>", "<|start|>",
                                          "<|constrain|>"};

class Finder {
 public:
  explicit Finder(GgufTokenizer* gguf) : gguf_(*gguf) {
    ids_.reserve(gguf->tokens.size());
    for (size_t id = 0; id < gguf->tokens.size(); ++id) {
      ids_[gguf->tokens[id]] = static_cast<int32_t>(id);
    }
  }

  std::optional<int32_t> Id(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  // Finds a token that no key names by the first of these texts that there is.
  void FindFim(absl::Span<const std::string_view> texts, std::optional<int32_t>* fim) {
    for (const std::string_view text : texts) {
      if (fim->has_value()) return;
      *fim = Id(text);
      if (fim->has_value()) MakeSpecial(**fim, TokenType::kControl);
    }
  }

  void FindEnds() {
    std::vector<int32_t>& ends = gguf_.ends;
    for (const std::string_view text : kEnds) {
      const std::optional<int32_t> id = Id(text);
      if (!id.has_value()) continue;
      ends.push_back(*id);
      MakeSpecial(*id, TokenType::kControl);
    }
    for (const std::optional<int32_t>& id : {gguf_.eos, gguf_.eot, gguf_.eom, gguf_.fim_padding,
                                             gguf_.fim_repository, gguf_.fim_separator}) {
      if (id.has_value()) ends.push_back(*id);
    }
    for (const std::string_view text : kChannels) {
      if (const auto id = Id(text)) MakeSpecial(*id, TokenType::kUserDefined);
    }
    const bool calls = Ends("<|call|>") || Ends("<|calls|>");
    if (calls && (Ends("<|return|>") || Ends("<|flush|>"))) RemoveEnd("<|end|>");
    if ((Ends("<|tool_response>") || Ends("<|plamo:eos|>")) && Ends("</s>")) {
      gguf_.types[static_cast<size_t>(*Id("</s>"))] = TokenType::kNormal;
      RemoveEnd("</s>");
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  }

 private:
  bool Ends(std::string_view text) const {
    const std::optional<int32_t> id = Id(text);
    return id.has_value() &&
           std::find(gguf_.ends.begin(), gguf_.ends.end(), *id) != gguf_.ends.end();
  }

  void RemoveEnd(std::string_view text) {
    if (const auto id = Id(text)) std::erase(gguf_.ends, *id);
  }

  // Gives a token this type unless the file has made a special one of it.
  void MakeSpecial(int32_t id, TokenType type) {
    TokenType& own = gguf_.types[static_cast<size_t>(id)];
    if (own == TokenType::kControl || own == type) return;
    gguf_.warnings.push_back(
        StrCat("key tokenizer.ggml.token_type: token ", id, " \"",
               Printable(gguf_.tokens[static_cast<size_t>(id)]), "\" has type ",
               static_cast<int>(own), ", and is read as ",
               type == TokenType::kControl ? "a control token" : "a user-defined token"));
    own = type;
  }

  GgufTokenizer& gguf_;
  absl::flat_hash_map<std::string_view, int32_t, StringHash> ids_;
};

bool IsSpecial(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUserDefined ||
         type == TokenType::kUnknown;
}

// Sets which tokens take white space along, of models whose files do not say so.
void FindStrips(std::string_view model_name, const Finder& finder, GgufTokenizer* gguf) {
  std::string name(model_name);
  absl::AsciiStrToLower(&name);
  const auto has = [](std::string_view text, std::string_view part) {
    return text.find(part) != text.npos;
  };
  if (gguf->pre == "jina-v2-de" || gguf->pre == "jina-v2-es" || gguf->pre == "jina-v2-code") {
    gguf->left_stripping = finder.Id("<mask>");
  } else if (has(name, "phi-3") || has(name, "phi3")) {
    for (size_t id = 0; id < gguf->tokens.size(); ++id) {
      const std::string_view text = gguf->tokens[id];
      const bool plain = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
      if ((IsSpecial(gguf->types[id]) && !plain) || text == "</s>") {
        gguf->right_stripping.push_back(static_cast<int32_t>(id));
      }
    }
  } else if (has(name, "modern-bert")) {
    gguf->left_stripping = finder.Id("[MASK]");
  }
}

}  // namespace

void FindSpecialTokens(std::string_view model_name, GgufTokenizer* gguf) {
  Finder finder(gguf);
  finder.FindFim(kFimPrefixes, &gguf->fim_prefix);
  finder.FindFim(kFimSuffixes, &gguf->fim_suffix);
  finder.FindFim(kFimMiddles, &gguf->fim_middle);
  finder.FindFim(kFimPaddings, &gguf->fim_padding);
  finder.FindFim(kFimRepositories, &gguf->fim_repository);
  finder.FindFim(kFimSeparators, &gguf->fim_separator);
  finder.FindEnds();
  FindStrips(model_name, finder, gguf);
}

}  // namespace millrace
