"""Where a study stands, while it runs: a live line on a terminal, one plain line an event in a log."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from runner.records.words import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status


class Progress:
    """Takes events, shows them on stderr. Not a terminal, or `quiet`: one line an event, no colours, no stage lines.

    Several nodes may work at once: stages and phases carry the launch they belong to.
    `total` may change while the study runs; `seconds_per_launch` is the plan's guess until launches have been timed."""

    def __init__(
        self,
        quiet: bool = False,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
        seconds_per_launch: float | None = None,
    ) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True, highlight=False)
        self.live = not quiet and self.console.is_terminal
        self._clock = clock
        self._guess = seconds_per_launch
        self._status: Status | None = None
        self._total = 0
        self._done = 0
        self._durations: list[float] = []
        self._running: dict[str, _Running] = {}
        self._simulated = False

    def study(self, name: str, launches: int, simulated: bool = False, done: int = 0, text: str = "") -> None:
        """A study starts or goes on: `done` of about `launches` launches are there already."""
        self._total, self._done, self._simulated = launches, done, simulated
        if simulated:
            self._line("SIMULATED: no GPU is measured", "bold magenta")
        kept = f", {done} of them kept from before" if done else ""
        self._line(f"study {name}: about {launches} launches{kept}{'; ' + text if text else ''}")

    def total(self, launches: int) -> None:
        """What is foreseen now (arms close early, blocks are added)."""
        self._total = launches
        self._refresh()

    def launch(self, launch: str, arm: str, purpose: str = "measure", node: str = "") -> None:
        """A launch starts."""
        self._running[launch] = _Running(arm, self._clock(), len(self._running) + self._done + 1, node)
        running = self._running[launch]
        kind = "" if purpose == "measure" else f" ({purpose})"
        where = f" on {node}" if node else ""
        self._event(f"launch {running.number} of {max(self._total, running.number)}{kind}: {arm}{where}{self._left()}")

    def stage(self, launch: str, stage: str) -> None:
        """The launch reached a stage (weights, graphs, ready, fingerprint ...). Not shown in a log."""
        running = self._running.get(launch)
        if running is not None:
            running.stage, running.phase = stage, ""
        self._refresh()

    def phase(self, launch: str, phase: str, text: str = "") -> None:
        """A phase begins or ended; `text` says what came out."""
        running = self._running.get(launch)
        if running is not None:
            running.phase = phase
        if text:
            self._event(f"  {running.arm if running else launch}: {phase}: {text}")
        self._refresh()

    def finished(self, launch: str, outcome: str, text: str = "") -> None:
        """A launch ended with an outcome of the schema (ok, failed ...)."""
        running = self._running.pop(launch, None)
        self._done += 1
        seconds = self._clock() - running.started if running else 0.0
        if running and outcome == "ok":
            self._durations.append(seconds)
        style = "" if outcome == "ok" else "red"
        about = f": {text}" if text else ""
        self._event(f"  {running.arm if running else launch}: {outcome} after {duration(seconds)}{about}", style)
        self._refresh()

    def note(self, text: str) -> None:
        """Something worth a line: a block was judged, an arm was closed, a node left."""
        self._line(text)

    def close(self) -> None:
        """Ends the live line. Idempotent."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def seconds_left(self) -> float | None:
        """From the launches timed so far (their median), else the plan's guess; None when nothing is known.
        Launches of several nodes run side by side."""
        typical = sorted(self._durations)[len(self._durations) // 2] if self._durations else self._guess
        if typical is None:
            return None
        waiting = max(0, self._total - self._done - len(self._running))
        side_by_side = max(1, len(self._running))
        spent = max((self._clock() - running.started for running in self._running.values()), default=0.0)
        rest = max(0.0, typical - spent) if self._running else 0.0
        return rest + waiting * typical / side_by_side

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f", about {duration(left)} left"

    def _line(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False, soft_wrap=not self.live)

    def _event(self, text: str, style: str = "") -> None:
        self._line(text, style)
        self._refresh()

    def _refresh(self) -> None:
        if not self.live:
            return
        from rich.status import Status
        from rich.text import Text

        shown = Text(self._state(), no_wrap=True, overflow="ellipsis")
        if self._status is None:
            self._status = Status(shown, console=self.console)
            self._status.start()
        else:
            self._status.update(shown)

    def _state(self) -> str:
        parts = [
            f"{'SIMULATED ' if self._simulated else ''}launch {running.number}/{max(self._total, running.number)} {running.arm}"
            f" | {running.stage}{' ' + running.phase if running.phase else ''}"
            for running in list(self._running.values())[:4]
        ]
        more = len(self._running) - len(parts)
        text = " || ".join(parts) + (f" and {more} more" if more > 0 else "")
        return (text or f"{self._done} of {self._total} launches") + self._left()


class _Running:
    """A launch in flight, as shown."""

    def __init__(self, arm: str, started: float, number: int, node: str) -> None:
        self.arm, self.started, self.number, self.node = arm, started, number, node
        self.stage, self.phase = "start", ""
