"""The sessions that the magics can name: those in the user's variables, and the last one without a name."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cabw_viz.errors import CabwError

if TYPE_CHECKING:
    import pandas as pd

    from cabw_viz.surfaces.capture import Capture
    from cabw_viz.surfaces.session import Session

UNNAMED = "(unnamed)"
LIST_COLUMNS = ("session", "state", "capture", "function", "where", "run", "autograd_nodes", "graph_nodes", "failure")


class SessionRegistry:
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
        """Make a session the default of the commands; hold a reference to it if it is not `named`."""
        self._latest = weakref.ref(session)
        if not named:
            self.clear()
            self._unnamed = session

    def clear(self) -> None:
        """Close the session without a name, and drop it."""
        if self._unnamed is not None:
            self._unnamed.close()
        self._unnamed = None

    def sessions(self) -> Iterator[tuple[str, Session]]:
        """Every session in reach with its name, each once."""
        from cabw_viz.surfaces.session import Session

        ids: set[int] = set()
        for name, value in list(self._variables.items()):
            # IPython's own names for what it showed, such as `_` and `_3`, are not the user's.
            if isinstance(value, Session) and not name.startswith("_") and id(value) not in ids:
                ids.add(id(value))
                yield name, value
        if self._unnamed is not None and id(self._unnamed) not in ids:
            yield UNNAMED, self._unnamed

    def session(self, name: str | None = None) -> Session:
        """The session of a name; without one the latest of `%%cabw`, or else the only one there is.

        Raises:
            CabwError: there is no such session; says which there are.
        """
        by_name = dict(self.sessions())
        latest = None if self._latest is None else self._latest()
        if name is None and latest is not None:
            return latest
        if name is None and len(by_name) == 1:
            return next(iter(by_name.values()))
        if name is not None and name in by_name:
            return by_name[name]
        raise _no_session(name, [known for known in by_name if known != UNNAMED])

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
        counts = dict.fromkeys(("capture", "autograd_nodes", "graph_nodes"), "Int64")
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


def _no_session(name: str | None, known: list[str]) -> CabwError:
    return CabwError(
        "no session was captured by %%cabw yet" if name is None else f"there is no session {name!r}",
        expected=f"one of {', '.join(known)}" if known else "a session",
        try_=f"--session {known[0]}" if known else "%%cabw --model model above the code of a backward",
    )
