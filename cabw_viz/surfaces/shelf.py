"""Where the magics find sessions: in the user's variables, and one more that has no name."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cabw_viz.errors import CabwError

if TYPE_CHECKING:
    import pandas as pd

    from cabw_viz.surfaces.session import Capture, Session

UNNAMED = "(unnamed)"
LIST_COLUMNS = ("session", "state", "capture", "function", "where", "run", "autograd_nodes", "graph_nodes", "failure")


class Shelf:
    """The sessions of a notebook.

    A session with a name lives as long as the user's variable. Of those without a name the last is kept here,
    since nothing else holds it; the next one takes its place and it is closed.

    Args:
        variables: the user's namespace.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables
        self._unnamed: Session | None = None
        self._latest: weakref.ref[Session] | None = None

    def keep(self, session: Session, *, named: bool) -> None:
        """Make a session the one that commands mean by default; hold it if no variable of the user's does."""
        self._latest = weakref.ref(session)
        if not named:
            self.clear()
            self._unnamed = session

    def clear(self) -> None:
        """Close the session without a name and let go of it."""
        if self._unnamed is not None:
            self._unnamed.close()
        self._unnamed = None

    def sessions(self) -> Iterator[tuple[str, Session]]:
        """Every session in reach with its name, each once."""
        from cabw_viz.surfaces.session import Session

        seen: set[int] = set()
        for name, value in list(self._variables.items()):
            # IPython's own names for what it showed, such as `_` and `_3`, are not the user's.
            if isinstance(value, Session) and not name.startswith("_") and id(value) not in seen:
                seen.add(id(value))
                yield name, value
        if self._unnamed is not None and id(self._unnamed) not in seen:
            yield UNNAMED, self._unnamed

    def session(self, name: str | None = None) -> Session:
        """The session of a name; without one the latest of `%%cabw`, or else the only one there is.

        Raises:
            CabwError: there is no such session; says which there are.
        """
        found = dict(self.sessions())
        if name is None:
            latest = self._latest() if self._latest is not None else None
            if latest is not None:
                return latest
            if len(found) == 1:
                return next(iter(found.values()))
        elif name in found:
            return found[name]
        names = ", ".join(found)
        wanted = "no session was captured by %%cabw yet" if name is None else f"{name} is not a session"
        raise CabwError(
            wanted,
            expected=f"one of {names}" if names else "a session",
            try_="--session NAME" if names and name is None else "%%cabw --model model above a cell with a backward",
        )

    def capture(self, name: str | None, index: int) -> Capture:
        """One capture of a session; negative indices count from the last.

        Raises:
            CabwError: there is no such session, or no such capture in it.
        """
        return self.session(name)[index]

    def frame(self) -> pd.DataFrame:
        """A row for every capture of every session in reach, and one for each session that has none."""
        import pandas as pd

        rows = [row for name, session in self.sessions() for row in _rows(name, session)]
        frame = pd.DataFrame(rows, columns=list(LIST_COLUMNS), dtype="object")
        counts = {column: "Int64" for column in ("capture", "autograd_nodes", "graph_nodes")}
        return frame.astype(counts)


def _rows(name: str, session: Session) -> Iterator[tuple[object, ...]]:
    state = "closed" if session.closed else "open"
    if not len(session):
        yield name, state, None, "", "", "", None, None, ""
    for index, capture in enumerate(session):
        record = capture.record
        counts = len(record.autograd_nodes), len(record.graph_nodes)
        failure = "" if record.failure is None else str(record.failure)
        yield name, state, index, record.call.function, record.call.where, record.run, *counts, failure
