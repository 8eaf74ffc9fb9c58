#include "formats/tokenizers/pair_frame.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {
namespace {

using Kind = PairPart::Kind;

constexpr size_t kMaxParts = 64;
constexpr int64_t kMaxId = 1 << 30;

const Json& Field(const Json& object, std::string_view name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

bool IsId(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= kMaxId;
}

// [CLS] A [SEP] B [SEP], or RoBERTa's <s> A </s> </s> B </s>, whose types are all 0.
std::vector<PairPart> ClsSepFrame(const Json& processor, bool roberta) {
  int32_t ids[2] = {};
  for (const bool sep : {false, true}) {
    const Json& pair = Field(processor, sep ? "sep" : "cls");
    if (!pair.is_array() || pair.size() != 2 || !IsId(pair[1])) return {};
    ids[sep ? 1 : 0] = pair[1].get<int32_t>();
  }
  std::vector<PairPart> frame = {
      {Kind::kToken, ids[0]}, {Kind::kFirstText}, {Kind::kToken, ids[1]}};
  if (roberta) frame.push_back({Kind::kToken, ids[1]});
  frame.push_back({Kind::kSecondText, 0, !roberta});
  frame.push_back({Kind::kToken, ids[1], !roberta});
  return frame;
}

// Appends what one piece of a template stands for. Returns false where it is not supported.
bool AddPiece(const Json& piece, const Json& specials, std::vector<PairPart>* frame) {
  const Json& sequence = Field(piece, "Sequence");
  const Json& special = Field(piece, "SpecialToken");
  const Json& fields = sequence.is_null() ? special : sequence;
  const Json& id = Field(fields, "id");
  const Json& type = Field(fields, "type_id");
  if (!id.is_string() || !IsId(type) || type.get<uint64_t>() > 1) return false;
  const bool second_type = type.get<uint64_t>() == 1;
  if (!sequence.is_null()) {
    if (id != "A" && id != "B") return false;
    frame->push_back({id == "A" ? Kind::kFirstText : Kind::kSecondText, 0, second_type});
    return true;
  }
  const Json& ids = Field(Field(specials, id.get_ref<const std::string&>()), "ids");
  if (!ids.is_array()) return false;
  for (const Json& token : ids) {
    if (!IsId(token) || frame->size() >= kMaxParts) return false;
    frame->push_back({Kind::kToken, token.get<int32_t>(), second_type});
  }
  return true;
}

std::vector<PairPart> TemplateFrame(const Json& processor) {
  const Json& pieces = Field(processor, "pair");
  if (!pieces.is_array() || pieces.size() > kMaxParts) return {};
  std::vector<PairPart> frame;
  for (const Json& piece : pieces) {
    if (!AddPiece(piece, Field(processor, "special_tokens"), &frame)) return {};
  }
  return frame;
}

bool IsUsable(const std::vector<PairPart>& frame) {
  int first = 0;
  int second = 0;
  bool second_type = false;
  for (const PairPart& part : frame) {
    first += part.kind == Kind::kFirstText ? 1 : 0;
    second += part.kind == Kind::kSecondText ? 1 : 0;
    if (second > first || (second_type && !part.second_type)) return false;
    second_type = part.second_type;
  }
  return first == 1 && second == 1;
}

}  // namespace

std::vector<PairPart> ReadPairFrame(const Json& post_processor) {
  const Json& type = Field(post_processor, "type");
  if (type == "Sequence") {
    const Json& steps = Field(post_processor, "processors");
    if (!steps.is_array()) return {};
    for (const Json& step : steps) {
      if (Field(step, "type") == "Sequence") continue;
      if (std::vector<PairPart> frame = ReadPairFrame(step); !frame.empty()) return frame;
    }
    return {};
  }
  std::vector<PairPart> frame;
  if (type == "TemplateProcessing") frame = TemplateFrame(post_processor);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    frame = ClsSepFrame(post_processor, type == "RobertaProcessing");
  }
  return IsUsable(frame) ? frame : std::vector<PairPart>();
}

}  // namespace millrace
