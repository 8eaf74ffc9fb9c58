"""Random JSON schemas and instances, and the program build/grammar_check, which says what our grammars make of them."""
import itertools
import json
import pathlib
import random
import subprocess

from daemon import program


class Checker:
    """A running grammar_check."""

    def __init__(self, path=None):
        path = path or pathlib.Path(program()).with_name("grammar_check")
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, texts):
        self.process.stdin.write(json.dumps({"schema": json.dumps(schema), "texts": texts}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def whole_numbers(value):
    """Returns the value with 1.0 written as 1, which is the same to a schema."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in value.items()}
    return value


def texts_of(value, most=40):
    """Returns serializations of a value, with the members of its objects in several orders."""
    if isinstance(value, dict):
        texts = []
        for order in itertools.islice(itertools.permutations(value.items()), 24):
            parts = [[json.dumps(key, ensure_ascii=False) + ": " + text for text in texts_of(item, 6)] for key, item in order]
            texts += ["{" + ", ".join(chosen) + "}" for chosen in itertools.islice(itertools.product(*parts), 6)]
        return texts[:most]
    if isinstance(value, list):
        parts = itertools.product(*[texts_of(item, 6) for item in value])
        return ["[" + ", ".join(chosen) + "]" for chosen in itertools.islice(parts, most)]
    return [json.dumps(value, ensure_ascii=False)]


def random_schema(rng, depth=3):
    """Returns a schema of the keywords that grammars take, put together without regard to sense."""
    if rng.random() < 0.08 or depth == 0:
        return rng.choice([True, {}, {"type": "string"}, {"type": "integer"}, {"const": rng.choice([1, "a", None])}])
    inner = lambda: random_schema(rng, depth - 1)
    schema = {}
    if rng.random() < 0.6:
        types = ["null", "boolean", "integer", "number", "string", "array", "object"]
        schema["type"] = rng.choice(types) if rng.random() < 0.8 else rng.sample(types, 2)
    for keyword, value in {
        "minimum": lambda: rng.choice([-2, 0, 1.5, 3]), "exclusiveMaximum": lambda: rng.choice([2, 3.25, 10]),
        "maximum": lambda: rng.choice([0, 1, 99]), "exclusiveMinimum": lambda: rng.choice([-10, -0.5, 0]),
        "multipleOf": lambda: rng.choice([2, 3, 5]),
        "minLength": lambda: rng.randrange(3), "maxLength": lambda: rng.randrange(4),
        "pattern": lambda: rng.choice(["^a", "b$", "^[a-c]*$", "é", "^(?!a)", "\\d"]),
        "enum": lambda: rng.sample([0, 1, -3, 1.5, "a", "ab", "é", None, True, [], [1], {}, {"a": 1}], 4),
        "items": inner, "prefixItems": lambda: [inner() for _ in range(rng.randrange(1, 3))],
        "minItems": lambda: rng.randrange(3), "maxItems": lambda: rng.randrange(4),
        "properties": lambda: {key: inner() for key in rng.sample("abcd", 2)},
        "required": lambda: rng.sample("abcd", rng.randrange(1, 3)),
        "additionalProperties": lambda: rng.choice([False, inner()]),
        "patternProperties": lambda: {rng.choice(["^a", "[cd]", "b$"]): inner()},
        "propertyNames": lambda: rng.choice([{"maxLength": 1}, {"pattern": "^[a-c]"}, {"enum": ["a", "d"]}]),
        "minProperties": lambda: rng.randrange(3), "maxProperties": lambda: rng.randrange(4),
        "allOf": lambda: [inner(), inner()], "anyOf": lambda: [inner(), inner()], "oneOf": lambda: [inner(), inner()],
        "not": inner, "dependentRequired": lambda: {"a": ["b"]}, "dependentSchemas": lambda: {"c": inner()},
        "unevaluatedProperties": lambda: False, "unevaluatedItems": lambda: False,
    }.items():
        if rng.random() < 0.09:
            schema[keyword] = value()
    if rng.random() < 0.06:
        schema.update({"if": inner(), "then": inner(), "else": inner()})
    return schema


def random_value(rng, depth=3):
    kind = rng.randrange(8 if depth else 6)
    if kind == 6:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {key: random_value(rng, depth - 1) for key in rng.sample("abcd", rng.randrange(4))}
    return [None, rng.random() < 0.5, rng.choice([0, 1, 2, 3, -3, 6, 10, 99]), rng.choice([0.5, 1.5, 2.25, -0.5]),
            "".join(rng.choice("abcé1\"") for _ in range(rng.randrange(5))), rng.choice(["a", "ab", "é", ""])][kind]
