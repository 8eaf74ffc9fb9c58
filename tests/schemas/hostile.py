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
