"""A `meta` of graph nodes that reports lookups of keys that compiled autograd has deleted from it.

The tracer deletes `val`, `example_value` and `tensor_meta` from every node, so that no pass relies on the shapes of
dummies. While the user's compiler function runs, and until the backward call is over, a lookup of one of these keys
is noted, with the line that did it, and answered as by a dict.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.fx

from cabw_viz.record.model import GraphNode, Touch
from cabw_viz.runtime.stack_frames import external_caller

DELETED = ("val", "example_value", "tensor_meta")
_MISSING = object()


class MetaLookups:
    """The lookups of one backward call: noted for a graph and its copies until `end`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int, str]] = Counter()
        self._metas: list[tuple[torch.fx.Node, dict[str, Any], WatchedMeta]] = []
        self._ended = False

    def watch(self, graph: torch.fx.Graph) -> None:
        """Watch the nodes of a graph; those of copies of it are watched with them."""
        for ordinal, node in enumerate(graph.nodes):
            meta = WatchedMeta(node.meta, self, ordinal)
            self._metas.append((node, node.meta, meta))
            node.meta = meta

    def note(self, key: str, ordinal: int) -> None:
        """Note that a key was looked up and is missing."""
        if not self._ended:
            self._counts[key, ordinal, external_caller(sys._getframe(1))] += 1  # noqa: SLF001  # documented

    def end(self) -> None:
        """Restore the nodes' own dicts, with the entries set meanwhile. Copies of nodes report nothing from here on."""
        self._ended = True
        for node, own, meta in self._metas:
            if node.meta is meta:
                own.clear()
                own.update(meta)
                node.meta = own
        self._metas.clear()

    def touches(self, nodes: Sequence[GraphNode]) -> tuple[Touch, ...]:
        """The lookups as rows of the record, in order of first lookup.

        Args:
            nodes: the record's rows of the graph that was watched; empty where the record has none.
        """
        numbers: list[tuple[int | None, int | None]] = [(node.autograd_node, node.ordinal) for node in nodes]
        return tuple(
            Touch("graph_pass", key, *(numbers[ordinal] if numbers else (None, None)), "pass", where, count)
            for (key, ordinal, where), count in self._counts.items()
        )


class WatchedMeta(dict[str, Any]):
    """A node's `meta` that notes each lookup of a deleted key, unless the key was set again."""

    def __init__(self, items: dict[str, Any], lookups: MetaLookups, ordinal: int) -> None:
        super().__init__(items)
        self._lookups, self._ordinal = lookups, ordinal
        self._removed: set[str] = set()
        """Deleted keys that were set, and removed again."""

    def _note_missing(self, key: object) -> None:
        if key in DELETED and key not in self._removed and not super().__contains__(key):
            self._lookups.note(str(key), self._ordinal)

    def __missing__(self, key: str) -> Any:
        self._note_missing(key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        self._note_missing(key)
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict does."""
        self._note_missing(key)
        return super().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As a dict does."""
        self._note_missing(key)
        return super().setdefault(key, default)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        """As a dict does."""
        self._note_missing(key)
        self._note_removed(key)
        return super().pop(key) if default is _MISSING else super().pop(key, default)

    def __delitem__(self, key: str) -> None:
        self._note_removed(key)
        super().__delitem__(key)

    def clear(self) -> None:
        """As a dict does."""
        self._note_removed(*self)
        super().clear()

    def _note_removed(self, *keys: str) -> None:
        self._removed.update(key for key in keys if key in DELETED and super(WatchedMeta, self).__contains__(key))

    def __copy__(self) -> WatchedMeta:
        """The meta of a node's copy, which counts as the same node."""
        return WatchedMeta(self, self._lookups, self._ordinal)

    def __deepcopy__(self, memo: dict[int, Any]) -> WatchedMeta:
        result = memo[id(self)] = WatchedMeta({}, self._lookups, self._ordinal)
        result.update(copy.deepcopy(dict(self), memo))
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain dict."""
        return dict, (dict(self),)
