"""Processes that run the cases: one that ends, or does not answer in time, is replaced, and its case says so."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

_MAKE = multiprocessing.get_context("forkserver")


def run_guarded(
    work: Callable[[Any], Any], items: Iterable[Any], *, workers: int, seconds: float
) -> Iterator[tuple[Any, Any]]:
    """Each item with what `work` makes of it in another process, in the order in which they end.

    Args:
        work: a function of a module that can be imported.
        items: plain data.
        workers: how many processes run at once.
        seconds: how long an item may take.

    Yields:
        (item, result), or (item, Lost) where there is no result.
    """
    todo: queue.SimpleQueue[Any] = queue.SimpleQueue()
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    count = 0
    for item in items:
        todo.put(item)
        count += 1
    threads = [threading.Thread(target=_feed, args=(work, todo, done, seconds), daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for _ in range(count):
        yield done.get()
    for thread in threads:
        thread.join()


class Lost(str):
    """Why an item has no result."""

    __slots__ = ()


def _feed(
    work: Callable[[Any], Any], todo: queue.SimpleQueue[Any], done: queue.SimpleQueue[Any], seconds: float
) -> None:
    process, connection = None, None
    while True:
        try:
            item = todo.get_nowait()
        except queue.Empty:
            break
        if process is None or connection is None:
            process, connection = _started(work)
        result = _answer(process, connection, item, seconds)
        if isinstance(result, Lost) and not process.is_alive():
            process = connection = None
        done.put((item, result))
    if process is not None and connection is not None:
        connection.close()
        process.join(10)
        process.kill()


def _started(work: Callable[[Any], Any]) -> tuple[Any, Connection]:
    ours, theirs = _MAKE.Pipe()
    process = _MAKE.Process(target=_work, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _answer(process: Any, connection: Connection, item: Any, seconds: float) -> Any:
    try:
        connection.send(item)
        if connection.poll(seconds):
            return connection.recv()
        reason = Lost(f"did not end in {seconds:g} s")
    except (EOFError, OSError):
        process.join(10)
        code = process.exitcode
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        reason = Lost(f"ended the process: {name}")
    process.kill()
    process.join()
    return reason


def _work(work: Callable[[Any], Any], connection: Connection) -> None:
    """The loop of a worker; its standard error goes nowhere, for operators warn there."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        try:
            result = work(item)
        except Exception as error:  # noqa: BLE001  # reported in the place of a result
            result = Lost(f"the check itself raised {type(error).__name__}: {error}")
        connection.send(result)
