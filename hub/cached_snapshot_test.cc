#include "hub/cached_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/strings.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

class CachedSnapshotTest : public ::testing::Test {
 protected:
  CachedSnapshotTest() { EXPECT_TRUE(cache_.WriteRef("main", commit_).ok()); }
  ~CachedSnapshotTest() override { fs::remove_all(folder_); }

  void Put(const std::string& file, const std::string& text = "x") const {
    const fs::path path = cache_.Snapshot(commit_) / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  absl::StatusOr<CachedSnapshot> Find(const std::string& wanted = "",
                                      HubContent content = HubContent::kModel) const {
    return FindCached(cache_, "main", wanted, content);
  }

  std::string Error(HubContent content = HubContent::kModel) const {
    const absl::Status status = Find("", content).status();
    return status.ok() ? "no error" : std::string(status.message());
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "cached_snapshot_test_", getpid());
  const std::string commit_ = std::string(40, 'a');
  const HubCache cache_{folder_, "org/model"};
};

TEST_F(CachedSnapshotTest, SaysWhichFileIsMissing) {
  EXPECT_THAT(std::string(FindCached(cache_, "v1", "", HubContent::kModel).status().message()),
              HasSubstr("has no revision v1"));
  // AutoTokenizer.from_pretrained fetches these alone.
  Put("tokenizer.json");
  EXPECT_EQ(Error(), "has neither config.json nor a .gguf file");
  Put("config.json");
  EXPECT_EQ(Error(), "has no model.safetensors and no model.safetensors.index.json");
  EXPECT_EQ(Error(HubContent::kText), "no error");
  EXPECT_EQ(Error(HubContent::kConfig), "no error");
  Put("model.safetensors.index.json",
      R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})");
  EXPECT_EQ(Error(), "has no m-1.safetensors, one of 2 missing files");
  Put("m-1.safetensors");
  EXPECT_EQ(Error(), "has no m-2.safetensors");
  Put("m-2.safetensors");
  EXPECT_EQ(Error(), "no error");
}

TEST_F(CachedSnapshotTest, ALinkThatLeadsNowhereIsAMissingFile) {
  Put("m-00001-of-00002.gguf");
  const fs::path second = cache_.Snapshot(commit_) / "m-00002-of-00002.gguf";
  fs::create_symlink("../../blobs/none", second);
  EXPECT_EQ(Error(), "has no m-00002-of-00002.gguf");
  fs::remove(second);
  fs::create_symlink(second.filename(), second);  // to itself
  EXPECT_EQ(Error(), "has no m-00002-of-00002.gguf");
  fs::remove(second);
  Put("m-00002-of-00002.gguf");
  EXPECT_EQ(Find()->selection.gguf, "m-00001-of-00002.gguf");
}

TEST_F(CachedSnapshotTest, ModulesNameTheConfigOfThePooling) {
  Put("config.json");
  Put("model.safetensors");
  Put("modules.json", R"([{"path": ""}, {"path": "1_Pooling"}])");
  EXPECT_EQ(Error(), "has no 1_Pooling/config.json");
  Put("modules.json", R"([{"path": ""}])");
  EXPECT_EQ(Error(), "no error");
}

TEST_F(CachedSnapshotTest, AFileThatTheHubMayHaveIsUnknown) {
  Put("config.json");
  Put("model.safetensors");
  auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->unknown,
              IsSupersetOf({"modules.json", "1_Pooling/config.json", "tokenizer.json"}));
  cache_.NoteAbsent(commit_, "modules.json");
  cache_.NoteAbsent(commit_, "1_Pooling/config.json");
  Put("tokenizer.json");
  found = Find();
  EXPECT_THAT(found->unknown, Not(Contains("modules.json")));
  EXPECT_THAT(found->unknown, Not(Contains("1_Pooling/config.json")));
  EXPECT_THAT(found->unknown, Contains("chat_template.jinja"));
}

TEST_F(CachedSnapshotTest, NothingIsUnknownOfARepositoryThatWasDownloadedWhole) {
  Put("config.json");
  Put("model.safetensors");
  Put(".gitattributes");
  EXPECT_THAT(Find()->unknown, IsEmpty());
  // A download was broken off.
  fs::create_directories(cache_.Blob("x").parent_path());
  std::ofstream(cache_.Blob("x.incomplete")) << "x";
  EXPECT_THAT(Find()->unknown, Contains("modules.json"));
}

TEST_F(CachedSnapshotTest, AFolderGoesBeforeAGgufFileThatNobodyNamed) {
  Put("m.gguf");
  EXPECT_THAT(Find()->unknown, ElementsAre("config.json"));
  EXPECT_THAT(Find("m.gguf")->unknown, IsEmpty());
  cache_.NoteAbsent(commit_, "config.json");
  EXPECT_THAT(Find()->unknown, IsEmpty());
}

}  // namespace
}  // namespace millrace
