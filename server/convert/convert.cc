#include "server/convert/convert.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/regular_file.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/distributed/checkpoint_folder.h"
#include "formats/distributed/folder_tensors.h"
#include "formats/distributed/name_rules.h"
#include "formats/files/folder_file.h"
#include "server/convert/folder_writer.h"
#include "server/convert/prompt_check.h"
#include "server/convert/tensor_writer.h"

namespace millrace {
namespace {

constexpr size_t kMaxRulesBytes = 1 << 20;
constexpr size_t kMaxCopiedBytes = 256 << 20;

// What a folder has beside its weights. config.json is demanded, the others are copied if they are
// there.
constexpr const char* kCopied[] = {"config.json",       "generation_config.json",
                                   "tokenizer.json",    "tokenizer_config.json",
                                   "tokenizer.model",   "special_tokens_map.json",
                                   "added_tokens.json", "vocab.json",
                                   "merges.txt",        "tekken.json",
                                   "vocab.txt",         "chat_template.jinja",
                                   "chat_template.json"};

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::string Gigabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f GB", static_cast<double>(bytes) * 1e-9);
  return text;
}

const TorchType* TypeOf(OutputType type) {
  switch (type) {
    case OutputType::kAuto:
      return nullptr;
    case OutputType::kBfloat16:
      return FindTorchType("torch.bfloat16");
    case OutputType::kFloat16:
      return FindTorchType("torch.float16");
    case OutputType::kFloat32:
      return FindTorchType("torch.float32");
  }
  return nullptr;
}

absl::StatusOr<FolderTensors> NameAll(const Settings& settings,
                                      const CheckpointMetadata& metadata) {
  MILLRACE_ASSIGN_OR_RETURN(const FolderFacts facts, ReadFolderFacts(settings.model_config));
  if (settings.rules.empty()) return NameTensors(metadata, facts, nullptr);
  const absl::StatusOr<std::string> text = ReadRegularFile(settings.rules, kMaxRulesBytes);
  if (!text.ok()) return Annotate(text.status(), StrCat("rules: ", settings.rules));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<NameRule> rules,
                            ParseNameRules(*text, settings.rules));
  return NameTensors(metadata, facts, &rules);
}

absl::Status CopyFiles(const std::string& from, const FolderWriter& to) {
  for (const char* name : kCopied) {
    if (!HasFolderFile(from, name)) continue;
    const absl::StatusOr<std::string> text =
        ReadRegularFile(StrCat(from, "/", name), kMaxCopiedBytes);
    if (!text.ok()) return Annotate(text.status(), name);
    MILLRACE_RETURN_IF_ERROR(to.WriteFile(name, *text));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunConvert(const Settings& settings, const std::atomic<bool>& stop) {
  if (!IsCheckpointFolder(settings.model)) {
    return absl::NotFoundError(StrCat(settings.model,
                                      ": has no .metadata; expected a folder that "
                                      "torch.distributed.checkpoint has written"));
  }
  MILLRACE_ASSIGN_OR_RETURN(CheckpointFolder checkpoint, CheckpointFolder::Open(settings.model));
  const CheckpointMetadata& metadata = checkpoint.metadata();
  MILLRACE_ASSIGN_OR_RETURN(const FolderTensors tensors, NameAll(settings, metadata));
  MILLRACE_ASSIGN_OR_RETURN(const std::unique_ptr<FolderWriter> folder,
                            FolderWriter::Create(settings.output));
  MILLRACE_RETURN_IF_ERROR(CopyFiles(settings.model_config, *folder));
  TensorWriting writing{.type = TypeOf(settings.output_type),
                        .shard_bytes = static_cast<uint64_t>(settings.shard_size),
                        .stop = &stop};
  writing.on_file = [](const std::string& file, uint64_t bytes) {
    Print(StrCat(file, "  ", Gigabytes(bytes), "\n"));
  };
  MILLRACE_ASSIGN_OR_RETURN(const WrittenTensors written,
                            WriteTensors(&checkpoint, tensors, writing, *folder));
  if (!settings.check.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<ScoredToken> scored,
                              ScorePrompt(folder->folder(), settings.check));
    Print(ScoreTable(scored));
  }
  MILLRACE_RETURN_IF_ERROR(folder->Publish());
  Print(StrCat(settings.output, ": ", tensors.tensors.size(), " tensors in ", written.files,
               " files, ", Gigabytes(written.bytes), "; left out: ", metadata.left_out,
               " entries of training, ", tensors.left_out, " tensors by rules\n"));
  return absl::OkStatus();
}

}  // namespace millrace
