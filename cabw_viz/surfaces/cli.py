"""The command `cabw-viz`, also `python -m cabw_viz`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cabw_viz.errors import CabwError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; an error of ours is printed, and the exit status is 2."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except CabwError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # as shells report it
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cabw-viz", description="See, check and rerun the backward of PyTorch models."
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo = commands.add_parser(
        "demo",
        help="capture, draw and check the backward of GPT-2",
        description="Captures the backward of GPT-2 (random weights, no download), prints its outline and how its "
        "gradients compare with eager, and writes pictures and tables.",
    )
    demo.add_argument("--output", type=Path, default=Path("cabw-viz-demo"), metavar="DIR", help="default: %(default)s")
    demo.add_argument("--layers", type=int, default=4, metavar="N", help="default: %(default)s")
    demo.set_defaults(run=_demo)
    return parser


def _demo(options: argparse.Namespace) -> None:
    from cabw_viz.surfaces import demo  # imports torch

    demo.run(options.output, options.layers)


class _Version(argparse.Action):
    """Looks the version up when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"cabw-viz {version('cabw-viz')}")
        except PackageNotFoundError:
            print("cabw-viz, run from a source tree that is not installed")
        parser.exit()
