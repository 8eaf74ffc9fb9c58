"""Instances of a schema, and texts that nearly are some: both are judged by PyPI's jsonschema."""
import copy
import datetime
import json
import uuid

import jsonschema

PROSE = """The quick brown fox jumps over the lazy dog, twice. Subtract 7 from both sides, then divide by 8. Zürich is colder than
Málaga in winter. 東京の天気は晴れです。 She said "no" and left. C:\\temp holds it. Results were better than expected (p < 0.05), but
only for large samples. Mix the flour with two eggs; bake for 25 minutes. It's 5 o'clock 🙂 somewhere.""".replace("\n", " ").split()


class CannotMake(Exception):
    """No instance was found by the few means there are."""


def text_of(rng, least, most):
    words = " ".join(rng.choice(PROSE) for _ in range(rng.randrange(1, 12)))
    while len(words) < least:
        words += " " + rng.choice(PROSE)
    return words[:most if most is not None else len(words)]


def from_pattern(rng, pattern, validator):
    """Returns a text that the pattern matches: one of these, since schemas here have few patterns."""
    some = lambda letters, count: "".join(rng.choice(letters) for _ in range(count))
    digits, upper, lower, hexa = "0123456789", "ABCDEFGHJKMNPQRSTVWXYZ", "abcdefghjkmnpqrstvwxyz", "0123456789abcdef"
    candidates = [
        some(upper, 2), some(upper, 3) + "-" + some(digits, 4), some(digits, 5), some(digits, 4) + "-0" + some("123456789", 1),
        some(lower, 6), "#" + some(hexa, 6), "+" + some("123456789", 9), "v1.2.3-rc.1", some(hexa, 64), some(digits + lower, 21),
        "c" + some(lower, 12), some(upper, 26), some(upper, 2) + some(digits, 4), "sku-" + some(lower, 5), "report.pdf",
        "https://example.org/picture.png", "@" + some(lower, 7), "12.50", "aGVsbG8=", "a-b-c", "a.b-c", "x y", "eyJh.eyJz.abc",
        "10.0.0.0/8", *(format_of(rng, name) for name in ("email", "uuid", "date-time", "date", "ipv4", "duration", "ipv6"))]
    rng.shuffle(candidates)
    for candidate in candidates:
        if validator.evolve(schema={"pattern": pattern}).is_valid(candidate):
            return candidate
    raise CannotMake(pattern)


def format_of(rng, name):
    day = datetime.date(rng.randrange(1990, 2040), rng.randrange(1, 13), rng.randrange(1, 29)).isoformat()
    clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
    return {
        "date": day, "time": clock + "Z", "date-time": f"{day}T{clock}{rng.choice(['Z', '.25Z'])}",
        "duration": rng.choice(["P3D", "PT1H30M", "P1Y2M3DT4H5M6S", "PT15S"]), "email": rng.choice(["ada@example.org", "j.doe+x@mail.co.uk"]),
        "uuid": str(uuid.UUID(int=rng.getrandbits(128), version=4)), "uri": rng.choice(["https://example.org/a?b=c#d", "ftp://h/x"]),
        "ipv4": f"10.{rng.randrange(256)}.0.{rng.randrange(256)}", "ipv6": rng.choice(["2001:db8::1", "::", "1:2:3:4:5:6:7:8"]),
        "hostname": "www.example.org", "path": "/var/tmp/x y", "file-path": "a.txt", "password": "s3cret!", "binary": "bytes",
        "base64": "aGVsbG8=", "ipv4network": "10.0.0.0/8", "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "cidrv4": "10.0.0.0/8", "e164": "+491701234567", "nanoid": "V1StGXR8_Z5jdHi6B-myT", "cuid": "cjld2cjxh0000qzrmn831i7rn",
        "cuid2": "tz4a98xxat96iws9zmbrgj3a", "ulid": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}.get(name)


def without_formats(schema):
    """Returns a copy without the formats that stand beside a pattern."""
    if isinstance(schema, list):
        return [without_formats(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    beside = isinstance(schema.get("pattern"), str)
    return {key: without_formats(value) for key, value in schema.items() if not (beside and key == "format")}


class Maker:
    def __init__(self, schema, rng):
        self.root, self.rng = schema, rng
        draft7 = "draft-07" in schema.get("$schema", "")
        kind = jsonschema.Draft7Validator if draft7 else jsonschema.Draft202012Validator
        # zod writes a pattern beside its formats, which says more than they do, and at times otherwise.
        self.validator = kind(without_formats(schema), format_checker=kind.FORMAT_CHECKER)

    def make(self, schema=None, depth=0):
        rng = self.rng
        schema = self.root if schema is None else schema
        if depth > 12:
            raise CannotMake("depth")
        if schema is True or not set(schema) - {"title", "description", "default", "$schema"}:
            return rng.choice(["anything", 1, None, [1, "two"], {"k": True}])
        if "$ref" in schema:
            target = self.root
            for part in schema["$ref"].split("/")[1:]:
                target = target[part.replace("~1", "/").replace("~0", "~")]
            return self.make(target, depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                branches = schema[keyword]
                return self.make(branches[-1] if depth > 6 else rng.choice(branches), depth + 1)
        if "allOf" in schema and schema.get("type") != "string":
            merged = {"type": "object", "properties": {}, "required": []}
            for part in schema["allOf"]:
                merged["properties"].update(part["properties"])
                merged["required"] += part.get("required", [])
            return self.make(merged, depth)
        kind = schema["type"]
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        return getattr(self, "make_" + kind)(schema, depth)

    def make_null(self, schema, depth):
        return None

    def make_boolean(self, schema, depth):
        return self.rng.random() < 0.5

    def make_integer(self, schema, depth):
        low = max(schema.get("minimum", -1000), -10**6, schema.get("exclusiveMinimum", -1001) + 1)
        high = min(schema.get("maximum", low + 2000), 10**6, schema.get("exclusiveMaximum", low + 2001) - 1)
        step = schema.get("multipleOf", 1)
        return self.rng.randrange(-(-low // step), high // step + 1) * step

    def make_number(self, schema, depth):
        low = schema.get("minimum", schema.get("exclusiveMinimum", min(-100, schema.get("exclusiveMaximum", 0) - 100)))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 500))
        if "multipleOf" in schema:
            return self.rng.choice([0.25, 12.5, 3, 100])
        return round(low + (high - low) * (0.01 + 0.98 * self.rng.random()), self.rng.randrange(2, 5))

    def make_string(self, schema, depth):
        patterns = [part["pattern"] for part in [schema, *schema.get("allOf", [])] if "pattern" in part]
        made = format_of(self.rng, schema.get("format"))
        if made is not None and schema.get("format") == "time" and patterns:
            made = made[:-1]  # zod's times have no zone
        if made is None and patterns:
            made = from_pattern(self.rng, patterns[-1], self.validator)
        return made if made is not None else text_of(self.rng, schema.get("minLength", 0), schema.get("maxLength"))

    def make_array(self, schema, depth):
        prefix = schema.get("prefixItems", schema["items"] if isinstance(schema.get("items"), list) else [])
        made = [self.make(part, depth + 1) for part in prefix]
        rest = schema.get("additionalItems") if isinstance(schema.get("items"), list) else schema.get("items", not prefix)
        most = min(schema.get("maxItems", 4), max(schema.get("minItems", 0), 0 if depth > 5 else 4))
        while rest not in (None, False) and len(made) < most and (len(made) < schema.get("minItems", 0) or self.rng.random() < 0.7):
            item = self.make(rest, depth + 1)
            if schema.get("uniqueItems") and item in made:
                break
            made.append(item)
        return made

    def make_object(self, schema, depth):
        required = schema.get("required", [])
        made = {}
        for name, part in schema.get("properties", {}).items():
            if name in required or (depth < 7 and self.rng.random() < 0.6):
                made[name] = self.make(part, depth + 1)
        keys = schema.get("propertyNames", {}).get("enum")
        rest = schema.get("additionalProperties", False)
        if isinstance(rest, dict) or rest is True and self.rng.random() < 0.5:
            for key in keys or self.rng.sample(["first key", "b", "clé", "k-4"], self.rng.randrange(3)):
                made[key] = self.make(rest, depth + 1)
        return made


def spoil(value, rng):
    """Returns a copy with one thing changed somewhere."""
    value = copy.deepcopy(value)
    spots = []

    def visit(at):
        for key in (at if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()):
            spots.append((at, key))
            visit(at[key])

    holder = [value]
    visit(holder)
    at, key = rng.choice(spots)
    change = rng.randrange(5)
    if change == 0 and at is not holder:
        del at[key]
    elif change == 1 and isinstance(at[key], dict):
        at[key]["surplus"] = 1
    elif change == 2 and isinstance(at[key], (int, float)) and not isinstance(at[key], bool):
        at[key] = rng.choice([-at[key] - 1, at[key] * 1000 + 0.5, at[key] + 10**9])
    elif change == 3 and isinstance(at[key], str):
        at[key] = rng.choice([at[key] + "~", at[key][:-1], "", at[key] * 9])
    elif change == 4 and isinstance(at[key], list) and at[key]:
        at[key] = rng.choice([[], at[key] + [at[key][0]], at[key] * 8])
    else:
        at[key] = rng.choice([None, "text", 3, -1.5, True, [], {}])
    return holder[0]


def instances(schema, rng, valid, invalid):
    """Returns serialized instances of the schema, in the order of its properties, and of values that are none."""
    maker = Maker(schema, rng)
    good, bad = [], []
    styles = [{}, {}, {"ensure_ascii": False}, {"separators": (",", ":"), "ensure_ascii": False}, {"indent": 2}]
    for attempt in range(valid * 8):
        if len(good) == valid:
            break
        try:
            value = maker.make()
        except CannotMake:
            continue
        if not maker.validator.is_valid(value):
            continue
        good.append(json.dumps(value, **styles[attempt % len(styles)]))
        for _ in range(invalid * 4):
            wrong = spoil(value, rng)
            if len(bad) < invalid * len(good) and not maker.validator.is_valid(wrong):
                bad.append(json.dumps(wrong))
    return good, bad
