"""Graph nodes' `meta` that tells who looks up what compiled autograd has deleted from it.

The tracer deletes `val`, `example_value` and `tensor_meta` from every node, so that no pass leans on the shapes of
dummies. While the user's compiler function is at work, and until the backward call is over, a lookup of one of them
is taken down, with the line that did it, and answered as ever.
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


class Lookups:
    """One backward call's: watches a graph, and takes down lookups until told to end."""

    def __init__(self) -> None:
        self._found: Counter[tuple[str, int, str]] = Counter()
        self._metas: list[tuple[torch.fx.Node, dict[str, Any], Meta]] = []
        self._ended = False

    def watch(self, graph: torch.fx.Graph) -> None:
        """Watch the nodes of a graph; those of copies of it are watched with them."""
        for ordinal, node in enumerate(graph.nodes):
            meta = Meta(node.meta, self, ordinal)
            self._metas.append((node, node.meta, meta))
            node.meta = meta

    def note(self, key: str, ordinal: int) -> None:
        """A key was looked up in vain now."""
        if not self._ended:
            self._found[key, ordinal, external_caller(sys._getframe(1))] += 1  # noqa: SLF001  # documented

    def end(self) -> None:
        """Give the nodes their own dicts back, with what was put into them; copies of them are silent from here on."""
        self._ended = True
        for node, own, meta in self._metas:
            if node.meta is meta:
                own.clear()
                own.update(meta)
                node.meta = own
        self._metas.clear()

    def touches(self, nodes: Sequence[GraphNode]) -> tuple[Touch, ...]:
        """What was looked up, in order of first lookup.

        Args:
            nodes: of the graph as it was handed out; none where the record has none.
        """
        known: list[tuple[int | None, int | None]] = [(node.autograd_node, node.ordinal) for node in nodes]
        return tuple(
            Touch("graph_pass", key, *(known[ordinal] if known else (None, None)), "pass", where, count)
            for (key, ordinal, where), count in self._found.items()
        )


class Meta(dict[str, Any]):
    """A node's `meta`: the dict that it was, and a note for each lookup of a deleted key that nobody has set since."""

    def __init__(self, items: dict[str, Any], lookups: Lookups, ordinal: int) -> None:
        super().__init__(items)
        self._lookups, self._ordinal = lookups, ordinal
        self._set: set[str] = set()
        """Deleted keys that somebody has set, and taken out again."""

    def _look(self, key: object) -> None:
        if key in DELETED and key not in self._set and not super().__contains__(key):
            self._lookups.note(str(key), self._ordinal)

    def __missing__(self, key: str) -> Any:
        self._look(key)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        self._look(key)
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict does."""
        self._look(key)
        return super().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As a dict does."""
        self._look(key)
        return super().setdefault(key, default)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        """As a dict does."""
        self._look(key)
        self._taken_out(key)
        return super().pop(key) if default is _MISSING else super().pop(key, default)

    def __delitem__(self, key: str) -> None:
        self._taken_out(key)
        super().__delitem__(key)

    def clear(self) -> None:
        """As a dict does."""
        self._taken_out(*self)
        super().clear()

    def _taken_out(self, *keys: str) -> None:
        self._set.update(key for key in keys if key in DELETED and super(Meta, self).__contains__(key))

    def __copy__(self) -> Meta:
        """What fx makes of a node's meta when it copies a graph: the copy stands for the same node."""
        return Meta(self, self._lookups, self._ordinal)

    def __deepcopy__(self, memo: dict[int, Any]) -> Meta:
        made = memo[id(self)] = Meta({}, self._lookups, self._ordinal)
        made.update(copy.deepcopy(dict(self), memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A plain dict, for whoever pickles a graph."""
        return dict, (dict(self),)
