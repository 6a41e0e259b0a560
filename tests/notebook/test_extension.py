import subprocess
import sys
import textwrap

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from cabw_viz.surfaces import notebook
from tests.kernels import environment
from tests.notebook.conftest import PRELUDE

BACKWARD = "model(x).sum().backward()\n"


def state(ip: InteractiveShell) -> tuple[object, ...]:
    manager = ip.magics_manager
    tables = {kind: dict(table) for kind, table in manager.magics.items()}
    return tables, dict(manager.registry), list(map(id, ip.configurables)), set(ip.user_ns)


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
    unnamed = shell.ip.magics_manager.registry["CabwMagics"].sessions.session()
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
