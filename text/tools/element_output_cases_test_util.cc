#include "text/tools/output_cases_test_util.h"

namespace millrace {

std::vector<OutputCase> ElementOutputCases() {
  return {
      // Elements.
      {"qwen3_coder",
       "none",
       "I call.\n<tool_call>\n<function=f>\n<parameter=a>\n7\n</parameter>\n<parameter=s>\nline "
       "1\nline 2 \"quoted\"\n</parameter>\n</function>\n</tool_call>",
       {"I call.", "", {R"(f({"a": 7, "s": "line 1\nline 2 \"quoted\""}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call><function=f></function></tool_call><tool_call><function=g>"
       "</function></tool_call>",
       {"", "", {"f({})", "g({})"}}},
      {"qwen3_coder",
       "none",
       "<function=look><parameter=for>null</parameter></function>"
       "<function=look><parameter=for>\"a\"</parameter></function>"
       "<function=look><parameter=for>7</parameter></function>",
       {"", "", {R"(look({"for": null}))", R"(look({"for": "a"}))", R"(look({"for": "7"}))"}}},
      {"qwen3_coder",
       "none",
       "<function=></function> x",  // no call has no name
       {"<function=></function> x", "", {}}},
      {"glm45", "none", "<tool_call>\nf\n</tool_call>", {"", "", {"f({})"}}},
      {"glm45", "none", "a<tool_call></tool_call>", {"a<tool_call></tool_call>", "", {}}},
      {"glm45",
       "none",
       "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n</tool_call>"
       "<tool_call>f<arg_key>a</arg_key><arg_value>12</arg_value></tool_call>",
       {"", "", {"get_weather({\"city\": \"12\"})", "f({\"a\": 12})"}}},
      {"minimax_m2",
       "none",
       "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">nothing</parameter>\n"
       "</invoke>\n</minimax:tool_call>",
       {"", "", {"f({\"a\": \"nothing\"})"}}},
      // Types that the schema tells in other ways than by `type`.
      {"qwen3_coder",
       "none",
       "<function=typed><parameter=opt>12345</parameter><parameter=ref>04224</parameter>"
       "<parameter=en>1</parameter><parameter=all>99</parameter><parameter=one>42</parameter>"
       "<parameter=cst>7</parameter><parameter=pat>123</parameter></function>",
       {"",
        "",
        {R"(typed({"opt": "12345", "ref": "04224", "en": "1", "all": "99", "one": "42", )"
         R"("cst": "7", "pat": "123"}))"}}},
      {"qwen3_coder",
       "none",
       "<function=typed><parameter=opt>null</parameter><parameter=one>[\"a\"]</parameter>"
       "<parameter=n>5</parameter><parameter=b>True</parameter>"
       "<parameter=list>['a', {'b': None}]</parameter><parameter=two>5</parameter>"
       "<parameter=mixed>2</parameter></function>",
       {"",
        "",
        {R"(typed({"opt": null, "one": ["a"], "n": 5, "b": true, "list": ["a", {"b": null}], )"
         R"("two": 5, "mixed": "2"}))"}}},
      {"qwen3_coder",
       "none",  // what a type does not allow stays, as a string
       "<function=typed><parameter=n>many</parameter><parameter=b>yes</parameter>"
       "<parameter=two>5 apples</parameter><parameter=opt>nullable</parameter>"
       "<parameter=one>[see above]</parameter></function>",
       {"",
        "",
        {R"(typed({"n": "many", "b": "yes", "two": "5 apples", "opt": "nullable", )"
         R"("one": "[see above]"}))"}}},
      // A closing marker is missing.
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</function>\n</tool_call>",
       {"", "", {R"(f({"s": "abc"}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nabc\n<parameter=a>\n5\n</parameter>\n"
       "</function>\n</tool_call>\nDone.",
       {"Done.", "", {R"(f({"s": "abc", "a": 5}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</parameter>\n</tool_call>\nDone.",
       {"Done.", "", {R"(f({"s": "abc"}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</tool_call>\nDone.",
       {"Done.", "", {R"(f({"s": "abc"}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<function=look>\n"
       "<parameter=for>\nx\n</parameter>",
       {"", "", {R"(f({"a": 1}))", R"(look({"for": "x"}))"}}},
      {"qwen3_coder", "none", "<function=f>\n<parameter=s>\nabc", {"", "", {R"(f({"s": "abc"}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f\n<parameter=a>1</parameter></function></tool_call>",
       {"", "", {R"(f({"a": 1}))"}}},
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f\n</tool_call>\nHello.",
       {"<tool_call>\n<function=f\n</tool_call>\nHello.", "", {}}},
      {"qwen3_coder",
       "none",  // the key of the second argument has no end
       "<function=f><parameter=a>1</parameter><parameter=\nx</parameter></function>!",
       {"<parameter=\nx</parameter>!", "", {R"(f({"a": 1}))"}}},
      {"glm45",
       "none",
       "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>abc\n<arg_key>a</arg_key>\n"
       "<arg_value>7</tool_call>",
       {"", "", {R"(f({"s": "abc", "a": 7}))"}}},
      {"minimax_m2",
       "none",
       "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">abc\n</invoke>\n"
       "</minimax:tool_call>",
       {"", "", {R"(f({"s": "abc"}))"}}},
      {"deepseek_v32",
       "none",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" "
       "string=\"true\">abc\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       {"", "", {R"(f({"s": "abc"}))"}}},
      // Markers within an argument belong to it.
      {"qwen3_coder",
       "none",
       "<tool_call>\n<function=f>\n<parameter=s>\nIt ends with </parameter>, or </function> as in\n"
       "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
       "and <parameter=zzz> is none.\n</parameter>\n</function>\n</tool_call>",
       {"",
        "",
        {R"(f({"s": "It ends with </parameter>, or </function> as in\n<tool_call>\n<function=f>\n)"
         R"(<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\nand <parameter=zzz> is )"
         R"(none."}))"}}},
      // Prose about the form stays as it is.
      {"qwen3_coder",
       "none",
       "The markup is <tool_call>, then XML.\n\n<tool_call>\n\n</tool_call>\n",
       {"The markup is <tool_call>, then XML.\n\n<tool_call>\n\n</tool_call>\n", "", {}}},
      {"qwen3_coder",
       "none",
       "A <function=NAME> element opens a call, <function=f> calls f.",
       {"A <function=NAME> element opens a call, <function=f> calls f.", "", {}}},
      {"qwen3_coder",
       "none",
       "Write <tool_call> \n and then:\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
       {"Write <tool_call> \n and then:", "", {"f({})"}}},
      {"glm45",
       "none",
       "In GLM <tool_call> tags hold calls, and <arg_key> is a key.",
       {"In GLM <tool_call> tags hold calls, and <arg_key> is a key.", "", {}}},
      {"hermes",
       "none",
       "Like this:\n\n<tool_call>\nyour JSON here\n</tool_call>\n\nDone. <tool_call></tool_call>",
       {"Like this:\n\n<tool_call>\nyour JSON here\n</tool_call>\n\nDone. <tool_call></tool_call>",
        "",
        {}}},
      {"hermes",
       "none",  // the marker after a call is prose, too
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\nA  </tool_call> ends it.",
       {"A  </tool_call> ends it.", "", {"f({})"}}},
      {"mistral",
       "none",
       "First [TOOL_CALLS] comes,\n then [ARGS].",
       {"First [TOOL_CALLS] comes,\n then [ARGS].", "", {}}},
      {"deepseek_v31",
       "none",
       "A <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁call▁end｜> B",
       {"A <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁call▁end｜> B", "", {}}},
      // Seed-OSS.
      {"seed_oss",
       "seed_oss",
       "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=s>a\nb</"
       "parameter>\n"
       "<parameter=a>2</parameter>\n</function>\n</seed:tool_call>",
       {"", "Hm.", {R"(f({"s": "a\nb", "a": 2}))"}}},
      {"deepseek_v4",
       "none",
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
       "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
       {"", "", {R"(f({"a": 3}))"}}},
  };
}

}  // namespace millrace
