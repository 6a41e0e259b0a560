"""The errors and warnings of the package."""

import warnings


class CabwError(Exception):
    """An error whose message says what was seen, what was expected and what to try.

    Args:
        seen: what was found, one sentence without the final stop.
        expected: what would have been right.
        try_: what the reader can do about it.
    """

    def __init__(self, seen: str, *, expected: str = "", try_: str = "") -> None:
        self.seen, self.expected, self.try_ = seen, expected, try_
        parts = [_with_stop(seen)]
        if expected:
            parts.append(_with_stop(f"Expected: {expected}"))
        if try_:
            parts.append(_with_stop(f"Try: {try_}"))
        super().__init__("\n".join(parts))


def _with_stop(sentence: str) -> str:
    """The sentence with a final stop; what is quoted at its end may have brought one."""
    return sentence if sentence.endswith((".", "!", "?", "…")) else f"{sentence}."


class CabwWarning(UserWarning):
    """Something of ours failed inside a user's backward; the backward itself was left unharmed."""


def warn(text: str) -> None:
    """Warn the user of a failure of ours that left their backward unharmed."""
    warnings.warn(text, CabwWarning, stacklevel=2)
