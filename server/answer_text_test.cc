#include "server/answer_text.h"

#include <memory>
#include <vector>

#include "formats/tokenizer_spec.h"
#include "gtest/gtest.h"
#include "server/text/pipeline_tokenizer.h"

namespace millrace {
namespace {

// SentencePiece's way: words carry the space before them, and a text's first one loses it.
std::unique_ptr<const Tokenizer> Spaced() {
  TokenizerSpec spec;
  spec.vocabulary = {{"\u2581a", 0}, {"\u2581b", 1}};
  spec.model = WordLevelModelSpec{"\u2581a"};
  spec.frame = {std::nullopt};
  spec.decoders = {
      {Replacement{{false, "\u2581"}, " "}, SimpleDecoder::kFuse, StripDecoder{" ", 1, 0}}};
  return *PipelineTokenizer::Create(spec);
}

TEST(AnswerTextTest, GoesOnFromThePrompt) {
  const auto tokenizer = Spaced();
  GenerateRequest request;
  request.prompt = std::vector<Token>{0};
  AnswerText answer(tokenizer.get(), &request);
  const StepResult nothing;
  EXPECT_EQ(answer.Echo(std::vector<Token>{0}).text, "a");
  OutputEvent event;
  answer.Add(nothing, {.token = 1}, /*is_stop_token=*/false, &event);
  answer.Flush(&event);
  EXPECT_EQ(event.text, " b");
}

}  // namespace
}  // namespace millrace
