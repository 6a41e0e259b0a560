"""`%load_ext cabw_viz`: the magics `%%cabw`, which captures a cell, and `%cabw`, which shows what was captured."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from cabw_viz.errors import CabwError
from cabw_viz.record.options import EAGER, LEVELS
from cabw_viz.surfaces import cells, commands
from cabw_viz.surfaces.commands import COMMANDS, parse, unquoted
from cabw_viz.surfaces.session_registry import SessionRegistry

if TYPE_CHECKING:
    from cabw_viz.record.options import Level
    from cabw_viz.surfaces.session import Session

MAGIC = "cabw"
KINDS = ("line", "cell")


def load_ipython_extension(ip: InteractiveShell) -> None:
    """Add the magics. Loading a second time changes nothing."""
    if _loaded(ip) is None:
        CabwMagics(ip).install()


def unload_ipython_extension(ip: InteractiveShell) -> None:
    """Remove the magics; the user's own of the same names, if there were any, come back."""
    magics = _loaded(ip)
    if magics is not None:
        magics.uninstall()


def _loaded(ip: InteractiveShell) -> CabwMagics | None:
    # By name: after a reload of this module the class is another one.
    magics = ip.magics_manager.registry.get(CabwMagics.__name__)
    return magics if hasattr(magics, "uninstall") else None


@magics_class
class CabwMagics(Magics):
    """The magics of one shell."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.sessions = SessionRegistry(shell.user_ns)
        self._previous: dict[str, Any] = {}

    def install(self) -> None:
        """Put the magics into the shell's tables, and remember the previous ones."""
        tables = self.shell.magics_manager.magics
        self._previous = {kind: tables[kind][MAGIC] for kind in KINDS if MAGIC in tables[kind]}
        self.shell.register_magics(self)

    def uninstall(self) -> None:
        """Restore the previous magics, except where others were registered since; close the session without a name."""
        manager = self.shell.magics_manager
        for kind in KINDS:
            table = manager.magics[kind]
            if table.get(MAGIC) != self.magics[kind][MAGIC]:
                continue
            if kind in self._previous:
                table[MAGIC] = self._previous[kind]
            else:
                del table[MAGIC]
        del manager.registry[type(self).__name__]
        if self in self.shell.configurables:  # where Magics.__init__ put it
            self.shell.configurables.remove(self)
        self.sessions.clear()

    @no_var_expand
    @cell_magic(MAGIC)
    def capture_cell(self, line: str, cell: str) -> None:
        """Run a cell captured; its help is that of `commands.cell`."""
        with _usage_errors():
            options = parse(commands.cell, line)
            session = self._session(options)
        try:
            parsed = cells.parse(self.shell, f"%%{MAGIC} {line}", cell)
        except SyntaxError as error:
            cells.show_syntax_error(self.shell, error)
        else:
            with _usage_errors():
                self._run(session, parsed, options)

    @no_var_expand
    @line_magic(MAGIC)
    def command(self, line: str) -> object:
        """Show what was captured."""
        name, _, rest = line.strip().partition(" ")
        with _usage_errors():
            if name and name not in COMMANDS:
                raise commands.unknown_command(name, tuple(COMMANDS))
            function = COMMANDS[name or "help"]
            return function(self.sessions, parse(function, rest))

    def _run(self, session: Session, cell: cells.Cell, options: Namespace) -> None:
        with session:
            self._keep(session, options.name)
            finished = cells.run(self.shell, cell)
        if finished or len(session.events):
            display(session if options.level == LEVELS[0] else StaticSession(session, options.level))
        if finished and (options.parity or asks_for_parity(options)):
            _show_parity(session, options)

    def _session(self, options: Namespace) -> Session:
        from cabw_viz.replay.placement.target import resolve_target
        from cabw_viz.surfaces.session import capture

        resolve_target(
            **commands.target_options(options)
        )  # before the cell runs, which may take long, and not after it
        if options.no_trace:
            _check_without_graph(options)
        subject = None if options.model is None else self._evaluate(unquoted(options.model))
        return capture(
            subject, run=options.run, only=options.only, snapshot=options.snapshot, trace=not options.no_trace
        )

    def _evaluate(self, expression: str) -> Any:
        try:
            return self.shell.ev(expression)
        except Exception as error:
            raise CabwError(
                f"--model {expression} could not be evaluated: {type(error).__name__}: {error}",
                expected="an expression for a torch.nn.Module, or for a mapping of names to tensors",
                try_="--model model, where `model` is a variable of this notebook",
            ) from error

    def _keep(self, session: Session, name: str | None) -> None:
        if name is not None:
            self.shell.push({name: session})
        self.sessions.keep(session, named=name is not None)


class StaticSession:
    """A session as static pictures at one level."""

    def __init__(self, session: Session, level: Level) -> None:
        self._session, self._level = session, level

    def __repr__(self) -> str:
        return repr(self._session)

    def _repr_html_(self) -> str:
        return self._session.html(self._level)


def asks_for_parity(options: Namespace) -> bool:
    """Whether a cell's options name a device, a dtype or a backend of a replay."""
    return options.device is not None or options.dtype is not None or options.backend != EAGER


def _check_without_graph(options: Namespace) -> None:
    """Raise a CabwError where `--no-trace` stands beside what needs a graph."""
    unfit = [
        option
        for option, is_unfit in {
            "--parity": options.parity,
            "--device, --dtype or --backend": asks_for_parity(options),
            f"--level {options.level}": options.level not in ("module", "autograd"),
        }.items()
        if is_unfit
    ]
    if unfit:
        raise CabwError(
            f"%%cabw --no-trace makes no graph, and {unfit[0]} needs one",
            expected="--no-trace, or what runs or draws the captured graph",
            try_="the same line without --no-trace",
        )


def _show_parity(session: Session, options: Namespace) -> None:
    if not len(session):
        session[0]  # raises, and says what became of the block's backward calls
    for capture in session:
        display(capture.parity(**commands.target_options(options)))


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Raise a CabwError as IPython's UsageError, of which only the text is shown, without a traceback."""
    try:
        yield
    except CabwError as error:
        raise UsageError(str(error)) from error


CabwMagics.capture_cell.__doc__ = commands.help_of(commands.cell)
CabwMagics.command.__doc__ = f"Show what was captured.\n\n{commands.help_text()}"
