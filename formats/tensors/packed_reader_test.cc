// Every layout of 4-bit weights against what its writer says that it stands for.
#include "formats/tensors/packed_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "base/strings.h"
#include "formats/open_model.h"
#include "formats/tensors/dequantize.h"
#include "formats/twins/hf_test_util.h"
#include "formats/twins/tensor_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

class PackedReaderTest : public ::testing::Test {
 protected:
  ~PackedReaderTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<OpenedModel> Open(const TinyLlama& model, const HfForm& form) {
    WriteHfFolder(model, folder_, form);
    return OpenModel(folder_);
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "packed_reader_test_", getpid());
};

TinyLlama Tiny(int hidden) {
  TinyLlama model;
  model.layers = 1;
  model.hidden = hidden;
  model.ffn = 256;
  return model;
}

// Every combination that a config can ask for.
std::vector<QuantScheme> Schemes() {
  std::vector<QuantScheme> schemes;
  for (const Packing packing : {Packing::kGptq, Packing::kAwq, Packing::kPackQuantized}) {
    for (const int group : {32, 64, 128, 0}) {
      for (const bool symmetric : {false, true}) {
        if (packing == Packing::kAwq && symmetric) continue;
        for (const bool reordered : {false, true}) {
          if (reordered && (packing == Packing::kAwq || group == 0)) continue;
          for (const bool less_one : {false, true}) {
            if (less_one && packing != Packing::kGptq) continue;
            schemes.push_back({.group = {1, group},
                               .packing = packing,
                               .symmetric = symmetric,
                               .zeros_less_one = less_one,
                               .reordered = reordered});
          }
        }
      }
    }
  }
  return schemes;
}

absl::StatusOr<PackedReader> Reader(const OpenedModel& model, const TensorInfo& tensor) {
  return PackedReader::Open(*model.tensors, *model.tensors->Packed(tensor));
}

std::string Name(const QuantScheme& scheme) { return PackedConfig(scheme).dump(); }

// Checks that rows [5, 12) and columns [128, 256), as blocks of our own, are `values` to the last
// bit.
void ExpectBlocks(const PackedReader& reader, TensorType type, const std::vector<float>& values) {
  const Interval rows{5, 7}, columns{128, 128};
  std::vector<uint8_t> blocks(rows.count * RowBytes(type, columns.count));
  reader.ReadBlocks(type, rows, columns, blocks.data());
  std::vector<float> elements(rows.count * columns.count);
  Dequantize(type, blocks, absl::MakeSpan(elements));
  for (int64_t i = 0; i < rows.count; ++i) {
    for (int64_t c = 0; c < columns.count; ++c) {
      const int64_t at = columns.begin + c;
      ASSERT_EQ(elements[i * columns.count + c],
                values[(rows.begin + i) * reader.columns() +
                       (reader.order().empty() ? at : reader.order()[at])]);
    }
  }
}

TEST_F(PackedReaderTest, EveryLayoutGivesItsValues) {
  int index = 0;
  for (const QuantScheme& scheme : Schemes()) {
    SCOPED_TRACE(Name(scheme));
    HfForm form{.quantization = scheme};
    form.scale_type = ++index % 2 == 0 ? TensorType::kF16 : TensorType::kBf16;
    HfForm twin_form = form;
    twin_form.dequantized = true;
    const auto twin = Open(Tiny(256), twin_form);
    ASSERT_TRUE(twin.ok()) << twin.status();
    const auto opened = Open(Tiny(256), form);
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (const char* linear :
         {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down"}) {
      const std::string name = StrCat("blk.0.", linear, ".weight");
      const TensorInfo* const tensor = opened->tensors->FindTensor(name);
      ASSERT_NE(tensor, nullptr) << name;
      EXPECT_EQ(tensor->type,
                scheme.group.columns % 128 == 0 ? TensorType::kInt4x128 : TensorType::kInt4x32);
      const auto reader = Reader(*opened, *tensor);
      ASSERT_TRUE(reader.ok()) << reader.status();
      EXPECT_EQ(reader->order().empty(), !scheme.reordered);
      const TensorInfo& plain = *twin->tensors->FindTensor(name);
      const std::vector<float> expected = DecodeTensor(plain.type, twin->tensors->Data(plain));
      std::vector<float> values(tensor->shape[0] * tensor->shape[1]);
      for (int64_t row = 0; row < tensor->shape[0]; ++row) {
        reader->ReadFloats(row, &values[row * tensor->shape[1]]);
      }
      EXPECT_EQ(values, expected) << name;
      ExpectBlocks(*reader, tensor->type, expected);
    }
  }
}

// A row that 32 does not divide ends in a block that is filled up.
TEST_F(PackedReaderTest, RowsOfAnyLengthEndInAFilledBlock) {
  for (const Packing packing : {Packing::kGptq, Packing::kAwq, Packing::kPackQuantized}) {
    const auto opened =
        Open(Tiny(48), {.quantization = QuantScheme{
                            .group = kPerChannel, .packing = packing, .symmetric = false}});
    ASSERT_TRUE(opened.ok()) << opened.status();
    const TensorInfo& tensor = *opened->tensors->FindTensor("blk.0.ffn_up.weight");
    EXPECT_EQ(tensor.type, TensorType::kInt4x32);
    const PackedReader reader = *Reader(*opened, tensor);
    std::vector<uint8_t> blocks(RowBytes(tensor.type, 48), 0xff);
    EXPECT_EQ(blocks.size(), 48);
    reader.ReadBlocks(tensor.type, {3, 1}, {0, 48}, blocks.data());
    std::vector<float> values(64), row(48);
    Dequantize(tensor.type, blocks, absl::MakeSpan(values));
    reader.ReadFloats(3, row.data());
    values.resize(48);
    EXPECT_EQ(values, row);
  }
}

// Symmetric weights of files that are called v1 and hold v2's zeros, or the other way round.
TEST_F(PackedReaderTest, SymmetricZerosAreDecidedByTheirValue) {
  for (const bool less_one : {false, true}) {
    const QuantScheme scheme{
        .group = {1, 64}, .packing = Packing::kGptq, .zeros_less_one = less_one};
    const Json lie = {
        {"quantization_config", {{"checkpoint_format", less_one ? "gptq_v2" : "gptq"}}}};
    std::vector<float> rows[2];
    for (const Json& config : {Json::object(), lie}) {
      const auto opened = Open(Tiny(64), {.quantization = scheme, .config = config});
      ASSERT_TRUE(opened.ok()) << opened.status();
      const TensorInfo& tensor = *opened->tensors->FindTensor("blk.0.attn_v.weight");
      const PackedReader reader = *Reader(*opened, tensor);
      std::vector<float>& row = rows[config.empty() ? 0 : 1];
      row.resize(64);
      reader.ReadFloats(0, row.data());
    }
    EXPECT_EQ(rows[0], rows[1]);
  }
}

TEST_F(PackedReaderTest, NumbersThatMakeNoSenseAreRefusedByName) {
  // The error after a change to v's tensor of this name.
  const auto error = [&](const QuantScheme& scheme, const std::string& suffix, const auto& change) {
    const auto opened =
        Open(Tiny(256), {.quantization = scheme, .change = [&](std::vector<StoredTensor>& tensors) {
                           for (StoredTensor& tensor : tensors) {
                             if (!tensor.name.ends_with("v_proj" + suffix)) continue;
                             auto* numbers = reinterpret_cast<int32_t*>(tensor.bytes.data());
                             change(absl::MakeSpan(numbers, tensor.bytes.size() / 4));
                           }
                         }});
    EXPECT_TRUE(opened.ok()) << opened.status();
    const TensorInfo& tensor = *opened->tensors->FindTensor("blk.0.attn_v.weight");
    return std::string(Reader(*opened, tensor).status().message());
  };
  using Numbers = absl::Span<int32_t>;
  QuantScheme scheme{.group = {1, 64}, .packing = Packing::kGptq, .reordered = true};
  EXPECT_THAT(error(scheme, ".g_idx", [](Numbers n) { n[7] = 4; }),
              HasSubstr("v_proj.g_idx holds 4 for input 7, allowed: groups 0 to 3"));
  EXPECT_THAT(error(scheme, ".g_idx", [](Numbers n) { n[7] = -1; }),
              HasSubstr("v_proj.g_idx holds -1 for input 7"));
  EXPECT_THAT(error(scheme, ".g_idx", [](Numbers n) { std::fill(n.begin(), n.end(), 1); }),
              HasSubstr("v_proj.g_idx has more than 64 inputs in group 1, allowed: 64 in each"));
  EXPECT_THAT(error(scheme, ".qzeros", [](Numbers n) { n[1] = 0x78888888; }),
              HasSubstr("v_proj.qzeros holds 78888888, allowed for symmetric weights: all"));
  EXPECT_THAT(error(scheme, ".qzeros", [](Numbers n) { n[1] = 0x77777777; }),
              HasSubstr("v_proj.qzeros holds 77777777"));
  scheme.packing = Packing::kPackQuantized;
  EXPECT_THAT(error(scheme, ".weight_g_idx", [](Numbers n) { n[0] = 99; }),
              HasSubstr("v_proj.weight_g_idx holds 99 for input 0"));
  // Nobody has set these numbers.
  EXPECT_EQ(error(scheme, ".weight_g_idx", [](Numbers n) { std::fill(n.begin(), n.end(), -1); }),
            "");
}

}  // namespace
}  // namespace millrace
