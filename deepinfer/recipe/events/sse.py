"""Framing of server-sent events (recipe.md 1.4, 4.6).

It does not know HTTP.
"""

from __future__ import annotations

from deepinfer.recipe.events.protocol import ProtocolEvent


def sse_frame(event: ProtocolEvent, name: str | None = None) -> str:
    """An event as it goes over the wire; the JSON of events has no line breaks.

    Args:
        event: of any protocol.
        name: from `sse_event_name` of its protocol.
    """
    if name is None:
        return f"data: {event.to_json()}\n\n"
    return f"event: {name}\ndata: {event.to_json()}\n\n"


def sse_done(data: str | None) -> str:
    """The end of a stream, from `sse_done_data`; empty for protocols without an end marker."""
    return "" if data is None else f"data: {data}\n\n"


def sse_comment(text: str) -> str:
    """A line that clients skip, such as `keep-alive` while a request waits."""
    return f": {text}\n\n"
