// The steps of tokenizer.json's pipeline, one function for each of its fields.
#ifndef MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_JSON_PARTS_H_
#define MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_JSON_PARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/json/json_fields.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

constexpr int32_t kMaxTokenizerId = (1 << 22) - 1;

// A part's value is an object with a "type", or null where the tokenizer has none; `before` is what
// stands before its fields in messages: "tokenizer.json: normalizer.". Sequences come out flat.
absl::StatusOr<std::vector<NormalizerSpec>> ReadNormalizers(const Json& value,
                                                            const std::string& before);
absl::StatusOr<std::vector<PreTokenizerSpec>> ReadPreTokenizers(const Json& value,
                                                                const std::string& before);
absl::StatusOr<std::vector<std::optional<int32_t>>> ReadFrame(const Json& value,
                                                              const std::string& before);
absl::StatusOr<std::vector<DecoderSpec>> ReadDecoders(const Json& value, const std::string& before);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TOKENIZERS_TOKENIZER_JSON_PARTS_H_
