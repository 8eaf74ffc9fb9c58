// The shares of all ranks, put together, are the whole weights.
#include "executors/torch/torch_weights.h"

#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/models/any_model.h"
#include "executors/tiny_model_test_util.h"
#include "formats/open_model.h"
#include "gtest/gtest.h"

namespace millrace::aten {
namespace {

class TorchWeightsTest : public TinyModelTest {
 protected:
  TorchWeights Place(const std::string& path, RankSpec rank) {
    const absl::StatusOr<OpenedModel> opened = OpenModel(path);
    CheckOk(opened.status());
    TorchWeightPlacer placer(*opened->tensors, at::kFloat, pool_, rank);
    CheckOk(LoadAnyModel(opened->config, 64, placer).status());
    return placer.Finish();
  }

  ThreadPool pool_{1};
};

// Rank after rank along dimension `dim` of the matrices' `parts` equal parts of rows.
at::Tensor Joined(const std::vector<TorchWeights>& ranks, size_t matrix, int64_t parts,
                  int64_t dim) {
  std::vector<at::Tensor> shares;
  for (const TorchWeights& weights : ranks) {
    const at::Tensor& share = weights.matrices[matrix].weight;
    shares.push_back(share.view({parts, share.size(0) / parts, share.size(1)}));
  }
  return at::cat(shares, dim);
}

TEST_F(TorchWeightsTest, RanksHoldEverythingOnce) {
  TinyLlama model = Tiny("qwen3");
  model.heads = model.kv_heads = 6;
  model.head_size = 20;
  model.ffn = 100;
  model.vocab = 333;
  const std::string path = Gguf(model);
  const TorchWeights whole = Place(path, {});
  ASSERT_EQ(whole.matrices.size(), 2 + 4 * size_t{2});  // two layers
  for (int size = 2; size <= 8; ++size) {
    std::vector<TorchWeights> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(Place(path, {rank, size}));
      EXPECT_EQ(ranks[rank].digest, whole.digest);
      ASSERT_EQ(ranks[rank].norms.size(), whole.norms.size());
      for (size_t i = 0; i < whole.norms.size(); ++i) {
        EXPECT_TRUE(at::equal(ranks[rank].norms[i].scale, whole.norms[i].scale));
      }
    }
    for (size_t i = 0; i < whole.matrices.size(); ++i) {
      SCOPED_TRACE(StrCat("matrix ", i, " on ", size, " ranks"));
      // Embedding and head; then q, k and v, the output, gate and up, and down of each layer.
      const size_t role = i < 2 ? 4 : (i - 2) % 4;
      const bool by_columns = role == 1 || role == 3;
      const int64_t parts = role == 0 ? 3 : role == 2 ? 2 : 1;
      const int64_t dim = by_columns ? 2 : 1;
      const at::Tensor joined = Joined(ranks, i, parts, dim);
      const at::Tensor& weight = whole.matrices[i].weight;
      const at::Tensor expected = weight.view({parts, weight.size(0) / parts, weight.size(1)});
      const int64_t total = expected.size(dim);
      EXPECT_TRUE(at::equal(joined.narrow(dim, 0, total), expected));
      EXPECT_TRUE(at::all(joined.narrow(dim, total, joined.size(dim) - total) == 0).item<bool>());
    }
  }
}

}  // namespace
}  // namespace millrace::aten
