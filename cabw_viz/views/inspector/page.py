"""One HTML file that is the inspector, with its data inlined: it asks for nothing, and needs no kernel."""

from __future__ import annotations

import base64
import gzip
import html
from collections.abc import Iterable, Mapping, Sequence

from cabw_viz.record.model import BackwardCall, CaptureRecord, Event
from cabw_viz.record.results import NO_RESULTS, CaptureData
from cabw_viz.views.inspector import columns
from cabw_viz.views.inspector.bundle import STYLE, inspector_script
from cabw_viz.views.inspector.findings import pack_results, pack_session
from cabw_viz.views.text import in_line

NO_CAPTURE = CaptureRecord(BackwardCall(None, "", ""), "", "", ())
"""What is shown of a session that has no capture: its events still say why."""

_STYLE = (
    "body { margin: 0; }"
    " main > h1 { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); margin: 0; }"
    " #app > .cabw-inspector { height: 100vh; border: 0; border-radius: 0; }"
)
_START = 'openFile(render, document.getElementById("app"));'
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; worker-src blob:; style-src 'unsafe-inline'; img-src data:"
)
"""Whatever a name in the data looks like, the page can load nothing and send nothing."""


def inspector_page(
    title: str,
    captures: Sequence[CaptureData],
    events: Iterable[Event] = (),
    files: Mapping[str, str] | None = None,
) -> str:
    """A page that shows captures and opens with the first of them.

    Args:
        title: names the page.
        captures: the record of each capture, and what was computed of it.
        events: what became of each backward call of their session.
        files: where to read the code of a name that is no file's, such as a notebook cell's.
    """
    parts = {"cabw-session": pack_session([record for record, _ in captures], events)}
    for index, (record, results) in enumerate(list(captures) or [(NO_CAPTURE, NO_RESULTS)]):
        packed = {
            "data": columns.pack_graph(record, results, index, files),
            **pack_results(record, results, index),
            "code": columns.pack_code(record, index),
            "aten": columns.pack_lowered(record, results, index),
        }
        parts |= {f"cabw-{index}-{name}": part for name, part in packed.items()}
    return page(title, parts)


def page(title: str, parts: Mapping[str, bytes]) -> str:
    """A page of packed parts, each under the id by which the browser's side asks for it."""
    heading = html.escape(in_line(title, 200))
    data = "\n".join(
        f'<script id="{name}" type="application/octet-stream">{_inlined(raw)}</script>' for name, raw in parts.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">\n'
        f"<title>{heading}</title>\n<style>{_STYLE}\n{STYLE.read_text('utf-8')}</style>\n</head>\n<body>\n"
        f'<main><h1>{heading}</h1><div id="app"></div></main>\n{data}\n'
        f'<script type="module">\n{_script()}{_START}\n</script>\n</body>\n</html>\n'
    )


def _inlined(raw: bytes) -> str:
    """Bytes as text, compressed; the same bytes give the same text."""
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode() if raw else ""


def _script() -> str:
    return inspector_script().replace("</script", "<\\/script")
