"""The magics, in an IPython shell of this process; what only a kernel shows, in a kernel."""

import atexit
import gc
import subprocess
import sys
import textwrap
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import nbformat
import pytest
import torch
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

from cabw_viz.surfaces import commands, notebook
from cabw_viz.surfaces.session import Session, capture
from tests.kernels import environment

PRELUDE = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
x = torch.randn(2, 3)
"""
BACKWARD = "model(x).sum().backward()\n"


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


def state(ip: InteractiveShell) -> tuple[object, ...]:
    manager = ip.magics_manager
    tables = {kind: dict(table) for kind, table in manager.magics.items()}
    return tables, dict(manager.registry), list(map(id, ip.configurables)), set(ip.user_ns)


# ---------------------------------------------------------------------------------------------------- coming and going


def test_unload_leaves_nothing_behind(bare):
    before = state(bare.ip)
    notebook.load_ipython_extension(bare.ip)
    assert state(bare.ip) != before
    notebook.unload_ipython_extension(bare.ip)
    assert state(bare.ip) == before


def test_loading_twice_changes_nothing(bare):
    before = state(bare.ip)
    notebook.load_ipython_extension(bare.ip)
    loaded = state(bare.ip)
    notebook.load_ipython_extension(bare.ip)
    assert state(bare.ip) == loaded
    notebook.unload_ipython_extension(bare.ip)
    assert state(bare.ip) == before
    notebook.unload_ipython_extension(bare.ip)
    assert state(bare.ip) == before


def test_reload(shell):
    shell.ok("%reload_ext cabw_viz")
    assert shell.ok("%cabw list").result.result.empty
    shell.ok("%unload_ext cabw_viz")
    assert "not found" in shell.run("%cabw list").usage_error


def test_the_users_own_magics_come_back(bare):
    mine = [lambda line: f"line {line}", lambda line, cell: f"cell {cell}"]
    bare.ip.register_magic_function(mine[0], "line", "cabw")
    bare.ip.register_magic_function(mine[1], "cell", "cabw")
    try:
        notebook.load_ipython_extension(bare.ip)
        assert bare.ok("%cabw list").result.result is not None
        notebook.unload_ipython_extension(bare.ip)
        assert bare.ok("%cabw list").result.result == "line list"
        assert bare.ok("%%cabw\n1").result.result == "cell 1\n"
    finally:
        for kind in ("line", "cell"):
            del bare.ip.magics_manager.magics[kind]["cabw"]


def test_magics_that_the_user_put_on_top_stay(shell):
    shell.ip.register_magic_function(lambda line: "mine", "line", "cabw")
    try:
        notebook.unload_ipython_extension(shell.ip)
        assert shell.ok("%cabw list").result.result == "mine"
        assert "not found" in shell.run("%%cabw\n1").usage_error
    finally:
        del shell.ip.magics_manager.magics["line"]["cabw"]


def test_unload_closes_the_session_without_a_name_only(shell):
    shell.ok("%%cabw --name run\n" + BACKWARD)
    shell.ok("%%cabw\n" + BACKWARD)
    unnamed = shell.ip.magics_manager.registry["CabwMagics"].shelf.session()
    notebook.unload_ipython_extension(shell.ip)
    assert unnamed.closed
    assert not shell["run"].closed


def test_loading_the_extension_does_not_load_torch():
    code = """
        import sys
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config
        ip = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
        ip.run_cell("%load_ext cabw_viz").raise_error()
        ip.run_cell("%cabw").raise_error()
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, stdout=subprocess.DEVNULL)


# ----------------------------------------------------------------------------------------------------------- %%cabw


def test_a_cell_runs_as_ever(shell):
    shell.ok("count = 1")
    before = len(shell["Out"])
    ran = shell.ok("%%cabw --model model\nloss = model(x).sum()\ncount += 1\nloss.backward()\n(count, loss.item())")
    assert ran.result.result == (2, shell["loss"].item())
    assert shell["_"] == ran.result.result
    assert list(shell["Out"].values())[before:] == [ran.result.result]
    assert shell["In"][-1].startswith("get_ipython().run_cell_magic('cabw', '--model model'")
    plain = {name: p.grad.clone() for name, p in shell["model"].named_parameters()}
    shell.ok("model.zero_grad()\nmodel(x).sum().backward()")
    assert all(torch.equal(p.grad, plain[name]) for name, p in shell["model"].named_parameters())


def test_a_semicolon_keeps_the_last_value_from_being_shown(shell):
    assert shell.ok("%%cabw\n5;").result.result is None
    assert shell.ok("%%cabw\n5").result.result == 5


@pytest.mark.parametrize(
    ("interactivity", "shown"), [("all", ["1", "2"]), ("none", []), ("last_expr_or_assign", ["3"])]
)
def test_the_users_display_settings_hold(shell, monkeypatch, interactivity, shown):
    monkeypatch.setattr(shell.ip, "ast_node_interactivity", interactivity)
    ran = shell.ok("%%cabw\n1\n2\na = 3")
    assert [line.split(": ")[1] for line in ran.out.splitlines() if line.startswith("Out[")] == shown


def test_the_session_is_shown(shell):
    ran = shell.ok("%%cabw --model model\n" + BACKWARD)
    (bundle,) = ran.shown
    assert bundle["text/plain"].startswith("1 backward call: 1 captured\n  0  backward at In[")
    assert "<details open>" in bundle["text/html"]
    assert "AccumulateGrad 0.weight" in bundle["text/html"]


def test_the_place_of_the_backward_is_the_line_in_the_cell(shell):
    ran = shell.ok("%%cabw\nx.sum()\n\n" + BACKWARD)
    number = ran.result.execution_count
    assert f"backward at In[{number}]:4 " in ran.shown[0]["text/plain"]


def test_magics_and_shell_commands_in_the_cell(shell):
    ran = shell.ok("%%cabw\nwhere = %pwd\n!echo hello\nmodel(x).sum().backward()")
    assert isinstance(shell["where"], str)
    assert len(ran.shown) == 1


def test_model_names_the_leaves(shell):
    shell.ok("%%cabw --model \"{'first': model[0].weight}\" --name run\n" + BACKWARD)
    names = {leaf.label for leaf in shell["run"][0].record.leaves}
    assert "first" in names
    assert len(names) == 4
    shell.ok("%%cabw --model model --name run\n" + BACKWARD)
    names = {leaf.label for leaf in shell["run"][0].record.leaves}
    assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_no_name_of_the_users_is_expanded_in_the_options(shell):
    shell.ok("w = 'nonsense'")
    shell.ok("%%cabw --model \"{'w': model[0].weight}\" --name run\n" + BACKWARD)
    assert "w" in {leaf.label for leaf in shell["run"][0].record.leaves}


def test_only(shell):
    loop = "for _ in range(4): model(x).sum().backward()"
    shell.ok(f"%%cabw --only 1 --name run\n{loop}")
    assert list(shell["run"].events.outcome) == ["bypassed", "captured", "bypassed", "bypassed"]
    shell.ok(f"%%cabw --only 1:3 --name run\n{loop}")
    assert list(shell["run"].events.outcome) == ["bypassed", "captured", "cache_hit", "bypassed"]
    shell.ok(f"%%cabw --only :2 --name run\n{loop}")
    assert list(shell["run"].events.outcome) == ["captured", "cache_hit", "bypassed", "bypassed"]


def test_run_compiled(shell):
    shell.ok("%%cabw --run compiled --name run\n" + BACKWARD)
    assert shell["run"][0].record.run == "compiled"


def test_level(shell):
    html = shell.ok("%%cabw --level fx\n" + BACKWARD).shown[0]["text/html"]
    assert ("validate_outputs" in html) == ("<svg" in html)


def test_parity_of_every_capture(shell):
    ran = shell.ok(
        "%%cabw --model model --parity\nmodel.zero_grad()\nmodel(x).sum().backward()\nmodel(x).sum().backward()"
    )
    assert len(ran.shown) == 3
    assert all("All 4 gradients agree: 4 bitwise." in bundle["text/plain"] for bundle in ran.shown[1:])


STEP = "sgd = torch.optim.SGD(model.parameters(), 0.1)\nmodel(x).sum().backward()\nsgd.step()"


def test_an_optimizer_in_the_cell_needs_a_snapshot(shell):
    ran = shell.run(f"%%cabw --model model --parity\n{STEP}")
    assert "was changed in place" in ran.usage_error
    assert "--snapshot" in shell.ok("%cabw help").out
    ran = shell.ok(f"%%cabw --model model --parity --snapshot\n{STEP}")
    assert "All 4 gradients agree" in ran.shown[1]["text/plain"]


def test_a_named_session_is_there_while_the_cell_runs(shell):
    ran = shell.ok("%%cabw --model model --name run\nmodel(x).sum().backward()\nlen(run)")
    assert ran.result.result == 1
    assert isinstance(shell["run"], Session)


def test_the_next_session_without_a_name_closes_the_last_one(shell):
    shelf = shell.ip.magics_manager.registry["CabwMagics"].shelf
    shell.ok("%%cabw --name run\n" + BACKWARD)
    shell.ok("%%cabw\n" + BACKWARD)
    first = shelf.session()
    shell.ok("%%cabw\n" + BACKWARD)
    assert first.closed
    assert not shelf.session().closed
    assert not shell["run"].closed


def test_a_named_session_lives_as_long_as_its_variable(shell):
    shell.ok("%%cabw --name run\n" + BACKWARD)
    alive = weakref.ref(shell["run"])
    shell.ok("del run")
    gc.collect()
    assert alive() is None
    assert "no session was captured" in shell.run("%cabw graph").usage_error


# ------------------------------------------------------------------------------------------------- errors in the cell


def test_an_error_is_the_cells_own(shell):
    ran = shell.run("%%cabw --model model\nmodel(x).sum().backward()\n\n1 / 0\nnever = 1")
    assert isinstance(ran.result.error_in_exec, ZeroDivisionError)
    shown = ran.out + ran.err
    assert shown.count("Traceback") == 1
    assert f"Cell In[{ran.result.execution_count}], line 4" in shown
    assert "----> 4 1 / 0" in shown
    assert "# %%cabw --model model" in shown.splitlines()[3]
    assert "cabw_viz" not in shown.replace("%%cabw", "")
    assert "run_cell_magic" not in shown
    assert "never" not in shell.ip.user_ns


def test_after_an_error_the_partial_session_is_kept_and_shown(shell):
    ran = shell.run("%%cabw --model model --parity --name run\nmodel(x).sum().backward()\n1 / 0")
    assert len(ran.shown) == 1
    assert len(shell["run"]) == 1
    assert shell["run"][0].parity().ok
    assert shell.ok("%cabw parity").result.result.ok


def test_an_error_before_any_backward_shows_no_session(shell):
    assert shell.run("%%cabw\n1 / 0").shown == []


def test_an_error_in_a_function_shows_that_function(shell):
    shell.ok("def broken():\n    raise KeyError('mine')")
    shown = shell.run("%%cabw\nbroken()")
    assert "in broken()" in shown.out + shown.err


def test_a_syntax_error_is_the_cells_own_and_captures_nothing(shell):
    ran = shell.run("%%cabw --name run\nx = 1\nx = (")
    assert isinstance(ran.result.error_before_exec, SyntaxError)
    shown = ran.out + ran.err
    assert f"Cell In[{ran.result.execution_count}], line 3" in shown
    assert "cabw_viz" not in shown
    assert "run" not in shell.ip.user_ns


def test_what_python_refuses_after_parsing(shell):
    ran = shell.run("%%cabw\nreturn 5")
    assert not ran.result.success
    assert "'return' outside function" in ran.out + ran.err


def test_an_interrupt(shell):
    ran = shell.run("%%cabw --name run\nmodel(x).sum().backward()\nraise KeyboardInterrupt")
    assert isinstance(ran.result.error_in_exec, KeyboardInterrupt)
    assert len(shell["run"]) == 1


def test_a_cell_in_a_function_of_the_users_raises_there(shell):
    """Where no cell surrounds the magic, its error is raised."""
    with pytest.raises(ZeroDivisionError):
        shell.ip.run_cell_magic("cabw", "", "1 / 0")


def test_a_cell_inside_an_open_block(shell):
    with capture(shell["model"]):
        ran = shell.run("%%cabw\nx = 0")
    assert "inside another one" in ran.usage_error
    assert torch.is_tensor(shell["x"])


def test_top_level_await(shell):
    ran = shell.ok("%%cabw\nimport asyncio\nawait asyncio.sleep(0)\nmodel(x).sum().backward()\n7")
    assert ran.result.result == 7
    assert "1 captured" in ran.shown[0]["text/plain"]


# ---------------------------------------------------------------------------------------------------------- %cabw


@pytest.fixture
def captured(shell) -> Shell:
    shell.ok("%%cabw --model model\nfor _ in range(3): model(x).sum().backward()")
    return shell


def test_graph(captured):
    view = captured.ok("%cabw graph").result.result
    assert view.drawing.level == "autograd"
    captured.ok("view = %cabw graph --level fx --capture 0")
    assert captured["view"].drawing.level == "fx"
    folded = len(captured["view"].drawing.boxes)
    assert len(captured.ok("%cabw graph --level fx --plumbing").result.result.drawing.boxes) > folded


def test_graph_save(captured, tmp_path):
    path = tmp_path / "a name.dot"
    ran = captured.ok(f'%cabw graph --save "{path}"')
    assert ran.result.result is None
    assert ran.out == f"wrote {path}\n"
    assert path.read_text("utf-8").startswith("digraph")
    assert "no suffix" in captured.run(f"%cabw graph --save {tmp_path / 'graph.bmp'}").usage_error


def test_parity(captured):
    assert captured.ok("%cabw parity").result.result.ok
    report = captured.ok("%cabw parity --rtol 0.5 --atol 0.5 --capture 0 --hooks drop").result.result
    assert report.comparison.tolerances == (("torch.float32", 0.5, 0.5),)


def test_list(captured):
    captured.ok("%%cabw --name run\n" + BACKWARD)
    captured.ok("%%cabw --name empty\n0")
    frame = captured.ok("%cabw list").result.result
    assert list(frame.session) == ["run", "empty", "(unnamed)", "(unnamed)"]
    assert list(frame.capture.fillna(-1)) == [0, -1, 0, 1]
    assert frame.autograd_nodes[0] == len(captured["run"][0].record.autograd_nodes)


def test_close(captured):
    captured.ok("%%cabw --name run\n" + BACKWARD)
    captured.ok("%cabw close")
    assert captured["run"].closed
    assert list(captured.ok("%cabw list").result.result.state) == ["closed", "open", "open"]
    assert captured.ok("%cabw graph").result.result.source
    assert "was closed" in captured.run("%cabw parity").usage_error
    captured.ok("%cabw close --all")
    assert set(captured.ok("%cabw list").result.result.state) == {"closed"}
    captured.ok("%%cabw --name again\n" + BACKWARD)
    captured.ok("%%cabw --name run\n" + BACKWARD)
    captured.ok("%cabw close again")
    assert captured["again"].closed
    assert not captured["run"].closed


def test_sessions_by_name(captured):
    captured.ok("import cabw_viz\nwith cabw_viz.capture(model) as mine:\n    model(x).sum().backward()")
    captured.ok("%%cabw --name run\n" + BACKWARD)
    assert captured.ok("%cabw parity --session mine").result.result.ok
    assert captured.ok("%cabw graph --session run").result.result.drawing == captured["run"][0].graph().drawing


def test_the_only_session_needs_no_name(shell):
    shell.ok("import cabw_viz\nwith cabw_viz.capture(model) as mine:\n    model(x).sum().backward()")
    assert shell.ok("%cabw parity").result.result.ok
    shell.ok("with cabw_viz.capture(model) as other:\n    model(x).sum().backward()")
    text = shell.run("%cabw parity").usage_error
    assert "Expected: one of mine, other." in text
    assert "--session mine" in text


@pytest.mark.parametrize("line", ["%cabw", "%cabw help"])
def test_help_has_every_command_and_option(shell, line):
    text = shell.ok(line).out
    for name, function in commands.HELPED.items():
        assert name in text
        for action in function.parser._actions:
            assert (action.option_strings or [action.metavar])[0] in text
    assert "::" not in text


def test_help_of_one_command(shell):
    assert shell.ok("%cabw help graph").out.startswith("%cabw graph [--level LEVEL]")
    assert shell.ok("%cabw help %cabw").out.startswith("%%cabw [--model EXPR]")
    assert "%cabw graph" in notebook.CabwMagics.command.__doc__
    assert "--snapshot" in notebook.CabwMagics.capture_cell.__doc__


WRONG = {
    "%cabw grph": ("%cabw has no command 'grph'", "Expected: graph, parity, list, close, help.", "Try: %cabw graph."),
    "%cabw help nonsense": ("no command 'nonsense'", "Expected: %cabw, graph, parity"),
    "%cabw graph --lvl fx": ("unrecognized arguments: --lvl fx", "Expected: %cabw graph [--level LEVEL]"),
    "%cabw graph --level aten": ("invalid choice: 'aten'", "autograd", "fx"),
    "%cabw graph --capture 7": ("there is no capture 7", "an index below"),
    "%cabw graph --capture one": ("argument --capture: invalid int value: 'one'",),
    "%cabw graph --session nonsense": ("there is no session 'nonsense'", "%%cabw --model model"),
    "%cabw parity --session x": ("there is no session 'x'",),
    "%cabw parity --rtol 0.5": ("atol=None",),
    "%cabw parity --hooks maybe": ("invalid choice: 'maybe'", "refuse"),
    "%cabw list everything": ("unrecognized arguments: everything",),
    "%cabw close nonsense": ("there is no session 'nonsense'",),
    "%%cabw --nonsense\n1": ("unrecognized arguments: --nonsense", "[--model EXPR]"),
    "%%cabw --model nonsense\n1": (
        "--model nonsense could not be evaluated: NameError: name 'nonsense' is not defined",
    ),
    "%%cabw --model x\n1": ("capture() got a Tensor as its subject", "nn.Module"),
    "%%cabw --model 'x\n1": ("No closing quotation",),
    "%%cabw --run fast\n1": ("invalid choice: 'fast'", "compiled"),
    "%%cabw --only a\n1": ("'a' is neither a number nor a range such as 10:12",),
    "%%cabw --only 1:2:3:4\n1": ("'1:2:3:4' is neither",),
    "%%cabw --only -1\n1": ("only",),
    "%%cabw --name 1a\n1": ("'1a' cannot be the name of a variable",),
    "%%cabw --name class\n1": ("'class' cannot be the name of a variable",),
    "%%cabw --parity\n1": ("no backward ran in the block",),
}


@pytest.mark.parametrize("cell", WRONG)
def test_wrong_use_is_a_clear_sentence(captured, cell):
    text = captured.run(cell).usage_error
    assert text.startswith("UsageError: ")
    for part in WRONG[cell]:
        assert part in text


def test_without_any_session(shell):
    assert shell.ok("%cabw list").result.result.empty
    for command in ("graph", "parity", "close"):
        text = shell.run(f"%cabw {command}").usage_error
        assert "no session was captured by %%cabw yet" in text
        assert "%%cabw --model model" in text


# ------------------------------------------------------------------------------------------------------- in a kernel


def test_in_a_kernel(tmp_path, monkeypatch):
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    sources = {
        "prelude": f"%load_ext cabw_viz{PRELUDE}",
        "magic": "%%cabw\nmodel(x).sum().backward()\n5",
        "block": "import cabw_viz\nwith cabw_viz.capture(model) as session:\n    model(x).sum().backward()\nsession",
        "await": "%%cabw\nimport asyncio\nawait asyncio.sleep(0)",
        "error": "%%cabw --model model\nmodel(x).sum().backward()\n1 / 0",
        "never": "never = 1",
    }
    cells = {name: nbformat.v4.new_code_cell(source) for name, source in sources.items()}
    cells["await"].metadata["tags"] = ["raises-exception"]
    client = NotebookClient(nbformat.v4.new_notebook(cells=list(cells.values())), timeout=120, kernel_name="python3")
    with pytest.raises(CellExecutionError):  # an error stops the notebook
        client.execute()
    ran = dict(zip(cells, client.nb.cells, strict=True))

    assert ran["magic"].outputs[0].data["text/plain"] == "5"
    for name, line in {"magic": 2, "block": 3}.items():
        text = ran[name].outputs[-1].data["text/plain"]
        assert f"backward at In[{ran[name].execution_count}]:{line} " in text

    assert "Try: an ordinary cell with `with cabw_viz.capture(model) as session:`" in ran["await"].outputs[0].text

    error, session = ran["error"].outputs
    assert error.ename == "ZeroDivisionError"
    assert len([line for line in error.traceback if "Cell" in line]) == 1
    assert session.output_type == "display_data"
    assert ran["never"].execution_count is None
