"""Schemas in the forms that zod's users send: zod 4's z.toJSONSchema, and zod-to-json-schema for zod 3.

zod is no Python package, so these two classes write by hand what its emitters write for the types below: one method a type."""
SAFE = 9007199254740991  # Number.MAX_SAFE_INTEGER, the bound that zod 4 writes for z.int()

# The formats of zod 4 and the patterns that it writes beside them.
DATE = (r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-"
        r"(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))")
CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"
BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
GROUP = r"[0-9a-fA-F]{1,4}"
FORMATS = {
    "email": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
    "uuid": r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|"
            r"00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$",
    "date-time": rf"^{DATE}T(?:{CLOCK}(?:Z))$",
    "date": rf"^{DATE}$",
    "time": rf"^{CLOCK}$",
    "duration": r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
    "ipv4": rf"^(?:{BYTE}\.){{3}}{BYTE}$",
    "ipv6": rf"^((({GROUP}:){{7}}({GROUP}|:))|(({GROUP}:){{6}}(:{GROUP}|:))|(({GROUP}:){{1,5}}(:{GROUP}){{1,2}})|(:((:{GROUP}){{1,7}}|:)))$",
    "cidrv4": rf"^({BYTE}\.){{3}}{BYTE}\/([0-9]|[1-2][0-9]|3[0-2])$",
    "base64": r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
    "nanoid": r"^[a-zA-Z0-9_-]{21}$",
    "cuid": r"^[cC][^\s-]{8,}$",
    "cuid2": r"^[0-9a-z]+$",
    "ulid": r"^[0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{26}$",
    "e164": r"^\+[1-9]\d{6,14}$",
    "uri": None, "jwt": None,
}


class Zod4:
    """z.toJSONSchema: draft 2020-12."""

    def root(self, schema):
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

    def string(self, **bounds):
        return {"type": "string", **bounds}

    def format(self, name):
        pattern = FORMATS[name]
        other = {"contentEncoding": "base64"} if name == "base64" else {}
        return {"type": "string", "format": name, **other, **({"pattern": pattern} if pattern else {})}

    def patterns(self, patterns):
        if len(patterns) == 1:
            return {"type": "string", "pattern": patterns[0]}
        return {"type": "string", "allOf": [{"pattern": pattern} for pattern in patterns]}

    def integer(self, **bounds):
        return {"type": "integer", **{"minimum": -SAFE, "maximum": SAFE, **bounds}}

    def number(self, **bounds):
        return {"type": "number", **bounds}

    def boolean(self):
        return {"type": "boolean"}

    def literal(self, value):
        return {"type": "string" if isinstance(value, str) else "number", "const": value}

    def enum(self, values):
        return {"type": "string", "enum": values}

    def any(self):
        return {}

    def nullable(self, schema):
        return {"anyOf": [schema, {"type": "null"}]}

    def array(self, items, **bounds):
        return {"type": "array", "items": items, **bounds}

    def tuple(self, parts, rest=None):
        return {"type": "array", "prefixItems": parts, **({"items": rest} if rest else {})}

    def record(self, value):
        return {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": value}

    def keyed_record(self, keys, value):
        return {"type": "object", "propertyNames": {"type": "string", "enum": keys}, "additionalProperties": value, "required": keys}

    def union(self, parts):
        return {"anyOf": parts}

    def discriminated(self, parts):
        return {"oneOf": parts}

    def intersection(self, parts):
        return {"allOf": [{k: v for k, v in part.items() if k != "additionalProperties"} for part in parts]}

    def object(self, fields, optional, loose=False):
        schema = {"type": "object", "properties": fields}
        required = [name for name in fields if name not in optional]
        if required:
            schema["required"] = required
        return {**schema, "additionalProperties": {} if loose else False}

    def recursive(self, name, make):
        """An object with a getter that names it: a definition, referred to."""
        return {"$defs": {"__schema0": make({"$ref": "#/$defs/__schema0"})}, "$ref": "#/$defs/__schema0"}


class Zod3(Zod4):
    """zod-to-json-schema: draft 7."""

    def root(self, schema):
        return {**schema, "$schema": "http://json-schema.org/draft-07/schema#"}

    def format(self, name):
        if name in ("cuid", "cuid2", "nanoid", "ulid"):
            return {"type": "string", "pattern": FORMATS[name]}
        if name == "base64":
            return {"type": "string", "contentEncoding": "base64"}
        if name == "jwt":
            return {"type": "string", "pattern": r"^[A-Za-z0-9-_]+\.[A-Za-z0-9-_]+\.[A-Za-z0-9-_]*$"}
        if name in ("e164", "cidrv4"):
            return {"type": "string", "pattern": FORMATS[name]}
        return {"type": "string", "format": name}

    def integer(self, **bounds):
        return {"type": "integer", **bounds}

    def nullable(self, schema):
        if set(schema) == {"type"} and isinstance(schema["type"], str):
            return {"type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}

    def tuple(self, parts, rest=None):
        schema = {"type": "array", "minItems": len(parts)}
        if rest is None:
            schema["maxItems"] = len(parts)
        return {**schema, "items": parts, **({"additionalItems": rest} if rest else {})}

    def record(self, value):
        return {"type": "object", "additionalProperties": value}

    def keyed_record(self, keys, value):
        return {"type": "object", "additionalProperties": value, "propertyNames": {"enum": keys}}

    def discriminated(self, parts):
        return {"anyOf": parts}

    def intersection(self, parts):
        return {"allOf": [{k: v for k, v in part.items() if k != "additionalProperties"} for part in parts],
                "unevaluatedProperties": False}

    def object(self, fields, optional, loose=False):
        schema = {"type": "object", "properties": fields}
        required = [name for name in fields if name not in optional]
        if required:
            schema["required"] = required
        return {**schema, "additionalProperties": loose}

    def recursive(self, name, make):
        return {"$ref": f"#/definitions/{name}", "definitions": {name: make({"$ref": f"#/definitions/{name}"})}}

    def set(self, items):
        return {"type": "array", "uniqueItems": True, "items": items}

    def map(self, key, value):
        return {"type": "array", "maxItems": 125,
                "items": {"type": "array", "items": [key, value], "minItems": 2, "maxItems": 2}}


NAMES = """id name title slug email bio role status createdAt updatedAt price currency quantity tags items notes url count
userId message score reason summary keywords priority assignee dueDate attachments metadata options lat lng step tool input
output answer sources confidence language sentiment category ingredients minutes servings locale version""".split()
WORDS = "admin editor viewer draft published archived low normal high todo doing done buy sell hold text image audio".split()


class Writer:
    """Random schemas of one emitter."""

    def __init__(self, zod, rng):
        self.zod, self.rng = zod, rng

    def leaf(self):
        zod, rng = self.zod, self.rng
        return rng.choice([
            zod.string, zod.string, zod.string, lambda: zod.string(minLength=1), lambda: zod.string(minLength=3, maxLength=50),
            lambda: zod.string(maxLength=rng.choice([20, 80, 280])), lambda: zod.string(description="What it is."),
            lambda: zod.format(rng.choice(sorted(FORMATS))), lambda: zod.format(rng.choice(["email", "uuid", "uri", "date-time"])),
            lambda: zod.patterns([rng.choice([r"^sku-.*", r"^[a-z0-9]+(?:-[a-z0-9]+)*$", r".*\.pdf$", r"^[A-Z]{2}\d{4}$"])]),
            lambda: zod.patterns([r"^https:\/\/.*", r".*\.png$"]),
            zod.integer, lambda: zod.integer(minimum=0), lambda: zod.integer(minimum=1, maximum=rng.choice([5, 10, 100])),
            zod.number, zod.number, lambda: zod.number(exclusiveMinimum=0), lambda: zod.number(minimum=0, maximum=1),
            lambda: zod.number(minimum=-90, maximum=90), lambda: zod.number(multipleOf=0.01), zod.boolean, zod.boolean,
            lambda: zod.enum(rng.sample(WORDS, rng.randrange(2, 6))), lambda: zod.enum(rng.sample(WORDS, 3)),
            lambda: zod.literal(rng.choice(["fixed", "v1", 1])), zod.any])()

    def type(self, depth):
        zod, rng, kind = self.zod, self.rng, self.rng.random()
        if depth == 0 or kind < 0.5:
            return self.leaf()
        inner = lambda: self.type(depth - 1)
        if kind < 0.64:
            return zod.array(inner(), **rng.choice([{}, {}, {"minItems": 1}, {"minItems": 1, "maxItems": 5}, {"maxItems": 10}]))
        if kind < 0.78:
            return self.object(depth - 1)
        if kind < 0.85:
            return zod.nullable(inner())
        if kind < 0.88:
            return zod.union([zod.string(), zod.number()] if rng.random() < 0.5 else [inner(), zod.array(zod.string())])
        if kind < 0.93:
            tags = rng.sample(WORDS, rng.randrange(2, 4))
            return zod.discriminated([self.object(depth - 1, {"type": zod.literal(tag)}) for tag in tags])
        if kind < 0.96:
            return zod.record(inner())
        if kind < 0.97:
            return zod.keyed_record(rng.sample(WORDS, 3), inner())
        if kind < 0.985:
            return zod.tuple([inner() for _ in range(rng.randrange(2, 4))], rng.choice([None, None, zod.string()]))
        if kind < 0.995 or not isinstance(zod, Zod3):
            first, second = self.object(0), self.object(0)
            for name in first["properties"]:
                second["properties"].pop(name, None)
            second["required"] = [name for name in second.get("required", []) if name in second["properties"]]
            return zod.intersection([first, second])
        return rng.choice([zod.set(zod.enum(rng.sample(WORDS, 4))), zod.map(zod.string(), zod.number()), zod.set(zod.string())])

    def object(self, depth, first=None):
        names = self.rng.sample(NAMES, self.rng.randrange(1, 7))
        fields = {**(first or {}), **{name: self.type(depth) for name in names}}
        optional = {name for name in names if self.rng.random() < 0.25}
        return self.zod.object(fields, optional, self.rng.random() < 0.06)

    def schema(self):
        zod, rng = self.zod, self.rng
        if rng.random() < 0.08:
            def node(self_reference):
                children = rng.choice([zod.array(self_reference), zod.nullable(self_reference)])
                return zod.object({"label": zod.string(), "value": self.leaf(), "children": children}, set())
            return zod.root(zod.recursive("Node", node))
        return zod.root(self.object(rng.randrange(1, 4)))


def schemas(rng, count):
    """Returns schemas of zod 4 and of zod 3 by turns."""
    writers = [Writer(Zod4(), rng), Writer(Zod3(), rng)]
    return [writers[i % 2].schema() for i in range(count)]
