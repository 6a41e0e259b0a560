"""What the README says works, does."""

import doctest
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXAMPLES = [README, *sorted(path for path in (ROOT / "docs").glob("*.md") if ">>> " in path.read_text("utf-8"))]


class AsInATerminal(doctest.OutputChecker):
    """Lines of code are of `<stdin>`, as they are for who types the examples."""

    def check_output(self, want, got, optionflags):
        return super().check_output(want, re.sub(r"<doctest \w+\.md\[\d+\]>", "<stdin>", got), optionflags)


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_give_what_is_printed_below_them(page):
    torch._dynamo.reset()  # with lines="auto", nothing may have been compiled
    examples = doctest.DocTestParser().get_doctest(page.read_text("utf-8"), {}, page.name, str(page), 0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.DocTestRunner(AsInATerminal(), optionflags=flags).run(examples)
    assert result.attempted > 5
    assert result.failed == 0


@pytest.mark.parametrize("target", re.findall(r"(?<=\]\()(?!https?:)[^)#]+", README.read_text("utf-8")))
def test_a_linked_file_exists(target):
    assert (ROOT / target).is_file()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z]+)", README.read_text("utf-8")))))
def test_a_make_target_that_is_mentioned_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
