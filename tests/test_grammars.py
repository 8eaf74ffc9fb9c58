"""Compares grammars of JSON schemas with the validator of PyPI's jsonschema."""
import json
import random
import re

import jsonschema
import pytest

from daemon import sanitized
from json_schemas import Checker, random_schema, random_value, texts_of
from schemas.corpus import corpus
from schemas.hostile import hostile


@pytest.mark.parametrize("seed", range(4))
def test_random_schemas_accept_exactly_their_instances(seed):
    rng = random.Random(seed)
    checker = Checker()
    taken = accepted = 0
    for _ in range(300):
        schema = random_schema(rng)
        validator = jsonschema.Draft202012Validator(schema)
        values = [random_value(rng) for _ in range(30)]
        texts = [texts_of(value) for value in values]
        answer = checker.ask(schema, [text for forms in texts for text in forms])
        if "error" in answer:
            # A schema that nothing meets is refused, too.
            if answer["error"] == "no text at all meets it":
                assert not any(validator.is_valid(value) for value in values), schema
            continue
        taken += 1
        matches = iter(answer["matches"])
        for value, forms in zip(values, texts):
            accepts = any([next(matches) for _ in forms])
            accepted += accepts
            assert accepts == validator.is_valid(value), (schema, value)
    checker.close()
    assert taken > 150 and accepted > 500


def test_what_applications_send_is_taken_and_held_to():
    checker = Checker()
    taken, entries = 0, list(corpus())
    for entry in entries:
        answer = checker.ask(entry["schema"], entry["valid"] + entry["invalid"])
        if "error" in answer:
            # A schema is refused for one reason, and never for being slow, unless a sanitizer makes it so.
            slow = sanitized() and answer["error"].startswith("it is too complex: it takes more than")
            assert slow or re.match("uniqueItems at", answer["error"]), (answer["error"], entry["schema"])
            continue
        taken += 1
        matches = dict(zip(entry["valid"] + entry["invalid"], answer["matches"]))
        assert [text for text in entry["valid"] if not matches[text]] == [], entry["schema"]
        assert [text for text in entry["invalid"] if matches[text]] == [], entry["schema"]
    checker.close()
    assert len(entries) == 500 and taken >= (450 if sanitized() else 490)
    assert sum(len(entry["valid"]) for entry in entries) > 1900 and sum(len(entry["invalid"]) for entry in entries) > 5000


DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"  # zod's


@pytest.mark.parametrize("pattern, seeds, letters", [
    (DURATION, ["P3W", "P1Y2M3DT4H5M6.5S", "PT1S", "P1DT", "P", "PT", "PT1H2M", "P1W1D"], "PWYMDTHS.,0123"),
    *((pattern, ["abf", "acdf", "aeef", "xz1", "axz1", "ab", "abcd", "dcc", "aac"], "abcdefxyz1") for pattern in (
        r"^a(b|(?=c)[a-d]+|(?!d).e)?f$", r"(x|(?!y)(?=.z)[a-z]+)1", r"^((?=a)(a|b(?!c)))?[a-d]{0,3}$",
        r"^(?:(?!.*bb)[ab]+(c(?=d|$))?)d?$", r"^((?!a(?=b))[a-c]{2}|d)c*$", r"(a(?!b$))b?$"))])
def test_look_ahead_within_groups_is_pythons(pattern, seeds, letters):
    rng = random.Random(4)
    texts = set(seeds)
    while len(texts) < 2000:
        text = list(rng.choice(seeds))
        for _ in range(rng.randint(0, 4)):
            at = rng.randint(0, len(text))
            text[at:at + rng.randint(0, 1)] = rng.choice([*letters, ""])
        texts.add("".join(text))
    texts = sorted(texts)
    checker = Checker()
    answer = checker.ask({"type": "string", "pattern": pattern}, [json.dumps(text) for text in texts])
    checker.close()
    expected = [re.search(pattern, text, re.ASCII) is not None for text in texts]
    assert [text for text, is_in, taken in zip(texts, expected, answer["matches"]) if is_in != taken] == []
    assert 5 < sum(expected) < len(texts)


REFUSED = {"400 lists within lists", "enum of 20,001 values", "allOf of 2,000 anyOf", "a pattern of 10^10 repetitions",
           "oneOf of 300 overlapping branches", "not within not, 60 deep", "2^20 combinations"}


def test_every_hostile_schema_is_answered():
    checker = Checker()
    answers = {name: checker.ask(schema, ["{"]) for name, schema in hostile()}
    checker.close()
    # The others may be refused for their time on a slow machine. No text is an instance of any of them.
    assert {name for name in REFUSED if "error" not in answers[name]} == set()
    assert not any(any(answer.get("matches", [])) for answer in answers.values())
