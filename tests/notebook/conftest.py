"""An IPython shell in this process."""

import atexit
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

from cabw_viz.surfaces import notebook

PRELUDE = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
x = torch.randn(2, 3)
"""


@dataclass
class Ran:
    """What came of one cell."""

    result: ExecutionResult
    out: str
    err: str
    shown: list[dict[str, object]] = field(default_factory=list)
    """What was displayed, by mime type, the value of the cell itself aside."""

    @property
    def usage_error(self) -> str:
        assert not self.result.success
        assert "Traceback" not in self.out + self.err
        return self.err


class Shell:
    """An IPython shell that keeps what it shows."""

    def __init__(
        self, ip: InteractiveShell, capsys: pytest.CaptureFixture[str], shown: list[dict[str, object]]
    ) -> None:
        self.ip, self._capsys, self._shown = ip, capsys, shown

    def run(self, cell: str, *, history: bool = True) -> Ran:
        self._capsys.readouterr()
        self._shown.clear()
        result = self.ip.run_cell(textwrap.dedent(cell), store_history=history)
        out, err = self._capsys.readouterr()
        return Ran(result, out, err, list(self._shown))

    def ok(self, cell: str) -> Ran:
        ran = self.run(cell)
        assert ran.result.success, ran.out + ran.err
        return ran

    def __getitem__(self, name: str):
        return self.ip.user_ns[name]


@pytest.fixture(scope="module")
def ip(tmp_path_factory) -> Iterator[InteractiveShell]:
    saved = sys.modules["__main__"], sys.displayhook, sys.excepthook
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    module = types.ModuleType("__main__")
    ip = InteractiveShell.instance(
        config=config, user_module=module, user_ns={}, ipython_dir=str(tmp_path_factory.mktemp("ipython"))
    )
    yield ip
    ip.atexit_operations()
    atexit.unregister(ip.atexit_operations)
    InteractiveShell.clear_instance()
    sys.modules["__main__"], sys.displayhook, sys.excepthook = saved


@pytest.fixture
def bare(ip, capsys, monkeypatch) -> Iterator[Shell]:
    """Without the extension."""
    shown: list[dict[str, object]] = []
    monkeypatch.setattr(ip.display_pub, "publish", lambda data, *_, **__: shown.append(data))
    shell = Shell(ip, capsys, shown)
    shell.ok(PRELUDE)
    yield shell
    notebook.unload_ipython_extension(ip)
    ip.extension_manager.loaded.discard("cabw_viz")
    ip.reset(new_session=True)


@pytest.fixture
def shell(bare) -> Shell:
    bare.ok("%load_ext cabw_viz")
    return bare
