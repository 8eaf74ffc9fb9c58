#include "server/http/openai/token_fields.h"

#include <charconv>
#include <string>
#include <string_view>
#include <system_error>

#include "base/strings.h"
#include "formats/json/exact_json.h"

namespace millrace {
namespace {

// {"<token id>": bias, …}
void ReadLogitBias(FieldReader& fields, std::vector<LogitBias>& biases) {
  const OrderedJson* field = fields.Find("logit_bias");
  if (field == nullptr) return;
  constexpr std::string_view kAllowed = "an object of token ids and numbers";
  if (!field->is_object()) return fields.FailValue("logit_bias", *field, kAllowed);
  if (field->size() > kMaxLogitBiases) {
    return fields.Fail(
        "logit_bias", "invalid_value",
        StrCat("logit_bias has ", field->size(), " tokens; allowed: at most ", kMaxLogitBiases));
  }
  for (const OrderedMember* member : SortedMembers(*field)) {
    const auto& [name, bias] = *member;
    Token token;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || end != name.data() + name.size()) {
      return fields.FailValue("logit_bias", name, "token ids as names");
    }
    if (!IsNumber(bias)) {
      return fields.FailValue(StrCat("logit_bias.", token), bias, "a number from -100 to 100");
    }
    biases.push_back({token, static_cast<float>(NumberOf(bias))});
  }
}

// Reads what keeps tokens out of the answer.
void ReadTokenBounds(FieldReader& fields, GenerateRequest& options) {
  if (fields.Find("allowed_token_ids") != nullptr) {
    fields.Read("allowed_token_ids", options.allowed_token_ids.emplace());
  }
  const OrderedJson* words = fields.Find("bad_words");
  if (words == nullptr) return;
  constexpr std::string_view kAllowed = "a list of strings";
  if (!words->is_array()) return fields.FailValue("bad_words", *words, kAllowed);
  for (const OrderedJson& word : *words) {
    if (!word.is_string()) {
      return fields.FailValue(StrCat("bad_words[", options.bad_words.size(), "]"), word,
                              "a string");
    }
    options.bad_words.push_back(word.get<std::string>());
  }
}

}  // namespace

void ReadTokenFields(FieldReader& fields, GenerateRequest& options) {
  ReadLogitBias(fields, options.logit_bias);
  ReadTokenBounds(fields, options);
}

}  // namespace millrace
