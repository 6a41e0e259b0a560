"""Run the sweeps: `python -m tests.sweeps`, which `make sweep` does.

Every operator, module and model in float32, and one sample of each operator and module in float64, bfloat16 and
complex64. Prints the table, and writes each case's outcome to a file of JSON lines. Ends with 1 where something failed
that `exceptions.py` does not name.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from tests.sweeps import table
from tests.sweeps.cases import DTYPES, Case, Kind, cases, names
from tests.sweeps.checks import Report, check_case
from tests.sweeps.workers import Lost, run_guarded

KINDS: tuple[Kind, ...] = ("operator", "module", "model")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweeps", description=__doc__)
    parser.add_argument("--only", default="", help="regular expression: names to run")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--samples", type=int, default=3, help="of each in float32; one in the other dtypes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="that one case may take")
    parser.add_argument("--out", type=Path, default=Path("reports/sweep.jsonl"))
    parser.add_argument("--table", type=Path, help="write the table here, as Markdown")
    options = parser.parse_args()

    todo = list(_cases(options))
    random.Random(0).shuffle(todo)  # a part of the run is a sample of the whole
    options.out.parent.mkdir(parents=True, exist_ok=True)
    reports: list[Report] = []
    with options.out.open("w", encoding="utf-8") as lines:
        runs = run_guarded(check_case, todo, workers=options.workers, seconds=options.seconds)
        for case, result in tqdm(runs, total=len(todo), mininterval=10.0):
            report = _lost(case, result) if isinstance(result, Lost) else result
            reports.append(report)
            lines.write(json.dumps(report.as_json()) + "\n")
            lines.flush()
    text = table.markdown(reports)
    print(text)
    if options.table:
        options.table.write_text(text + "\n", encoding="utf-8")
    return 1 if table.unexplained(reports) else 0


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for kind in options.kinds:
        for name in names(kind):
            if re.search(options.only, name):
                for dtype in options.dtypes:
                    yield from cases(kind, dtype, options.samples if dtype == "float32" else 1, name)


def _lost(case: Case, reason: Lost) -> Report:
    return Report(case, {"harmless": ("failed", reason)})


if __name__ == "__main__":
    sys.exit(main())
