"""Names pages by what they hold: one SHA-256 chain over the tokens before and in a page.

Knows nothing of pages and pools. Source: spec of the key chain, `serving.md` 2.3.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

_VERSION = b"di-kv/1"


def frame(*fields: bytes) -> bytes:
    """Fields, each behind its length (4 bytes, little-endian): no two lists give equal bytes."""
    return b"".join(len(field).to_bytes(4, "little") + field for field in fields)


def first_key(model: bytes, layout: bytes, semantics: bytes, tenant: bytes) -> bytes:
    """The key before the first page; whoever differs in one of these never shares a page.

    Args:
        model: what the numbers depend on: weights and config.
        layout: format of a page.
        semantics: how entries are computed ("exact", or "bounded" with its numbers).
        tenant: salt of the tenant, and of the request where it has one.
    """
    return hashlib.sha256(frame(_VERSION, model, layout, semantics, tenant)).digest()


def salted(key: bytes, salt: bytes) -> bytes:
    """A first key that is shared only with requests of the same salt."""
    return hashlib.sha256(frame(key, salt)).digest() if salt else key


def extend_chain(
    keys: list[bytes], first: bytes, ids: Sequence[int], page_tokens: int, known: int
) -> None:
    """Append the keys of pages that became full.

    Args:
        keys: keys of the leading pages, extended in place.
        first: the key before the first page.
        ids: the tokens of all pages from page `len(keys)` on, each in [0, 2^32).
        page_tokens: tokens a page.
        known: total tokens; only pages below it are full. `ids` holds those from
            `len(keys) * page_tokens` up to it.
    """
    count = known // page_tokens - len(keys)
    if count <= 0:
        return
    words = array("I", ids[: count * page_tokens])
    if sys.byteorder == "big":
        words.byteswap()
    data, width = memoryview(words).cast("B"), 4 * page_tokens
    key = keys[-1] if keys else first
    none = frame(b"")
    for start in range(0, count * width, width):
        digest = hashlib.sha256(key)
        digest.update(data[start : start + width])
        digest.update(none)
        key = digest.digest()
        keys.append(key)
