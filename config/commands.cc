#include "config/commands.h"

#include <algorithm>

#include "base/strings.h"

namespace millrace {

const std::vector<CommandInfo>& Commands() {
  static const std::vector<CommandInfo>* const commands = new std::vector<CommandInfo>{
      {Command::kServe, "serve", "[MODEL]", "which serves a model",
       "serves a model; the word may be left out",
       "millraced serves a large language model over HTTP and gRPC."},
      {Command::kChat, "chat", "[MODEL]", "which talks to a model",
       "talks to a model in the terminal",
       "millraced chat serves a model for itself alone, or asks the server at --url, and talks to "
       "it "
       "in the terminal: it keeps the conversation, writes answers as they come, and Ctrl-C ends "
       "an "
       "answer. /help lists what else it does. Without a terminal each line of the input is a "
       "message.",
       "run"},
      {Command::kBench, "bench", "[MODEL]", "which serves no clients", "measures a model",
       "millraced bench measures what the engine takes for a step: the scheduler, the model and "
       "the sampler that serve, without sockets and text, on prompts of random tokens."},
      {Command::kHealth, "health", "", "which asks a server",
       "asks a running server for its health",
       "millraced health asks the server on this machine whether it is ready, or live. It ends "
       "with 0 if so, and otherwise with 1 and a line that says why."},
      {Command::kDoctor, "doctor", "[MODEL]", "which checks this machine",
       "checks this machine, and the model, for what these settings need",
       "millraced doctor checks whether this machine can serve with these settings: its processor, "
       "GPU, driver, memory, ports and the model. It says what is wrong and what to do, and ends "
       "with 0 if nothing is, and otherwise with 1."},
      {Command::kConvert, "convert", "CHECKPOINT FOLDER", "which converts a checkpoint",
       "makes a Hugging Face folder of a PyTorch distributed checkpoint",
       "millraced convert makes a Hugging Face folder, safetensors with an index, of a folder that "
       "torch.distributed.checkpoint has written: .metadata and *.distcp. No Python runs, and no "
       "tensor need fit into memory. The state of an optimizer is left out. The folder is there "
       "whole or not at all."},
      {Command::kGet, "get", "MODEL", "which fetches a model",
       "fetches a model of the hub into the local cache",
       "millraced get fetches a model of the Hugging Face hub into the local cache, and prints its "
       "path. What is there already is not fetched again.",
       "pull"},
      {Command::kList, "list", "", "which lists the local cache",
       "lists the models of the local cache",
       "millraced list prints the default model and the models of the local cache, the revision "
       "and "
       "the size of each, when it was last used, and whether it can be served without a network.",
       "ls"},
      {Command::kRemove, "rm", "MODEL", "which removes a model from the local cache",
       "removes a model from the local cache",
       "millraced rm removes a model, with all its revisions, or one GGUF file of it "
       "(org/name:FILE.gguf, org/name:Q4_K_M), from the local cache, which Hugging Face's own "
       "tools "
       "share. It asks nothing.",
       "remove"}};
  return *commands;
}

const CommandInfo* FindCommand(std::string_view word) {
  for (const CommandInfo& info : Commands()) {
    const std::vector<std::string_view> also = SplitList(info.also, ' ');
    if (info.word == word || std::find(also.begin(), also.end(), word) != also.end()) return &info;
  }
  return nullptr;
}

const CommandInfo* FindCommand(Command command) {
  for (const CommandInfo& info : Commands()) {
    if (info.command == command) return &info;
  }
  return nullptr;
}

}  // namespace millrace
