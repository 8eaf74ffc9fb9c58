#include "formats/files/other_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "formats/model_text.h"
#include "formats/open_model.h"
#include "formats/twins/gguf_test_util.h"
#include "formats/twins/hf_test_util.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kPointer =
    "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n";

class OtherFilesTest : public ::testing::Test {
 protected:
  OtherFilesTest() { std::filesystem::create_directories(folder_); }
  ~OtherFilesTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, std::string_view bytes) {
    std::filesystem::create_directories(
        std::filesystem::path(StrCat(folder_, "/", name)).parent_path());
    WriteFile(StrCat(folder_, "/", name), bytes);
  }
  void WriteModel() { WriteHfFolder(TinyLlama(), folder_, {}); }
  std::string Error(const std::string& name = "") {
    const absl::StatusOr<OpenedModel> model =
        OpenModel(name.empty() ? folder_ : StrCat(folder_, "/", name));
    if (model.ok()) return "no error";
    std::string message(model.status().message());
    EXPECT_THAT(message, Not(HasSubstr(folder_)));
    return message;
  }
  std::string ErrorOf(std::string_view bytes) {
    Write("m.gguf", bytes);
    return Error("m.gguf");
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "other_files_test_", getpid());
};

TEST_F(OtherFilesTest, AFileThatIsNoGgufIsNamed) {
  using namespace std::string_literals;
  EXPECT_THAT(ErrorOf("\x10\0\0\0\0\0\0\0{\"a.weight\":{\"dtype\":\"F32\"}}   "s),
              HasSubstr("m.gguf: magic: the file does not start with \"GGUF\", it is a safetensors "
                        "file; name the folder"));
  EXPECT_THAT(ErrorOf("\x20\0\0\0\0\0\0\0{\"x.lora_A.weight\":{\"dtype\":0}}     "s),
              HasSubstr("it is a LoRA adapter in a safetensors file; adapters are not applied"));
  EXPECT_THAT(ErrorOf("PK\x03\x04 and more"), HasSubstr("it is a zip file, as PyTorch writes"));
  EXPECT_THAT(ErrorOf("\x80\x02}q"), HasSubstr("it is a pickle"));
  EXPECT_THAT(ErrorOf("tjgg 1234"), HasSubstr("it is a GGML file, the format before GGUF"));
  EXPECT_THAT(ErrorOf("<!DOCTYPE html><html>"), HasSubstr("it is a web page: a download"));
  EXPECT_THAT(ErrorOf("{\"a\": 1}"), HasSubstr("it is JSON"));
  EXPECT_THAT(ErrorOf("what is this"),
              AllOf(HasSubstr("does not start with \"GGUF\""), Not(HasSubstr("it is"))));
  EXPECT_THAT(ErrorOf("GGUF\0\0\0\x03 and numbers"s),
              HasSubstr("version: the file has big-endian"));
  EXPECT_THAT(ErrorOf(kPointer), HasSubstr("m.gguf: is git-LFS's pointer to the file"));
}

TEST_F(OtherFilesTest, AGgufFileThatIsNoModelIsNamed) {
  const auto error = [&](std::string_view architecture, std::string_view type) {
    GgufWriter writer;
    writer.String("general.architecture", architecture).String("general.type", type);
    return ErrorOf(writer.Bytes());
  };
  EXPECT_THAT(error("clip", "mmproj"), HasSubstr("m.gguf: is the projector (mmproj)"));
  EXPECT_THAT(error("clip", ""), HasSubstr("is the projector (mmproj)"));
  EXPECT_THAT(error("llama", "adapter"), HasSubstr("is a LoRA adapter; adapters are not applied"));
  EXPECT_THAT(error("controlvector", ""), HasSubstr("is a control vector"));
  EXPECT_THAT(error("", "imatrix"), HasSubstr("is an importance matrix"));
  EXPECT_THAT(error("llama", "model"), Not(HasSubstr(" is a")));
  GgufWriter writer;
  writer.String("general.architecture", "llama").RawTensor("t", 40, {64}, std::string(64, 0));
  EXPECT_THAT(ErrorOf(writer.Bytes()), HasSubstr("tensor t: type NVFP4 is not supported"));
}

TEST_F(OtherFilesTest, AFoldersAdapterIsNotLeftOutSilently) {
  WriteModel();
  const std::string config = StrCat(folder_, "/config.json");
  std::filesystem::rename(config, config + ".away");
  Write("adapter_config.json", R"({"base_model_name_or_path": "org/base", "peft_type": "LORA"})");
  Write("adapter_model.safetensors", "x");
  EXPECT_THAT(Error(), HasSubstr("adapter_config.json: the folder holds a LoRA adapter of org/base "
                                 "and no model; adapters are not applied: merge it"));
  std::filesystem::rename(config + ".away", config);
  EXPECT_THAT(Error(), HasSubstr("adapter_config.json: beside the model is a LoRA adapter of "
                                 "org/base; adapters are not applied"));
  std::filesystem::remove(folder_ + "/adapter_config.json");
  EXPECT_THAT(Error(), HasSubstr("adapter_model.safetensors: beside the model is a LoRA adapter"));
  std::filesystem::remove(folder_ + "/adapter_model.safetensors");
  EXPECT_EQ(Error(), "no error");
}

TEST_F(OtherFilesTest, AFolderWithoutAModelIsNamed) {
  EXPECT_THAT(Error(), HasSubstr("config.json: open"));
  Write("model_index.json", "{}");
  EXPECT_THAT(Error(), HasSubstr("model_index.json: the folder holds a pipeline of diffusers"));
  std::filesystem::remove(folder_ + "/model_index.json");
  Write("params.json", "{}");
  EXPECT_THAT(Error(), HasSubstr("params.json: the folder is in its authors' own format"));
  Write("models--org--name/snapshots/0123/config.json", "{}");
  EXPECT_THAT(Error("models--org--name"),
              HasSubstr("it is one of the hub's cache: name the model, org/name, or its folder "
                        "snapshots/0123"));
}

TEST_F(OtherFilesTest, WeightsInOtherFormsAreNamed) {
  WriteModel();
  std::filesystem::remove(folder_ + "/model.safetensors");
  EXPECT_EQ(Error(), "no error");  // shapes alone, for dummy weights
  Write("training_args.bin", "x");
  EXPECT_EQ(Error(), "no error");
  for (const char* name : {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "tf_model.h5",
                           "flax_model.msgpack", "model.onnx", "consolidated.00.pth"}) {
    Write(name, "x");
    EXPECT_THAT(Error(), HasSubstr(StrCat(name, ": weights in this form are not read")));
    std::filesystem::remove(StrCat(folder_, "/", name));
  }
  Write("m.gguf", "x");
  EXPECT_THAT(Error(), HasSubstr("model.safetensors: the folder has none, and has m.gguf beside "
                                 "config.json: name that file"));
}

TEST_F(OtherFilesTest, PointersOfGitLfsAreNamed) {
  WriteModel();
  Write("model.safetensors", kPointer);
  EXPECT_THAT(Error(), HasSubstr("model.safetensors: is git-LFS's pointer to the file"));
  Write("tokenizer.json", kPointer);
  EXPECT_THAT(std::string(ReadFolderText(folder_).status().message()),
              HasSubstr("tokenizer.json: is git-LFS's pointer to the file and not the file itself: "
                        "run `git lfs pull`"));
}

}  // namespace
}  // namespace millrace
