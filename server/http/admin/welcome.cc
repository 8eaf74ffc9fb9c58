#include "server/http/admin/welcome.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/strings.h"
#include "config/help.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

struct Place {
  std::string_view key;  // in JSON
  std::string_view what;
  std::string_view path;
  bool is_get;  // a browser can follow it
};

constexpr Place kPlaces[] = {
    {"chat_completions", "OpenAI's API", "/v1/chat/completions", false},
    {"completions", "", "/v1/completions", false},
    {"responses", "", "/v1/responses", false},
    {"embeddings", "", "/v1/embeddings", false},
    {"messages", "Anthropic's API", "/v1/messages", false},
    {"models", "Models", "/v1/models", true},
    {"openapi", "All paths (OpenAPI)", "/openapi.json", true},
    {"health", "Health", "/readyz", true},
    {"metrics", "Metrics", "/metrics", true},
};

constexpr std::string_view kKeyNote =
    "Requests need a key, but for this page and health: Authorization: Bearer KEY.";

std::string State(const Frontend& frontend) {
  if (frontend.leaving()) return "is about to end";
  if (frontend.ready()) return "is ready";
  const std::string loading = frontend.loading();
  return loading.empty() ? "is not ready yet" : StrCat("is not ready yet: ", loading);
}

std::string Row(std::string_view what, std::string_view where) {
  constexpr size_t kColumn = 22;
  return StrCat(what, std::string(kColumn - what.size(), ' '), where, "\n");
}

std::string Text(const std::string& state, bool needs_key, const std::string& console) {
  std::string text =
      StrCat("Millrace ", Version(), " serves a language model. It ", state, ".\n\n");
  for (const Place& place : kPlaces) text += Row(place.what, place.path);
  if (!console.empty()) {
    text += Row("Console and chat", StrCat(console, " on the server's own machine"));
  }
  if (needs_key) text += StrCat("\n", kKeyNote, "\n");
  return text;
}

std::string Html(const std::string& state, bool needs_key, const std::string& console) {
  const auto link = [](std::string_view url) {
    return StrCat("<a href=\"", url, "\">", url, "</a>");
  };
  const auto row = [](std::string_view what, std::string_view where) {
    return StrCat("<tr><th align=\"left\">", what, "</th><td>", where, "</td></tr>\n");
  };
  std::string html = StrCat(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Millrace</title>\n"
      "<h1>Millrace ",
      Version(), "</h1>\n<p>This server serves a language model. It ", state, ".</p>\n<table>\n");
  for (const Place& place : kPlaces) {
    html += row(place.what, place.is_get ? link(place.path) : std::string(place.path));
  }
  if (!console.empty()) {
    html += row("Console and chat", StrCat(link(console), " on the server's own machine"));
  }
  html += "</table>\n";
  if (needs_key) html += StrCat("<p>", kKeyNote, "</p>\n");
  return html + "</html>\n";
}

std::string JsonText(const std::string& state, bool needs_key, const std::string& console,
                     Frontend& frontend) {
  OrderedJson json = {{"name", "millrace"}, {"version", Version()}, {"status", state}};
  json["ready"] = frontend.ready();
  if (!needs_key) {
    json["models"] = OrderedJson::array();
    for (ServedModel* model : frontend.models()) {
      for (const std::string& name : frontend.names(*model)) json["models"].push_back(name);
    }
  }
  OrderedJson& endpoints = json["endpoints"] = OrderedJson::object();
  for (const Place& place : kPlaces) endpoints[place.key] = place.path;
  if (!console.empty()) json["console"] = console;
  json["needs_key"] = needs_key;
  return json.dump();
}

// What is fetched bears the hub's name of a model, which is the operator's own business.
std::string WithoutNames(const std::string& state) { return state.substr(0, state.find(':')); }

}  // namespace

HttpResponse WelcomeResponse(const HttpRequestHead& head, Frontend& frontend,
                             const std::string& console) {
  const bool needs_key = !frontend.Authorize("").ok();
  std::string state = State(frontend);
  if (needs_key) state = WithoutNames(state);
  const bool html = head.accept.find("text/html") != head.accept.npos;
  const bool json = !html && head.accept.find("application/json") != head.accept.npos;
  HttpResponse response;
  response.headers = {{"Vary", "Accept"},
                      {"Cache-Control", "no-cache"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Content-Security-Policy", "default-src 'none'"}};
  if (json) {
    response.body = JsonText(WithoutNames(state), needs_key, console, frontend);
    return response;
  }
  response.content_type = html ? "text/html; charset=utf-8" : "text/plain; charset=utf-8";
  response.body =
      html ? Html(WithoutNames(state), needs_key, console) : Text(state, needs_key, console);
  return response;
}

}  // namespace millrace
