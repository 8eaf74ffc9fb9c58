#include "engine/infer_engine.h"

#include <cstring>
#include <future>
#include <utility>

#include "base/event.h"
#include "engine/metrics/metrics.h"
#include "engine/request/request.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr auto kLongWait = std::chrono::seconds(30);  // of what should not hang

Tensor Number(float value) {
  Tensor tensor{.type = DataType::kFp32, .shape = {1}, .data = std::string(sizeof(value), '\0')};
  std::memcpy(tensor.data.data(), &value, sizeof(value));
  return tensor;
}

float ToNumber(const Tensor& tensor) {
  float value;
  std::memcpy(&value, tensor.data.data(), sizeof(value));
  return value;
}

// Doubles a number, when the test lets it; fails on 0.
class Doubler : public TensorModel {
 public:
  const TensorModelInfo& info() const override { return info_; }

  absl::StatusOr<std::vector<Tensor>> Run(std::vector<Tensor> inputs) override {
    begun.Raise();
    go.Wait();
    const float value = ToNumber(inputs[0]);
    ++runs;
    if (value == 0) return absl::InternalError("the model's code failed on these inputs");
    return std::vector<Tensor>{Number(2 * value)};
  }

  Event begun, go;  // a raise lets one run begin, or end
  int runs = 0;

 private:
  const TensorModelInfo info_ = {
      .platform = "test",
      .inputs = {{.name = "x", .type = DataType::kFp32, .shape = {{"", 1, 1}}}},
      .outputs = {{.name = "y", .type = DataType::kFp32, .shape = {{"", 1, 1}}}}};
};

class InferEngineTest : public ::testing::Test {
 protected:
  struct Asked {
    std::shared_ptr<InferCall> call;
    std::future<absl::StatusOr<std::vector<Tensor>>> result;

    absl::Status status() {
      if (result.wait_for(kLongWait) != std::future_status::ready) {
        return absl::UnknownError("nothing came");
      }
      answer = result.get();
      return answer->status();
    }
    std::optional<absl::StatusOr<std::vector<Tensor>>> answer;
  };

  InferEngineTest() {
    auto model = std::make_unique<Doubler>();
    model_ = model.get();
    engine_ = std::make_unique<InferEngine>(InferOptions{.model_name = "doubler",
                                                         .max_waiting = 2,
                                                         .stall_timeout = std::chrono::seconds(10),
                                                         .clock = &clock_},
                                            std::move(model), metrics_.AddInferEngine("doubler"));
  }

  static Asked Make(Tensor input) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<std::vector<Tensor>>>>();
    Asked asked{.call = std::make_shared<InferCall>(), .result = promise->get_future()};
    asked.call->inputs = {std::move(input)};
    asked.call->done = [promise](auto result) { promise->set_value(std::move(result)); };
    return asked;
  }

  Asked Ask(Tensor input) {
    Asked asked = Make(std::move(input));
    engine_->Infer(asked.call);
    return asked;
  }

  // One that the model is at work on.
  Asked AskAndBegin(float value) {
    Asked asked = Ask(Number(value));
    model_->begun.Wait();
    return asked;
  }

  ManualClock clock_;
  Metrics metrics_;
  Doubler* model_;
  std::unique_ptr<InferEngine> engine_;
};

TEST_F(InferEngineTest, RequestsRunOneAfterTheOther) {
  Asked first = AskAndBegin(1);
  Asked second = Ask(Number(2));
  model_->go.Raise();
  ASSERT_TRUE(first.status().ok());
  EXPECT_EQ(ToNumber((**first.answer)[0]), 2);
  model_->begun.Wait();
  model_->go.Raise();
  ASSERT_TRUE(second.status().ok());
  EXPECT_EQ(ToNumber((**second.answer)[0]), 4);
  EXPECT_NE(metrics_.Render().find(
                R"(millrace_infer_requests_total{model_name="doubler",outcome="ok"} 2)"),
            std::string::npos)
      << metrics_.Render();
}

TEST_F(InferEngineTest, WhatDoesNotFitTheModelIsRefusedAtOnce) {
  Asked asked = Ask({.type = DataType::kInt32, .shape = {1}, .data = "abcd"});
  EXPECT_EQ(asked.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(asked.answer->status().message(), "input x: datatype is INT32; allowed: FP32");
}

TEST_F(InferEngineTest, AFullQueueRefuses) {
  Asked running = AskAndBegin(1);
  Asked waiting[] = {Ask(Number(2)), Ask(Number(3))};
  Asked refused = Ask(Number(4));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(refused.answer->status()).has_value());
  for (Asked* asked : {&running, &waiting[0], &waiting[1]}) {
    model_->go.Raise();
    EXPECT_TRUE(asked->status().ok());
  }
}

TEST_F(InferEngineTest, CancelledRequestsThatWaitDoNotRun) {
  Asked running = AskAndBegin(1);
  Asked waiting = Ask(Number(2));
  engine_->Cancel(waiting.call);
  EXPECT_EQ(waiting.status().code(), absl::StatusCode::kCancelled);
  engine_->Cancel(running.call);
  model_->go.Raise();
  EXPECT_EQ(running.status().code(), absl::StatusCode::kCancelled);
  Asked early = Make(Number(3));
  engine_->Cancel(early.call);
  engine_->Infer(early.call);
  EXPECT_EQ(early.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(model_->runs, 1);
}

TEST_F(InferEngineTest, ADeadlineThatPassedCostsNoRun) {
  Asked late = Make(Number(1));
  late.call->deadline = absl::Now() - absl::Seconds(1);
  engine_->Infer(late.call);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(model_->runs, 0);
}

TEST_F(InferEngineTest, AFailedRunFailsAlone) {
  Asked failed = AskAndBegin(0);
  model_->go.Raise();
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal);
  Asked next = AskAndBegin(3);
  model_->go.Raise();
  EXPECT_TRUE(next.status().ok());
}

TEST_F(InferEngineTest, ALongRunIsAStallUntilItEnds) {
  Asked running = AskAndBegin(1);
  EXPECT_EQ(engine_->health(), Health::kServing);
  clock_.Advance(std::chrono::seconds(11));
  EXPECT_EQ(engine_->health(), Health::kStalled);
  model_->go.Raise();
  EXPECT_TRUE(running.status().ok());
  EXPECT_EQ(engine_->health(), Health::kServing);
}

TEST_F(InferEngineTest, ADrainFinishesWhatWasAccepted) {
  Asked running = AskAndBegin(1);
  Asked waiting = Ask(Number(2));
  engine_->BeginDrain();
  Asked refused = Ask(Number(3));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  model_->go.Raise();
  EXPECT_TRUE(running.status().ok());
  engine_->CancelAll();
  model_->go.Raise();
  const absl::Status ended = waiting.status();
  EXPECT_TRUE(ended.ok() || absl::IsUnavailable(ended)) << ended;
  EXPECT_TRUE(engine_->WaitIdle(std::chrono::steady_clock::now() + kLongWait));
}

TEST(InferTensorsTest, InputsGoByTheirNames) {
  const std::vector<TensorSpec> specs = {{.name = "a"}, {.name = "b"}};
  const auto inputs = OrderInputs(specs, {{"b", Number(2)}, {"a", Number(1)}});
  ASSERT_TRUE(inputs.ok());
  EXPECT_EQ(ToNumber((*inputs)[0]), 1);
  EXPECT_EQ(ToNumber((*inputs)[1]), 2);
  EXPECT_EQ(OrderInputs(specs, {{"a", Number(1)}}).status().message(),
            "inputs: b is missing; required: a, b");
  EXPECT_EQ(OrderInputs(specs, {{"c", Number(1)}}).status().message(),
            "inputs: there is no \"c\"; allowed: a, b");
  EXPECT_EQ(OrderInputs(specs, {{"a", Number(1)}, {"a", Number(1)}}).status().message(),
            "inputs: a is there twice; allowed: once");
}

TEST(InferTensorsTest, OutputsAreAllOrThoseThatAreNamed) {
  const std::vector<TensorSpec> specs = {{.name = "a"}, {.name = "b"}};
  EXPECT_EQ(*ChooseOutputs(specs, {}), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(*ChooseOutputs(specs, {"b"}), (std::vector<size_t>{1}));
  EXPECT_EQ(ChooseOutputs(specs, {"x"}).status().message(),
            "outputs: there is no \"x\"; allowed: a, b");
  EXPECT_EQ(ChooseOutputs(specs, {"a", "a"}).status().message(),
            "outputs: a is there twice; allowed: once");
}

}  // namespace
}  // namespace millrace
