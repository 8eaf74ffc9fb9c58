#include "server/http/openai/logprobs_writer.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "server/http/json/json_writer.h"
#include "text/utf8.h"

namespace millrace {
namespace {

void Separate(std::string& list) {
  if (!list.empty()) list += ',';
}

void AppendBytes(std::string& out, std::string_view bytes) {
  out += '[';
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    AppendJsonNumber(out, static_cast<unsigned char>(bytes[i]));
  }
  out += ']';
}

// "token":…,"logprob":…,"bytes":[…]
void AppendChatToken(std::string& out, std::string_view bytes, float logprob) {
  out += R"("token":)";
  AppendTokenText(out, ApiKind::kChat, bytes);
  out += R"(,"logprob":)";
  AppendJsonLogprob(out, logprob);
  out += R"(,"bytes":)";
  AppendBytes(out, bytes);
}

}  // namespace

void AppendTokenText(std::string& out, ApiKind kind, std::string_view bytes) {
  if (FindInvalidUtf8(bytes) == bytes.npos) return AppendJsonString(out, bytes);
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text = kind == ApiKind::kCompletion ? "bytes:" : "";
  while (!bytes.empty()) {
    const Utf8Unit unit = FirstUtf8Unit(bytes);
    for (char c : bytes.substr(0, unit.size)) {
      if (unit.kind == Utf8Unit::kCharacter) {
        text += c;
      } else {
        text += "\\x";
        text += kHex[static_cast<unsigned char>(c) >> 4];
        text += kHex[c & 15];
      }
    }
    bytes.remove_prefix(unit.size);
  }
  AppendJsonString(out, text);
}

void AppendPromptLogprobs(std::string& out, absl::Span<const TokenDetail> prompt, int32_t top) {
  for (const TokenDetail& detail : prompt) {
    if (out.back() != '[') out += ',';
    if (!detail.logprob) {
      out += "null";
      continue;
    }
    out += '{';
    const auto add = [&](Token token, std::string_view bytes, float logprob, int32_t rank) {
      if (out.back() != '{') out += ',';
      out += '"';
      AppendJsonNumber(out, token);
      out += R"(":{"logprob":)";
      AppendJsonLogprob(out, logprob);
      out += R"(,"rank":)";
      AppendJsonNumber(out, rank);
      out += R"(,"decoded_token":)";
      AppendTokenText(out, ApiKind::kChat, bytes);
      out += '}';
    };
    add(detail.token, detail.bytes, *detail.logprob, detail.rank);
    const auto shown = std::min(static_cast<int32_t>(detail.top.size()), top);
    for (int32_t i = 0; i < shown; ++i) {
      const TokenAlternative& other = detail.top[static_cast<size_t>(i)];
      if (other.token != detail.token) add(other.token, other.bytes, other.logprob, i + 1);
    }
    out += '}';
  }
}

void LogprobsWriter::Add(const TokenDetail& detail) {
  if (kind_ == ApiKind::kCompletion) {
    AddCompletion(detail);
  } else {
    AddChat(detail);
  }
}

void LogprobsWriter::AddCompletion(const TokenDetail& detail) {
  for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) Separate(*list);
  AppendTokenText(tokens_, kind_, detail.bytes);
  AppendJsonNumber(offsets_, offset_);
  if (detail.shown) CountCharacters(detail.bytes);
  if (!detail.logprob) {
    logprobs_ += "null";
    top_ += "null";
    return;
  }
  AppendJsonLogprob(logprobs_, *detail.logprob);
  // The chosen token is always among them. Two tokens may have the same text, and an object a key
  // only once: the likelier one stays, and the chosen one before any.
  top_ += '{';
  std::vector<std::string_view> written;
  const auto add = [&](std::string_view bytes, float logprob) {
    if (std::find(written.begin(), written.end(), bytes) != written.end()) return;
    if (!written.empty()) top_ += ',';
    written.push_back(bytes);
    AppendTokenText(top_, kind_, bytes);
    top_ += ':';
    AppendJsonLogprob(top_, logprob);
  };
  const auto shown = Shown(detail);
  const bool listed = std::any_of(shown.begin(), shown.end(),
                                  [&](const auto& other) { return other.token == detail.token; });
  if (!listed) add(detail.bytes, *detail.logprob);
  for (const TokenAlternative& other : shown) {
    if (other.bytes != detail.bytes || other.token == detail.token) add(other.bytes, other.logprob);
  }
  top_ += '}';
}

// A character counts where it begins, and so does what U+FFFD stands for.
void LogprobsWriter::CountCharacters(std::string_view bytes) {
  const bool counted = !cut_.empty();  // its beginning
  cut_ += bytes;
  std::string_view left = cut_;
  for (bool first = true; !left.empty(); first = false) {
    const Utf8Unit unit = FirstUtf8Unit(left);
    if (!first || !counted) ++offset_;
    if (unit.kind == Utf8Unit::kCut) break;
    left.remove_prefix(unit.size);
  }
  cut_ = std::string(left);
}

void LogprobsWriter::AddChat(const TokenDetail& detail) {
  Separate(tokens_);
  tokens_ += '{';
  AppendChatToken(tokens_, detail.bytes, detail.logprob.value_or(0));
  tokens_ += R"(,"top_logprobs":[)";
  for (const TokenAlternative& other : Shown(detail)) {
    tokens_ += tokens_.back() == '[' ? "{" : ",{";
    AppendChatToken(tokens_, other.bytes, other.logprob);
    tokens_ += '}';
  }
  tokens_ += "]}";
}

void LogprobsWriter::Flush(std::string& out) {
  if (kind_ == ApiKind::kChat) {
    out += R"({"content":[)";
    out += tokens_;
    out += R"(],"refusal":null})";
  } else {
    out += R"({"tokens":[)";
    out += tokens_;
    out += R"(],"token_logprobs":[)";
    out += logprobs_;
    out += R"(],"top_logprobs":[)";
    out += top_;
    out += R"(],"text_offset":[)";
    out += offsets_;
    out += "]}";
  }
  for (std::string* list : {&tokens_, &logprobs_, &top_, &offsets_}) list->clear();
}

}  // namespace millrace
