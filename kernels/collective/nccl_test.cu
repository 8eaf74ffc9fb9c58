// Tests of what replaces our own collectives where ranks cannot reach one another's memory. Those
// of NCCL itself run a communicator over all GPUs of the machine, one rank each, in one process.
#include "kernels/collective/nccl_api.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/collective/collective_reference.h"
#include "kernels/collective/gathered.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

std::vector<uint16_t> Bits(const std::vector<Bf16>& values) {
  std::vector<uint16_t> bits;
  for (const Bf16 value : values) bits.push_back(BitsOf(value));
  return bits;
}

// The ranks' partial sums added in rank order in float32 and rounded once.
std::vector<Bf16> ExpectedSum(int ranks, size_t size, uint32_t step = 0) {
  std::vector<Bf16> sum(size);
  std::vector<std::vector<Bf16>> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(TestPartials(rank, size, step));
  for (size_t i = 0; i < size; ++i) {
    float value = __bfloat162float(parts[0][i]);
    for (int rank = 1; rank < ranks; ++rank) value += __bfloat162float(parts[rank][i]);
    sum[i] = __float2bfloat16_rn(value);
  }
  return sum;
}

TEST(GatheredTest, SumsOfPartsAreThoseOfTheCollectives) {
  for (const int ranks : {1, 2, 3, 8, 16}) {
    for (const auto& [tokens, width] : {std::pair(1, 8), std::pair(5, 72), std::pair(33, 4096)}) {
      const int stride = width + 8;
      std::vector<Bf16> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto part = TestPartials(rank, static_cast<size_t>(tokens) * width);
        parts.insert(parts.end(), part.begin(), part.end());
      }
      const DeviceBuffer<Bf16> in(parts);
      const DeviceBuffer<Bf16> out(static_cast<size_t>(tokens) * stride);
      CheckCuda(LaunchSumParts({in.get(), out.get(), stride, ranks, tokens, width}, nullptr),
                "sum");
      const std::vector<Bf16> sums = out.Download();
      const std::vector<Bf16> expected = ExpectedSum(ranks, static_cast<size_t>(tokens) * width);
      for (int token = 0; token < tokens; ++token) {
        for (int column = 0; column < stride; ++column) {
          ASSERT_EQ(BitsOf(sums[token * stride + column]),
                    column < width ? BitsOf(expected[token * width + column]) : 0xffff)
              << ranks << " ranks, token " << token << ", column " << column;
        }
      }
      EXPECT_TRUE(out.GuardsIntact());
    }
  }
}

TEST(GatheredTest, ProductsArePackedAsTheyGoOverTheWire) {
  constexpr int kTokens = 7, kWidth = 1032, kStride = kWidth + 16;
  const std::vector<Bf16> data = TestPartials(3, kTokens * kStride);
  const std::vector<float> token_scales = RandomNormal(kTokens, 1);
  const std::vector<float> channel_scales = RandomNormal(kWidth, 2);
  const DeviceBuffer<Bf16> in(data);
  const DeviceBuffer<float> of_tokens(token_scales), of_channels(channel_scales);
  for (const bool scaled : {false, true}) {
    const DeviceBuffer<Bf16> out(kTokens * kWidth);
    const Product product = {in.get(), kStride, scaled ? of_tokens.get() : nullptr,
                             scaled ? of_channels.get() : nullptr};
    CheckCuda(LaunchPackProduct({product, out.get(), kTokens, kWidth}, nullptr), "pack");
    const std::vector<Bf16> packed = out.Download();
    for (int token = 0; token < kTokens; ++token) {
      for (int column = 0; column < kWidth; ++column) {
        const Bf16 from = data[token * kStride + column];
        const Bf16 expected =
            scaled ? __float2bfloat16_rn(__bfloat162float(from) *
                                         (token_scales[token] * channel_scales[column]))
                   : from;
        const Bf16 other = scaled
                               ? __float2bfloat16_rn(__bfloat162float(from) * token_scales[token] *
                                                     channel_scales[column])
                               : from;
        const uint16_t bits = BitsOf(packed[token * kWidth + column]);
        ASSERT_TRUE(bits == BitsOf(expected) || bits == BitsOf(other)) << token << " " << column;
      }
    }
    EXPECT_TRUE(out.GuardsIntact());
  }
}

TEST(GatheredTest, ADividedEmbeddingIsThatOfTheWholeTable) {
  constexpr int kRanks = 3, kPartRows = 16, kVocab = 43, kWidth = 264, kStride = kWidth + 8;
  const std::vector<int32_t> ids = {0, 15, 16, 42, 31, 43, -1, 7};
  const int tokens = static_cast<int>(ids.size());
  const std::vector<Bf16> table = TestPartials(1, kRanks * kPartRows * kStride);
  const DeviceBuffer<int32_t> device_ids(ids);
  const DeviceBuffer<Bf16> device_table(table);
  const DeviceBuffer<Bf16> parts(static_cast<size_t>(kRanks) * tokens * kWidth);
  for (int rank = 0; rank < kRanks; ++rank) {
    CheckCuda(LaunchEmbedShare(
                  {device_ids.get(), device_table.get() + int64_t{rank} * kPartRows * kStride,
                   kStride, kPartRows, rank, kVocab, tokens, kWidth,
                   parts.get() + int64_t{rank} * tokens * kWidth},
                  nullptr),
              "share");
  }
  const DeviceBuffer<float> residual(static_cast<size_t>(tokens) * kWidth);
  CheckCuda(LaunchPickRows({device_ids.get(), parts.get(), kPartRows, kVocab, tokens, kWidth,
                            residual.get(), 1.5f},
                           nullptr),
            "pick");
  const std::vector<float> rows = residual.Download();
  for (int token = 0; token < tokens; ++token) {
    for (int column = 0; column < kWidth; ++column) {
      const float value = rows[token * kWidth + column];
      if (ids[token] < 0 || ids[token] >= kVocab) {
        ASSERT_TRUE(std::isnan(value)) << token;
      } else {
        ASSERT_EQ(value, 1.5f * __bfloat162float(table[ids[token] * kStride + column])) << token;
      }
    }
  }
}

TEST(GatheredTest, RecordsOfRanksStandSideBySide) {
  constexpr int kRanks = 3, kRows = 5, kRecord = 1048;
  std::vector<uint8_t> records(kRanks * kRows * kRecord);
  for (size_t i = 0; i < records.size(); ++i) records[i] = static_cast<uint8_t>(i * 31 >> 3);
  const DeviceBuffer<uint8_t> in(records), out(records.size());
  CheckCuda(LaunchInterleave({in.get(), out.get(), kRanks, kRows, kRecord}, nullptr), "interleave");
  const std::vector<uint8_t> gathered = out.Download();
  for (int row = 0; row < kRows; ++row) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int i = 0; i < kRecord; ++i) {
        ASSERT_EQ(gathered[(row * kRanks + rank) * kRecord + i],
                  records[(rank * kRows + row) * kRecord + i]);
      }
    }
  }
}

// One rank on each GPU.
class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CheckCuda(cudaGetDeviceCount(&ranks_), "GPUs");
    ASSERT_GE(ranks_, 1) << "needs a GPU";
    NcclId id;
    std::string error;
    ASSERT_TRUE(Nccl::MakeId(&id, &error)) << error;
    communicators_.resize(ranks_);
    OnAllRanks([&](int rank) {
      std::string why;
      communicators_[rank] = Nccl::Join(id, ranks_, rank, &why);
      EXPECT_NE(communicators_[rank], nullptr) << why;
    });
    for (const auto& communicator : communicators_) ASSERT_NE(communicator, nullptr);
  }

  void OnAllRanks(const std::function<void(int rank)>& body) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        CheckCuda(cudaSetDevice(rank), "GPU");
        body(rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  int ranks_ = 0;
  std::vector<std::unique_ptr<Nccl>> communicators_;
};

TEST_F(NcclTest, GatheredSumsHaveTheBitsOfRankOrderInGraphsToo) {
  constexpr int kWidth = 4096;
  for (const int tokens : {1, 17, 1024}) {
    const size_t size = static_cast<size_t>(tokens) * kWidth;
    const std::vector<uint16_t> expected = Bits(ExpectedSum(ranks_, size));
    OnAllRanks([&](int rank) {
      const DeviceBuffer<Bf16> sent(TestPartials(rank, size));
      const DeviceBuffer<Bf16> gathered(size * ranks_), sum(size);
      cudaStream_t stream;
      CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
      const auto launch = [&] {
        CheckCuda(communicators_[rank]->AllGather(sent.get(), gathered.get(), sent.bytes(), stream),
                  "all-gather");
        CheckCuda(
            LaunchSumParts({gathered.get(), sum.get(), kWidth, ranks_, tokens, kWidth}, stream),
            "sum");
      };
      launch();  // connects the ranks
      CheckCuda(cudaStreamSynchronize(stream), "first");
      EXPECT_EQ(Bits(sum.Download()), expected);
      cudaGraph_t graph;
      cudaGraphExec_t executable;
      CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
      launch();
      CheckCuda(cudaStreamEndCapture(stream, &graph), "capture");
      CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      for (int replay = 0; replay < 20; ++replay) {
        CheckCuda(cudaMemsetAsync(sum.get(), 0xff, sum.bytes(), stream), "poison");
        CheckCuda(cudaGraphLaunch(executable, stream), "replay");
      }
      CheckCuda(cudaStreamSynchronize(stream), "replays");
      EXPECT_EQ(Bits(sum.Download()), expected);
      EXPECT_TRUE(gathered.GuardsIntact());
      CheckCuda(cudaGraphExecDestroy(executable), "graph");
      CheckCuda(cudaGraphDestroy(graph), "graph");
      CheckCuda(cudaStreamDestroy(stream), "stream");
    });
  }
}

TEST_F(NcclTest, ItsOwnAllReduceIsNear) {
  constexpr size_t kSize = 8 * 4096;
  const std::vector<Bf16> expected = ExpectedSum(ranks_, kSize);
  OnAllRanks([&](int rank) {
    const DeviceBuffer<Bf16> sent(TestPartials(rank, kSize)), sum(kSize);
    CheckCuda(communicators_[rank]->AllReduce(sent.get(), sum.get(), kSize, nullptr), "all-reduce");
    const std::vector<Bf16> sums = sum.Download();
    for (size_t i = 0; i < kSize; ++i) {
      // Each of up to ranks - 1 additions may round to BF16: numbers are up to 2^4 each.
      ASSERT_NEAR(__bfloat162float(sums[i]), __bfloat162float(expected[i]),
                  0.0625f * ranks_ * ranks_);
    }
  });
}

TEST_F(NcclTest, AnAbortEndsTheWaitForARankThatNeverComes) {
  if (ranks_ < 2) GTEST_SKIP() << "needs two GPUs: one rank waits for no other";
  CheckCuda(cudaSetDevice(0), "GPU");
  const DeviceBuffer<uint8_t> sent(1 << 20), gathered(static_cast<size_t>(ranks_) << 20);
  cudaStream_t stream;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    CheckCuda(cudaSetDevice(0), "GPU");
    // The call, or what it launched, waits for the others.
    (void)communicators_[0]->AllGather(sent.get(), gathered.get(), sent.size(), stream);
    (void)cudaStreamSynchronize(stream);
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(ended);
  communicators_[0]->Abort();
  waiting.join();
  EXPECT_NE(communicators_[0]->error(), "");
  EXPECT_EQ(communicators_[0]->AllGather(sent.get(), gathered.get(), 1, stream), cudaErrorUnknown);
  for (const auto& communicator : communicators_) communicator->Abort();
}

}  // namespace
}  // namespace millrace::kernels
