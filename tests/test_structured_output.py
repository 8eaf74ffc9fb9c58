"""Tests that answers are held to JSON schemas, regular expressions, choices and grammars, at any temperature."""
import concurrent.futures
import json
import re

import grpc
import httpx
import jsonschema
import pytest

from daemon import metrics
from millrace_grpc import connect, pb

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y", "z"]}, "maxItems": 3},
        "address": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/address"}]},
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "on": {"type": "string", "format": "date"}},
            "required": ["zip", "on"],
            "additionalProperties": False,
        }
    },
}


def post(server, path="/v1/chat/completions", **body):
    if "chat" in path:
        body.setdefault("messages", [{"role": "user", "content": "Describe a person."}])
        body.setdefault("chat_template_kwargs", {"enable_thinking": False})  # random answers would open a thought and not end it
    else:
        body.setdefault("prompt", "Describe a person.")
    body.setdefault("max_tokens", 400)
    body.setdefault("temperature", 2)
    return httpx.post(server.http + path, json=body, timeout=120)


def answer(server, **body):
    response = post(server, **body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice.get("text") or choice["message"]["content"], choice["finish_reason"]


def schema_format(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": strict}}


def check(text, finish, schema=PERSON):
    assert finish == "stop", text
    jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("seed", range(8))
def test_every_answer_is_an_instance_of_its_schema(fake_server, seed):
    text, finish = answer(fake_server, response_format=schema_format(PERSON), seed=seed)
    check(text, finish)
    assert list(json.loads(text)) == list(PERSON["properties"])  # in the order of the schema


def test_the_other_forms(fake_server):
    text, finish = answer(fake_server, structured_outputs={"regex": "[a-f]{4}-[0-9]{2}"})
    assert re.fullmatch("[a-f]{4}-[0-9]{2}", text) and finish == "stop"
    for field in ({"guided_choice": ["red", "blue"]}, {"structured_outputs": {"choice": ["red", "blue"]}}):
        assert answer(fake_server, **field)[0] in ("red", "blue")
    for field in ({"grammar": 'root ::= "a" [0-9]{3} "z"'}, {"guided_grammar": 'start: "a" /[0-9]{3}/ "z"'},
                  {"structured_outputs": {"grammar": 'root ::= "a" [0-9]{3} "z"'}}, {"ebnf": 'root ::= "a" [0-9]{3} "z"'}):
        assert re.fullmatch("a[0-9]{3}z", answer(fake_server, **field)[0])
    for field in ({"guided_json": PERSON}, {"json_schema": PERSON}, {"json_schema": json.dumps(PERSON)},
                  {"structured_outputs": {"json": PERSON}}):
        check(*answer(fake_server, **field))
    check(*answer(fake_server, path="/v1/completions", response_format=schema_format(PERSON)))
    for kind in ("json_object", "json_schema"):  # llama.cpp's form
        check(*answer(fake_server, response_format={"type": kind, "schema": PERSON}))


def test_any_json_object_may_be_cut_by_its_length_alone(fake_server):
    for seed in range(6):
        text, finish = answer(fake_server, response_format={"type": "json_object"}, seed=seed, max_tokens=300)
        assert text.startswith("{")
        if finish == "stop":
            assert isinstance(json.loads(text), dict)


def test_choices_streams_logprobs_and_penalties(fake_server):
    body = dict(response_format=schema_format(PERSON), n=3, seed=5, frequency_penalty=0.5, logprobs=True, top_logprobs=2)
    whole = post(fake_server, **body).json()["choices"]
    texts = [choice["message"]["content"] for choice in whole]
    for choice in whole:
        check(choice["message"]["content"], choice["finish_reason"])
        assert len(choice["logprobs"]["content"]) > 10
    assert len(set(texts)) == 3
    streamed = ["", "", ""]
    with httpx.stream("POST", fake_server.http + "/v1/chat/completions", timeout=120, json={
            **body, "stream": True, "temperature": 2, "max_tokens": 400,
            "messages": [{"role": "user", "content": "Describe a person."}],
            "chat_template_kwargs": {"enable_thinking": False}}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts


LONG_NAMES = {"type": "object", "properties": {"the_city_in_which_it_rains": {"enum": ["Rome", "Oslo"]},
                                               "number_of_days_until_then": {"type": "integer", "minimum": 1, "maximum": 99}},
              "required": ["the_city_in_which_it_rains", "number_of_days_until_then"], "additionalProperties": False}


def check_forced(server, seed):
    """Asserts that text without an alternative takes no step of its own, and that the answer is the one that steps would have made: with
    log-probabilities each token is sampled."""
    def forced():
        return metrics(server)["millrace_forced_tokens_total"]

    def ask(**more):
        response = post(server, response_format=schema_format(LONG_NAMES), seed=seed, temperature=1, **more).json()
        return response["choices"][0]["message"]["content"], response["usage"]["completion_tokens"]

    before = forced()
    at_once = ask()
    after = forced()
    assert ask(logprobs=True) == at_once
    assert forced() == after
    check(at_once[0], "stop", LONG_NAMES)
    return after - before, at_once[1]


@pytest.mark.parametrize("seed", range(3))
def test_forced_tokens_take_no_steps_and_change_no_answer(fake_server, seed):
    forced, tokens = check_forced(fake_server, seed)
    assert 40 < forced < tokens  # a token is a byte


def test_a_stream_and_its_limits_hold_for_forced_tokens(fake_server):
    body = dict(response_format=schema_format(LONG_NAMES), seed=1)
    whole, _ = answer(fake_server, **body)
    for most in (1, 5, 20, 30, 31, 60):
        cut, finish = answer(fake_server, max_tokens=most, **body)
        assert (cut, finish) == (whole[:most], "length")
    stopped, finish = answer(fake_server, stop=["in_which"], **body)
    assert finish == "stop" and stopped == whole[:whole.index("in_which")]
    ended, finish = answer(fake_server, stop_token_ids=[ord("w")], **body)
    assert finish == "stop" and ended == whole[:whole.index("w")]


REFUSED = [
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": schema_format({"uniqueItems": True})}, "uniqueItems at #"),
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"contains": {}}}})}, "contains at #/properties/a"),
    ({"response_format": schema_format(False)}, "no text at all"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"grammar": "root ::= x"}, "grammar: the rule x is used"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_regex": "a", "grammar": 'root ::= "a"'}, "both there"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.format"),
    ({"response_format": {"type": "structural_tag", "format": {"type": "token", "token": 1}}}, "response_format.format.type"),
    ({"response_format": {"type": "structural_tag", "format": {
        "type": "tag", "begin": "a", "end": "b", "content": {"type": "json_schema", "json_schema": {"contains": {}}}}}},
     "contains at #"),
]


@pytest.mark.parametrize("field, named", REFUSED, ids=[named for _, named in REFUSED])
def test_what_is_not_enforced_is_refused_by_name(fake_server, field, named):
    response = post(fake_server, **field)
    assert response.status_code == 400 and named in response.json()["error"]["message"], response.text


WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
CALL = re.compile(r'<function=weather>(\{.*?\})</function>', re.DOTALL)
NEWER = {"type": "structural_tag", "format": {
    "type": "sequence", "elements": [
        {"type": "const_string", "value": "Calling: "},
        {"type": "tags_with_separator", "separator": "; ", "at_least_one": True, "stop_after_first": True, "tags": [
            {"begin": "<function=weather>", "content": {"type": "json_schema", "json_schema": WEATHER}, "end": "</function>"}]}]}}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("field", [
    {"response_format": NEWER}, {"structured_outputs": {"structural_tag": NEWER}},
    {"structured_outputs": {"structural_tag": json.dumps(NEWER)}}], ids=["response_format", "structured_outputs", "text"])
def test_structural_tags(fake_server, field, seed):
    text, finish = answer(fake_server, seed=seed, **field)
    assert finish == "stop" and text.startswith("Calling: ")
    calls = CALL.findall(text)
    assert len(calls) == 1
    check(calls[0], finish, WEATHER)
    assert list(json.loads(calls[0])) == ["city", "days"]


def test_grpc(fake_server):
    stub = connect(fake_server.grpc)

    def text(output):
        request = pb.GenerateRequest(text="Hello", stopping=pb.StopOptions(max_tokens=400), structured_output=output,
                                     sampling=pb.SamplingOptions(temperature=2, seed=3))
        responses = list(stub.Generate(request, timeout=60))
        assert responses[-1].finish.reason == pb.FINISH_REASON_STOP
        return "".join(response.text for response in responses)

    check(text(pb.StructuredOutput(json_schema=json.dumps(PERSON))), "stop")
    assert re.fullmatch("[ab]{5}", text(pb.StructuredOutput(regex="[ab]{5}")))
    assert text(pb.StructuredOutput(choice=pb.StructuredOutput.Choices(choices=["on", "off"]))) in ("on", "off")
    assert text(pb.StructuredOutput(grammar='root ::= "x" "y"+ "z"')).startswith("xy")
    check(CALL.findall(text(pb.StructuredOutput(structural_tag=json.dumps(NEWER))))[0], "stop", WEATHER)
    with pytest.raises(grpc.RpcError) as error:
        text(pb.StructuredOutput(structural_tag='{"type": "structural_tag", "format": {"type": "any_tokens"}}'))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "structured_output.structural_tag.format.type" in error.value.details()


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0, 1, 2])
def test_the_models_answers_are_instances(model_server, temperature):
    """Beside them, answers without masks are the same as when they are alone."""
    plain = dict(temperature=1, seed=11, max_tokens=60, messages=[{"role": "user", "content": "Tell me a story."}])
    alone = answer(model_server, **plain)[0]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        held = [pool.submit(answer, model_server, response_format=schema_format(PERSON), temperature=temperature, seed=i)
                for i in range(5)]
        beside = [pool.submit(answer, model_server, **plain) for _ in range(2)]
        for one in held:
            check(*one.result())
        assert [one.result()[0] for one in beside] == [alone, alone]
    # The same seed gives the same answer, whatever else runs.
    again = answer(model_server, response_format=schema_format(PERSON), temperature=temperature, seed=0)
    assert again == held[0].result()


@pytest.mark.model
def test_the_models_forced_tokens_change_no_answer(model_server):
    assert sum(check_forced(model_server, seed)[0] for seed in range(3)) > 20
