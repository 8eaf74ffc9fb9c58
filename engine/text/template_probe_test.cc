// These tests show that templates of many kinds write all of a conversation. The templates are of
// our own making.
#include "engine/text/template_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/chat_format.h"
#include "engine/text_set.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTools[] =
    R"([{"type":"function","function":{"name":"get_time","description":"Tells the time",)"
    R"("parameters":{"type":"object","properties":{"zone":{"type":"string"}}}}}])";

// Says who speaks, for each turn, in brackets.
constexpr char kTurns[] = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";

// Writes calls and results, and tools in front.
constexpr char kToolTurns[] =
    "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls %}<call {{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}>{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}";

std::string Render(const std::string& source, const Chat& chat,
                   const ParserNames& parsers = {.tools = "hermes"}) {
  const auto chat_template = ChatTemplate::Parse(source, {.bos = "<s>", .eos = "</s>"});
  EXPECT_TRUE(chat_template.ok()) << chat_template.status().message();
  const auto format = MakeChatFormat(source, chat_template, parsers);
  const TextSet text(std::make_unique<ByteTokenizer>(), chat_template, *format);
  TokenizeRequest request;
  request.prompt = chat;
  const auto tokens = text.PromptTokens(request, 1 << 20, SteadyTime::max());
  if (!tokens.ok()) return std::string(tokens.status().message());
  return {tokens->begin(), tokens->end()};
}

Chat Say(std::vector<ChatMessage> messages, std::string tools = "") {
  Chat chat;
  chat.messages = std::move(messages);
  chat.tools = std::move(tools);
  return chat;
}

ChatMessage CallTurn(std::string content, std::vector<ToolCall> calls, std::string reasoning = "") {
  return {.role = "assistant",
          .content = std::move(content),
          .tool_calls = std::move(calls),
          .reasoning = std::move(reasoning)};
}

ChatMessage Result(std::string id, std::string content) {
  return {.role = "tool", .content = std::move(content), .tool_call_id = std::move(id)};
}

const ToolCall kCall = {.id = "1", .name = "get_time", .arguments = R"({"zone":"X"})"};
const ToolCall kOther = {.id = "2", .name = "get_date", .arguments = "{}"};

// Two calls after a sentence, their results, an answer, and the same again without an answer.
Chat LongTalk() {
  return Say({{.role = "user", .content = "q1"},
              CallTurn("I look.", {kCall, kOther}, "Hm."),
              Result("1", "noon"),
              Result("2", "May"),
              {.role = "assistant", .content = "It is noon."},
              {.role = "user", .content = "q2"},
              CallTurn("Once more.", {{.id = "3", .name = "get_year", .arguments = "{}"}}, "Well."),
              Result("3", "1999")},
             kTools);
}

TEST(TemplateProbeTest, ADeveloperIsTheSystemWhereTheRoleIsNotKnown) {
  const Chat chat = Say({{.role = "developer", .content = "d"}, {.role = "user", .content = "u"}});
  EXPECT_EQ(Render(kTurns, chat), "[system]d[user]u");
  EXPECT_EQ(Render("{% for m in messages %}{% if m.role == 'developer' %}<rules>{% endif %}"
                   "[{{ m.role }}]{{ m.content }}{% endfor %}",
                   chat),
            "<rules>[developer]d[user]u");
  EXPECT_EQ(Render("{% for m in messages if m.role in ['system', 'user', 'assistant'] %}"
                   "[{{ m.role }}]{{ m.content }}{% endfor %}",
                   chat),
            "[system]d[user]u");
}

TEST(TemplateProbeTest, SystemMessagesAreJoinedWhereOneIsWritten) {
  const Chat chat = Say({{.role = "system", .content = "s"},
                         {.role = "developer", .content = "d"},
                         {.role = "user", .content = "u"},
                         {.role = "system", .content = "late"},
                         {.role = "user", .content = "v"}});
  EXPECT_EQ(Render(kTurns, chat), "[system]s[system]d[user]u[system]late[user]v");
  const std::string first =
      "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
      "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  EXPECT_EQ(Render(first, chat), "[system]s\n\nd\n\nlate[user]u[user]v");
  const std::string refusing =
      "{% for m in messages %}{% if m.role == 'system' and loop.index0 > 0 %}"
      "{{ raise_exception('too late') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  EXPECT_EQ(Render(refusing, chat), "[system]s\n\nd\n\nlate[user]u[user]v");
}

TEST(TemplateProbeTest, ATemplateOfTwoRolesGetsEverythingInTheirTurns) {
  const std::string two =
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}"
      "{% endfor %}";
  EXPECT_EQ(Render(two, Say({{.role = "system", .content = "s"},
                             {.role = "user", .content = "u"},
                             {.role = "user", .content = "v"}})),
            "[user]s\n\nu\n\nv");
  Chat chat = LongTalk();
  chat.messages.insert(chat.messages.begin(), {.role = "developer", .content = "d"});
  const std::string text = Render(two, chat);
  EXPECT_THAT(text, AllOf(HasSubstr("[user]d\n\nYou can call functions."), HasSubstr("q1"),
                          HasSubstr("[assistant]I look.\n<tool_call>\n{\"name\": \"get_time\", "
                                    "\"arguments\": {\"zone\":\"X\"}}\n</tool_call>")));
  EXPECT_THAT(text, HasSubstr("[user]<tool_response>\nnoon\n</tool_response>\n<tool_response>\nMay"
                              "\n</tool_response>[assistant]It is noon.[user]q2"));
}

TEST(TemplateProbeTest, ToolsGoWhereTheTemplateTakesThem) {
  const Chat chat = Say({{.role = "user", .content = "u"}}, kTools);
  const std::string turns = kTurns;
  EXPECT_THAT(
      Render("{% for t in my_tools %}{{ t.function.name }}={{ t }}{% endfor %}" + turns, chat),
      AllOf(HasSubstr("get_time={'type'"), HasSubstr("[user]u")));
  EXPECT_THAT(
      Render("{% for t in my_tools %}<{{ t.name + t.description }}>{{ t }}{% endfor %}" + turns,
             chat),
      HasSubstr("<get_timeTells the time>"));
  EXPECT_THAT(Render("{{ 'Functions: ' + functions }}" + turns, chat),
              HasSubstr("Functions: [{\"type\":\"function\""));
  const std::string member =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
      "{% if 'tools' in m %}{{ '<t>' + m['tools'] + '</t>' }}{% endif %}{% endfor %}";
  EXPECT_THAT(Render(member, chat),
              AllOf(HasSubstr("[system]<t>[{\"name\":\"get_time\""), HasSubstr("</t>[user]u")));
  EXPECT_THAT(Render(kTurns, chat), AllOf(HasSubstr("[system]You can call functions."),
                                          HasSubstr("\"Tells the time\""), HasSubstr("[user]u")));
  // A template that writes tools' names alone does not say what they are for.
  EXPECT_THAT(Render("{% for t in tools %}{{ t.function.name }}{% endfor %}" + turns, chat),
              HasSubstr("You can call functions."));
}

TEST(TemplateProbeTest, VariablesThatMustBeThereAre) {
  const Chat chat = Say({{.role = "user", .content = "u"}});
  EXPECT_EQ(Render("{% for t in tools %}{{ t }}{% endfor %}" + std::string(kTurns), chat),
            "[user]u");
  EXPECT_THAT(Render("{{ 'It is ' + datetime + '. ' + functions }}" + std::string(kTurns), chat),
              AllOf(HasSubstr("It is "), HasSubstr(". [][user]u")));
}

TEST(TemplateProbeTest, AToolIsCompletedWhereItHasToBe) {
  const Chat chat =
      Say({{.role = "user", .content = "u"}}, R"([{"type":"function","function":{"name":"now"}}])");
  const std::string source =
      "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }} "
      "{% for k in t.function.parameters.properties %}{{ k }}{% endfor %}{% endfor %}";
  EXPECT_EQ(Render(source + kTurns, chat), "now:  [user]u");
}

TEST(TemplateProbeTest, AToolThatTheTemplateCannotWriteIsDescribed) {
  const Chat chat = Say({{.role = "user", .content = "u"}},
                        R"([{"type":"function","function":{"name":"f","description":"d",)"
                        R"("parameters":{"properties":{"a":{"anyOf":[]}}}}}])");
  const std::string source =
      "{% for t in tools %}{{ t.function.name + t.function.description }}"
      "{% for k, v in t.function.parameters.properties.items() %}{{ k + v.type }}{% endfor %}"
      "{% endfor %}";
  EXPECT_THAT(Render(source + kTurns, chat), AllOf(HasSubstr("You can call functions."),
                                                   HasSubstr("\"anyOf\""), HasSubstr("[user]u")));
}

TEST(TemplateProbeTest, IdsHaveTheFormThatTheTemplateInsistsOn) {
  const std::string nine =
      "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
      "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
      "<{{ c.id }} {{ c.function }}>{% endfor %}"
      "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{% endfor %}";
  ToolCall call = kCall;
  call.id = "toolu_01ABCDEFGHIJ";
  std::string text = Render(
      nine, Say({{.role = "user", .content = "u"}, CallTurn("", {call}), Result(call.id, "noon")}));
  ASSERT_THAT(text, AllOf(HasSubstr("noon("), Not(HasSubstr("toolu"))));
  const std::string id = text.substr(text.find("noon(") + 5, 9);
  EXPECT_THAT(text, HasSubstr("<" + id + " {'name': 'get_time'"));
  call.id = "aB3456789";
  text = Render(nine,
                Say({{.role = "user", .content = "u"}, CallTurn("", {call}), Result("", "noon")}));
  EXPECT_THAT(text, AllOf(HasSubstr("<aB3456789"), HasSubstr("noon(aB3456789)")));

  // The name stands in the id alone.
  const std::string named =
      "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
      "<{{ c.id }} {{ c.function.arguments }}>{% endfor %}"
      "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{% endfor %}";
  EXPECT_THAT(Render(named, LongTalk()),
              AllOf(HasSubstr("<functions.get_time:0 "), HasSubstr("<functions.get_date:1 "),
                    HasSubstr("noon(functions.get_time:0)"), HasSubstr("<functions.get_year:2 ")));
}

TEST(TemplateProbeTest, CallsAreOneATurnWhereNoMoreAreWritten) {
  const std::string one =
      "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}"
      "{{ m.tool_calls[0].function }}{% endif %}{% endfor %}";
  const std::string text = Render(one, LongTalk());
  EXPECT_THAT(text, HasSubstr("[assistant]I look.{'name': 'get_time', 'arguments': {'zone': 'X'}}"
                              "[tool]noon[assistant]{'name': 'get_date', 'arguments': {}}"
                              "[tool]May[assistant]It is noon."));
}

TEST(TemplateProbeTest, ContentBesideCallsHasATurnOfItsOwn) {
  const std::string calls_only =
      "{{ tools }}{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}"
      "{% for c in m.tool_calls %}{{ c.function }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
      "{% endfor %}";
  EXPECT_THAT(Render(calls_only, LongTalk()),
              HasSubstr("[assistant]I look.[assistant]{'name': 'get_time'"));
  // Where turns without calls must alternate, all of the assistant's text is in the last one, or
  // before the first call.
  const std::string alternating =
      "{{ tools }}{% set n = namespace(i=0) %}{% for m in messages %}"
      "{% if m.role != 'tool' and not m.tool_calls %}{% if (m.role == 'user') != (n.i % 2 == 0) %}"
      "{{ raise_exception('roles must alternate') }}{% endif %}{% set n.i = n.i + 1 %}{% endif %}"
      "[{{ m.role }}]{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function }}{% endfor %}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_THAT(Render(alternating, LongTalk()),
              AllOf(HasSubstr("[user]q1[assistant]{'name': 'get_time'"),
                    HasSubstr("[tool]May[assistant]I look.\n\nIt is noon.[user]q2"
                              "[assistant]Once more.[assistant]{'name': 'get_year'")));
}

TEST(TemplateProbeTest, ReasoningAndContentShareAPlaceWhereThereIsOne) {
  const std::string exclusive =
      "{{ tools }}{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}"
      "{% if m.content and m.thinking %}{{ raise_exception('one of both') }}{% endif %}"
      "{{ m.content or m.thinking }}{% for c in m.tool_calls %}{{ c.function }}{% endfor %}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_THAT(Render(exclusive, LongTalk()),
              AllOf(HasSubstr("[assistant]Hm.\n\nI look.{'name'"),
                    HasSubstr("[assistant]Well.\n\nOnce more.{'name'")));
}

TEST(TemplateProbeTest, ReasoningStandsInTheContentOfATemplateWithoutAPlaceForIt) {
  const std::string source = std::string(kToolTurns) + "{# <think> </think> #}";
  const std::string text = Render(source, LongTalk(), {.tools = "hermes", .reasoning = "qwen3"});
  EXPECT_THAT(text, AllOf(HasSubstr("[assistant]<think>\nWell.\n</think>\n\nOnce more.<call"),
                          HasSubstr("[assistant]I look.<call"), Not(HasSubstr("Hm."))));
  EXPECT_THAT(Render(kToolTurns, LongTalk(), {.tools = "hermes", .reasoning = "none"}),
              Not(HasSubstr("Well.")));
}

TEST(TemplateProbeTest, ArgumentsThatAreNoObjectMeanNoneOrAreKept) {
  const std::string items =
      "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
      "<{{ c.function.name }}{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}"
      "{% endfor %}>{% endfor %}{% endfor %}";
  for (const char* source : {items.c_str(), kToolTurns}) {
    for (const char* none : {"", " ", "null", "[]", "{}", "\"\""}) {
      ToolCall call = kCall;
      call.arguments = none;
      const std::string text = Render(
          source, Say({{.role = "user", .content = "u"}, CallTurn("", {call}), Result("1", "r")}));
      EXPECT_THAT(text, HasSubstr(source == kToolTurns ? "get_time {}>" : "<get_time>")) << none;
    }
    ToolCall cut = kCall;
    cut.arguments = R"({"zone": "Ber)";
    EXPECT_THAT(Render(source, Say({{.role = "user", .content = "u"}, CallTurn("", {cut})})),
                HasSubstr("Ber"));
    cut.arguments = "[1, 2]";
    EXPECT_THAT(Render(source, Say({{.role = "user", .content = "u"}, CallTurn("", {cut})})),
                HasSubstr("[1, 2]"));
  }
}

TEST(TemplateProbeTest, CallsThatTheTemplateDoesNotWriteAreTextInTheModelsForm) {
  const std::string results =
      "{{ tools }}{% for m in messages %}{% if m.role == 'tool' %}<result>{% endif %}"
      "[{{ m.role }}]{{ m.content }}{% endfor %}";
  EXPECT_THAT(Render(results, LongTalk(), {.tools = "granite"}),
              AllOf(HasSubstr("[assistant]I look.\n<|tool_call|>[{\"name\": \"get_time\", "
                              "\"arguments\": {\"zone\":\"X\"}}]"),
                    HasSubstr("<result>[tool]noon<result>[tool]May")));
  EXPECT_THAT(Render(results, LongTalk(), {.tools = "qwen3_coder"}),
              HasSubstr("<tool_call>\n<function=get_time>\n<parameter=zone>\nX\n</parameter>\n"
                        "</function>\n</tool_call>"));
  EXPECT_THAT(
      Render(results, LongTalk(), {.tools = "deepseek_v31"}),
      HasSubstr("<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{\"zone\":\"X\"}<｜tool▁call▁end｜>"));
}

TEST(TemplateProbeTest, ContentIsPartsWhereTheTemplateTakesThem) {
  ChatMessage user = {.role = "user", .content = "one\ntwo", .part_sizes = {3, 3}};
  EXPECT_EQ(Render(kTurns, Say({user})), "[user]one\ntwo");
  const std::string json =
      "{% for m in messages %}[{{ m.role }}]"
      "{{ m.content if m.content is string else m.content | tojson }}{% endfor %}";
  EXPECT_EQ(Render(json, Say({user})), "[user]one\ntwo");
  const std::string both =
      "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}"
      "{% else %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}";
  EXPECT_EQ(Render(both, Say({user})), "[user](one)(two)");
  const std::string only =
      "{% for m in messages %}[{{ m.role }}]{% for p in m.content | "
      "selectattr('type', 'equalto', 'text') %}({{ p.text }}){% endfor %}{% endfor %}";
  EXPECT_EQ(Render(only, Say({user, {.role = "assistant", .content = "three"}})),
            "[user](one)(two)[assistant](three)");
  // A part that was joined to another text is no longer one.
  EXPECT_EQ(Render("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('') }}"
                   "{% endif %}{% endfor %}" +
                       both,
                   Say({{.role = "system", .content = "s"}, user})),
            "[user]s\n\none\ntwo");
}

TEST(TemplateProbeTest, ContentIsNullWhereCallsNeedIt) {
  const std::string source =
      "{{ tools }}{% for m in messages %}[{{ m.role }}]{% if m.content is none %}"
      "{% for c in m.tool_calls %}{{ c.function }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
      "{% endfor %}";
  EXPECT_THAT(Render(source, LongTalk()),
              HasSubstr("[assistant]I look.[assistant]{'name': 'get_time'"));
}

TEST(TemplateProbeTest, ASystemMessageIsNotLostBesideResults) {
  // It is written with the last turn of the user, and only if the conversation ends there.
  const std::string source =
      "{% set s = messages[0].content if messages[0].role == 'system' else '' %}{{ tools }}"
      "{% for m in messages if m.role != 'system' %}[{{ m.role }}]"
      "{% if loop.last and m.role == 'user' %}({{ s }}){% endif %}{{ m.content }}"
      "{% for c in m.tool_calls %}{{ c.function }}{% endfor %}{% endfor %}";
  EXPECT_EQ(
      Render(source, Say({{.role = "system", .content = "s"}, {.role = "user", .content = "u"}})),
      "None[user](s)u");
  Chat chat = LongTalk();
  chat.messages.insert(chat.messages.begin(), {.role = "system", .content = "s"});
  EXPECT_THAT(Render(source, chat), HasSubstr("[user]s\n\nq1"));
}

TEST(TemplateProbeTest, PeopleReadWhatATemplateDoes) {
  const auto describe = [](std::string_view source) {
    const auto chat_template = ChatTemplate::Parse(source, {});
    return Describe(ProbeTemplate(source, *chat_template, OutputFormat()));
  };
  EXPECT_THAT(describe(kTurns),
              testing::IsSupersetOf(
                  {"system messages: where they stand", "developer messages: as system messages",
                   "tools: described in a system message", "calls: as text of their turn"}));
  EXPECT_THAT(describe(kToolTurns),
              testing::IsSupersetOf({"tools: in the variable tools",
                                     "calls: arguments as an object", "results: a role"}));
  EXPECT_THAT(describe("{{ raise_exception('no') }}"),
              testing::ElementsAre("conversations: refused by the template"));
}

TEST(TemplateProbeTest, AConversationThatTheAssistantBeginsGetsAnEmptyTurnWhereTurnsAlternate) {
  const Chat chat = Say({{.role = "system", .content = "s"},
                         {.role = "assistant", .content = "Hi."},
                         {.role = "user", .content = "u"}});
  EXPECT_EQ(Render(kTurns, chat), "[system]s[assistant]Hi.[user]u");
  const std::string alternating =
      "{% for m in messages if m.role != 'system' %}"
      "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
      "{% endif %}{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  EXPECT_EQ(Render(alternating, chat), "[system]s[user][assistant]Hi.[user]u");
  EXPECT_EQ(Render(alternating, Say({chat.messages[1], chat.messages[2]})),
            "[user][assistant]Hi.[user]u");
}

TEST(TemplateProbeTest, LongIntegersOfCallsAreWrittenAsTheyCame) {
  const ToolCall call = {.id = "1",
                         .name = "get_time",
                         .arguments = R"({"n": 123456789012345678901234567890, "m": -99999999999)"
                                      R"(999999999, "f": 1.5, "u": 18446744073709551615})"};
  const Chat chat = Say({{.role = "user", .content = "u"}, CallTurn("", {call}), Result("1", "r")});
  EXPECT_THAT(Render(kToolTurns, chat),
              HasSubstr(R"({"n": 123456789012345678901234567890, "m": -99999999999999999999, )"
                        R"("f": 1.5, "u": 18446744073709551615})"));
}

TEST(TemplateProbeTest, LongIntegersOfToolsAreWrittenAsTheyCame) {
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object",)"
      R"("properties":{"n":{"type":"integer","maximum":123456789012345678901234567890}}}}}])";
  const Chat chat = Say({{.role = "user", .content = "u"}}, tools);
  EXPECT_THAT(Render(kToolTurns, chat), HasSubstr("123456789012345678901234567890"));
  EXPECT_THAT(Render(kTurns, chat), HasSubstr("\"maximum\":123456789012345678901234567890}"));
}

TEST(TemplateProbeTest, CallsThatALiteralTemplateDoesNotWriteAreLiterals) {
  const std::string listing =
      "{% if tools %}List of tools: [{{ tools | map('tojson') | join(', ') }}]{% endif %}"
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  const ToolCall call = {
      .id = "1", .name = "get_time", .arguments = R"({"zone":"a \"b\"","l":[true,null,{"k":-1}]})"};
  const Chat chat = Say({{.role = "user", .content = "u"},
                         CallTurn("I look.", {call, kOther}),
                         Result("1", "noon"),
                         Result("2", "May")},
                        kTools);
  EXPECT_THAT(Render(listing, chat, {}),
              HasSubstr("[assistant]I look.\n<|tool_call_start|>[get_time(zone=\"a \\\"b\\\"\", "
                        "l=[True, None, {\"k\": -1}]), get_date()]<|tool_call_end|>[tool]noon"));
}

TEST(TemplateProbeTest, SpecialTokensTellTheFormOfCallsWhereTheTemplateDoesNot) {
  const std::string source =
      "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  const auto chat_template = ChatTemplate::Parse(source, {});
  const auto known = [&](std::string_view tokens) {
    const auto format = MakeChatFormat(source, chat_template, {}, tokens);
    return format->output.tools() == nullptr ? "" : format->output.tools()->name;
  };
  EXPECT_EQ(known("<s>\n"), "");
  EXPECT_EQ(known("<s>\n<|tool_call_start|>\n"), "lfm2");
}

TEST(TemplateProbeTest, ALineBreakFollowsTheNameWhereTheTemplateWritesOne) {
  for (const bool line_break : {false, true}) {
    const std::string source =
        "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
        "<tool_call>{{ c.function.name }}" +
        std::string(line_break ? "{{ '\\n' }}" : "") +
        "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}"
        "</arg_value>{% endfor %}</tool_call>{% endfor %}{% endfor %}";
    const auto format = MakeChatFormat(source, ChatTemplate::Parse(source, {}), {});
    EXPECT_EQ(format->output.ForcedCall("f", ""), line_break ? "<tool_call>f\n" : "<tool_call>f");
  }
}

}  // namespace
}  // namespace millrace
