// For tests of config.json's readers: the twins' configs, and what is refused of them.
#ifndef MILLRACE_FORMATS_HUGGINGFACE_HF_FAMILIES_TEST_UTIL_H_
#define MILLRACE_FORMATS_HUGGINGFACE_HF_FAMILIES_TEST_UTIL_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/huggingface/hf_config.h"
#include "formats/json/json.h"
#include "formats/twins/family_twins.h"

namespace millrace {

inline Json Twin(const std::string& name) {
  for (const FamilyTwin& twin : FamilyTwins()) {
    if (twin.name == name) return twin.config;
  }
  ADD_FAILURE() << name;
  return {};
}

inline std::string Error(const Json& json) {
  const absl::StatusOr<HfConfig> config = ReadHfConfig(json.dump(), "config.json");
  return config.ok() ? "no error" : std::string(config.status().message());
}
inline std::string Error(Json json, const char* change) {
  json.merge_patch(Json::parse(change));
  return Error(json);
}

struct Refusal {
  const char* twin;
  const char* change;
  const char* message;  // behind "config.json: "
};

inline void ExpectRefused(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    EXPECT_THAT(Error(Twin(refusal.twin), refusal.change),
                testing::StartsWith(StrCat("config.json: ", refusal.message)))
        << refusal.twin << " " << refusal.change;
  }
}

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HUGGINGFACE_HF_FAMILIES_TEST_UTIL_H_
