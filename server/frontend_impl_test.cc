#include "server/frontend_impl.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/engine_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model_location.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TEST(AuthorizeTest, WithoutKeysEveryoneMayComeIn) {
  const FrontendImpl frontend({});
  EXPECT_TRUE(frontend.Authorize("").ok());
  EXPECT_TRUE(frontend.Authorize("Bearer x").ok());
}

TEST(AuthorizeTest, WithKeysOnlyWhoHasOne) {
  const FrontendImpl frontend({"first", "second"});
  for (const char* good : {"Bearer first", "Bearer second", "bearer first", "BEARER second"}) {
    EXPECT_TRUE(frontend.Authorize(good).ok()) << good;
  }
  for (const char* bad : {"", "first", "Bearer", "Bearer ", "Bearer firs", "Bearer firsts",
                          "Bearer first ", "Basic first", "Bearerfirst"}) {
    EXPECT_EQ(frontend.Authorize(bad).code(), absl::StatusCode::kUnauthenticated) << bad;
  }
}

TEST(FrontendTest, FindsEnginesOnceReady) {
  auto engine = MakeEngine(std::make_shared<Script>("hi"));
  const std::string name = engine->info().model_name;
  FrontendImpl frontend({});
  frontend.AddModel(engine.get());
  EXPECT_FALSE(frontend.ready());
  EXPECT_EQ(frontend.FindEngine(name).status().code(), absl::StatusCode::kUnavailable);
  frontend.SetReady();
  EXPECT_TRUE(frontend.ready());
  EXPECT_EQ(*frontend.FindEngine(name), engine.get());
  EXPECT_EQ(*frontend.FindEngine(""), engine.get());
  const absl::Status unknown = frontend.FindEngine("other").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"other\""));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr(name));
  frontend.BeginDrain();
  EXPECT_FALSE(frontend.ready());
  EXPECT_TRUE(frontend.live());
  EXPECT_TRUE(frontend.draining());
}

class DefaultModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cache_ = std::filesystem::path(::testing::TempDir()) / "model_location_test";
    std::filesystem::create_directories(cache_ / "millrace");
    setenv("XDG_CACHE_HOME", cache_.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(cache_); }

  std::filesystem::path cache_;
};

TEST_F(DefaultModelTest, IsTakenFromTheCache) {
  const auto file = cache_ / "millrace" / "SmolLM2-135M-Instruct.Q4_1.gguf";
  EXPECT_THAT(std::string(ModelPath({}).status().message()), HasSubstr("scripts/fetch_model.sh"));
  std::ofstream(file) << "x";
  EXPECT_EQ(*ModelPath({}), file);
  EXPECT_EQ(ModelName({}, file), "SmolLM2-135M-Instruct.Q4_1");
}

TEST_F(DefaultModelTest, WhatIsNamedIsTaken) {
  Settings settings;
  settings.model = "/models/a.b";
  EXPECT_EQ(*ModelPath(settings), "/models/a.b");
  EXPECT_EQ(ModelName(settings, "/models/a.b"), "a.b");
  EXPECT_EQ(ModelName(settings, "/models/a.b/"), "a.b");
  settings.served_model_names = {"mine", "other"};
  EXPECT_EQ(ModelName(settings, "/models/a.b"), "mine");
}

TEST_F(DefaultModelTest, APathHasNoRevision) {
  Settings settings;
  settings.model = "/models/a.b";
  settings.tokenizer = "./t.gguf";
  EXPECT_EQ(*TokenizerPath(settings, settings.model), "./t.gguf");
  settings.revision = settings.tokenizer_revision = "v1";
  EXPECT_EQ(
      ModelPath(settings).status(),
      absl::InvalidArgumentError("revision: got v1, but --model /models/a.b is a path, and no "
                                 "name of a model at the hub"));
  EXPECT_EQ(TokenizerPath(settings, settings.model).status(),
            absl::InvalidArgumentError("tokenizer-revision: got v1, but --tokenizer ./t.gguf is a "
                                       "path, and no name of a model at the hub"));
}

TEST_F(DefaultModelTest, TheFakeDeviceHasNone) {
  Settings settings;
  settings.device = Device::kFake;
  EXPECT_EQ(*ModelPath(settings), "");
  EXPECT_EQ(ModelName(settings, ""), "fake");
}

}  // namespace
}  // namespace millrace
