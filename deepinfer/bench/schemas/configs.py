"""Twenty schemas of configuration files.

It does not know what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from deepinfer.bench.schemas.build import (
    FLAG,
    TEXT,
    WHOLE,
    Schema,
    either,
    fixed,
    form,
    like,
    many,
    maybe,
    record,
    ref,
    table,
    text,
    where,
    whole,
    word,
)

_VERSION = like(r"^[\^~]?\d{1,3}\.\d{1,3}\.\d{1,3}$")
_GLOBS = many(like("^[A-Za-z0-9_*./-]{1,40}$"), 0, 5)
_COMMAND = either(TEXT, many(TEXT, 1, 5))

CONFIGS: Mapping[str, Schema] = {
    "package": record(
        {
            "name": like("^(@[a-z-]{1,20}/)?[a-z-]{1,30}$"),
            "version": _VERSION,
            "private?": FLAG,
            "scripts?": table(TEXT, maxProperties=4),
            "dependencies?": table(_VERSION, maxProperties=5),
            "license?": word("MIT", "Apache-2.0", "GPL-3.0-only"),
        }
    ),
    "compiler": record(
        {
            "target": word("es5", "es2020", "esnext"),
            "strict": FLAG,
            "paths?": table(many(TEXT, 1, 2), maxProperties=3),
            "include?": _GLOBS,
            "exclude?": _GLOBS,
            "module?": word("commonjs", "esnext"),
        }
    ),
    "linter": record(
        {
            "line-length": whole(40, 200),
            "select": many(like("^[A-Z]{1,3}[0-9]{0,3}$"), 0, 8),
            "ignore?": many(TEXT, 0, 4),
            "per-file?": table(many(TEXT, 0, 3), maxProperties=3),
        }
    ),
    "workflow": record(
        {
            "name": text(1, 40),
            "on": either(word("push", "pull_request"), many(word("push", "release"), 1, 2)),
            "jobs": table(
                record(
                    {
                        "runs-on": word("linux", "mac", "windows"),
                        "needs?": many(TEXT, 0, 2),
                        "steps": many(
                            either(
                                record({"run": TEXT, "name?": TEXT}),
                                record({"uses": TEXT, "with?": table(TEXT, maxProperties=2)}),
                            ),
                            1,
                            4,
                        ),
                    }
                ),
                maxProperties=2,
            ),
        }
    ),
    "compose": record(
        {
            "version": like(r"^3(\.[0-9])?$"),
            "services": table(
                record(
                    {
                        "image": TEXT,
                        "ports?": many(like("^[0-9]{1,5}:[0-9]{1,5}$"), 0, 3),
                        "command?": _COMMAND,
                        "environment?": either(
                            table(TEXT, maxProperties=3),
                            many(like("^[A-Z_]+=", maxLength=40), 0, 3),
                        ),
                        "restart?": word("no", "always"),
                    }
                ),
                maxProperties=2,
            ),
        }
    ),
    "editor": record(
        {
            "tab_width": whole(1, 16),
            "end_of_line": word("lf", "crlf"),
            "charset": word("utf-8", "latin1"),
            "trim": FLAG,
            "rulers?": many(whole(1, 300), 0, 3),
            "font?": record({"family": TEXT, "size": whole(6, 60)}),
        }
    ),
    "logging": where(
        record(
            {
                "version": fixed(1),
                "handlers": table(ref("handler"), maxProperties=2),
                "root": record({"level": ref("level"), "handlers": many(TEXT, 0, 2)}),
            }
        ),
        handler=record({"class": TEXT, "level?": ref("level"), "file?": TEXT}),
        level=word("DEBUG", "INFO", "WARNING", "ERROR"),
    ),
    "proxy": record(
        {
            "listen": either(whole(1, 65535), like(r"^[a-z.]{1,30}:\d{1,5}$")),
            "upstreams": many(
                record(
                    {"host": form("hostname"), "port": whole(1, 65535), "weight?": whole(0, 100)}
                ),
                1,
                4,
            ),
            "tls?": record({"cert": TEXT, "key": TEXT, "min": word("1.2", "1.3")}),
        }
    ),
    "manifest": record(
        {
            "name": text(1, 45),
            "manifest_version": word(2, 3),
            "permissions": many(word("tabs", "storage", "alarms"), 0, 3),
            "icons?": record({"16?": TEXT, "48?": TEXT, "128?": TEXT}),
            "version": like(r"^\d{1,5}(\.\d{1,5}){0,3}$"),
        }
    ),
    "renovate": record(
        {
            "extends": many(TEXT, 0, 3),
            "schedule?": many(TEXT, 0, 2),
            "automerge?": FLAG,
            "labels?": many(text(1, 20), 0, 3),
        }
    ),
    "swagger_info": record(
        {
            "openapi": like(r"^3\.[01]\.\d$"),
            "info": record(
                {
                    "title": TEXT,
                    "version": TEXT,
                    "contact?": record({"email?": form("email"), "url?": form("uri")}),
                }
            ),
            "servers?": many(record({"url": form("uri"), "description?": TEXT}), 0, 3),
        }
    ),
    "mime": record(
        {
            "types": {
                "type": "object",
                "patternProperties": {"^[a-z]+/[a-z.+-]+$": many(like("^[a-z0-9]{1,5}$"), 1, 3)},
                "additionalProperties": False,
                "maxProperties": 3,
            }
        }
    ),
    "cspell": record(
        {
            "version": word("0.1", "0.2"),
            "language": like("^[a-z]{2}(-[A-Z]{2})?$"),
            "words": many(text(2, 20), 0, 8),
        }
    ),
    "launch": record(
        {
            "configurations": many(
                record(
                    {
                        "type": word("node", "python"),
                        "request": word("launch", "attach"),
                        "name": TEXT,
                        "program?": TEXT,
                        "args?": many(TEXT, 0, 4),
                        "env?": table(maybe(TEXT), maxProperties=3),
                    }
                ),
                0,
                2,
            )
        }
    ),
    "tasks": record(
        {
            "tasks": many(
                record(
                    {
                        "label": TEXT,
                        "command": _COMMAND,
                        "group?": either(
                            word("build", "test"),
                            record({"kind": word("build", "test"), "isDefault": FLAG}),
                        ),
                    }
                ),
                1,
                3,
            )
        }
    ),
    "feature_flags": {
        "type": "object",
        "patternProperties": {"^[a-z_]{3,20}$": either(FLAG, record({"percent": whole(0, 100)}))},
        "additionalProperties": False,
        "maxProperties": 4,
    },
    "grid": record(
        {
            "columns": many(
                record(
                    {
                        "field": TEXT,
                        "width?": whole(10, 2000),
                        "pinned?": word("left", "right", None),
                    }
                ),
                1,
                5,
            ),
            "rows": whole(1, 500),
        }
    ),
    "backup": record(
        {
            "paths": _GLOBS,
            "keep": record(
                {"daily": whole(0, 31), "weekly": whole(0, 52), "yearly?": whole(0, 10)}
            ),
            "target": form("uri"),
            "at": form("time"),
        }
    ),
    "database": record(
        {
            "driver": word("postgres", "sqlite"),
            "host?": either(form("hostname"), form("ipv4"), form("ipv6")),
            "port?": whole(1, 65535),
            "pool": record({"min": whole(0, 100), "max": whole(1, 1000)}),
            "options?": table(either(TEXT, WHOLE, FLAG), maxProperties=3),
        }
    ),
    "theme": record(
        {
            "name": TEXT,
            "colours": {
                "type": "object",
                "patternProperties": {
                    "^[a-z]+[.][a-z]+$": like("^#([0-9a-fA-F]{6}|[0-9a-fA-F]{8})$")
                },
                "additionalProperties": False,
                "maxProperties": 4,
            },
            "dark": FLAG,
        }
    ),
}
