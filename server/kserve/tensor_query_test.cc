#include "server/kserve/tensor_query.h"

#include <cstring>
#include <future>
#include <memory>
#include <utility>

#include "engine/infer_engine.h"
#include "engine/metrics/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y = 2 x and z = x < 0, of any number of elements.
class Doubler : public TensorModel {
 public:
  const TensorModelInfo& info() const override { return info_; }

  absl::StatusOr<std::vector<Tensor>> Run(std::vector<Tensor> inputs) override {
    Tensor y = inputs[0];
    Tensor z{.type = DataType::kBool, .shape = y.shape, .data = ""};
    for (size_t at = 0; at < y.data.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, y.data.data() + at, sizeof(value));
      z.data += value < 0 ? '\1' : '\0';
      value *= 2;
      std::memcpy(y.data.data() + at, &value, sizeof(value));
    }
    return std::vector<Tensor>{std::move(y), std::move(z)};
  }

 private:
  const TensorModelInfo info_ = {
      .platform = "test",
      .inputs = {{.name = "x", .type = DataType::kFp32, .shape = {{"n", 1, 8}}}},
      .outputs = {{.name = "y", .type = DataType::kFp32, .shape = {{"n", 1, 8}}},
                  {.name = "z", .type = DataType::kBool, .shape = {{"n", 1, 8}}}}};
};

class OneModel : public Frontend {
 public:
  OneModel()
      : engine_({.model_name = "doubler"}, std::make_unique<Doubler>(),
                metrics_.AddInferEngine("doubler")) {}

  absl::StatusOr<ServedModel*> Find(std::string_view model) const override {
    if (!model.empty() && model != "doubler") return absl::NotFoundError("there is no such model");
    return &engine_;
  }
  std::vector<ServedModel*> models() const override { return {&engine_}; }
  bool ready() const override { return true; }
  bool live() const override { return true; }
  bool draining() const override { return false; }
  using Frontend::Authorize;
  absl::Status Authorize(const Credentials&, Scope, std::shared_ptr<const Tenant>*) const override {
    return absl::OkStatus();
  }
  Metrics& metrics() override { return metrics_; }

 private:
  Metrics metrics_;
  mutable InferEngine engine_;
};

std::string Floats(std::vector<float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TensorQuery Query() {
  return {.model = "doubler",
          .inputs = {{.name = "x", .datatype = "FP32", .shape = {2}, .data = Floats({3, -4})}}};
}

class TensorQueryTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<WireTensor>> Run(TensorQuery query) {
    std::promise<absl::StatusOr<std::vector<WireTensor>>> promise;
    const auto give_up = RunQuery(frontend_, std::move(query),
                                  [&](auto outputs) { promise.set_value(std::move(outputs)); });
    auto result = promise.get_future().get();
    give_up();  // after the end it changes nothing
    return result;
  }
  std::string Refused(TensorQuery query,
                      absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const absl::Status status = Run(std::move(query)).status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }

  OneModel frontend_;
};

TEST_F(TensorQueryTest, RunsAModelOfTensors) {
  const auto outputs = Run(Query());
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  ASSERT_EQ(outputs->size(), 2u);
  EXPECT_EQ((*outputs)[0].name, "y");
  EXPECT_EQ((*outputs)[0].datatype, "FP32");
  EXPECT_THAT((*outputs)[0].shape, ElementsAre(2));
  EXPECT_EQ((*outputs)[0].data, Floats({6, -8}));
  EXPECT_EQ((*outputs)[1].datatype, "BOOL");
  EXPECT_EQ((*outputs)[1].data, std::string("\0\1", 2));
}

TEST_F(TensorQueryTest, ChoosesOutputsAndTakesATimeout) {
  TensorQuery query = Query();
  query.outputs = {"z"};
  query.parameters = {{"timeout", 60'000'000}};
  query.version = "1";
  const auto outputs = Run(std::move(query));
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  ASSERT_EQ(outputs->size(), 1u);
  EXPECT_EQ((*outputs)[0].name, "z");
}

TEST_F(TensorQueryTest, RefusalsNameWhatIsWrong) {
  TensorQuery query = Query();
  query.model = "other";
  Refused(query, absl::StatusCode::kNotFound);
  query = Query();
  query.version = "2";
  EXPECT_EQ(Refused(query, absl::StatusCode::kNotFound),
            "the model has no version \"2\"; allowed: \"1\", or none");
  query = Query();
  query.inputs[0].datatype = "BYTES";
  EXPECT_THAT(Refused(query), HasSubstr("input x: datatype is \"BYTES\""));
  query = Query();
  query.inputs[0].shape = {3};
  EXPECT_THAT(Refused(query), HasSubstr("x"));
  query = Query();
  query.outputs = {"w"};
  EXPECT_THAT(Refused(query), HasSubstr("w"));
  for (const WireParameter& wrong : {WireParameter{"sequence_id", 5}, WireParameter{"timeout", 0},
                                     WireParameter{"timeout", std::nullopt}}) {
    query = Query();
    query.parameters = {wrong};
    EXPECT_THAT(Refused(query), HasSubstr("parameters." + wrong.name + " is "));
  }
}

TEST_F(TensorQueryTest, DescribesTheModel) {
  const auto model = DescribeModel(frontend_, "", "");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name, "doubler");
  EXPECT_EQ(model->platform, "test");
  EXPECT_THAT(model->inputs[0].shape, ElementsAre(-1));
  EXPECT_EQ(model->outputs[1].datatype, "BOOL");
  EXPECT_EQ(DescribeModel(frontend_, "doubler", "7").status().code(), absl::StatusCode::kNotFound);
}

TEST(BytesTest, ElementsHaveTheirSizesBeforeThem) {
  std::string data;
  AppendBytes("abc", data);
  AppendBytes("", data);
  AppendBytes("d", data);
  EXPECT_EQ(data.size(), 16u);
  EXPECT_THAT(*SplitBytes(data), ElementsAre("abc", "", "d"));
  EXPECT_TRUE(SplitBytes("")->empty());
  for (size_t cut = 1; cut < data.size(); ++cut) {
    const auto elements = SplitBytes(std::string_view(data).substr(0, cut));
    EXPECT_EQ(elements.has_value(), cut == 7 || cut == 11) << cut;
  }
  EXPECT_FALSE(SplitBytes("\xff\xff\xff\xff").has_value());
}

}  // namespace
}  // namespace millrace
