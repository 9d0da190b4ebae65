"""Twenty JSON schemas of the kinds that clients send, each with an end: strings and arrays are bounded."""

from __future__ import annotations

from typing import Any


def text(max_length: int = 12, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": max_length, **more}


def array(items: dict[str, Any], most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def record(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


INTEGER, BOOLEAN, NULL = {"type": "integer"}, {"type": "boolean"}, {"type": "null"}
SMALL = {"type": "integer", "minimum": -20, "maximum": 1000}
COLOUR = {"enum": ["red", "grün", "синий", "青"]}
POINT = {"$ref": "#/$defs/point"}
POINT_DEFS = {"point": record(x=SMALL, y=SMALL)}

SCHEMAS: dict[str, dict[str, Any]] = {
    "person": record(name=text(20), age={"type": "integer", "minimum": 0, "maximum": 120}, member=BOOLEAN),
    "optional fields": record(("nickname", "email"), name=text(), nickname=text(), email=text(20)),
    "nested": record(user=record(name=text(), address=record(street=text(), zip=text(5, minLength=5)))),
    "deeply nested": record(a=record(b=record(c=record(d=record(e=record(f=SMALL)))))),
    "enums": record(colour=COLOUR, size={"enum": ["S", "M", "L", 1, 2.5, None, True]}),
    "constants": record(type={"const": "invoice"}, version={"const": 3}, empty={"const": {}}, value=SMALL),
    "array of strings": array(text(8), most=4, least=1),
    "array of objects": record(items=array(record(sku=text(6), count=SMALL), most=3, least=2)),
    "matrix": array(array(SMALL, most=2, least=2), most=3, least=3),
    "tuple": {"type": "array", "prefixItems": [text(5), SMALL, BOOLEAN], "items": False, "minItems": 3},
    "bounded integers": record(
        low={"type": "integer", "minimum": 17, "maximum": 23},
        negative={"type": "integer", "exclusiveMinimum": -1000, "exclusiveMaximum": -99},
        even={"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 98},
    ),
    "bounded numbers": record(
        share={"type": "number", "minimum": 0, "maximum": 1},
        latitude={"type": "number", "minimum": -90, "maximum": 90},
        price={"type": "number", "exclusiveMinimum": 0, "maximum": 99.5},
    ),
    "unicode": record(**{"größe": SMALL, "名前": text(6), "emoji 😀": {"enum": ["😀", "🎉", "e\u0301"]}}),
    "patterns": record(
        code=text(12, pattern="^[A-Z]{3}-[0-9]{4}$"),
        colour={"type": "string", "pattern": "^[0-9a-f]{6}$"},
    ),
    "formats": record(
        day={"type": "string", "format": "date"},
        id={"type": "string", "format": "uuid"},
        host={"type": "string", "format": "ipv4"},
    ),
    "reference": {"$defs": POINT_DEFS, **record(start=POINT, end=POINT)},
    "references in references": {
        "$defs": {
            "node": record(value=SMALL, children=array({"$ref": "#/$defs/leaf"}, most=2)),
            "leaf": record(value=SMALL, note={"anyOf": [{"$ref": "#/$defs/note"}, NULL]}),
            "note": text(8),
        },
        "$ref": "#/$defs/node",
    },
    "any of": record(
        value={"anyOf": [SMALL, text(6), NULL, array(BOOLEAN, most=2)]},
        shape={"anyOf": [record(kind={"const": "dot"}, r=SMALL), record(kind={"const": "box"}, a=SMALL)]},
    ),
    "all of": {"allOf": [{"properties": {"a": SMALL}, "required": ["a"]}, record(a=INTEGER)]},
    "map": {
        "type": "object",
        "properties": {"id": SMALL},
        "required": ["id"],
        "patternProperties": {"^x-[a-z]{1,4}$": text(5)},
        "additionalProperties": False,
        "maxProperties": 3,
    },
}  # fmt: skip
