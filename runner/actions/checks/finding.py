"""One line of the doctor."""

from typing import Literal

from runner.spec.base import Strict

State = Literal["ok", "warn", "fail"]


class Finding(Strict):
    """`remedy` says what to do about a warn or a fail."""

    check: str
    state: State
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, state="ok", text=text)


def warn(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, state="warn", text=text, remedy=remedy)


def fail(check: str, text: str, remedy: str) -> Finding:
    return Finding(check=check, state="fail", text=text, remedy=remedy)
