"""Cells of a notebook, run by a magic as IPython itself would run them."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from cabw_viz.errors import CabwError


@dataclass(frozen=True)
class Cell:
    """The body of a `%%` cell, parsed."""

    nodes: list[ast.stmt]
    name: str
    """What tracebacks call it: IPython shows it as `Cell In[3]`."""
    waits: bool
    """Whether it has an `await` outside of a function."""
    quiet: bool
    """Whether it ends in a semicolon, which keeps the last value from being shown."""


def parse(shell: InteractiveShell, magic: str, body: str) -> Cell:
    """Parse a cell's body, magics and all.

    The magic's own line stands above it as a comment: so tracebacks show it, and their line numbers are right.

    Raises:
        SyntaxError: the body is not Python.
    """
    code = shell.transform_cell(body)
    source = f"# {magic}\n{code}"
    name = shell.compile.cache(source, _number(shell))
    tree = shell.transform_ast(shell.compile.ast_parse(source, name))
    waits = bool(shell.autoawait) and shell.should_run_async(body, transformed_cell=code)
    return Cell(tree.body, name, waits, body.rstrip().endswith(";"))


def _number(shell: InteractiveShell) -> int:
    """The number of the cell that is running; some releases of IPython have raised the shell's own by then."""
    outer = shell.displayhook.exec_result
    return int((outer is not None and outer.execution_count) or shell.execution_count)


def run(shell: InteractiveShell, cell: Cell) -> bool:
    """Run a parsed cell in the user's namespace; False if it raised.

    IPython's own loop does it, so the last expression is shown, and an error is: with the user's frames only.
    The error is noted in the result of the cell that the magic stands in, which therefore counts as failed.

    Raises:
        CabwError: the cell awaits, and this kernel's event loop is running already.
        BaseException: what the cell raised, where there is no cell that the magic stands in.
    """
    if cell.waits and _loop_is_running():
        raise CabwError(
            "this cell awaits, and a cell magic runs inside the kernel's event loop, where it cannot wait",
            expected="a cell without `await` outside of a function",
            try_="an ordinary cell with `with cabw_viz.capture(model) as session:` in it, where await works",
        )
    interactivity = "none" if cell.quiet else shell.ast_node_interactivity
    with _outer_result(shell) as result:
        work = shell.run_ast_nodes(cell.nodes, cell.name, interactivity, compiler=shell.compile, result=result)
        raised = shell.loop_runner(work) if cell.waits else _finish(work)
    return not raised


def show_syntax_error(shell: InteractiveShell, error: SyntaxError) -> None:
    """Show what `parse` raised as IPython shows it for any cell: that it happened inside a magic is of no interest."""
    with _outer_result(shell) as result:
        shell.showsyntaxerror()
        result.error_before_exec = error


@contextmanager
def _outer_result(shell: InteractiveShell) -> Iterator[ExecutionResult]:
    """The result of the cell that the magic stands in; if there is none, an error in it is raised."""
    outer = shell.displayhook.exec_result
    result = ExecutionResult(None) if outer is None else outer
    yield result
    if outer is None:
        result.raise_error()


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _finish(work: Coroutine[Any, None, bool]) -> bool:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return bool(end.value)
    raise RuntimeError("IPython waited for something in a cell without await")
