"""Writes `src/palette.js`, the browser's copy of the table of looks.

Run `python -m cabw_viz.views.inspector.browser_palette` after a change of the table. The copy is committed, because the
build of a wheel, and tests in Node, read it without Python; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cabw_viz.analysis.families import FAMILY_OF_KIND, FAMILY_OF_NAME
from cabw_viz.record.kinds import GOOD, SEVERITY
from cabw_viz.views.palette import DIFFERS_MUCH, ENCODINGS, VERDICT_LOOKS

MODULE = Path(__file__).parent / "src" / "palette.js"
_HEAD = "/** Written from cabw_viz/views/palette.py by `python -m cabw_viz.views.inspector.browser_palette`. */"


def browser_palette() -> str:
    """The text of the module."""
    marks = {verdict: look.browser_mark for verdict, look in VERDICT_LOOKS.items()}
    passing = {verdict: verdict in GOOD for verdict in SEVERITY}
    tables: dict[str, Mapping[Any, object]] = {
        "FAMILY_OF_KIND": FAMILY_OF_KIND,
        "FAMILY_OF_NAME": FAMILY_OF_NAME,
        "IS_PASSING": passing,
        "VERDICT_MARKS": marks,
    }
    lines = [_HEAD, f"export const DIFFERS_MUCH = {DIFFERS_MUCH};"]
    for name, table in tables.items():
        rows = (f"  {_json(key)}: {_json(value)}," for key, value in table.items())
        lines += [f"export const {name} = {{", *rows, "};"]
    return "\n".join([*lines, "export const ENCODING_TABLE = {", *_encodings(), "};"]) + "\n"


def _encodings() -> Iterator[str]:
    for name, encoding in ENCODINGS.items():
        yield f"  {_json(name)}: {{"
        yield f'    "label": {_json(encoding.label)}, "isCategorical": {_json(encoding.is_categorical)}, "classes": ['
        yield from (f"      {_json(asdict(each))}," for each in encoding.classes)
        yield "    ],"
        yield "  },"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    MODULE.write_text(browser_palette(), "utf-8")
