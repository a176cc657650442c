"""Two hundred JSON Schemas of ten kinds, written for the bench and the tests.

The kinds are those of the public collections that libraries for structured output are compared on;
the schemas are our own. It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.bench.schemas.build import Schema
from deepinfer.bench.schemas.configs import CONFIGS
from deepinfer.bench.schemas.deep import HARD, MEDIUM
from deepinfer.bench.schemas.documents import ARTICLES, EVENTS
from deepinfer.bench.schemas.reports import REPORTS
from deepinfer.bench.schemas.resources import RESOURCES
from deepinfer.bench.schemas.small import CALLS, EASY, TRIVIAL

KINDS: Mapping[str, Mapping[str, Schema]] = {
    "calls": CALLS,
    "trivial": TRIVIAL,
    "easy": EASY,
    "medium": MEDIUM,
    "hard": HARD,
    "events": EVENTS,
    "articles": ARTICLES,
    "reports": REPORTS,
    "resources": RESOURCES,
    "configs": CONFIGS,
}

SCHEMAS: Mapping[str, Schema] = {
    f"{kind}/{name}": schema for kind, named in KINDS.items() for name, schema in named.items()
}

REGEXES: Mapping[str, str] = {
    "date": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    "email": r"[a-zA-Z0-9._%+-]{1,40}@[a-z0-9-]{1,30}(\.[a-z]{2,10}){1,3}",
    "version": r"v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?",
    "money": r"[$€£] ?\d{1,3}(,\d{3})*(\.\d{2})?",
    "words": r"([A-Z][a-z]+ ){2,6}[a-z]+\.",
    "path": r"(/[a-zA-Z0-9_.-]+){1,8}",
    "log_line": r"\[(DEBUG|INFO|ERROR)\] \d{2}:\d{2}:\d{2} [a-z.]+: [^\n]{1,120}",
    "answer": r"Reasoning: [^\n]{1,400}\nAnswer: ([A-E]|\d+(\.\d+)?)",
    "free": r"(?s:.){1,300}",
    "chinese": r"[\u4e00-\u9fff]{2,20}(，[\u4e00-\u9fff]{2,20}){0,3}。",
}

EBNFS: Mapping[str, str] = {
    "arithmetic": r"""
root   ::= sum "\n"
sum    ::= term (" "? [-+] " "? term){0,5}
term   ::= factor ([*/] factor){0,3}
factor ::= [0-9]{1,6} | [a-z] | "(" sum ")"
""",
    "statements": r"""
root    ::= select ";"
select  ::= "SELECT " columns " FROM " name (" WHERE " test)? (" LIMIT " [1-9] [0-9]{0,3})?
columns ::= "*" | name (", " name){0,5}
test    ::= name " " ("=" | "<" | ">") " " value (" AND " test)?
name    ::= [a-z] [a-z_]{0,15}
value   ::= [0-9]{1,8} | "'" [^'\n]{0,20} "'"
""",
    "records": r"""
root   ::= record+
record ::= "- " key ": " (text | list) "\n"
list   ::= "[" (text (", " text)*)? "]"
key    ::= [a-z]{1,12}
text   ::= "\"" [^"\\\n]{0,60} "\""
""",
}
