#include "server/http/structured_output.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "text/grammar/json_value.h"
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
  Reader(FieldReader& fields, std::string_view body, GenerateRequest& request)
      : fields_(fields), body_(body), request_(request) {}

  void ReadResponseFormat() {
    const Json* format = fields_.Find("response_format");
    if (format == nullptr) return;
    if (!format->is_object()) return fields_.FailValue("response_format", *format, "an object");
    const Json* type = FindField(*format, "type");
    const std::string name = type != nullptr && type->is_string() ? type->get<std::string>() : "";
    if (name == "text") return;
    if (name == "json_object") return Set({.kind = Kind::kJsonObject}, {"response_format"});
    if (name == "structural_tag") return SetStructuralTag(*format, {"response_format"});
    if (name != "json_schema") {
      return fields_.FailValue("response_format.type", type != nullptr ? *type : Json(),
                               "text, json_object, json_schema, structural_tag");
    }
    const Json* outer = FindField(*format, "json_schema");
    if (outer == nullptr || !outer->is_object()) {
      return fields_.FailMissing("response_format.json_schema", "an object with name and schema");
    }
    for (const auto& [key, value] : outer->items()) {
      if (key != "name" && key != "schema" && key != "strict" && key != "description") {
        const std::string unknown = StrCat("response_format.json_schema.", Printable(key, 64));
        return fields_.Fail(
            unknown, "unknown_parameter",
            StrCat(unknown, " is not known; allowed: name, description, schema, strict"));
      }
    }
    const Json* schema = FindField(*outer, "schema");
    // OpenAI lets the schema be left out: any object.
    if (schema == nullptr) return Set({.kind = Kind::kJsonObject}, {"response_format"});
    SetSchema(*schema, {"response_format", "json_schema", "schema"});
  }

  void ReadStructuredOutputs() {
    const Json* all = fields_.Find("structured_outputs");
    if (all == nullptr) return;
    if (!all->is_object()) return fields_.FailValue("structured_outputs", *all, "an object");
    for (const auto& [key, value] : all->items()) {
      const std::string name = StrCat("structured_outputs.", Printable(key, 64));
      if (value.is_null()) continue;
      if (key == "json" || key == "regex" || key == "choice" || key == "grammar") {
        ReadKind(key, value, {"structured_outputs", key});
      } else if (key == "json_object") {
        ReadJsonObject(value, {"structured_outputs", "json_object"});
      } else if (key == "structural_tag") {
        SetStructuralTag(value, {"structured_outputs", "structural_tag"});
      } else if (value != Json(false)) {
        return fields_.FailValue(
            name, value,
            "json, regex, choice, grammar, json_object or structural_tag in its place");
      }
    }
  }

  // A field of the request itself: `kind` as structured_outputs names it.
  void ReadField(std::string_view name, std::string_view kind) {
    if (const Json* value = fields_.Find(name)) ReadKind(kind, *value, {name});
  }

 private:
  void ReadKind(std::string_view kind, const Json& value, const Path& path) {
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

  void ReadJsonObject(const Json& value, const Path& path) {
    if (!value.is_boolean()) return fields_.FailValue(Join(path), value, "true or false");
    if (value.get<bool>()) Set({.kind = Kind::kJsonObject}, path);
  }

  void SetChoice(const Json& value, const Path& path) {
    GrammarSpec spec{.kind = Kind::kChoice};
    if (!value.is_array() || value.empty()) {
      return fields_.FailValue(Join(path), value, "a list of strings, not empty");
    }
    for (const Json& choice : value) {
      if (!choice.is_string()) {
        return fields_.FailValue(StrCat(Join(path), "[", spec.choices.size(), "]"), choice,
                                 "a string");
      }
      spec.choices.push_back(choice.get<std::string>());
    }
    Set(std::move(spec), path);
  }

  // A schema as it is, or as a string.
  void SetSchema(const Json& value, const Path& path) {
    if (value.is_string()) {
      return Set({.kind = Kind::kJsonSchema, .text = value.get<std::string>()}, path);
    }
    if (!value.is_object() && !value.is_boolean()) {
      return fields_.FailValue(Join(path), value, "a JSON schema");
    }
    const auto text = Ordered(path);
    if (!text.ok()) return fields_.Fail(text.status());
    Set({.kind = Kind::kJsonSchema, .text = *text}, path);
  }

  // A structural tag as it is, or as a string.
  void SetStructuralTag(const Json& value, const Path& path) {
    const absl::StatusOr<std::string> text =
        value.is_string() ? value.get<std::string>() : Ordered(path);
    if (!text.ok()) return fields_.Fail(text.status());
    auto spec = ReadStructuralTag(*text, Join(path));
    if (!spec.ok()) return fields_.Fail(spec.status());
    Set(*std::move(spec), path);
  }

  // Returns a part of the body as JSON, its keys in the order in which they came.
  absl::StatusOr<std::string> Ordered(const Path& path) const {
    MILLRACE_ASSIGN_OR_RETURN(const JsonValue body, ParseOrderedJson(body_, kMostDepth));
    const JsonValue* at = &body;
    for (const std::string_view part : path) {
      if (at != nullptr) at = at->Find(part);
    }
    if (at == nullptr) return absl::InvalidArgumentError(StrCat(Join(path), " is missing"));
    return ToJson(*at);
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

  static constexpr int kMostDepth = 512;
  FieldReader& fields_;
  const std::string_view body_;
  GenerateRequest& request_;
};

}  // namespace

void ReadStructuredOutput(FieldReader& fields, std::string_view body, GenerateRequest& request) {
  Reader reader(fields, body, request);
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
