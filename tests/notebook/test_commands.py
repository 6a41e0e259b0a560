import pytest

from cabw_viz.surfaces import commands, notebook
from tests.notebook.conftest import Shell

BACKWARD = "model(x).sum().backward()\n"


@pytest.fixture
def session_shell(shell) -> Shell:
    shell.ok("%%cabw --model model\nfor _ in range(3): model(x).sum().backward()")
    return shell


def test_graph(session_shell):
    view = session_shell.ok("%cabw graph").result.result
    assert view.drawing.level == "module"
    session_shell.ok("view = %cabw graph --level fx --capture 0")
    assert session_shell["view"].drawing.level == "fx"
    folded = len(session_shell["view"].drawing.boxes)
    assert len(session_shell.ok("%cabw graph --level fx --plumbing").result.result.drawing.boxes) > folded


def test_graph_of_a_part(session_shell):
    def boxes(options):
        drawing = session_shell.ok(f"%cabw graph {options}").result.result.drawing
        return {number for box in drawing.boxes for number in box.nodes}

    nodes = boxes("")
    assert len(boxes('--focus "0"')) == 4  # AddmmBackward0, TBackward0, weight and bias
    assert len(boxes("--around 1 --hops 1")) == 3
    assert boxes("--path-to 0.weight --level autograd") < nodes
    assert boxes("--expand 0 --expand 2 --depth 1") == nodes
    view = session_shell.ok("%cabw graph --color-by bytes --links vscode://file/{file}:{line}").result.result
    assert view.drawing.measure
    assert view.links == "vscode://file/{file}:{line}"


def test_graph_save(session_shell, tmp_path):
    path = tmp_path / "a name.dot"
    ran = session_shell.ok(f'%cabw graph --save "{path}"')
    assert ran.result.result is None
    assert ran.out == f"wrote {path}\n"
    assert path.read_text("utf-8").startswith("digraph")
    assert "no suffix" in session_shell.run(f"%cabw graph --save {tmp_path / 'graph.bmp'}").usage_error


def test_parity(session_shell):
    assert session_shell.ok("%cabw parity").result.result.ok
    report = session_shell.ok("%cabw parity --rtol 0.5 --atol 0.5 --capture 0 --hooks drop").result.result
    assert report.comparison.tolerances == (("torch.float32", 0.5, 0.5),)


def test_divergence(session_shell):
    report = session_shell.ok("%cabw divergence").result.result
    assert report.ok
    assert "No divergence" in repr(report)
    report = session_shell.ok("%cabw divergence --dtype float64 --capture 0 --hooks drop").result.result
    assert "in torch.float64" in report.divergence.candidate
    assert "there is no backend 'nope'" in session_shell.run("%cabw divergence --backend nope").usage_error


def test_list(session_shell):
    session_shell.ok("%%cabw --name run\n" + BACKWARD)
    session_shell.ok("%%cabw --name empty\n0")
    frame = session_shell.ok("%cabw list").result.result
    assert list(frame.session) == ["run", "empty", "(unnamed)", "(unnamed)"]
    assert list(frame.capture.fillna(-1)) == [0, -1, 0, 1]
    assert frame.autograd_nodes[0] == len(session_shell["run"][0].record.autograd_nodes)


def test_close(session_shell):
    session_shell.ok("%%cabw --name run\n" + BACKWARD)
    session_shell.ok("%cabw close")
    assert session_shell["run"].closed
    assert list(session_shell.ok("%cabw list").result.result.state) == ["closed", "open", "open"]
    assert session_shell.ok("%cabw graph").result.result.source
    assert "was closed" in session_shell.run("%cabw parity").usage_error
    session_shell.ok("%cabw close --all")
    assert set(session_shell.ok("%cabw list").result.result.state) == {"closed"}
    session_shell.ok("%%cabw --name again\n" + BACKWARD)
    session_shell.ok("%%cabw --name run\n" + BACKWARD)
    session_shell.ok("%cabw close again")
    assert session_shell["again"].closed
    assert not session_shell["run"].closed


def test_sessions_by_name(session_shell):
    session_shell.ok("import cabw_viz\nwith cabw_viz.capture(model) as mine:\n    model(x).sum().backward()")
    session_shell.ok("%%cabw --name run\n" + BACKWARD)
    assert session_shell.ok("%cabw parity --session mine").result.result.ok
    assert (
        session_shell.ok("%cabw graph --session run").result.result.drawing == session_shell["run"][0].graph().drawing
    )


def test_the_only_session_needs_no_name(shell):
    shell.ok("import cabw_viz\nwith cabw_viz.capture(model) as mine:\n    model(x).sum().backward()")
    assert shell.ok("%cabw parity").result.result.ok
    shell.ok("with cabw_viz.capture(model) as other:\n    model(x).sum().backward()")
    text = shell.run("%cabw parity").usage_error
    assert "Expected: one of mine, other." in text
    assert "--session mine" in text


def test_touches_says_what_was_found_and_shows_the_table(session_shell):
    session_shell.ok("%%cabw --name clean\n" + BACKWARD)
    shown = session_shell.ok("%cabw touches --session clean")
    assert "nodes, 0 touches" in shown.out
    assert shown.result.result.empty
    audited = session_shell.ok("%cabw touches --session clean --audit --phase execution")
    assert "execution: " in audited.out
    assert set(audited.result.result["phase"]) == {"execution"}
    assert session_shell.ok("%cabw touches --session clean --phase graph_pass").result.result.empty


def test_lower_makes_what_the_level_aten_draws(session_shell):
    session_shell.ok("%%cabw --name made\n" + BACKWARD)
    cap = session_shell["made"][0]
    lowered = session_shell.ok("%cabw lower --session made").result.result
    assert sorted(lowered.leaves) == sorted(leaf.label for leaf in cap.record.leaves)
    assert session_shell.ok("%cabw graph --level aten --session made").result.result.drawing.level == "aten"
    assert session_shell.ok("%cabw memory --session made --depth 1").result.result.equals(cap.memory(1))


def test_times_shows_the_slowest_first_and_keeps_the_seconds(session_shell):
    session_shell.ok("%%cabw --name timed\n" + BACKWARD)
    frame = session_shell.ok("%cabw times --session timed --repeats 1").result.result
    assert frame["seconds"].dropna().is_monotonic_decreasing
    assert set(frame.index) == set(session_shell["timed"][0].nodes.index)
    assert session_shell["timed"][0].results.node_seconds
    assert "Expected: a whole number from 1" in session_shell.run("%cabw times --session timed --repeats 0").usage_error


@pytest.mark.parametrize("line", ["%cabw", "%cabw help"])
def test_help_has_every_command_and_option(shell, line):
    text = shell.ok(line).out
    for name, function in commands.DOCUMENTED.items():
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
    "%cabw grph": (
        "%cabw has no command 'grph'",
        "Expected: graph, touches, times, parity, divergence, nan, missing, memory, gradients, lower, list, ",
        "lower, list, close, help.",
        "Try: %cabw graph.",
    ),
    "%cabw help nonsense": ("no command 'nonsense'", "Expected: %cabw, graph, touches, times, parity"),
    "%cabw graph --lvl fx": ("unrecognized arguments: --lvl fx", "Expected: %cabw graph [--level LEVEL]"),
    "%cabw graph --level nonsense": ("invalid choice: 'nonsense'", "module", "autograd", "fx", "aten"),
    "%cabw graph --level aten": ("no graph of aten ops yet", "%cabw lower"),
    "%cabw graph --focus nonsense": ("focus names 'nonsense'", "a module's path such as '"),
    "%cabw graph --color-by time": ("color_by='time'", "cap.times()"),
    "%cabw graph --depth deep": ("argument --depth: invalid int value: 'deep'",),
    "%%cabw --level aten\n1": ("invalid choice: 'aten'",),
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


def test_wrong_use_is_a_clear_sentence(session_shell):
    for cell, parts in WRONG.items():
        text = session_shell.run(cell).usage_error
        assert text.startswith("UsageError: "), cell
        assert [part for part in parts if part not in text] == [], (cell, text)


def test_without_any_session(shell):
    assert shell.ok("%cabw list").result.result.empty
    for command in ("graph", "parity", "close"):
        text = shell.run(f"%cabw {command}").usage_error
        assert "no session was captured by %%cabw yet" in text
        assert "%%cabw --model model" in text
