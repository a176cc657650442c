"""Arguments that say what an answer must satisfy. Knows no command."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.request import StructuredOutputsParams


def add_structure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; at most one may be given."""
    group = parser.add_argument_group(
        "structured output", "the answer satisfies it; after the reasoning, if the prompt opens it"
    ).add_mutually_exclusive_group()
    group.add_argument("--json-schema", metavar="FILE", help="JSON of this schema")
    group.add_argument("--json-object", action="store_true", help="any JSON object")
    group.add_argument("--regex", metavar="PATTERN", help="text that matches it as a whole")
    group.add_argument("--ebnf", metavar="FILE", help="text of this grammar (GBNF, rule `root`)")
    group.add_argument("--choice", nargs="+", metavar="TEXT", help="one of these texts")


def structure(args: argparse.Namespace) -> StructuredOutputsParams | None:
    """What the arguments demand.

    Raises:
        ConfigError: a file cannot be read.
        RequestError: the demand is none.
    """
    from deepinfer.request import StructuredOutputsParams

    given: dict[str, Any] = {
        "json": None if args.json_schema is None else _text(args.json_schema),
        "json_object": args.json_object or None,
        "regex": args.regex,
        "grammar": None if args.ebnf is None else _text(args.ebnf),
        "choice": args.choice,
    }
    if all(value is None for value in given.values()):
        return None
    return StructuredOutputsParams(**given)


def response_format(args: argparse.Namespace) -> dict[str, Any] | None:
    """The same as a field of a chat request, so that the model is told, where there is one."""
    if args.json_schema is not None:
        try:
            schema = json.loads(_text(args.json_schema))
        except ValueError as error:
            raise ConfigError(f"{args.json_schema}: no JSON: {error}") from error
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    if args.json_object:
        return {"type": "json_object"}
    return None if args.regex is None else {"type": "regex", "regex": args.regex}


def _text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {name}: {error}") from error
