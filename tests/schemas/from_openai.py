"""Schemas in OpenAI's strict subset: the kinds that its guides show, and pydantic's models as the openai client sends them."""

from openai.lib._pydantic import to_strict_json_schema

from . import from_pydantic


def strict(properties, **other):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **other}


TEXT, NUMBER, YES = {"type": "string"}, {"type": "number"}, {"type": "boolean"}


def texts(*values):
    return {"type": "string", "enum": list(values)}


GUIDES = [
    # Extraction, moderation, arithmetic with steps.
    strict({"name": TEXT, "date": TEXT, "participants": {"type": "array", "items": TEXT}}),
    strict({"is_violating": YES, "category": {"type": ["string", "null"], "enum": ["violence", "sexual", "self_harm", None]},
            "explanation_if_violating": {"type": ["string", "null"]}}),
    strict({"steps": {"type": "array", "items": strict({"explanation": TEXT, "output": TEXT})}, "final_answer": TEXT}),
    # Weather, as the first example of a function.
    strict({"location": {"type": "string", "description": "City and country, as Bogotá, Colombia"},
            "units": {"type": ["string", "null"], "enum": ["celsius", "fahrenheit"], "description": "Units."}}),
    strict({"city": TEXT, "days": {"type": "integer", "minimum": 1, "maximum": 14}, "hourly": {"type": ["boolean", "null"]}}),
    # Recursion, from the root and from a definition.
    strict({"type": texts("div", "button", "header", "section", "field", "form"), "label": TEXT,
            "children": {"type": "array", "items": {"$ref": "#"}},
            "attributes": {"type": "array", "items": strict({"name": TEXT, "value": TEXT})}}),
    strict({"linked_list": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": strict(
        {"value": NUMBER, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})}}),
    # Alternatives within an object, definitions used twice.
    strict({"item": {"anyOf": [strict({"name": TEXT, "age": NUMBER}), strict(
        {"number": TEXT, "street": TEXT, "city": TEXT})]}}),
    strict({"steps": {"type": "array", "items": {"$ref": "#/$defs/step"}}, "final_answer": TEXT},
           **{"$defs": {"step": strict({"explanation": TEXT, "output": TEXT})}}),
    # The properties of strings, numbers and arrays that the guide lists.
    strict({"name": {"type": "string"}, "username": {"type": "string", "pattern": "^@[a-zA-Z0-9_]+$"},
            "email": {"type": "string", "format": "email"}}),
    strict({"when": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"},
            "clock": {"type": "string", "format": "time"}, "lasts": {"type": "string", "format": "duration"},
            "host": {"type": "string", "format": "hostname"}, "v4": {"type": "string", "format": "ipv4"},
            "v6": {"type": "string", "format": "ipv6"}, "id": {"type": "string", "format": "uuid"}}),
    strict({"location": TEXT, "temperature": {"type": "number", "minimum": -130, "maximum": 130},
            "humidity": {"type": "integer", "exclusiveMinimum": 0, "multipleOf": 5},
            "readings": {"type": "array", "items": NUMBER, "minItems": 1, "maxItems": 24}}),
    # A query, a refund, a calendar.
    strict({"table_name": texts("orders", "customers", "products"), "columns": {"type": "array", "items": texts("id", "status", "date")},
            "conditions": {"type": "array", "items": strict({"column": TEXT, "operator": texts("=", ">", "<", ">=", "<=", "!="),
                           "value": {"anyOf": [TEXT, NUMBER, strict({"column_name": TEXT})]}})},
            "order_by": texts("asc", "desc")}),
    strict({"order_id": {"type": "string"}, "reason": {"type": ["string", "null"]}, "amount": {"type": ["number", "null"]}}),
    strict({"title": TEXT, "events": {"type": "array", "items": strict(
        {"at": {"type": "string", "format": "date-time"}, "kind": {"const": "meeting"}, "guests": {"type": "array", "items": TEXT}})}}),
]


def schemas(rng, count):
    """Returns the guides' schemas, then pydantic's models made strict; models that cannot be are passed over."""
    made = list(GUIDES)
    models = iter(from_pydantic.MODELS + from_pydantic.random_models(rng, 3 * count))
    while len(made) < count:
        try:
            made.append(to_strict_json_schema(next(models)))
        except (TypeError, ValueError):
            continue
    return made
