#include "server/http/openai/structured_output.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "text/grammar/structural_tag.h"

namespace millrace {
namespace {

using Kind = GrammarSpec::Kind;
using Path = std::vector<std::string_view>;

std::string Join(const Path& path) {
  std::string name;
  for (const std::string_view part : path) name += StrCat(name.empty() ? "" : ".", part);
  return name;
}

class Reader {
 public:
  Reader(FieldReader& fields, GenerateRequest& request) : fields_(fields), request_(request) {}

  void ReadResponseFormat() {
    const OrderedJson* field = fields_.Find("response_format");
    if (field == nullptr) return;
    FieldReader format(*field, "response_format.", fields_.unknown_fields());
    constexpr std::string_view kTypes = "text, json_object, json_schema, structural_tag";
    std::string type;
    if (format.Find("type") == nullptr) format.FailMissing("type", kTypes);
    format.Read("type", type);
    if (type == "json_object") {
      if (!ReadBareSchema(format)) Set({.kind = Kind::kJsonObject}, {"response_format"});
    } else if (type == "structural_tag") {
      SetStructuralTag(*field, {"response_format"});
      for (const std::string_view member : {"format", "structures", "triggers"}) {
        format.Find(member);  // the tag's own
      }
    } else if (type == "json_schema") {
      ReadNamedSchema(format);
    } else if (format.ok() && type != "text") {
      format.FailValue("type", type, kTypes);
    }
    fields_.Fail(format.Finish());
  }

  void ReadStructuredOutputs() {
    const OrderedJson* field = fields_.Find("structured_outputs");
    if (field == nullptr) return;
    FieldReader outputs(*field, "structured_outputs.", fields_.unknown_fields());
    for (const std::string_view kind : {"json", "regex", "choice", "grammar"}) {
      if (const OrderedJson* value = outputs.Find(kind))
        ReadKind(kind, *value, {"structured_outputs", kind});
    }
    if (const OrderedJson* tag = outputs.Find("structural_tag")) {
      SetStructuralTag(*tag, {"structured_outputs", "structural_tag"});
    }
    bool json_object = false;
    outputs.Read("json_object", json_object);
    if (json_object) Set({.kind = Kind::kJsonObject}, {"structured_outputs", "json_object"});
    for (const std::string_view name : {"disable_fallback", "disable_any_whitespace"}) {
      outputs.Refuse(name, {false});
    }
    bool closed = false;
    outputs.Read("disable_additional_properties", closed);
    if (request_.grammar.has_value() && closed) request_.grammar->closed = true;
    outputs.Refuse("whitespace_pattern", OrderedJson::array());
    fields_.Fail(outputs.Finish());
  }

  // A field of the request itself: `kind` as structured_outputs names it.
  void ReadField(std::string_view name, std::string_view kind) {
    if (const OrderedJson* value = fields_.Find(name)) ReadKind(kind, *value, {name});
  }

 private:
  void ReadKind(std::string_view kind, const OrderedJson& value, const Path& path) {
    if (kind == "json") return SetSchema(value, path);
    if (kind == "choice") return SetChoice(value, path);
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
      // llama.cpp's clients send an empty grammar for none.
      if (value.is_string() && path.front() == "grammar") return;
      return fields_.FailValue(Join(path), value, "a string, not empty");
    }
    Set({.kind = kind == "regex" ? Kind::kRegex : Kind::kEbnf, .text = value.get<std::string>()},
        path);
  }

  // llama.cpp's form, {"type": …, "schema": …}. Returns whether it is this.
  bool ReadBareSchema(FieldReader& format) {
    const OrderedJson* schema = format.Find("schema");
    if (schema != nullptr) SetSchema(*schema, {"response_format", "schema"});
    return schema != nullptr;
  }

  // {"name": …, "schema": …}
  void ReadNamedSchema(FieldReader& format) {
    const OrderedJson* field = format.Find("json_schema");
    if (field == nullptr) {
      if (ReadBareSchema(format)) return;
      return format.FailMissing("json_schema", "an object with name and schema");
    }
    FieldReader named(*field, "response_format.json_schema.", fields_.unknown_fields());
    std::string label;
    bool strict = false;
    named.Read("name", label);
    named.Read("description", label);
    named.Read("strict", strict);
    // OpenAI lets the schema be left out: any object.
    if (const OrderedJson* schema = named.Find("schema")) {
      SetSchema(*schema, {"response_format", "json_schema", "schema"});
      if (request_.grammar.has_value()) request_.grammar->closed = strict;
    } else if (named.ok()) {
      Set({.kind = Kind::kJsonObject}, {"response_format"});
    }
    format.Fail(named.Finish());
  }

  void SetChoice(const OrderedJson& value, const Path& path) {
    GrammarSpec spec{.kind = Kind::kChoice};
    if (!value.is_array() || value.empty()) {
      return fields_.FailValue(Join(path), value, "a list of strings, not empty");
    }
    for (const OrderedJson& choice : value) {
      if (!choice.is_string()) {
        return fields_.FailValue(StrCat(Join(path), "[", spec.choices.size(), "]"), choice,
                                 "a string");
      }
      spec.choices.push_back(choice.get<std::string>());
    }
    Set(std::move(spec), path);
  }

  // A schema as it is, or as a string.
  void SetSchema(const OrderedJson& value, const Path& path) {
    if (!value.is_string() && !value.is_object() && !value.is_boolean()) {
      return fields_.FailValue(Join(path), value, "a JSON schema");
    }
    Set({.kind = Kind::kJsonSchema, .text = TextOrJson(value)}, path);
  }

  // A structural tag as it is, or as a string.
  void SetStructuralTag(const OrderedJson& value, const Path& path) {
    auto spec = ReadStructuralTag(TextOrJson(value), Join(path));
    if (!spec.ok()) return fields_.Fail(spec.status());
    Set(*std::move(spec), path);
  }

  void Set(GrammarSpec spec, const Path& path) {
    const std::string name = Join(path);
    if (request_.grammar.has_value()) {
      return fields_.Fail(
          name, "invalid_value",
          StrCat(name, " and ", request_.grammar_field, " are both there; allowed: one of them"));
    }
    request_.grammar = std::move(spec);
    request_.grammar_field = name;
  }

  FieldReader& fields_;
  GenerateRequest& request_;
};

}  // namespace

void ReadStructuredOutput(FieldReader& fields, GenerateRequest& request) {
  Reader reader(fields, request);
  reader.ReadResponseFormat();
  reader.ReadStructuredOutputs();
  constexpr std::pair<std::string_view, std::string_view> kFields[] = {
      {"guided_json", "json"},     {"guided_regex", "regex"},
      {"guided_choice", "choice"}, {"guided_grammar", "grammar"},
      {"json_schema", "json"},     {"grammar", "grammar"},
      {"regex", "regex"},          {"ebnf", "grammar"}};
  for (const auto& [name, kind] : kFields) reader.ReadField(name, kind);
}

}  // namespace millrace
