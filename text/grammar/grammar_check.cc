// Reads lines of JSON from its input, {"schema": "…", "texts": ["…", …]}, and answers each with
// one:
// {"error": "…"} if the schema is refused, else {"matches": [true, …]}. For tests that compare with
// other validators.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/grammar/grammar.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json request = nlohmann::json::parse(line);
    nlohmann::json answer;
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = millrace::Grammar::Compile(
        {.kind = millrace::GrammarSpec::Kind::kJsonSchema, .text = request["schema"]});
    answer["seconds"] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!grammar.ok()) {
      answer["error"] = std::string(grammar.status().message());
    } else {
      answer["matches"] = nlohmann::json::array();
      for (const auto& text : request["texts"]) {
        answer["matches"].push_back((*grammar)->Matches(text.get<std::string>()));
      }
    }
    std::cout << answer.dump() << std::endl;
  }
}
