"""The package keeps to its architecture, and the tests that say so would notice if it did not."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests import architecture

ROOT = Path(__file__).parent.parent


def test_the_package_keeps_to_the_flow():
    assert architecture.check(ROOT) == []


def test_every_part_of_the_flow_exists():
    """A part that was renamed would otherwise leave rules behind that hold for nothing."""
    package = ROOT / architecture.PACKAGE
    assert set(architecture.MAY_IMPORT) <= {path.stem for path in package.iterdir()}
    assert set(architecture.MAY_IMPORT) == set(architecture.MUST_NOT_LOAD)


# ------------------------------------------------------------------------------------------- planted faults are found


@pytest.fixture
def breaches_of(tmp_path: Path) -> Callable[[Mapping[str, str]], list[str]]:
    """Writes a small package in which every part exists, the given files on top, and returns its breaches."""

    def write(files: Mapping[str, str]) -> list[str]:
        parts = ("record", "tracing", "replay", "analysis", "views", "surfaces")
        empty = [f"{part}/__init__" for part in parts]
        empty += ["__init__", "errors", "torch_adapter/__init__", "record/model", "views/text", "surfaces/session"]
        for name, text in (dict.fromkeys(empty, "") | dict(files)).items():
            path = tmp_path / architecture.PACKAGE / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return architecture.check(tmp_path)

    return write


def test_a_clean_package_has_no_breach(breaches_of):
    files = {
        "__init__": "def late():\n    from cabw_viz.surfaces.session import capture",
        "torch_adapter/__init__": "from cabw_viz.torch_adapter.engine import entry",
        "torch_adapter/engine": "from torch import _dynamo, autograd\nentry = autograd._engine_run_backward",
        "record/a": "from cabw_viz.errors import CabwError\nfrom cabw_viz.record import model",
        "tracing/a": "import torch\nfrom cabw_viz import torch_adapter\nprint(torch.__version__, torch.fx.Graph)",
        "views/a": "import pandas\nfrom cabw_viz.record.model import Edge\nfrom cabw_viz.views.text import outline",
        "surfaces/a": "import IPython, torch\nfrom cabw_viz.tracing import a\nx = torch.ones(2)\nself._private = x._y",
    }
    assert breaches_of(files) == []


AGAINST_THE_FLOW = [
    # every way to write an import
    ("record/a", "from cabw_viz.views.text import outline", "record must not import views"),
    ("record/a", "import cabw_viz.views.text", "record must not import views"),
    ("record/a", "import cabw_viz.views.text as text", "record must not import views"),
    ("record/a", "from cabw_viz import views", "record must not import views"),
    ("record/a", "from ..views.text import outline", "record must not import views"),
    ("record/a", "from .. import views", "record must not import views"),
    ("record/__init__", "from ..views import text", "record must not import views"),
    ("record/a", "def late():\n    from cabw_viz.views.text import outline", "record must not import views"),
    ("record/a", "if TYPE_CHECKING:\n    from cabw_viz.views import text", "a.py:2 (cabw_viz.record.a)"),
    ("record/a", "importlib.import_module('cabw_viz.views')", "record must not import views"),
    # the other arrows
    ("views/a", "from cabw_viz.surfaces.session import Session", "views must not import surfaces"),
    ("views/a", "from cabw_viz import torch_adapter", "views must not import torch_adapter"),
    ("analysis/a", "from cabw_viz.tracing import entry", "analysis must not import tracing"),
    ("analysis/a", "from cabw_viz.views import text", "analysis must not import views"),
    ("tracing/a", "from cabw_viz.replay import run", "tracing must not import replay"),
    ("replay/a", "from cabw_viz.tracing import entry", "replay must not import tracing"),
    ("torch_adapter/engine", "from cabw_viz.tracing import entry", "torch_adapter must not import tracing"),
    ("errors", "from cabw_viz.record import model", "errors must not import record"),
    ("surfaces/a", "import cabw_viz", "surfaces must not import __init__"),
    ("surfaces/a", "from cabw_viz import capture", "surfaces must not import __init__"),
    # packages that a part must not load
    ("record/a", "import torch", "record must not import torch"),
    ("record/a", "def late():\n    from torch.fx import Graph", "record must not import torch"),
    ("record/a", "import pandas as pd", "record must not import pandas"),
    ("analysis/a", "import torch.fx", "analysis must not import torch"),
    ("analysis/a", "from pandas import DataFrame", "analysis must not import pandas"),
    ("views/a", "import torch", "views must not import torch"),
    ("tracing/a", "import pandas", "tracing must not import pandas"),
    ("__init__", "import torch", "__init__ must not import torch"),
    # a file without a place
    ("helpers", "", "`helpers` has no place in the flow"),
]


@pytest.mark.parametrize(("file", "text", "message"), AGAINST_THE_FLOW)
def test_an_arrow_against_the_flow_is_found(breaches_of, file, text, message):
    (breach,) = breaches_of({file: text})
    assert message in breach


PRIVATE = [
    ("import torch._dynamo", "torch._dynamo"),
    ("import torch._dynamo.compiled_autograd as ca", "torch._dynamo.compiled_autograd"),
    ("from torch._dynamo import compiled_autograd", "torch._dynamo.compiled_autograd"),
    ("from torch import _dynamo", "torch._dynamo"),
    ("from torch.autograd.graph import _engine_run_backward", "torch.autograd.graph._engine_run_backward"),
    ("def late():\n    import torch._guards", "torch._guards"),
    ("importlib.import_module('torch._dynamo')", "torch._dynamo"),
    ("import torch\ntorch._C", "torch._C"),
    ("import torch\ntorch.autograd._engine_run_backward = None", "torch.autograd._engine_run_backward"),
    ("import torch.autograd\ntorch.autograd._x()", "torch.autograd._x"),
    ("import torch as t\nt.autograd._x", "torch.autograd._x"),
    ("import torch.autograd as ag\nag._x", "torch.autograd._x"),
    ("from torch import autograd\nautograd._x", "torch.autograd._x"),
    ("from torch import autograd as ag\nag.graph._x", "torch.autograd.graph._x"),
    ("from torch import Tensor\nTensor._make_subclass", "torch.Tensor._make_subclass"),
    ("import torch\nag = torch.autograd\nag._x", "torch.autograd._x"),
    ("import torch\ngetattr(torch.autograd, '_x')", "torch.autograd._x"),
    ("import torch\nsetattr(torch.autograd, '_x', None)", "torch.autograd._x"),
]


@pytest.mark.parametrize(("text", "message"), PRIVATE)
def test_a_private_name_of_torch_outside_the_adapter_is_found(breaches_of, text, message):
    (breach,) = breaches_of({"tracing/a": text})
    assert breach.endswith(f"private name of torch outside torch_adapter: {message}")


def test_a_star_import_from_torch_is_found(breaches_of):
    (breach,) = breaches_of({"tracing/a": "from torch.fx import *"})
    assert "hides which names of torch are used" in breach


CYCLES = [
    ({"record/a": "from cabw_viz.record import b", "record/b": "from cabw_viz.record import a"}, "record.a"),
    (
        {
            "record/a": "from cabw_viz.record.b import x",
            "record/b": "def late():\n    from cabw_viz.record.c import y",
            "record/c": "if TYPE_CHECKING:\n    import cabw_viz.record.a",
        },
        "cabw_viz.record.a -> cabw_viz.record.b -> cabw_viz.record.c -> cabw_viz.record.a",
    ),
    ({"record/__init__": "from cabw_viz.record.a import x", "record/a": "from cabw_viz.record import y"}, "record.a"),
]


@pytest.mark.parametrize(("files", "message"), CYCLES)
def test_a_cycle_is_found(breaches_of, files, message):
    (breach,) = breaches_of(files)
    assert breach.startswith("cycle of imports: ")
    assert message in breach


FOLDER_CYCLES = [
    (
        {
            "replay/parity/a": "from cabw_viz.replay.steps.b import x",
            "replay/parity/d": "",
            "replay/steps/b": "",
            "replay/steps/c": "from cabw_viz.replay.parity import d",
        },
        "cabw_viz.replay.parity -> cabw_viz.replay.steps -> cabw_viz.replay.parity",
    ),
    (
        {
            "replay/runner": "from cabw_viz.replay.parity.a import x",
            "replay/parity/a": "",
            "replay/parity/b": "from cabw_viz.replay.runner import y",
        },
        "cabw_viz.replay.parity -> cabw_viz.replay.runner -> cabw_viz.replay.parity",
    ),
]


@pytest.mark.parametrize(("files", "message"), FOLDER_CYCLES)
def test_a_cycle_between_folders_is_found_though_no_module_imports_itself(breaches_of, files, message):
    assert breaches_of(files) == [f"cycle of folders: {message}"]


def test_a_folder_may_import_the_files_beside_it(breaches_of):
    files = {"replay/parity/a": "from cabw_viz.replay import runner", "replay/runner": "from cabw_viz.replay import b"}
    assert breaches_of(files | {"replay/b": ""}) == []


# ----------------------------------------------------------------------------------------------- what importing does


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_importing_the_package_does_not_load_torch():
    done = _python("import cabw_viz, sys; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_the_record_and_the_views_of_it_work_where_torch_is_not_installed():
    parts = {"errors", "record", "analysis", "views"}
    names = [module.name for module in architecture.parse(ROOT) if module.part in parts]
    done = _python(f"import sys; sys.modules['torch'] = None; import {', '.join(names)}")
    assert done.returncode == 0, done.stderr
