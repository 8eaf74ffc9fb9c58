#include "engine/text/template_probe.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "engine/text/probe_talk.h"
#include "engine/text/template_messages.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

using System = MessageTraits::System;
using Ids = MessageTraits::Ids;
using CallContent = MessageTraits::CallContent;
using Place = ToolsTraits::Place;

// Names of variables that are tried for the tools.
constexpr size_t kMaxVariables = 8;

// A role that no template knows.
constexpr std::string_view kUnknownRole = "probe_role";

// Returns the words of a template that may be variables with tools, in their order.
std::vector<std::string> ToolVariables(std::string_view source) {
  std::vector<std::string> names = {"tools"};
  const auto in_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t begin = 0; begin < source.size() && names.size() < kMaxVariables;) {
    size_t end = begin;
    while (end < source.size() && in_name(source[end])) ++end;
    const std::string name(source.substr(begin, end - begin));
    const bool fits = (name.ends_with("tools") || name.ends_with("functions")) &&
                      std::find(names.begin(), names.end(), name) == names.end();
    if (fits) names.push_back(name);
    begin = end + 1;
  }
  return names;
}

class Prober {
 public:
  Prober(const ChatTemplate& chat_template, const OutputFormat& output)
      : template_(chat_template), output_(output) {}

  TemplateTraits Run(std::string_view source) {
    FindTools(ToolVariables(source));
    if (!FindPlain()) return traits_;
    traits_.renders = true;
    if (traits_.plain.parts_only) FindTools(ToolVariables(source));
    FindSystem();
    FindDeveloper();
    traits_.plain.joins_turns = !Shows(Talk().User().User().Assistant().Assistant().User());
    FindFirst();
    for (const char* role : {"system", "user", "assistant"}) FindParts(role, &traits_.plain);
    traits_.calls = traits_.plain;
    FindCalls();
    return traits_;
  }

 private:
  std::optional<std::string> Render(const Chat& chat, bool thinks = false) const {
    auto variables = OrderedJson::object();
    if (thinks) variables = {{"enable_thinking", true}, {"thinking", true}};
    AddToolsVariables(chat.tools, traits_, &variables);
    ChatTemplateOptions options;
    options.deadline = options.clock->Now() + std::chrono::milliseconds(500);
    auto text = template_.Render(TemplateMessages(chat, traits_, output_), variables, options);
    if (!text.ok()) return std::nullopt;
    return *std::move(text);
  }

  static bool HasAll(const std::optional<std::string>& text, const auto& marks) {
    return text.has_value() &&
           std::all_of(std::begin(marks), std::end(marks),
                       [&](const auto& mark) { return text->find(mark) != text->npos; });
  }

  // Returns the text with the unknown role's name replaced.
  static std::optional<std::string> Renamed(std::optional<std::string> text,
                                            std::string_view role) {
    for (size_t at = 0; text && (at = text->find(kUnknownRole, at)) != text->npos;) {
      text->replace(at, kUnknownRole.size(), role);
    }
    return text;
  }

  bool Shows(const Talk& talk) const { return HasAll(Render(talk.chat()), talk.marks()); }

  using Ways = std::vector<std::function<void(TemplateTraits*)>>;

  // Finds the first of the ways that shows all of the talks. Keeps the traits as they were if there
  // is none.
  bool Try(const Ways& ways, const std::vector<Talk>& talks) {
    const TemplateTraits before = traits_;
    for (const auto& way : ways) {
      traits_ = before;
      way(&traits_);
      if (std::all_of(talks.begin(), talks.end(), [&](const Talk& talk) { return Shows(talk); })) {
        return true;
      }
    }
    traits_ = before;
    return false;
  }

  // Tools with a description and parameters, as a variable or in the system message.
  void FindTools(const std::vector<std::string>& variables) {
    Talk talk;
    talk.User().Tools();
    for (const std::string_view mark : kToolMarks) talk.Want(std::string(mark));
    Ways ways;
    for (const bool date : {false, true}) {
      for (const auto& variable : variables) {
        for (const int form : {0, 1, 2, 3}) {
          ways.emplace_back([=](TemplateTraits* traits) {
            traits->needs_date = date;
            traits->tools = {.variable = variable, .functions = form % 2 == 1, .as_text = form > 1};
          });
        }
      }
    }
    for (const int form : {3, 2, 1, 0}) {
      ways.emplace_back([=](TemplateTraits* traits) {
        traits->tools = {
            .place = Place::kSystemMember, .functions = form % 2 == 1, .as_text = form > 1};
      });
    }
    if (!Try(ways, {talk})) {
      traits_.tools.place = Place::kText;
      return;
    }
    Talk bare;
    bare.User().Want(std::string(kToolMarks[0]));
    Chat chat = bare.chat();
    chat.tools =
        OrderedJson{{{"type", "function"}, {"function", {{"name", kToolMarks[0]}}}}}.dump();
    traits_.tools.completes = !HasAll(Render(chat), bare.marks());
  }

  bool FindPlain() {
    Ways ways;
    for (const bool parts : {false, true}) {
      for (const bool date : {traits_.needs_date, true}) {
        for (const bool empty : {false, true}) {
          ways.emplace_back([=](TemplateTraits* traits) {
            traits->plain.parts_only = parts;
            traits->needs_date = date;
            traits->empty_tools = empty;
          });
        }
      }
    }
    // A template that refuses longer conversations may still take one question.
    return Try(ways, {Talk().User(), Talk().User().Assistant().User()}) ||
           Try(ways, {Talk().User()});
  }

  // At last, in a turn of the user, a system message is shown by every template.
  void FindSystem() {
    const std::vector<Talk> talks = {Talk().System().User().Assistant().System().User(),
                                     Talk().System().System().User()};
    Ways ways;
    for (const System place : {System::kAnywhere, System::kFirst, System::kUser}) {
      ways.emplace_back([=](TemplateTraits* traits) { traits->plain.system = place; });
    }
    if (!Try(ways, talks)) ways.back()(&traits_);
  }

  // A template that copies the names of roles that it does not know has no developer role.
  void FindDeveloper() {
    const std::string role = "developer";
    const auto developer = Render(Talk().Say(role).User().chat());
    const auto unknown = Render(Talk().Say(std::string(kUnknownRole)).User().chat());
    traits_.plain.developer = developer.has_value() && developer != Renamed(unknown, role) &&
                              Shows(Talk().System().Say(role).User()) &&
                              Shows(Talk().User().Assistant().Say(role).User());
  }

  // A template may insist on a turn of the user before the first of the assistant.
  void FindFirst() {
    Ways ways;
    for (const bool first : {false, true}) {
      ways.emplace_back([=](TemplateTraits* traits) { traits->plain.user_first = first; });
    }
    Try(ways, {Talk().Assistant().User(), Talk().System().Assistant().User().Assistant().User()});
  }

  // A role may have parts if they are written as texts, not as JSON or in Python's notation.
  void FindParts(const std::string& role, MessageTraits* traits) {
    if (role == "system" && traits->system == System::kUser) return;
    Talk talk;
    if (role == "tool") {
      talk.User().Calls(1).Parts(role).Tools();
      talk.last().tool_call_id = talk.call().tool_calls[0].id;
    } else {
      if (role == "assistant") talk.User();
      talk.Parts(role);
      if (role != "user") talk.User();
    }
    const auto count = [](const std::optional<std::string>& text, std::string_view word) {
      size_t found = 0;
      for (size_t at = 0; text && (at = text->find(word, at)) != text->npos; ++at) ++found;
      return found;
    };
    const auto as_text = Render(talk.chat());
    traits->parts_roles.push_back(role);
    const auto as_parts = Render(talk.chat());
    if (!HasAll(as_parts, talk.marks()) || count(as_parts, "type") > count(as_text, "type")) {
      traits->parts_roles.pop_back();
    }
  }

  // Finds how a turn with one call is put.
  bool FindOneCall() {
    Ways ways;
    for (const System place : {System::kAnywhere, System::kFirst, System::kUser}) {
      if (place < traits_.plain.system) continue;
      for (const Ids ids : {Ids::kAny, Ids::kNineLetters, Ids::kNamed}) {
        for (const bool null : {false, true}) {
          for (const bool text : {false, true}) {
            ways.emplace_back([=](TemplateTraits* traits) {
              traits->calls.system = place;
              traits->calls.ids = ids;
              traits->calls.null_content = null;
              traits->calls.text_arguments = text;
            });
          }
        }
      }
    }
    return Try(ways, {Talk().System().User().Calls(1).Results().Tools(),
                      Talk().System().User().Calls(1).Results().Assistant().User().Tools()});
  }

  bool FindSeveralCalls() {
    Ways ways;
    for (const bool one : {false, true}) {
      ways.emplace_back([=](TemplateTraits* traits) { traits->calls.one_call = one; });
    }
    return Try(ways,
               {Talk().System().User().Calls(2).Results().Calls(2).Results().Tools(),
                Talk().User().Calls(2).Results().Assistant().User().Calls(2).Results().Tools()});
  }

  // Returns whether the template copies the names of roles, so that it knows nothing of results.
  bool CopiesResultRole() const {
    const auto with = [&](std::string role) {
      return Render(Talk().User().Say(std::move(role)).chat());
    };
    return Renamed(with(std::string(kUnknownRole)), "tool") == with("tool");
  }

  // Writes calls as text, and results, too, where that has to be.
  void WriteAsText() {
    const std::vector<Talk> talks = {
        Talk().System().User().Calls(2, true).Results().Calls(1, true).Results().Tools(),
        Talk().System().User().Calls(2, true).Results().Assistant().User().Tools()};
    const bool no_results = traits_.tools.place == Place::kText && CopiesResultRole();
    Ways ways;
    for (const bool results : {false, true}) {
      if (no_results && !results) continue;
      for (const System place : {System::kAnywhere, System::kFirst, System::kUser}) {
        if (place < traits_.plain.system) continue;
        ways.emplace_back([=](TemplateTraits* traits) {
          traits->calls = traits->plain;
          traits->calls.system = place;
          traits->calls.text_calls = true;
          traits->calls.text_results = results;
        });
      }
    }
    if (!Try(ways, talks)) ways.back()(&traits_);
  }

  void FindCallContent() {
    constexpr CallContent kPlaces[] = {CallContent::kTogether, CallContent::kWithReasoning,
                                       CallContent::kApart, CallContent::kGathered};
    const auto ways_of = [&](bool now) {
      Ways ways;
      for (const CallContent place : kPlaces) {
        ways.emplace_back([=](TemplateTraits* traits) {
          (now ? traits->calls.content_now : traits->calls.content_before) = place;
        });
      }
      return ways;
    };
    std::vector<Talk> now;
    std::vector<Talk> before;
    for (const bool thinks : {false, true}) {
      now.push_back(
          Talk().User().Calls(1, true, thinks).Results().Calls(2, true, thinks).Results().Tools());
      before.push_back(Talk()
                           .User()
                           .Calls(1, true, thinks)
                           .Results()
                           .Calls(2, true, thinks)
                           .Results()
                           .Assistant()
                           .User()
                           .Calls(1, true, thinks)
                           .Results()
                           .Tools());
    }
    if (!Try(ways_of(true), now) || !Try(ways_of(false), before)) WriteAsText();
  }

  void FindReasoning() {
    const auto talk = [](bool content) {
      Talk one = Talk().User().Calls(1, content).Tools();
      one.last().reasoning = "probe reasons";
      one.Want("probe reasons");
      one.Results();
      return one;
    };
    const std::vector<Talk> talks = {talk(false), talk(true)};
    const auto all_show = [&](bool thinks) {
      return std::all_of(talks.begin(), talks.end(), [&](const Talk& one) {
        return HasAll(Render(one.chat(), thinks), one.marks());
      });
    };
    // A template may leave reasoning out unless it is told to think, which is its right.
    traits_.shows_reasoning = all_show(false) || all_show(true);
    if (traits_.shows_reasoning || output_.reasoning() == nullptr) return;
    traits_.calls.reasoning_in_content = true;
    traits_.shows_reasoning = all_show(false) && !ClosesThoughtFirst(*Render(talks[0].chat()));
    traits_.calls.reasoning_in_content = traits_.shows_reasoning;
  }

  // Returns whether the template has closed the reasoning before the content in which it stands.
  bool ClosesThoughtFirst(const std::string& text) const {
    const ThinkFormat& think = output_.reasoning()->think;
    const size_t open = text.rfind(think.open, text.find("probe reasons"));
    return open != text.npos && Trim(std::string_view(text).substr(0, open)).ends_with(think.close);
  }

  void FindCalls() {
    if (!FindOneCall() || !FindSeveralCalls()) {
      WriteAsText();
    } else {
      FindCallContent();
    }
    FindReasoning();
    Talk named = Talk().User().Calls(1).Results().Tools();
    named.last().name = "probe_named";
    named.Want("probe_named");
    traits_.calls.result_names = !traits_.calls.text_results && Shows(named);
    Talk cut = Talk().User().Calls(1).Tools();
    cut.last().tool_calls[0].arguments = StrCat(R"({"probe_argument": ")", cut.marks().back());
    traits_.calls.object_arguments = !traits_.calls.text_calls && !Shows(cut.Results());
    if (!traits_.calls.text_results) FindParts("tool", &traits_.calls);
  }

  const ChatTemplate& template_;
  const OutputFormat& output_;
  TemplateTraits traits_;
};

}  // namespace

TemplateTraits ProbeTemplate(std::string_view source, const ChatTemplate& chat_template,
                             const OutputFormat& output) {
  return Prober(chat_template, output).Run(source);
}

}  // namespace millrace
