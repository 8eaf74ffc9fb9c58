// Tests the cache of measured plans with arbitrary contents and unusable paths. They need no GPU.
#include "executors/cuda/weights/gemm_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "executors/cuda/weights/gemm_plans.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

namespace fs = std::filesystem;

constexpr kernels::GemmDesc kDesc = {.rows = 4608,
                                     .stride = 3584,
                                     .weight = kernels::Type::kBf16,
                                     .input = kernels::Type::kBf16,
                                     .output = kernels::Type::kBf16};
constexpr char kRanges[] = "16=skinny:9,132 4096=cublaslt:66,393,35,1,0,0,3,0,7";
constexpr char kHeader[] = "millrace gemm 1, cuBLASLt 130100, NVIDIA H200 132";
constexpr char kLine[] = "exact 4608x3584 bf16 bf16 bf16 store: ";

kernels::GemmRanges Ranges() { return *kernels::ParseGemmRanges(kRanges); }
GemmCacheKey Key() { return {.gpu = "NVIDIA H200 132", .library = 130100}; }

class GemmCacheTest : public testing::Test {
 protected:
  GemmCacheTest() {
    std::string name = (fs::temp_directory_path() / "gemm_cache_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~GemmCacheTest() override { fs::remove_all(folder_); }

  GemmCache Open() const { return {folder_ / "gemm", Key()}; }
  void Write(const std::string& text) const {
    fs::create_directories(folder_ / "gemm");
    std::ofstream(Open().path(), std::ios::binary) << text;
  }
  std::string Read() const {
    std::ostringstream text;
    text << std::ifstream(Open().path(), std::ios::binary).rdbuf();
    return text.str();
  }

  fs::path folder_;
};

TEST_F(GemmCacheTest, KeepsWhatWasMeasured) {
  GemmCache cache = Open();
  EXPECT_EQ(cache.path().filename(), "NVIDIA-H200-132-cublaslt-130100.txt");
  EXPECT_EQ(cache.Find(kDesc), std::nullopt);
  cache.Add(kDesc, Ranges());
  EXPECT_EQ(cache.Find(kDesc), Ranges());
  EXPECT_TRUE(cache.Save().ok());
  EXPECT_EQ(Read(), std::string(kHeader) + "\n" + kLine + kRanges + "\n");
  EXPECT_EQ(Open().Find(kDesc), Ranges());
  EXPECT_EQ(fs::status(cache.path()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(GemmCacheTest, TellsEverythingApartThatAPlanDependsOn) {
  GemmCache cache = Open();
  cache.Add(kDesc, Ranges());
  ASSERT_TRUE(cache.Save().ok());
  kernels::GemmDesc other = kDesc;
  other.epilogue = kernels::Epilogue::kGate;
  EXPECT_EQ(Open().Find(other), std::nullopt);
  for (const auto& change : {+[](GemmCacheKey& key) { key.gpu = "NVIDIA H200 114"; },
                             +[](GemmCacheKey& key) { key.library = 130200; },
                             +[](GemmCacheKey& key) { key.exact = false; },
                             +[](GemmCacheKey& key) { key.gemm = kernels::Gemm::kCublasLt; }}) {
    GemmCacheKey key = Key();
    change(key);
    EXPECT_EQ(GemmCache(folder_ / "gemm", key).Find(kDesc), std::nullopt);
  }
}

TEST_F(GemmCacheTest, KeepsWhatOthersHaveAddedMeanwhile) {
  GemmCache first = Open(), second = Open();
  kernels::GemmDesc other = kDesc;
  other.rows = 3584;
  first.Add(kDesc, Ranges());
  second.Add(other, Ranges());
  EXPECT_TRUE(first.Save().ok());
  EXPECT_TRUE(second.Save().ok());
  EXPECT_EQ(Open().Find(kDesc), Ranges());
  EXPECT_EQ(Open().Find(other), Ranges());
}

TEST_F(GemmCacheTest, SkipsWhatItDidNotWrite) {
  const std::string header = std::string(kHeader) + "\n",
                    good = std::string(kLine) + kRanges + "\n";
  for (const std::string& text :
       {std::string(), std::string("\0\0\0\n", 4), good, "millrace gemm 2" + header + good,
        header + kLine, header + kLine + "16=skinny:9", header + kLine + "16=evil:9,132\n",
        header + ": " + kRanges + "\n", header + "exact: " + kRanges + "\n",
        header + std::string(100000, ':') + "\n", header + std::string(1000, '\0'),
        header + good + std::string(2 << 20, '#'), header + "any" + good.substr(5)}) {
    Write(text);
    EXPECT_EQ(Open().Find(kDesc), std::nullopt) << text.substr(0, 200);
  }
  // A truncated line loses only itself.
  Write(header + good + "exact 64x128 bf16 bf16 bf16 store: 16=sk");
  EXPECT_EQ(Open().Find(kDesc), Ranges());
  // It disappears when the file is written again.
  EXPECT_TRUE(Open().Save().ok());
  EXPECT_EQ(Read(), header + good);
}

TEST_F(GemmCacheTest, NamesThePathThatItCannotWrite) {
  std::ofstream(folder_ / "gemm") << "a file where the folder should be";
  GemmCache cache = Open();
  cache.Add(kDesc, Ranges());
  const absl::Status status = cache.Save();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find((folder_ / "gemm").string()), absl::string_view::npos);
  EXPECT_EQ(cache.Find(kDesc), Ranges());
}

TEST_F(GemmCacheTest, WaitsForNoPipeAndFollowsNoLinkOfItsOwnName) {
  fs::create_directories(folder_ / "gemm");
  ASSERT_EQ(mkfifo(Open().path().c_str(), 0600), 0);
  GemmCache cache = Open();  // would wait for a writer for ever
  EXPECT_EQ(cache.Find(kDesc), std::nullopt);
  cache.Add(kDesc, Ranges());
  const fs::path victim = folder_ / "victim";
  fs::create_symlink(victim, cache.path().string() + "." + std::to_string(getpid()));
  EXPECT_TRUE(cache.Save().ok());
  EXPECT_FALSE(fs::exists(victim));
  EXPECT_EQ(Open().Find(kDesc), Ranges());
}

TEST_F(GemmCacheTest, KeepsNothingWithoutAFolder) {
  GemmCache cache({}, Key());
  cache.Add(kDesc, Ranges());
  EXPECT_TRUE(cache.Save().ok());
  EXPECT_EQ(cache.Find(kDesc), Ranges());
}

TEST(GemmUseTest, GathersTheWeightsOfAProduct) {
  const float weights[3] = {};
  std::vector<GemmUse> uses;
  kernels::GemmDesc other = kDesc;
  other.rows = 3584;
  AddUse(kDesc, &weights[0], &uses);
  AddUse(other, &weights[1], &uses);
  AddUse(kDesc, &weights[2], &uses);
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].desc, kDesc);
  EXPECT_EQ(uses[0].weights, (std::vector<const void*>{&weights[0], &weights[2]}));
  EXPECT_EQ(uses[1].weights.size(), 1u);
}

}  // namespace
}  // namespace millrace::cuda
