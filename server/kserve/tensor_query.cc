#include "server/kserve/tensor_query.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/engine.h"
#include "engine/infer_engine.h"
#include "engine/request/tenant.h"

namespace millrace {
namespace {

using Done = std::function<void(absl::StatusOr<std::vector<WireTensor>>)>;

constexpr char kText[] = "text";
constexpr char kFirstText[] = "text_1";
constexpr char kSecondText[] = "text_2";
constexpr char kEmbedding[] = "embedding";
constexpr char kScore[] = "score";

static_assert(std::endian::native == std::endian::little, "tensors go out as they lie in memory");

absl::Status CheckVersion(std::string_view version) {
  if (version.empty() || version == kModelVersion) return absl::OkStatus();
  return absl::NotFoundError(StrCat("the model has no version \"", Printable(version),
                                    "\"; allowed: \"", kModelVersion, "\", or none"));
}

// ---- Parameters ----

// Takes the parameters that `take` knows; InvalidArgument for others.
template <typename Take>  // bool(std::string_view name, int64_t number)
absl::Status ReadParameters(const std::vector<WireParameter>& parameters, std::string_view allowed,
                            const Take& take) {
  for (const WireParameter& parameter : parameters) {
    const std::string name = StrCat("parameters.", Printable(parameter.name));
    if (!parameter.number.has_value()) {
      return absl::InvalidArgumentError(
          StrCat(name, " is not a whole number; allowed: ", allowed, ", each a whole number"));
    }
    if (!take(parameter.name, *parameter.number)) {
      return absl::InvalidArgumentError(StrCat(
          name, " is ", *parameter.number, "; allowed: ", allowed, ", each within its own range"));
    }
  }
  return absl::OkStatus();
}

// Takes "timeout", in microseconds as Triton has it.
bool TakeTimeout(std::string_view name, int64_t number, std::optional<absl::Time>& deadline) {
  if (name != "timeout" || number < 1 || number > kMaxTimeoutMs * 1000) return false;
  const absl::Time end = absl::Now() + absl::Microseconds(number);
  deadline = std::min(deadline.value_or(end), end);
  return true;
}

bool TakeInt32(int64_t number, std::optional<int32_t>& to) {
  if (number != static_cast<int32_t>(number)) return false;
  to = static_cast<int32_t>(number);
  return true;
}

// ---- Texts ----

// Returns the texts of an input of BYTES.
absl::StatusOr<std::vector<std::string_view>> TextsOf(const WireTensor& input) {
  const std::string name = StrCat("input ", Printable(input.name));
  if (input.datatype != kBytesType) {
    return absl::InvalidArgumentError(
        StrCat(name, ": datatype is \"", Printable(input.datatype), "\"; allowed: ", kBytesType));
  }
  const bool column = input.shape.size() == 2 && input.shape[1] == 1;
  if (input.shape.size() != 1 && !column) {
    return absl::InvalidArgumentError(
        StrCat(name, ": shape has ", input.shape.size(), " dimensions; allowed: [n], or [n, 1]"));
  }
  const int64_t count = input.shape[0];
  if (count < 1 || count > static_cast<int64_t>(kMaxEmbeddingInputs)) {
    return absl::InvalidArgumentError(
        StrCat(name, ": has ", count, " texts; allowed: 1 to ", kMaxEmbeddingInputs));
  }
  std::optional<std::vector<std::string_view>> texts = SplitBytes(input.data);
  if (!texts.has_value()) {
    return absl::InvalidArgumentError(
        StrCat(name, ": has sizes of elements that do not add up to its ", input.data.size(),
               " bytes; allowed: elements with their size before them, in four bytes"));
  }
  if (static_cast<int64_t>(texts->size()) != count) {
    return absl::InvalidArgumentError(
        StrCat(name, ": has ", texts->size(), " elements, by its shape ", count));
  }
  for (size_t i = 0; i < texts->size(); ++i) {
    if ((*texts)[i].empty()) {
      return absl::InvalidArgumentError(
          StrCat(name, ": element ", i, " is empty; allowed: a non-empty text"));
    }
  }
  return *std::move(texts);
}

// The inputs by the model's names, in their order.
absl::StatusOr<std::vector<const WireTensor*>> FindInputs(const TensorQuery& query,
                                                          const QueryModel& model) {
  std::vector<const WireTensor*> found(model.inputs.size());
  std::vector<std::string> names;
  for (const TensorMetadata& input : model.inputs) names.push_back(input.name);
  for (const WireTensor& input : query.inputs) {
    const auto name = std::find(names.begin(), names.end(), input.name);
    if (name == names.end() || found[name - names.begin()] != nullptr) {
      return absl::InvalidArgumentError(
          StrCat("input ", Printable(input.name),
                 name == names.end() ? " is not one of the model's" : " is there twice",
                 "; allowed: ", JoinList(names), ", once each"));
    }
    found[name - names.begin()] = &input;
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == nullptr) {
      return absl::InvalidArgumentError(StrCat("input ", names[i], " is missing"));
    }
  }
  return found;
}

absl::Status CheckOutputs(const TensorQuery& query, std::string_view only) {
  if (query.outputs.size() > 1) {
    return absl::InvalidArgumentError(
        StrCat("outputs has ", query.outputs.size(), " names; allowed: ", only));
  }
  if (query.outputs.empty() || query.outputs[0] == only) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("output ", Printable(query.outputs[0]),
                                           " is not one of the model's; allowed: ", only));
}

absl::StatusOr<EmbedRequest> EmbedRequestOf(TensorQuery& query, const EngineInfo& info,
                                            const QueryModel& model) {
  EmbedRequest request;
  request.id = query.id;
  request.tenant = query.tenant;
  request.trace = query.trace;
  request.deadline = query.deadline;
  const bool scores = info.score.has_value();
  std::optional<int32_t> priority;
  MILLRACE_RETURN_IF_ERROR(
      ReadParameters(query.parameters,
                     scores ? "timeout, priority, truncate_prompt_tokens"
                            : "timeout, priority, truncate_prompt_tokens, dimensions",
                     [&](std::string_view name, int64_t number) {
                       if (name == "priority") return TakeInt32(number, priority);
                       if (name == "truncate_prompt_tokens") {
                         return TakeInt32(number, request.truncate_prompt_tokens);
                       }
                       if (name == "dimensions" && !scores)
                         return TakeInt32(number, request.dimensions);
                       return TakeTimeout(name, number, request.deadline);
                     }));
  request.priority = priority.value_or(0);
  MILLRACE_RETURN_IF_ERROR(CheckOutputs(query, scores ? kScore : kEmbedding));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<const WireTensor*> inputs, FindInputs(query, model));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, TextsOf(*inputs.back()));
  request.field = scores ? kSecondText : kText;
  for (const std::string_view text : texts) request.inputs.emplace_back(std::string(text));
  if (!scores) return request;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string_view> first, TextsOf(*inputs.front()));
  if (first.size() != texts.size()) {
    return absl::InvalidArgumentError(StrCat("input ", kFirstText, " has ", first.size(),
                                             " texts and ", kSecondText, " has ", texts.size(),
                                             "; allowed: as many of both"));
  }
  for (const std::string_view text : first) {
    request.first_texts.push_back(std::make_shared<const std::string>(text));
  }
  return request;
}

WireTensor ResultOf(const Embeddings& embeddings, const EngineInfo& info) {
  const int64_t count = static_cast<int64_t>(embeddings.values.size()) / embeddings.size;
  WireTensor out{.name = kEmbedding, .datatype = "FP32", .shape = {count, embeddings.size}};
  std::vector<float> values = embeddings.values;
  if (info.score.has_value()) {
    out.name = kScore;
    out.shape = {count};
    if (*info.score == ScoreFunction::kSigmoid) {
      for (float& value : values) value = 1 / (1 + std::exp(-value));
    }
  }
  out.data.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return out;
}

QueryModel Describe(const EngineInfo& info) {
  QueryModel model{.name = info.model_name,
                   .platform = StrCat("millrace_", info.architecture),
                   .inputs = {},
                   .outputs = {}};
  if (info.score.has_value()) {
    model.inputs = {{kFirstText, std::string(kBytesType), {-1}},
                    {kSecondText, std::string(kBytesType), {-1}}};
    model.outputs = {{kScore, "FP32", {-1}}};
  } else if (info.embedding_size > 0) {
    model.inputs = {{kText, std::string(kBytesType), {-1}}};
    model.outputs = {{kEmbedding, "FP32", {-1, info.embedding_size}}};
  }
  return model;
}

std::function<void()> RunTexts(Engine& engine, TensorQuery query, Done done) {
  const EngineInfo& info = engine.info();
  if (info.embedding_size == 0) {
    done(absl::InvalidArgumentError(
        StrCat("model is \"", info.model_name,
               "\", which generates; allowed here: models of embeddings, scores or tensors")));
    return [] {};
  }
  absl::StatusOr<EmbedRequest> request = EmbedRequestOf(query, info, Describe(info));
  if (!request.ok()) {
    done(request.status());
    return [] {};
  }
  return engine.Embed(*std::move(request),
                      [&engine, done = std::move(done)](absl::StatusOr<Embeddings> result) {
                        if (!result.ok()) return done(result.status());
                        done(std::vector<WireTensor>{ResultOf(*result, engine.info())});
                      });
}

// ---- Tensors ----

absl::StatusOr<std::vector<NamedTensor>> NamedTensors(std::vector<WireTensor> inputs) {
  std::vector<NamedTensor> named;
  for (WireTensor& input : inputs) {
    const std::optional<DataType> type = FindDataType(input.datatype);
    if (!type.has_value()) {
      return absl::InvalidArgumentError(StrCat("input ", Printable(input.name), ": datatype is \"",
                                               Printable(input.datatype),
                                               "\"; allowed: ", DataTypeNames()));
    }
    named.push_back(
        {.name = std::move(input.name),
         .tensor = {
             .type = *type, .shape = std::move(input.shape), .data = std::move(input.data)}});
  }
  return named;
}

std::function<void()> RunTensors(InferEngine& engine, TensorQuery query, Done done) {
  std::vector<size_t> wanted;
  const auto infer = std::make_shared<InferCall>();
  infer->deadline = query.deadline;
  const auto build = [&]() -> absl::Status {
    const TensorModelInfo& info = engine.info();
    MILLRACE_RETURN_IF_ERROR(
        ReadParameters(query.parameters, "timeout", [&](std::string_view name, int64_t number) {
          return TakeTimeout(name, number, infer->deadline);
        }));
    MILLRACE_ASSIGN_OR_RETURN(std::vector<NamedTensor> inputs,
                              NamedTensors(std::move(query.inputs)));
    MILLRACE_ASSIGN_OR_RETURN(infer->inputs, OrderInputs(info.inputs, std::move(inputs)));
    MILLRACE_ASSIGN_OR_RETURN(wanted, ChooseOutputs(info.outputs, query.outputs));
    if (query.tenant == nullptr) return absl::OkStatus();
    return query.tenant->Enter(1, Clock::Real().Now());
  };
  if (absl::Status status = build(); !status.ok()) {
    engine.CountInvalid();
    done(status);
    return [] {};
  }
  infer->done = [&engine, tenant = query.tenant, wanted = std::move(wanted),
                 done = std::move(done)](absl::StatusOr<std::vector<Tensor>> result) {
    if (tenant != nullptr) tenant->Leave(0, 0, Clock::Real().Now());
    if (!result.ok()) return done(result.status());
    std::vector<WireTensor> outputs;
    for (const size_t i : wanted) {
      Tensor& tensor = (*result)[i];
      outputs.push_back({.name = engine.info().outputs[i].name,
                         .datatype = std::string(DataTypeName(tensor.type)),
                         .shape = std::move(tensor.shape),
                         .data = std::move(tensor.data)});
    }
    done(std::move(outputs));
  };
  engine.Infer(infer);
  return [&engine, infer] { engine.Cancel(infer); };
}

TensorMetadata Describe(const TensorSpec& spec) {
  TensorMetadata tensor{
      .name = spec.name, .datatype = std::string(DataTypeName(spec.type)), .shape = {}};
  for (const Dimension& dimension : spec.shape) {
    tensor.shape.push_back(dimension.name.empty() ? dimension.min : -1);
  }
  return tensor;
}

}  // namespace

std::function<void()> RunQuery(const Frontend& frontend, TensorQuery query, Done done) {
  const absl::StatusOr<ServedModel*> model = frontend.Find(query.model);
  absl::Status status = model.ok() ? CheckVersion(query.version) : model.status();
  if (!status.ok()) {
    done(std::move(status));
    return [] {};
  }
  if (InferEngine* const tensors = (*model)->tensors()) {
    return RunTensors(*tensors, std::move(query), std::move(done));
  }
  return RunTexts(*(*model)->language(), std::move(query), std::move(done));
}

absl::StatusOr<QueryModel> DescribeModel(const Frontend& frontend, const std::string& name,
                                         std::string_view version) {
  MILLRACE_ASSIGN_OR_RETURN(ServedModel* const model, frontend.Find(name));
  MILLRACE_RETURN_IF_ERROR(CheckVersion(version));
  QueryModel described;
  if (const InferEngine* const tensors = model->tensors()) {
    described.platform = tensors->info().platform;
    for (const TensorSpec& spec : tensors->info().inputs) {
      described.inputs.push_back(Describe(spec));
    }
    for (const TensorSpec& spec : tensors->info().outputs) {
      described.outputs.push_back(Describe(spec));
    }
  } else {
    described = Describe(model->language()->info());
  }
  described.name = name.empty() ? model->model_name() : name;
  return described;
}

void AppendBytes(std::string_view element, std::string& data) {
  const auto size = static_cast<uint32_t>(element.size());
  data.append(reinterpret_cast<const char*>(&size), sizeof(size));
  data += element;
}

std::optional<std::vector<std::string_view>> SplitBytes(std::string_view data) {
  std::vector<std::string_view> elements;
  while (!data.empty()) {
    uint32_t size = 0;
    if (data.size() < sizeof(size)) return std::nullopt;
    std::memcpy(&size, data.data(), sizeof(size));
    data.remove_prefix(sizeof(size));
    if (data.size() < size) return std::nullopt;
    elements.push_back(data.substr(0, size));
    data.remove_prefix(size);
  }
  return elements;
}

}  // namespace millrace
