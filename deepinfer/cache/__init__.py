"""Page accounting. Knows nothing of what a page holds nor of who plans steps."""

from deepinfer.cache.pages import PagePool, pages_for

__all__ = ["PagePool", "pages_for"]
