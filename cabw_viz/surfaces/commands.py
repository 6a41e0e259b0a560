"""The options of `%cabw` and `%%cabw`, and a function for each command; the help is generated from both."""

from __future__ import annotations

import difflib
import keyword
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from cabw_viz.analysis.cutting import HOPS
from cabw_viz.analysis.touches import PHASES, summary
from cabw_viz.errors import CabwError
from cabw_viz.record.options import COLORS, EAGER, HOOK_POLICIES, LEVELS, MEASURES, RUN_MODES, Level
from cabw_viz.surfaces.session_registry import SessionRegistry

TRACED = tuple(level for level in LEVELS if level != "aten")
"""The levels that need no lowered graph."""


def call_selection(text: str) -> int | slice:
    """`--only`: `2`, or a range such as `10:12`."""
    try:
        numbers = [int(part) if part.strip() else None for part in text.split(":")]
        return numbers[0] if len(numbers) == 1 and numbers[0] is not None else slice(*numbers)
    except (ValueError, TypeError):
        raise ArgumentTypeError(f"{text!r} is neither a number nor a range such as 10:12") from None


def name_list(text: str) -> tuple[str, ...]:
    """`--measures`: names with commas between."""
    return tuple(name for name in text.split(",") if name)


def target_options(options: Namespace) -> dict[str, Any]:
    """The device, dtype and backend of a replay, as keyword arguments of `cap.replay` and the like."""
    values = {name: getattr(options, name) for name in ("device", "dtype", "backend")}
    return {name: value if value is None else unquoted(value) for name, value in values.items()}


def variable_name(text: str) -> str:
    """`--name`: a name that Python takes."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ArgumentTypeError(f"{text!r} cannot be the name of a variable")
    return text


_HOOKS = argument(
    "--hooks",
    choices=HOOK_POLICIES,
    metavar="HOOKS",
    default=HOOK_POLICIES[0],
    help="of the graph: run (again; default), drop or refuse",
)
_SESSION = argument("--session", metavar="NAME", help="the variable that holds the session; default: the last %%%%cabw")
_CAPTURE = argument(
    "--capture", metavar="N", type=int, default=-1, help="which capture of the session, from 0; default: the last"
)


def _level(levels: Sequence[Level]) -> Any:
    """The option that picks one of these levels."""
    return argument(
        "--level",
        choices=levels,
        metavar="LEVEL",
        default=levels[0],
        help=f"what a box stands for: {', '.join(levels[:-1])} or {levels[-1]}; default: {levels[0]}",
    )


_DEVICE = argument("--device", metavar="D", help="run the graph again on this device: cuda, cuda:1, auto, cpu")
_DTYPE = argument("--dtype", metavar="T", help="run the graph again in this dtype: float64, float32, bfloat16")
_BACKEND = argument(
    "--backend",
    metavar="B",
    default=EAGER,
    help="run the graph again by eager (default), or compiled by aot_eager, inductor or another backend",
)


@magic_arguments("%cabw")
@argument("--model", metavar="EXPR", help="names the leaves: a module, or a mapping of names to tensors")
@argument(
    "--run",
    choices=RUN_MODES,
    metavar="RUN",
    default=RUN_MODES[0],
    help="eager (default): let the backwards run as they are; compiled: run them through compiled autograd",
)
@argument(
    "--only", metavar="N", type=call_selection, help="which backward calls to capture: 0, or a range such as 10:12"
)
@argument(
    "--no-trace",
    action="store_true",
    help="make no graph, at little more than the cell's own time",
)
@argument("--snapshot", action="store_true", help="copy the inputs, so that the cell may step an optimizer")
@argument("--parity", action="store_true", help="then compare every capture with the cell's own run")
@_DEVICE
@_DTYPE
@_BACKEND
@_level(TRACED)
@argument("--name", metavar="NAME", type=variable_name, help="the variable that gets the session")
def cell(options: Namespace) -> Namespace:
    """Run the cell with every backward in it captured, then show the session.

    With --name the session is bound to that variable before the cell runs, as
    `with cabw_viz.capture(...) as NAME` does it. Without, it is kept until the
    next such cell, which closes it. After an error in the cell, what was
    captured until then is kept too. --device, --dtype and --backend say where
    and how the graph is run again for --parity, and ask for it.
    """
    return options


@magic_arguments("cabw graph")
@_level(LEVELS)
@argument("--depth", metavar="N", type=int, help="at level module, how deep modules are open; default: as can be read")
@argument("--expand", metavar="MODULE", action="append", default=[], help="a module to open; may be given again")
@argument("--focus", metavar="MODULE", help="only this module, with what flows in and out")
@argument("--around", metavar="NODE", type=int, help="only the autograd node of this number and its neighbours")
@argument("--hops", metavar="N", type=int, default=HOPS, help=f"how far --around goes; default: {HOPS} edges")
@argument("--path-to", metavar="PARAMETER", help="only the ways that gradients take to this parameter")
@argument("--color-by", metavar="WHAT", choices=COLORS, help=f"colour boxes by {', '.join(COLORS)}")
@argument("--links", metavar="URL", help="where a box leads, such as vscode://file/{file}:{line}")
@argument("--plumbing", action="store_true", help="at level fx, draw lifted inputs, sizes and getitem too")
@argument("--save", metavar="PATH", help="write the picture to PATH instead: svg, pdf, png or dot")
@_CAPTURE
@_SESSION
def graph(sessions: SessionRegistry, options: Namespace) -> object:
    """Draw a capture."""
    texts = {name: unquoted(value) for name, value in vars(options).items() if isinstance(value, str)}
    view = sessions.capture(options.session, options.capture).graph(
        options.level,
        depth=options.depth,
        expand=[unquoted(name) for name in options.expand],
        focus=texts.get("focus"),
        around=options.around,
        hops=options.hops,
        path_to=texts.get("path_to"),
        color_by=options.color_by,
        links=texts.get("links"),
        plumbing=options.plumbing,
    )
    if options.save is None:
        return view
    print(f"wrote {view.save(unquoted(options.save))}")  # noqa: T201  # as %%writefile does
    return None


@magic_arguments("cabw parity")
@_DEVICE
@_DTYPE
@_BACKEND
@argument(
    "--measures",
    metavar="M",
    type=name_list,
    default=(),
    help=f"further columns, with commas between: {', '.join(MEASURES)}",
)
@argument("--exact", action="store_true", help="also show both sides' errors against a float64 run")
@argument("--save", metavar="PATH", help="write the report to PATH instead: csv, html, svg or txt")
@argument("--rtol", type=float, help="relative tolerance, with --atol; default: torch.testing's for the dtype")
@argument("--atol", type=float, help="tolerance in units of the gradient's largest element, with --rtol")
@_HOOKS
@_CAPTURE
@_SESSION
def parity(sessions: SessionRegistry, options: Namespace) -> object:
    """Run a captured graph again and compare its gradients with those of your own run."""
    report = sessions.capture(options.session, options.capture).parity(
        **target_options(options),
        rtol=options.rtol,
        atol=options.atol,
        exact=options.exact or "auto",
        measures=options.measures,
        hooks=options.hooks,
    )
    if options.save is None:
        return report
    print(f"wrote {report.save(unquoted(options.save))}")  # noqa: T201  # as %%writefile does
    return None


@magic_arguments("cabw divergence")
@_DEVICE
@_DTYPE
@_BACKEND
@argument("--rtol", type=float, help="relative tolerance, with --atol, final then; default: torch.testing's")
@argument("--atol", type=float, help="tolerance in units of a gradient's largest element, with --rtol")
@argument("--repeats", metavar="N", type=int, default=2, help="how often the whole graph runs again; default: 2")
@_HOOKS
@_CAPTURE
@_SESSION
def divergence(sessions: SessionRegistry, options: Namespace) -> object:
    """Find the first node, gradient sum or hook whose inputs match your run and whose outputs do not."""
    capture = sessions.capture(options.session, options.capture)
    tolerance = {"rtol": options.rtol, "atol": options.atol}
    return capture.divergence(**target_options(options), **tolerance, hooks=options.hooks, repeats=options.repeats)


@magic_arguments("cabw nan")
@_CAPTURE
@_SESSION
def nan(sessions: SessionRegistry, options: Namespace) -> object:
    """Find where NaN and infinity begin: in an input, in the forward or in the backward. Nothing runs again."""
    return sessions.capture(options.session, options.capture).nonfinite()


@magic_arguments("cabw missing")
@_CAPTURE
@_SESSION
def missing(sessions: SessionRegistry, options: Namespace) -> object:
    """Show which parameters got no gradient, or one that is zero everywhere, and why."""
    return sessions.capture(options.session, options.capture).missing()


@magic_arguments("cabw touches")
@argument("--audit", action="store_true", help="run the graph once, watched, and add what each node reads then")
@argument("--phase", choices=PHASES, metavar="PHASE", help=f"only one phase: {', '.join(PHASES)}")
@_CAPTURE
@_SESSION
def touches(sessions: SessionRegistry, options: Namespace) -> object:
    """Show which code read which metadata, before the graph ran and while it ran."""
    capture = sessions.capture(options.session, options.capture)
    if options.audit:
        capture.audit()
    for finding in summary(capture.record, capture.results):
        print(finding.text)  # noqa: T201  # the sentence above the table
    frame = capture.touches()
    return frame if options.phase is None else frame[frame["phase"] == options.phase]


@magic_arguments("cabw times")
@argument("--repeats", metavar="N", type=int, default=3, help="how many runs, of which each node's best counts")
@argument("--device", metavar="DEVICE", help="where to run the graph; default: where it was captured")
@_CAPTURE
@_SESSION
def times(sessions: SessionRegistry, options: Namespace) -> object:
    """Run a captured graph again and show how long each autograd node takes, the slowest first."""
    return sessions.capture(options.session, options.capture).times(options.repeats, options.device)


@magic_arguments("cabw memory")
@argument("--depth", metavar="N", type=int, help="parts of the modules' paths that count; default: all")
@_CAPTURE
@_SESSION
def memory(sessions: SessionRegistry, options: Namespace) -> object:
    """Show the bytes that each module keeps for its backward, the most first."""
    return sessions.capture(options.session, options.capture).memory(options.depth)


@magic_arguments("cabw gradients")
@_CAPTURE
@_SESSION
def gradients(sessions: SessionRegistry, options: Namespace) -> object:
    """Show how large the gradients of your own run were, of each leaf and each autograd node; nothing runs."""
    return sessions.capture(options.session, options.capture).gradients()


@magic_arguments("cabw lower")
@_CAPTURE
@_SESSION
def lower(sessions: SessionRegistry, options: Namespace) -> object:
    """Lower a captured graph to aten operators, which `%cabw graph --level aten` then draws."""
    return sessions.capture(options.session, options.capture).lower()


@magic_arguments("cabw list")
def list_(sessions: SessionRegistry, _options: Namespace) -> object:
    """List the sessions in reach and their captures."""
    return sessions.frame()


@magic_arguments("cabw close")
@argument("name", nargs="?", metavar="NAME", help="the variable that holds the session; default: the last %%%%cabw")
@argument("--all", action="store_true", help="close every session in reach")
def close(sessions: SessionRegistry, options: Namespace) -> object:
    """Let a session's tensors go; its records, tables and pictures stay."""
    named = [session for _, session in sessions.sessions()] if options.all else [sessions.session(options.name)]
    for session in named:
        session.close()
    return None


@magic_arguments("cabw help")
@argument("command", nargs="?", metavar="COMMAND", help="one command only")
def help_(_sessions: SessionRegistry, options: Namespace) -> object:
    """Print the help of all commands, or of one."""
    if options.command is None:
        print(help_text())  # noqa: T201  # a magic's help is printed
    else:
        print(help_of(command_named(options.command)))  # noqa: T201
    return None


Command = Callable[[SessionRegistry, Namespace], object]
COMMANDS: dict[str, Command] = {
    "graph": graph,
    "touches": touches,
    "times": times,
    "parity": parity,
    "divergence": divergence,
    "nan": nan,
    "missing": missing,
    "memory": memory,
    "gradients": gradients,
    "lower": lower,
    "list": list_,
    "close": close,
    "help": help_,
}
DOCUMENTED: dict[str, Callable[..., Any]] = {"%cabw": cell, **COMMANDS}
"""The magics and commands that `%cabw help` describes."""


def command_named(name: str) -> Callable[..., Any]:
    """The function of a command, by its name.

    Raises:
        CabwError: there is no such command; lists those there are.
    """
    if name in DOCUMENTED:
        return DOCUMENTED[name]
    raise unknown_command(name, tuple(DOCUMENTED))


def unknown_command(name: str, known: tuple[str, ...]) -> CabwError:
    """The error for a command that does not exist."""
    similar = difflib.get_close_matches(name, known, n=1)
    return CabwError(
        f"%cabw has no command {name!r}",
        expected=", ".join(known),
        try_=f"%cabw {similar[0]}" if similar else "%cabw help",
    )


def parse(function: Callable[..., Any], line: str) -> Namespace:
    """The options of a command.

    Raises:
        CabwError: they are not the command's; says what it takes.
    """
    try:
        options: Namespace = parse_argstring(function, line)
    except (UsageError, ValueError) as error:  # ValueError: a quotation mark without its partner
        raise CabwError(f"%{name_of(function)}: {error}", expected=usage_of(function), try_="%cabw help") from None
    return options


def unquoted(text: str) -> str:
    """An argument without the quotation marks around it, which IPython leaves in place."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def name_of(function: Callable[..., Any]) -> str:
    """`cabw graph`."""
    return str(function.parser.prog)  # type: ignore[attr-defined]  # put there by magic_arguments


def usage_of(function: Callable[..., Any]) -> str:
    """`%cabw graph [--level {autograd,fx}] …` in one line."""
    text: str = function.parser.format_usage()  # type: ignore[attr-defined]
    return " ".join(text.replace("::", "", 1).split())


def help_of(function: Callable[..., Any]) -> str:
    """A command's whole help."""
    text: str = function.parser.format_help()  # type: ignore[attr-defined]
    return text.replace("::", "", 1).strip()


def help_text() -> str:
    """The help of all commands, generated from their parsers."""
    return "\n\n\n".join(map(help_of, DOCUMENTED.values()))
