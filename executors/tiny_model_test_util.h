// Shared by the tests of several executors: tiny models, written to files during the test, prompts,
// and log-probabilities.
#ifndef MILLRACE_EXECUTORS_TINY_MODEL_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_TINY_MODEL_TEST_UTIL_H_

#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/executor_driver_test_util.h"
#include "formats/twins/hf_test_util.h"
#include "gtest/gtest.h"
#include "plan/step_plan.h"

namespace millrace {

// Returns `length` tokens below `vocab`, which depend on the seed.
inline std::vector<Token> Prompt(int length, int seed = 0, int vocab = 261) {
  std::vector<Token> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((i * 37 + seed * 101 + i * i) % vocab);
  return prompt;
}

// Types of a model's linears and embeddings.
inline TinyLlama Tiny(std::string architecture, TensorType type = TensorType::kF32) {
  TinyLlama model;
  model.architecture = std::move(architecture);
  model.tied = model.architecture == "llama";
  model.linear_type = model.embedding_type = type;
  return model;
}

// Checks that penalties count the prompt and the generated tokens (`count` in all), and that the
// counts are rebuilt from the tokens.
inline void ExpectPenaltiesCountAll(Executor& executor, int32_t count) {
  const std::vector<Token> prompt = Prompt(40);
  const PenalizedOutput output = GeneratePenalized(executor, prompt, count);
  EXPECT_NE(output.tokens, output.freely);
  EXPECT_EQ(output.resumed, output.tokens);
  const std::set<Token> before(prompt.begin(), prompt.end());
  const std::set<Token> after(output.tokens.begin(), output.tokens.end());
  EXPECT_EQ(after.size(), before.size() + count);  // each occurred once
}

class TinyModelTest : public ::testing::Test {
 protected:
  TinyModelTest() { std::filesystem::create_directories(folder_); }
  ~TinyModelTest() override { std::filesystem::remove_all(folder_); }

  // A folder in which the test may write.
  std::string Path(std::string_view name) const { return StrCat(folder_, "/", name); }

  // Writes the model as a GGUF file, replacing the previous one, which may still be mapped.
  std::string Gguf(const TinyLlama& model) const {
    std::string path = Path("tiny.gguf");
    std::filesystem::remove(path);
    TinyLlamaWriter(model).Write(path);
    return path;
  }

  // Writes the model as a Hugging Face folder, replacing the previous one.
  std::string Folder(const TinyLlama& model, const HfForm& form = {}) const {
    std::string path = Path("folder");
    WriteHfFolder(model, path, form);
    return path;
  }

 private:
  const std::string folder_ = StrCat(::testing::TempDir(), "tiny_model_test_", getpid());
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_TINY_MODEL_TEST_UTIL_H_
