"""What the README says works, does."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def test_the_examples_give_what_is_printed_below_them():
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 5
    assert result.failed == 0


@pytest.mark.parametrize("target", re.findall(r"(?<=\]\()(?!https?:)[^)#]+", README.read_text("utf-8")))
def test_a_linked_file_exists(target):
    assert (ROOT / target).is_file()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z]+)", README.read_text("utf-8")))))
def test_a_make_target_that_is_mentioned_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
