#include "config/foreign_flags.h"

#include <algorithm>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr std::string_view kVllm = "vLLM";
constexpr std::string_view kLlama = "llama.cpp";
constexpr std::string_view kSglang = "SGLang";
constexpr std::string_view kBoth = "vLLM and llama.cpp";

// Flags that have one answer.
struct Row {
  std::string_view origin;
  ForeignKind kind;
  std::string_view names;  // separated by spaces
  std::string_view text;
};

const std::vector<Row>& Rows() {
  static const std::vector<Row>* const rows = new std::vector<Row>{
      {kBoth, ForeignKind::kSame, "--port", "http-port"},
      {kVllm, ForeignKind::kSame, "--kv-cache-memory-bytes", "kv-cache-memory"},
      {kVllm, ForeignKind::kSame, "--enable-prefix-caching", "prefix-caching"},
      {kLlama, ForeignKind::kSame, "--cache-prompt", "prefix-caching"},
      {kVllm, ForeignKind::kSame, "-tp", "tensor-parallel-size"},
      {kVllm, ForeignKind::kSame, "-q", "quantization"},
      {kLlama, ForeignKind::kSame, "-a --alias", "served-model-name"},
      {kLlama, ForeignKind::kSame, "-hf -hfr --hf-repo", "model"},
      {kLlama, ForeignKind::kSame, "-t", "threads"},
      {kLlama, ForeignKind::kSame, "-np --parallel", "max-num-seqs"},
      {kVllm, ForeignKind::kAlways, "--enable-chunked-prefill",
       "prompts are always computed in chunks"},
      {kVllm, ForeignKind::kAlways, "--async-scheduling",
       "the next step is always planned while one runs"},
      {kVllm, ForeignKind::kAlways, "--disable-log-requests --no-enable-log-requests",
       "prompts are never logged unless --log-prompts is given"},
      {kVllm, ForeignKind::kAlways, "--disable-frontend-multiprocessing",
       "there is always one process"},
      {kLlama, ForeignKind::kAlways, "-cb --cont-batching",
       "sequences join and leave the batch at each step, always"},
      {kLlama, ForeignKind::kAlways, "--jinja", "a model's chat template is always run as Jinja"},
      {kLlama, ForeignKind::kAlways, "--metrics", "/metrics is always served"},
      {kLlama, ForeignKind::kAlways, "--no-context-shift", "a context is never shifted"},
      {kLlama, ForeignKind::kAlways, "-kvu --kv-unified",
       "all sequences share one KV cache, always"},
      {kVllm, ForeignKind::kHint, "--model-tag", "name the model with --model"},
      {kVllm, ForeignKind::kHint, "--allow-credentials --allowed-methods --allowed-headers",
       "use --allowed-origins; methods and headers are not restricted further"},
      {kVllm, ForeignKind::kHint, "--scheduling-policy",
       "leave it out: a request's priority always goes first, then its arrival"},
      {kVllm, ForeignKind::kHint, "--swap-space --cpu-offload-gb --preemption-mode",
       "leave it out: a preempted sequence is recomputed, and weights stay on the device; "
       "--kv-cache-memory sizes the cache"},
      {kVllm, ForeignKind::kHint, "--num-gpu-blocks-override", "use --kv-cache-memory"},
      {kVllm, ForeignKind::kHint,
       "--max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold",
       "use --max-num-batched-tokens, which prompts share after decoding sequences"},
      {kVllm, ForeignKind::kHint, "--seed", "leave it out: a seed is a field of a request"},
      {kVllm, ForeignKind::kHint, "--disable-log-stats", "use --log, as in --log engine=warning"},
      {kVllm, ForeignKind::kHint, "--enable-log-requests --enable-log-outputs",
       "use --log http=debug, and --log-prompts for the text of prompts"},
      {kVllm, ForeignKind::kHint, "--max-log-len",
       "leave it out: prompts are logged only with --log-prompts"},
      {kVllm, ForeignKind::kHint, "--log-config-file --uvicorn-log-level",
       "use --log LEVELS and --log-format text or json"},
      {kVllm, ForeignKind::kHint, "--disable-uvicorn-access-log --disable-fastapi-docs",
       "leave it out: there are no such pages, and --log http=LEVEL sets what is logged of "
       "requests"},
      {kVllm, ForeignKind::kHint, "-pp --pipeline-parallel-size",
       "use --tensor-parallel-size, on several hosts with --nnodes; layers are not divided among "
       "devices"},
      {kVllm, ForeignKind::kHint,
       "-dp --data-parallel-size --data-parallel-size-local --data-parallel-address "
       "--data-parallel-rpc-port --data-parallel-backend --api-server-count",
       "start one server for each replica, and a router in front of them"},
      {kVllm, ForeignKind::kHint,
       "--distributed-executor-backend --worker-use-ray --worker-cls --worker-extension-cls "
       "--max-parallel-loading-workers",
       "leave it out: the ranks of --tensor-parallel-size are threads of one process on each host"},
      {kVllm, ForeignKind::kHint,
       "--enable-lora --lora-modules --max-loras --max-lora-rank --fully-sharded-loras",
       "adapters are not supported: merge them into the model"},
      {kVllm, ForeignKind::kSame, "-sc", "speculative-config"},
      {kVllm, ForeignKind::kHint, "--speculative-model --spec-model",
       "leave it out: drafts of another model are not supported, but answers are drafted from what "
       "stands in their prompts"},
      {kVllm, ForeignKind::kHint, "--num-speculative-tokens --spec-tokens --spec-method",
       "use --speculative-config, as {\"method\": \"ngram\", \"num_speculative_tokens\": 5}"},
      {kVllm, ForeignKind::kHint,
       "--chat-template-content-format --response-role --enable-request-id-headers",
       "leave it out: answers are as OpenAI has them, with X-Request-Id"},
      {kBoth, ForeignKind::kHint, "--chat-template",
       "the model's own template is used; --tokenizer takes that of another model"},
      {kVllm, ForeignKind::kHint, "--tool-parser-plugin --tool-server",
       "leave it out: --tool-call-parser chooses among the parsers of this server, and no tools "
       "are "
       "run"},
      {kVllm, ForeignKind::kHint, "--enable-reasoning", "use --reasoning-parser"},
      {kVllm, ForeignKind::kHint, "--guided-decoding-backend --structured-outputs-config",
       "leave it out: structured outputs need no setting, and a request asks for them"},
      {kVllm, ForeignKind::kHint, "--hf-overrides --rope-theta --hf-config-path --config-format",
       "edit the model's config.json"},
      {kBoth, ForeignKind::kHint, "--rope-scaling",
       "edit the model's config.json, or take a file that has it"},
      {kVllm, ForeignKind::kHint, "--trust-remote-code",
       "leave it out: no code of a model is ever run"},
      {kVllm, ForeignKind::kHint,
       "--tokenizer-mode --skip-tokenizer-init --code-revision --model-impl",
       "leave it out: what a model is, and its tokenizer, are read from its files"},
      {kVllm, ForeignKind::kHint, "--task --convert --pooler-config --override-pooler-config",
       "use --runner pooling for embeddings of a model whose files do not say that it makes them; "
       "they are pooled as the files say"},
      {kVllm, ForeignKind::kHint, "--uds --root-path --middleware",
       "put a proxy in front of the server"},
      {kVllm, ForeignKind::kAlways, "--enable-ssl-refresh",
       "certificates are read again when their files change"},
      {kVllm, ForeignKind::kHint, "--ssl-ciphers",
       "leave it out: only ciphers with forward secrecy are taken (docs/security.md)"},
      {kVllm, ForeignKind::kHint, "--download-dir",
       "set HF_HOME or HF_HUB_CACHE in the environment"},
      {kBoth, ForeignKind::kHint, "--hf-token", "set HF_TOKEN in the environment"},
      {kVllm, ForeignKind::kHint,
       "--model-loader-extra-config --safetensors-load-strategy --use-tqdm-on-load "
       "--ignore-patterns",
       "leave it out: weights are mapped and read in parallel"},
      {kVllm, ForeignKind::kHint,
       "--compilation-config -O --optimization-level --cuda-graph-sizes --max-seq-len-to-capture "
       "--compilation-mode",
       "leave it out; --enforce-eager turns CUDA graphs off"},
      {kVllm, ForeignKind::kHint, "--disable-custom-all-reduce",
       "use --all-reduce nccl, whose sums are in NCCL's order"},
      {kVllm, ForeignKind::kHint, "--all2all-backend",
       "leave it out: ranks exchange by kernels of this server's own, or else over NCCL"},
      {kVllm, ForeignKind::kHint,
       "--disable-sliding-window --disable-cascade-attn --attention-backend",
       "leave it out: attention is as the model says"},
      {kVllm, ForeignKind::kHint, "--calculate-kv-scales",
       "leave it out: --kv-cache-dtype fp8 needs no scales"},
      {kVllm, ForeignKind::kHint, "--override-generation-config",
       "use --temperature, --top-p, --max-tokens and the like, or --generation-config FOLDER, a "
       "folder with your generation_config.json"},
      {kVllm, ForeignKind::kHint, "--logits-processors --logits-processor-pattern --max-logprobs",
       "leave it out: log-probabilities are limited to 20, and processors are not loaded"},
      {kVllm, ForeignKind::kHint,
       "--limit-mm-per-prompt --mm-processor-kwargs --mm-processor-cache-gb "
       "--allowed-local-media-path --allowed-media-domains --media-io-kwargs",
       "leave it out: models of text alone are served"},
      {kVllm, ForeignKind::kHint,
       "--kv-transfer-config --kv-offloading-size --kv-offloading-backend",
       "leave it out: the KV cache stays on its device"},
      {kVllm, ForeignKind::kHint, "--collect-detailed-traces --show-hidden-metrics-for-version",
       "leave it out: scrape /metrics"},
      {kVllm, ForeignKind::kHint, "--enable-sleep-mode --enable-eplb --num-redundant-experts",
       "leave it out: stop the server instead"},
      {kVllm, ForeignKind::kHint, "--enable-server-load-tracking",
       "leave it out: /metrics has the load"},
      {kVllm, ForeignKind::kHint,
       "--return-tokens-as-token-ids --enable-prompt-tokens-details --enable-force-include-usage",
       "leave it out: a request asks for return_token_ids or stream_options.include_usage"},
      {kVllm, ForeignKind::kHint, "--prefix-caching-hash-algo",
       "leave it out: blocks are found by a SHA-256 chain"},
      {kVllm, ForeignKind::kHint, "--headless",
       "leave it out: nodes with --node-rank above 0 serve no clients"},
      {kLlama, ForeignKind::kHint, "-c --ctx-size",
       "use --max-model-len, the limit of one sequence; it is not divided among slots"},
      {kLlama, ForeignKind::kHint, "-hff --hf-file", "use --model org/name:FILE.gguf"},
      {kLlama, ForeignKind::kHint, "-hft", "set HF_TOKEN in the environment"},
      {kLlama, ForeignKind::kHint, "-mu --model-url",
       "use --model org/name:FILE.gguf, or fetch the file and name its path"},
      {kLlama, ForeignKind::kHint, "--api-key-file",
       "put api-key into the file that --config names"},
      {kLlama, ForeignKind::kHint, "--cors-origins", "use --allowed-origins"},
      {kLlama, ForeignKind::kHint, "-tb --threads-batch --threads-http", "use --threads"},
      {kLlama, ForeignKind::kHint, "-b --batch-size -ub --ubatch-size",
       "use --max-num-batched-tokens, the tokens of a step"},
      {kLlama, ForeignKind::kHint, "-nocb --no-cont-batching",
       "leave it out: sequences always join and leave the batch at each step"},
      {kLlama, ForeignKind::kHint, "--cache-ram --cache-reuse",
       "use --kv-cache-memory; blocks that were computed once are reused with --prefix-caching"},
      {kLlama, ForeignKind::kHint, "-ctk --cache-type-k -ctv --cache-type-v",
       "use --kv-cache-dtype"},
      {kLlama, ForeignKind::kHint, "-ngl --gpu-layers --n-gpu-layers",
       "use --device cuda: the whole model runs on the GPU, or none of it"},
      {kLlama, ForeignKind::kHint, "-sm --split-mode -ts --tensor-split -mg --main-gpu -dev",
       "use --tensor-parallel-size, and --devices for which GPUs"},
      {kLlama, ForeignKind::kHint, "-ncmoe --n-cpu-moe --cpu-moe -ot --override-tensor",
       "leave it out: the whole model runs on one kind of device"},
      {kLlama, ForeignKind::kHint, "-fa --flash-attn",
       "leave it out: attention is always computed so"},
      {kLlama, ForeignKind::kSame, "-n --predict --n-predict", "max-tokens"},
      {kLlama, ForeignKind::kSame, "--temp", "temperature"},
      {kLlama, ForeignKind::kSame, "--typical", "typical-p"},
      {kLlama, ForeignKind::kSame, "--repeat-penalty", "repetition-penalty"},
      {kLlama, ForeignKind::kHint,
       "-s --samplers --sampling-seq --mirostat --repeat-last-n --dry-multiplier "
       "--xtc-probability --dynatemp-range",
       "use --temperature, --top-p, --top-k, --min-p and the like, or fields of a request"},
      {kSglang, ForeignKind::kSame, "--model-path", "model"},
      {kSglang, ForeignKind::kSame, "--tokenizer-path", "tokenizer"},
      {kSglang, ForeignKind::kSame, "--context-length", "max-model-len"},
      {kSglang, ForeignKind::kSame, "--max-running-requests", "max-num-seqs"},
      {kSglang, ForeignKind::kSame, "--max-queued-requests", "max-waiting"},
      {kSglang, ForeignKind::kSame, "--tp --tp-size", "tensor-parallel-size"},
      {kSglang, ForeignKind::kSame, "--page-size", "block-size"},
      {kSglang, ForeignKind::kSame, "--disable-cuda-graph", "enforce-eager"},
      {kSglang, ForeignKind::kAlways, "--enable-metrics", "/metrics is always served"},
      {kSglang, ForeignKind::kAlways, "--enable-mixed-chunk",
       "prompts and decoding sequences always share steps"},
      {kSglang, ForeignKind::kAlways, "--enable-cache-report",
       "usage always has the cached tokens of a prompt"},
      {kSglang, ForeignKind::kHint, "--mem-fraction-static",
       "use --gpu-memory-utilization, the share of all that is in use, or --kv-cache-memory"},
      {kSglang, ForeignKind::kHint, "--max-total-tokens", "use --kv-cache-memory"},
      {kSglang, ForeignKind::kHint,
       "--chunked-prefill-size --max-prefill-tokens --prefill-max-requests",
       "use --max-num-batched-tokens, the tokens of a step"},
      {kSglang, ForeignKind::kHint, "--disable-radix-cache", "use --prefix-caching=false"},
      {kSglang, ForeignKind::kHint, "--radix-eviction-policy --schedule-conservativeness",
       "leave it out: blocks that save the least prompt time are given up first, and a request is "
       "admitted when its blocks are there"},
      {kSglang, ForeignKind::kHint, "--schedule-policy",
       "leave it out: a request's priority always goes first, then its arrival"},
      {kSglang, ForeignKind::kHint, "--dp --dp-size --load-balance-method",
       "start one server for each replica, and a router in front of them"},
      {kSglang, ForeignKind::kHint, "--pp --pp-size",
       "use --tensor-parallel-size, on several hosts with --nnodes; layers are not divided among "
       "devices"},
      {kSglang, ForeignKind::kHint, "--ep --ep-size",
       "use --enable-expert-parallel with --tensor-parallel-size"},
      {kSglang, ForeignKind::kHint, "--dist-init-addr --nccl-init-addr",
       "use --master-addr and --master-port"},
      {kSglang, ForeignKind::kHint, "--is-embedding", "use --runner pooling"},
      {kSglang, ForeignKind::kHint, "--log-level --log-level-http",
       "use --log LEVELS, as --log http=debug"},
      {kSglang, ForeignKind::kHint, "--log-requests --log-requests-level",
       "use --log http=debug, and --log-prompts for the text of prompts"},
      {kSglang, ForeignKind::kHint, "--random-seed",
       "leave it out: a seed is a field of a request"},
      {kSglang, ForeignKind::kHint, "--watchdog-timeout",
       "use --step-timeout for a device that hangs, and --stall-timeout for health"},
      {kSglang, ForeignKind::kHint, "--grammar-backend --sampling-backend --fp8-gemm-backend",
       "leave it out: there is one of them"},
      {kSglang, ForeignKind::kHint,
       "--cuda-graph-max-bs --cuda-graph-bs --enable-torch-compile --torch-compile-max-bs",
       "leave it out; --enforce-eager turns CUDA graphs off"},
      {kSglang, ForeignKind::kHint, "--json-model-override-args", "edit the model's config.json"},
      {kSglang, ForeignKind::kHint, "--speculative-draft-model-path",
       "leave it out: drafts of another model are not supported, but answers are drafted from what "
       "stands in their prompts"},
      {kSglang, ForeignKind::kHint, "--speculative-algorithm --speculative-num-draft-tokens",
       "use --speculative-config, as {\"method\": \"ngram\", \"num_speculative_tokens\": 5}"},
      {kSglang, ForeignKind::kHint, "--lora-paths --max-loras-per-batch",
       "adapters are not supported: merge them into the model"},
      {kSglang, ForeignKind::kHint, "--sampling-defaults",
       "use --generation-config: auto takes the model's, vllm none"},
      {kSglang, ForeignKind::kHint, "--skip-server-warmup --stream-interval --allow-auto-truncate",
       "leave it out: each token is sent as it comes, and a prompt that is too long is refused"},
      {kLlama, ForeignKind::kHint,
       "--rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --override-kv",
       "leave it out: the file says so"},
      {kLlama, ForeignKind::kHint,
       "--mlock --no-mmap --mmap --numa --load-mode --no-warmup --warmup",
       "leave it out: the file is mapped, and its weights are laid out anew in memory"},
      {kLlama, ForeignKind::kHint,
       "--embeddings --embedding --pooling --embd-normalize --reranking --rerank",
       "leave it out: a model that makes embeddings serves them, others with --runner pooling"},
      {kLlama, ForeignKind::kHint, "--reasoning-format", "use --reasoning-parser"},
      {kLlama, ForeignKind::kHint, "--chat-template-kwargs --chat-template-file --reasoning-budget",
       "leave it out: chat_template_kwargs is a field of a request"},
      {kLlama, ForeignKind::kHint, "--grammar --grammar-file --json-schema -j",
       "leave it out: a request asks for a grammar or a schema"},
      {kLlama, ForeignKind::kHint, "--lora --lora-scaled --control-vector --mmproj -mm",
       "adapters and images are not supported"},
      {kLlama, ForeignKind::kHint, "-md --model-draft",
       "leave it out: drafts of another model are not supported, but answers are drafted from what "
       "stands in their prompts"},
      {kLlama, ForeignKind::kHint, "--draft-max --draft --draft-n --spec-type",
       "use --speculative-config, as {\"method\": \"ngram\", \"num_speculative_tokens\": 5}"},
      {kLlama, ForeignKind::kHint, "--draft-min --draft-n-min --draft-p-min",
       "leave it out: a draft is as long as the text that it is drafted by, at most as "
       "--speculative-config says"},
      {kLlama, ForeignKind::kHint, "--lookup-cache-static --lookup-cache-dynamic",
       "leave it out: drafts come from a request's own text"},
      {kLlama, ForeignKind::kHint,
       "--slots --no-slots --props --slot-save-path --no-webui --webui --path --api-prefix",
       "leave it out: the console on --admin-port shows what runs"},
      {kLlama, ForeignKind::kSame, "--ssl-key-file", "ssl-keyfile"},
      {kLlama, ForeignKind::kSame, "--ssl-cert-file", "ssl-certfile"},
      {kLlama, ForeignKind::kHint,
       "--log-file --log-disable --log-colors --log-prefix --log-timestamps",
       "use --log LEVELS; lines go to stderr"},
      {kLlama, ForeignKind::kHint, "--log-jsonl", "use --log-format json"},
      {kLlama, ForeignKind::kHint, "-v --verbose -lv --log-verbosity --verbosity",
       "use --log debug, or a component's level, as --log http=debug"},
      {kLlama, ForeignKind::kHint, "-to --timeout",
       "use --header-timeout, and --sse-ping-interval for quiet streams; docs/http-api.md lists "
       "the other limits, which are fixed"},
  };
  return *rows;
}

// Returns what becomes of the row's flags, in two cells.
std::string MarkdownCells(const Row& row) {
  switch (row.kind) {
    case ForeignKind::kSame:
      return StrCat("`--", row.text, "` | the same");
    case ForeignKind::kAlways:
      return StrCat("taken | ", row.text);
    case ForeignKind::kHint:
      return StrCat("refused | ", row.text);
  }
  return "";
}

}  // namespace

std::string ForeignFlagsMarkdown(std::string_view origin) {
  std::string table = StrCat("| ", origin, " | Millrace | |\n|---|---|---|\n");
  for (const Row& row : Rows()) {
    const bool both = row.origin == kBoth && origin != kSglang;
    if (row.origin != origin && !both) continue;
    std::string names;
    for (const std::string_view name : SplitList(row.names, ' ')) {
      names += StrCat(names.empty() ? "`" : ", `", name, "`");
    }
    table += StrCat("| ", names, " | ", MarkdownCells(row), " |\n");
  }
  return table;
}

std::string AllForeignFlagsMarkdown() {
  std::string tables;
  for (const std::string_view origin : {kVllm, kSglang, kLlama}) {
    tables += StrCat("<!-- flags of ", origin, " -->\n", ForeignFlagsMarkdown(origin),
                     "<!-- /flags of ", origin, " -->\n");
  }
  return tables;
}

const std::vector<ForeignFlag>& ForeignFlags() {
  static const std::vector<ForeignFlag>* const flags = [] {
    auto* all = new std::vector<ForeignFlag>;
    for (const Row& row : Rows()) {
      for (const std::string_view name : SplitList(row.names, ' ')) {
        all->push_back({row.origin, name, row.kind, row.text});
      }
    }
    return all;
  }();
  return *flags;
}

const ForeignFlag* FindForeignFlag(std::string_view written) {
  std::string dashed(written);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  for (const ForeignFlag& flag : ForeignFlags()) {
    if (flag.name == dashed) return &flag;
  }
  return nullptr;
}

}  // namespace millrace
