"""The table of JSON Schema keywords: which are enforced, which say nothing, which are refused.

Source: the drafts 6 to 2020-12 of JSON Schema, and what the matching library enforces. It does not
know how a schema is walked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Shape = Literal[
    "count", "number", "positive", "string", "strings", "schema", "schemas", "schema map", "any",
    "items", "list", "type",
]  # fmt: skip

# Enforced in every text.
ENFORCED: Mapping[str, Shape] = {
    "$ref": "string",
    "$defs": "schema map",
    "definitions": "schema map",
    "additionalItems": "schema",
    "additionalProperties": "schema",
    "allOf": "schemas",
    "anyOf": "schemas",
    "const": "any",
    "enum": "list",
    "exclusiveMaximum": "number",
    "exclusiveMinimum": "number",
    "format": "string",
    "items": "items",
    "maxItems": "count",
    "maxLength": "count",
    "maxProperties": "count",
    "maximum": "number",
    "minItems": "count",
    "minLength": "count",
    "minProperties": "count",
    "minimum": "number",
    "multipleOf": "positive",
    "oneOf": "schemas",
    "pattern": "string",
    "patternProperties": "schema map",
    "prefixItems": "schemas",
    "properties": "schema map",
    "required": "strings",
    "type": "type",
}

# Say nothing about which values are valid.
ANNOTATIONS = frozenset(
    {"$comment", "$schema", "title", "description", "default", "examples", "deprecated",
     "readOnly", "writeOnly"}
)  # fmt: skip

# Refused, and what to do instead.
REFUSED: Mapping[str, str] = {
    "$anchor": "use $ref with a JSON pointer, such as #/$defs/name",
    "$dynamicAnchor": "use $ref with a JSON pointer",
    "$dynamicRef": "use $ref with a JSON pointer",
    "$id": "only the whole schema may have one; use $ref with a JSON pointer",
    "$recursiveAnchor": "use $ref with a JSON pointer",
    "$recursiveRef": "use $ref with a JSON pointer",
    "$vocabulary": "leave it out",
    "contains": "use prefixItems, or items for all of them",
    "contentEncoding": "it is an annotation in JSON Schema; use pattern",
    "contentMediaType": "it is an annotation in JSON Schema; use pattern",
    "contentSchema": "it is an annotation in JSON Schema; use pattern",
    "dependencies": "use anyOf over the allowed objects",
    "dependentRequired": "use anyOf over the allowed objects",
    "dependentSchemas": "use anyOf over the allowed objects",
    "discriminator": "it belongs to OpenAPI; a const in each branch of anyOf does the same",
    "else": "use anyOf over the two cases",
    "if": "use anyOf over the two cases",
    "maxContains": "use maxItems with items",
    "minContains": "use minItems with items",
    "not": "say what is allowed instead",
    "nullable": 'it belongs to OpenAPI; use "type": [..., "null"]',
    "propertyNames": "use patternProperties with additionalProperties false",
    "then": "use anyOf over the two cases",
    "unevaluatedItems": "use items false",
    "unevaluatedProperties": "use additionalProperties false",
    "uniqueItems": "it needs all items at once; only false is possible",
    "x-guidance": "the engine sets these options",
}

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)
