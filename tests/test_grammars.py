"""Compares grammars of JSON schemas with the validator of PyPI's jsonschema."""
import random

import jsonschema
import pytest

from json_schemas import Checker, random_schema, random_value, texts_of


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
