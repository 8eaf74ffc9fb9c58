#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const absl::Time kNow =
    absl::FromCivil(absl::CivilSecond(2024, 2, 29, 13, 5, 9), absl::UTCTimeZone());

const Json& Reference() {
  static const auto& reference = *new Json([] {
    std::ifstream file("tests/reference/template_reference.json");
    return Json::parse(file);
  }());
  return reference;
}

absl::StatusOr<std::string> Render(const std::string& source, const Json& messages = Json::array(),
                                   const Json& extra = Json::object(), TemplateLimits limits = {}) {
  auto chat_template = ChatTemplate::Parse(source, {.bos = "<s>", .eos = "</s>"}, limits);
  if (!chat_template.ok()) return chat_template.status();
  ChatTemplateOptions options;
  options.add_generation_prompt = extra.value("add_generation_prompt", false);
  options.now = kNow;
  return chat_template->Render(messages, extra, options);
}

// `expected` as make_template_reference.py writes it.
void ExpectEqual(const absl::StatusOr<std::string>& actual, const Json& expected) {
  if (expected.is_string()) {
    ASSERT_TRUE(actual.ok()) << actual.status();
    EXPECT_EQ(*actual, expected.get<std::string>());
    return;
  }
  ASSERT_FALSE(actual.ok()) << *actual;
  EXPECT_EQ(actual.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(actual.status().message());
  EXPECT_THAT(message, StartsWith("chat template: line "));
  if (expected.is_object()) {
    EXPECT_THAT(message, EndsWith(expected["error"].get<std::string>()));
  }
}

TEST(ChatTemplateTest, RendersAsTransformersDoes) {
  const Json& reference = Reference();
  ASSERT_GE(reference["renderings"].size(), 200);
  for (const Json& rendering : reference["renderings"]) {
    const std::string name = rendering[0];
    const std::string conversation = rendering[1];
    SCOPED_TRACE(StrCat(name, ": ", conversation, " ", rendering[2].dump()));
    ExpectEqual(Render(reference["templates"][name], reference["conversations"][conversation],
                       rendering[2]),
                rendering[3]);
  }
}

TEST(ChatTemplateTest, EndsInsideTheFinalMessageAsTransformersDoes) {
  const Json& reference = Reference();
  size_t texts = 0;
  for (const Json& rendering : reference["continued"]) {
    SCOPED_TRACE(rendering.dump());
    const auto chat_template = ChatTemplate::Parse(
        reference["templates"][rendering[0].get<std::string>()].get<std::string>(),
        {.bos = "<s>", .eos = "</s>"});
    ASSERT_TRUE(chat_template.ok()) << chat_template.status();
    ChatTemplateOptions options;
    options.add_generation_prompt = false;
    options.continue_final_message = true;
    options.now = kNow;
    const auto actual = chat_template->Render(
        reference["conversations"][rendering[1].get<std::string>()], Json::object(), options);
    texts += actual.ok() ? 1 : 0;
    ASSERT_EQ(actual.ok(), rendering[2].is_string()) << actual.status();
    if (actual.ok()) {
      EXPECT_EQ(*actual, rendering[2].get<std::string>());
    } else {
      EXPECT_THAT(std::string(actual.status().message()), StartsWith("chat template: "));
    }
  }
  EXPECT_GE(texts, 80);
}

TEST(ChatTemplateTest, ContinuesWhatThereIs) {
  const auto chat_template = ChatTemplate::Parse("{{ messages[-1].content }}|", {});
  ASSERT_TRUE(chat_template.ok());
  ChatTemplateOptions options;
  options.continue_final_message = true;
  const auto render = [&](const char* messages) {
    return chat_template->Render(Json::parse(messages), Json::object(), options);
  };
  EXPECT_EQ(*render(R"([{"content": "a "}])"), "a ");
  // Not at the mark that somebody wrote into the conversation.
  EXPECT_EQ(*render(R"([{"content": "CONTINUE_FINAL_MESSAGE_TAG x"}])"),
            "CONTINUE_FINAL_MESSAGE_TAG x");
  for (const char* bad : {"[]", "[1]", "[{}]", R"([{"content": null}])", R"([{"content": []}])",
                          R"([{"content": [{"text": 1}]}])", R"([{"content": ["text"]}])"}) {
    EXPECT_EQ(render(bad).status().message(),
              "chat template: the final message has no content to continue")
        << bad;
  }
}

TEST(ChatTemplateTest, FollowsEachRuleOfTheLanguage) {
  const Json& reference = Reference();
  ASSERT_GE(reference["snippets"].size(), 290);
  for (const Json& snippet : reference["snippets"]) {
    SCOPED_TRACE(snippet[0]);
    ExpectEqual(Render(snippet[0], Json::array(), reference["variables"]), snippet[1]);
  }
}

TEST(ChatTemplateTest, OffersTheSpecialTokensThatTheModelHas) {
  const auto chat_template =
      ChatTemplate::Parse("{{ bos_token }}{{ eos_token is defined }}{{ pad_token }}{{ unk_token }}",
                          {.bos = "<s>", .unk = "<u>", .pad = "<p>"});
  ASSERT_TRUE(chat_template.ok());
  EXPECT_EQ(*chat_template->Render(Json::array(), Json::object(), {}), "<s>False<p><u>");
}

TEST(ChatTemplateTest, TakesBothKindsOfJson) {
  const auto chat_template = ChatTemplate::Parse("{{ messages[0] | tojson }}", {});
  ASSERT_TRUE(chat_template.ok());
  const std::string text = R"([{"role": "user", "content": "x"}])";
  EXPECT_EQ(*chat_template->Render(Json::parse(text), Json::object(), {}),
            R"({"role": "user", "content": "x"})");
  EXPECT_EQ(*chat_template->Render(nlohmann::json::parse(text), nlohmann::json::object(), {}),
            R"({"content": "x", "role": "user"})");
}

TEST(ChatTemplateTest, RefusesJsonThatItCannotHold) {
  Json deep = "x";
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_EQ(Render("", deep).status().message(),
            "chat template: messages: JSON is nested deeper than 100 levels");
}

TEST(ChatTemplateTest, PrintsIntegersThatNeedAllOf64Bits) {
  EXPECT_EQ(
      *Render("{{ big }} {{ big | tojson }} {{ big is integer }} {{ big > 1 }} {{ '%s' % big }}",
              Json::array(), {{"big", UINT64_MAX}}),
      "18446744073709551615 18446744073709551615 True True 18446744073709551615");
  EXPECT_FALSE(Render("{{ '{:d}'.format(big) }}", Json::array(), {{"big", UINT64_MAX}}).ok());
}

TEST(ChatTemplateTest, NamesTheLineOfAnError) {
  EXPECT_EQ(
      Render("a\n{% if true %}\n\n{{ raise_exception('no ' ~ 1) }}{% endif %}").status().message(),
      "chat template: line 4: no 1");
  EXPECT_EQ(Render("{{ 1 }}\n{% for m in messages %}\n{{ m.role.x.y }}\n{% endfor %}",
                   Json::array({{{"role", "user"}}}))
                .status()
                .message(),
            "chat template: line 3: 'x' is undefined");
}

// Each of these has brought down or hung some template engine.
TEST(ChatTemplateTest, EndsHostileTemplates) {
  const auto repeat = [](std::string_view text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  const std::string doubling = "{% set ns = namespace(x='ab') %}{% for i in range(64) %}";
  const std::string sources[] = {
      "{{ " + repeat("(", 60000) + "1" + repeat(")", 60000) + " }}",
      "{{ " + repeat("[", 60000),
      "{{ " + repeat("{1:", 60000),
      "{{ " + repeat("not ", 60000) + "1 }}",
      "{{ " + repeat("-", 60000) + "1 }}",
      "{{ x" + repeat(".a", 60000) + " }}",
      "{{ x" + repeat("|trim", 60000) + " }}",
      "{{ x" + repeat("[0]", 60000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 60000) + " }}",
      "{{ trim" + repeat("(trim", 60000),
      repeat("{% if true %}", 60000) + repeat("{% endif %}", 60000),
      repeat("{% for i in 'a' %}", 60000),
      repeat("{% raw %}", 60000),
      repeat("{#", 60000),
      "{{ '" + std::string(100000, '\\') + " }}",
      std::string((1 << 20) + 1, 'x'),
      "{{ range(1,2,3,4,5,6) }}",
      "{{ range(1,0,0) }}",
      "{{ range(-9223372036854775807, 9223372036854775807) }}",
      "{{ range(0, 9223372036854775807, 9223372036854775807) | list | length ** 99 * 99 ** 99 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 'x' * 1000000000 }}",
      "{{ [1] * 9223372036854775807 }}",
      "{{ 'x' * 4000000 ~ 'x' * 4000000 }}",
      "{{ ('x' * 100000) | replace('', 'y' * 100000) }}",
      "{{ ('x' * 3000000) | join('yyyyyyyy') }}",
      "{{ ('\\n' * 100000) | indent(100000, blank=true) }}",
      "{{ [[[[1]]]] | tojson(indent=2000000) }}",
      doubling + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
      doubling + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      doubling + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
      doubling + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
      doubling + "{% for j in range(64) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}",
      doubling + "{% set ns.x = ns %}{% endfor %}",
      doubling + "{% set ns.x = [loop] %}{% endfor %}",
      repeat("{% for i in range(100) %}", 50) + "x" + repeat("{% endfor %}", 50),
      "{% for i in range(100000) %}{{ 'x' * 100 }}{% endfor %}",
      "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
      "{{ ('a' * 4000000).strip('b' * 2000000 ~ 'a') }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
      "{% macro f(g) %}{{ g(g) }}{% endmacro %}{{ f(f) }}",
      "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{% for i in range(9) if n %}{{ f(n - 1) }}{% endfor %}{% endmacro %}" +
          std::string("{{ f(9) }}"),
      "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('x') }}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% macro f() %}{% for i in 'a' recursive %}{{ loop('a') }}{% endfor %}{% endmacro %}" +
          std::string("{{ f() }}"),
      "{% macro f() %}{% endmacro %}{{ f(*range(100000)) }}",
      "{% macro f() %}{{ f(*varargs) }}{% endmacro %}{{ f(*range(99999)) }}",
      doubling + "{% macro f() %}{% endmacro %}{% set ns.f = f %}{% endfor %}",
      "{% macro f() %}{% endmacro %}{{ [f] }}",
      "{{ '{:999999999999}'.format(1) }}",
      "{{ '{:99999999999999999999}'.format(1) }}",
      "{{ '{:.999999}'.format(1.5) }}",
      "{{ '%999999999d' % 1 }}",
      "{{ '%.*d' % (1, 2) }}",
      "{{ ('{}' * 100000).format(*range(99999)) }}",
      "{{ ('%s' * 1000) % (('x' * 4000000),) }}",
      "{% for i in range(9) %}{{ range(99999) | sort | unique | list }}{% endfor %}",
      "{{ ('&' * 1000000) | e }}",
      "{{ ('&' * 1000000) + ('x' | safe) }}",
      "{{ strftime_now('%9999999d') }}",
      "{{ strftime_now('%E9999f') }}",
      "{{ strftime_now('x' * 1000) }}",
      "{{ 'x' | center(1000000000) }}",
      "{{ 'x'.center(9223372036854775807, '\u65e5') }}",
      "{{ 'x'.ljust(9223372036854775807) ~ 'x'.rjust(1000000000) }}",
      "{{ '-x'.zfill(9223372036854775807) }}",
      "{{ 'x y' | wordwrap(-9223372036854775807) }}",
      "{{ ('x ' * 1000000) | wordwrap(1, wrapstring='y' * 1000) }}",
      "{{ ('-' * 4000000) | wordwrap(1) }}",
      "{{ 'x' | truncate(-9223372036854775807) }}",
      "{{ 'x' | truncate(end='y' * 1000) }}",
      "{{ [1] | batch(9223372036854775807, 'x') | list }}",
      "{{ [] | slice(9223372036854775807) | list }}",
      "{{ [1] | slice(1000000) | list }}",
      "{{ range(99999) | batch(0) | list | batch(1) | map('batch', 1000000, 0) | list }}",
      "{% for " + repeat("(", 60000) + "a" + repeat(")", 60000) + " in [] %}{% endfor %}",
      "{% for " + repeat("a, (", 60000) + "a" + repeat(")", 60000) + " in [] %}{% endfor %}",
      "{{ 0x" + repeat("f", 100000) + " }}",
      "{{ 1" + repeat("_0", 100000) + " }}",
  };
  for (const std::string& source : sources) {
    SCOPED_TRACE(source.substr(0, 200));
    const auto text = Render(source);
    ASSERT_FALSE(text.ok()) << text->size();
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
    EXPECT_LT(text.status().message().size(), 300);
  }
}

TEST(ChatTemplateTest, RendersLargeButHarmlessTemplates) {
  EXPECT_EQ(*Render("a{#" + std::string(100000, 'x') + "#}b"), "ab");
  std::string chain = "{{ 1";
  for (int i = 0; i < 10000; ++i) chain += " + 1";
  EXPECT_EQ(*Render(chain + " }}"), "10001");
  std::string branches = "{% if false %}";
  for (int i = 0; i < 10000; ++i) branches += "{% elif false %}";
  EXPECT_EQ(*Render(branches + "{% else %}x{% endif %}"), "x");
}

TEST(ChatTemplateTest, KeepsToItsLimits) {
  const std::string loop = "{% for i in range(100) %}{{ i }}{% endfor %}";
  TemplateLimits limits;
  limits.max_steps = 300;
  EXPECT_THAT(std::string(Render(loop, Json::array(), Json::object(), limits).status().message()),
              EndsWith("rendering needs more than 300 steps"));
  limits = {};
  limits.max_output_bytes = 100;
  EXPECT_THAT(std::string(Render(loop, Json::array(), Json::object(), limits).status().message()),
              EndsWith("the output is over 100 bytes"));
  limits = {};
  limits.max_depth = 4;
  EXPECT_TRUE(Render("{{ ((1)) }}", Json::array(), Json::object(), limits).ok());
  EXPECT_THAT(
      std::string(
          Render("{{ (((1))) }}", Json::array(), Json::object(), limits).status().message()),
      HasSubstr("nested deeper than 4 levels"));
  limits = {};
  limits.max_source_bytes = 10;
  EXPECT_EQ(Render("0123456789x", Json::array(), Json::object(), limits).status().message(),
            "chat template: line 1: the template has 11 bytes, at most 10 are allowed");
}

TEST(ChatTemplateTest, NamesTheLimitThatAFilterExceeds) {
  const auto message = [](const std::string& source) {
    return std::string(Render(source).status().message());
  };
  for (const char* padded : {"{{ 'x' | center(1000000000) }}", "{{ '1'.zfill(1000000000) }}",
                             "{{ 'x'.ljust(9223372036854775807) }}"}) {
    EXPECT_THAT(message(padded), EndsWith("a text of more than 4194304 bytes")) << padded;
  }
  for (const char* filled :
       {"{{ [1] | batch(1000000000, 0) | list }}", "{{ [1] | slice(1000000000) | list }}"}) {
    EXPECT_THAT(message(filled), EndsWith("rendering needs more than 1000000 steps")) << filled;
  }
  EXPECT_EQ(*Render("{{ 'a b' | wordwrap(1000000000) }}"), "a b");
  EXPECT_EQ(*Render("{{ [1, 2] | batch(0) | list }}"), "[[], [1, 2]]");
}

TEST(ChatTemplateTest, StopsAtTheDeadline) {
  const auto chat_template = ChatTemplate::Parse("{% for i in range(9) %}{{ i }}{% endfor %}", {});
  ASSERT_TRUE(chat_template.ok());
  ManualClock clock;
  ChatTemplateOptions options;
  options.clock = &clock;
  options.deadline = clock.Now() + std::chrono::seconds(1);
  EXPECT_EQ(*chat_template->Render(Json::array(), Json::object(), options), "012345678");
  clock.Advance(std::chrono::seconds(1));
  EXPECT_EQ(chat_template->Render(Json::array(), Json::object(), options).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(ChatTemplateTest, RendersOnManyThreadsAtOnce) {
  const Json& reference = Reference();
  const std::string source =
      reference["templates"]["chatml with a default system message and tools"];
  const auto chat_template = ChatTemplate::Parse(source, {});
  ASSERT_TRUE(chat_template.ok());
  const Json& messages = reference["conversations"]["several turns"];
  const std::string expected = *chat_template->Render(messages, Json::object(), {});
  std::vector<int> equal(4);
  std::vector<std::thread> threads;
  threads.reserve(equal.size());
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        count += *chat_template->Render(messages, Json::object(), {}) == expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(50));
}

TEST(FlattenContentTest, JoinsTexts) {
  EXPECT_EQ(*FlattenContent("c", Json("x")), "x");
  EXPECT_EQ(*FlattenContent("c", Json()), "");
  EXPECT_EQ(*FlattenContent("c", Json::array()), "");
  EXPECT_EQ(*FlattenContent("c", Json::parse(R"([{"type":"text","text":"a"},
                                                 {"type":"text","text":"b"}])")),
            "a\nb");
}

TEST(FlattenContentTest, NamesWhatItRefuses) {
  const auto error = [](const char* json) {
    return std::string(FlattenContent("messages[1].content", Json::parse(json)).status().message());
  };
  EXPECT_EQ(error("3"),
            "messages[1].content is number, it must be a string or a list of text parts");
  EXPECT_EQ(error("[3]"), "messages[1].content[0] must be an object with a string 'type'");
  EXPECT_EQ(error(R"([{"type":"text","text":"a"},{"type":"image_url"}])"),
            "messages[1].content[1].type is 'image_url', only 'text' is supported");
  EXPECT_EQ(error(R"([{"type":"text","text":1}])"), "messages[1].content[0].text must be a string");
}

}  // namespace
}  // namespace millrace
