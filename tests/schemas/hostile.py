"""Schemas that are made to keep a compiler busy."""


def nested(depth, inside, wrap):
    for _ in range(depth):
        inside = wrap(inside)
    return inside


def hostile():
    """Yields names and schemas."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield "400 lists within lists", nested(400, {}, lambda s: {"type": "array", "items": s})
    yield "12 levels of two alternatives each", nested(
        12, {"type": "string"}, lambda s: {"anyOf": [{"type": "array", "items": s}, {"type": "object", "properties": {"a": s}}]})[
            "anyOf"][0]
    yield "enum of 20,001 values", {"enum": [f"value {i}" for i in range(20001)]}
    yield "enum of 20,000 values", {"enum": [f"value {i}" for i in range(20000)]}
    yield "5,000 optional properties", {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}}
    yield "allOf of 2,000 anyOf", {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": i}]} for i in range(2000)]}
    yield "30 patterns at once", {"type": "string", "allOf": [{"pattern": f"{a}.{{{9}}}{a}"} for a in letters + "ABCD"]}
    yield "a pattern of 10^10 repetitions", {"type": "string", "pattern": "^((a{100}){100}){1000000}$"}
    yield "a pattern of overlapping repetitions", {"type": "string", "pattern": "^(a|aa|aaa){0,5000}(a?){5000}a{5000}$"}
    yield "minItems 2^63", {"type": "array", "minItems": 2**63}
    yield "counts of counts", nested(12, {"type": "integer"}, lambda s: {"type": "array", "items": s, "minItems": 9999, "maxItems": 99999})
    yield "a reference to itself", {"$ref": "#"}
    yield "references in a ring", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    yield "oneOf of 300 overlapping branches", {"oneOf": [{"type": "object", "properties": {f"p{i}": {}, "q": {"minimum": i}}} for i in range(300)]}
    yield "not within not, 60 deep", nested(60, {"required": list("abcdef")}, lambda s: {"not": {"allOf": [s, {"minProperties": 1}]}})
    yield "2^20 combinations", {"allOf": [{"anyOf": [{"required": [a]}, {"required": [a * 2]}]} for a in letters[:20]]}
    ring = {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "string"}]}
    yield "a constant held to references in a ring", {"enum": [["a"]], "items": {"$ref": "#/$defs/x"}, "$defs": {"x": ring}}
    chain = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(12000)} | {"12000": {"type": "string"}}
    yield "not of 12,000 references in a row", {"not": {"$ref": "#/$defs/0"}, "$defs": chain}
    yield "unevaluatedProperties beside 12,000 references in a row", {"$ref": "#/$defs/0", "unevaluatedProperties": False, "$defs": chain}
    yield "a constant of 5,000 numbers", {"const": list(range(5000))}
    yield "a pattern of 30,000 optional letters", {"type": "string", "pattern": "^" + "a?" * 30000 + "$"}
    yield "a constant that such a pattern is to match", {"const": "a" * 30000, "pattern": "^" + "a?" * 30000 + "$"}
    yield "60,000 quantifiers of one letter", {"type": "string", "pattern": "^a" + "*" * 60000 + "$"}
    yield "uniqueItems of a list of 100,000 numbers", {"uniqueItems": True, "enum": [list(range(100000))]}
    yield "two enums of 10,000 numbers", {"allOf": [{"enum": list(range(10000))}, {"enum": list(range(10000, 20000))}]}
    yield "an enum of 20,000 numbers", {"enum": list(range(20000))}
    anchored = {f"{i}": {"$anchor": f"z{i}"} for i in range(2000)}
    yield "2,000 references to anchors", {"allOf": [{"$ref": f"#z{i}"} for i in range(2000)], "$defs": anchored, "x-a": list(range(50000))}
