import gc
import weakref

import pytest
import torch

from cabw_viz.surfaces.session import Session, capture

BACKWARD = "model(x).sum().backward()\n"


def test_a_cell_runs_as_ever(shell):
    shell.ok("count = 1")
    before = len(shell["Out"])
    ran = shell.ok("%%cabw --model model\nloss = model(x).sum()\ncount += 1\nloss.backward()\n(count, loss.item())")
    assert ran.result.result == (2, shell["loss"].item())
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


def test_no_trace(shell):
    shell.ok("%%cabw --no-trace --name run\n" + BACKWARD)
    assert list(shell["run"].events.outcome) == ["watched"]
    assert "without a trace" in shell.run("%cabw touches").usage_error


@pytest.mark.parametrize("option", ["--parity", "--dtype float64", "--level fx"])
def test_no_trace_beside_what_needs_a_graph(shell, option):
    assert "--no-trace makes no graph" in shell.run(f"%%cabw --no-trace {option}\n{BACKWARD}").usage_error


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
    sessions = shell.ip.magics_manager.registry["CabwMagics"].sessions
    shell.ok("%%cabw --name run\n" + BACKWARD)
    shell.ok("%%cabw\n" + BACKWARD)
    first = sessions.session()
    shell.ok("%%cabw\n" + BACKWARD)
    assert first.closed
    assert not sessions.session().closed
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
