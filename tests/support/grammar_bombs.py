"""Schemas, expressions and grammars that are made to cost time or memory."""

from __future__ import annotations


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def doubled(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


BOMBS = {
    "nested": nested(63),
    "deeper": nested(150),
    "doubled": doubled(12),
    "doubled again": doubled(15),
    "wide": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}},
    "enumeration": {"enum": [f"value {i} {i * i}" for i in range(9000)]},
    "long text": {"type": "string", "minLength": 10**9, "maxLength": 10**12},
    "long list": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    "circle": {"$ref": "#"},
    "two circles": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "tree": {
        "$defs": {
            "t": {"type": "object", "properties": {k: {"$ref": "#/$defs/t"} for k in "abcdef"}}
        },
        "$ref": "#/$defs/t",
    },
    "elsewhere": {"$ref": "http://169.254.169.254/latest/meta-data"},
    "file": {"$ref": "file:///etc/passwd"},
    "intersection": {"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in "abcdefgh"]},
    "numbers": {"type": "number", "multipleOf": 1e-9, "minimum": -1e300, "maximum": 1e300},
    "pattern": {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"},
    "patterns": {"patternProperties": {f"^.*{i}.{{40}}$": {"type": "string"} for i in range(20)}},
}
EXPRESSIONS = {
    "repeated repetition": "(a{1000}){1000}",
    "backtracking": "(a+)+$",
    "distance": ".*a.{60}b.{60}c",
    "distances": "(.*a.{1,200}){20}",
    "words": r"\w{1,5000}\d{1,5000}",
    "alternatives": "|".join(f"w{i}x{i * 7}" for i in range(9000)),
    "nothing": "[^\\s\\S]",
}
GRAMMARS = {
    "ambiguous": 'start: start start | "a" | ',
    "powers": "start: a0\n"
    + "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(40))
    + '\na40: "x"',
    "endless": "start: a\na: a",
}
