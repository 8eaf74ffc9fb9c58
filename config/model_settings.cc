#include "config/model_settings.h"

#include <array>
#include <limits>
#include <string_view>

#include "config/setting_makers.h"

namespace millrace {
namespace {

using setting_makers::Choice;
using setting_makers::ForServing;
using setting_makers::IsText;
using setting_makers::kMaxTokens;
using setting_makers::OptionalReal;
using setting_makers::OptionalWhole;
using setting_makers::Path;
using setting_makers::Switch;
using setting_makers::Text;
using setting_makers::Words;

constexpr char kModelNames[] =
    "a path, or org/name, org/name:FILE.gguf or org/name:Q4_K_M of the Hugging Face hub";

}  // namespace

std::vector<Setting> ModelSettings() {
  return {
      Path({"model", "MODEL",
            "GGUF file, Hugging Face folder or, with --device torch, AOTInductor package to serve, "
            "or a model of the hub, from its local cache or fetched into it. Without it: the "
            "default model in ${XDG_CACHE_HOME:-~/.cache}/millrace"},
           &Settings::model, kModelNames),
      Choice({"runner", "KIND",
              "what a decoder is for: auto, as its files say; generate text; or pooling, which "
              "makes embeddings: the last token's unless the files say otherwise"},
             &Settings::runner, std::array<std::string_view, 3>{"auto", "generate", "pooling"}),
      ForServing(
          Path({"tokenizer", "MODEL",
                "GGUF file, Hugging Face folder or model of the hub whose tokenizer and chat "
                "template go with the model. Without it: the model's own"},
               &Settings::tokenizer, kModelNames)),
      Words({"served-model-name", "NAME,...",
             "the model's names in requests, of which metrics have the first; answers have the one "
             "that was asked for. Without it: the file's stem or the folder's name"},
            "comma-separated names of 1 to 256 printable characters", &Settings::served_model_names,
            [](std::string_view name) { return IsText(name, 256); }),
      Text(
          {"revision", "REVISION", "branch, tag or commit of --model at the hub. Without it: main"},
          "1 to 256 printable characters", &Settings::revision,
          [](std::string_view name) { return name.size() <= 256; }),
      ForServing(Text({"tokenizer-revision", "REVISION",
                       "branch, tag or commit of --tokenizer at the hub. Without it: main"},
                      "1 to 256 printable characters", &Settings::tokenizer_revision,
                      [](std::string_view name) { return name.size() <= 256; })),
      ForServing(Path(
          {"generation-config", "FOLDER",
           "how requests are sampled that do not say it. auto: as the model's folder has it, in "
           "generation_config.json; vllm: as vLLM does without one; or as another folder has it"},
          &Settings::generation_config, "auto, vllm, or a path")),
      ForServing(Text({"tool-call-parser", "NAME",
                       "how tool calls are found in answers: auto, as the model's chat template "
                       "writes them; none; or a format by its name, as vLLM has them (docs/"
                       "tools-and-reasoning.md)"},
                      "auto, none, or the name of a format", &Settings::tool_call_parser,
                      [](std::string_view name) { return name.size() <= 64; })),
      ForServing(Text({"reasoning-parser", "NAME",
                       "how reasoning is found in answers: auto, none, or a format by its name"},
                      "auto, none, or the name of a format", &Settings::reasoning_parser,
                      [](std::string_view name) { return name.size() <= 64; })),
      ForServing(Switch("enable-auto-tool-choice",
                        "let the model decide whether it calls a tool; without it tools need a "
                        "tool_choice other than auto",
                        &Settings::enable_auto_tool_choice)),
      Switch("offline",
             "do not ask the hub: its models are what the local cache has (HF_HUB_OFFLINE=1 "
             "says the same)",
             &Settings::offline),
  };
}

// The ranges are those of requests (plan/sampling_params.h).
std::vector<Setting> SamplingSettings() {
  return {
      OptionalReal({"temperature", "T",
                    "of requests that do not say it, as all in this group; 0: the likeliest token. "
                    "Without it: as --generation-config has it, or else 1; in bench 0"},
                   &Settings::temperature, 0, 2),
      ForServing(OptionalReal({"top-p", "P", "keep the likeliest tokens of this probability"},
                              &Settings::top_p, 0, 1, /*above_least=*/true)),
      ForServing(OptionalWhole({"top-k", "N", "keep as many of the likeliest tokens; 0, -1: all"},
                               &Settings::top_k, -1, std::numeric_limits<int32_t>::max())),
      ForServing(OptionalReal(
          {"min-p", "P", "drop tokens below this share of the likeliest token's probability"},
          &Settings::min_p, 0, 1)),
      ForServing(
          OptionalReal({"typical-p", "P", "keep the most typical tokens of this probability"},
                       &Settings::typical_p, 0, 1, /*above_least=*/true)),
      ForServing(OptionalReal(
          {"repetition-penalty", "R", "divides the logits of tokens that the text has; 1: none"},
          &Settings::repetition_penalty, 0, 100, /*above_least=*/true)),
      ForServing(OptionalReal(
          {"frequency-penalty", "F", "subtracted for each time that the answer has a token"},
          &Settings::frequency_penalty, -2, 2)),
      ForServing(OptionalReal({"presence-penalty", "F", "subtracted once the answer has a token"},
                              &Settings::presence_penalty, -2, 2)),
      ForServing(OptionalWhole({"max-tokens", "TOKENS",
                                "of answers to requests that do not say it. Without it: as "
                                "--generation-config has it, or else as many as fit"},
                               &Settings::max_tokens, 1, kMaxTokens)),
  };
}

}  // namespace millrace
