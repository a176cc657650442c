"""Page accounting. Knows nothing of what a page holds nor of who plans steps."""

from deepinfer.cache.keys import extend_chain, first_key, salted
from deepinfer.cache.pages import PagePool, pages_for
from deepinfer.cache.snapshots import SnapshotPool

__all__ = ["PagePool", "SnapshotPool", "extend_chain", "first_key", "pages_for", "salted"]
