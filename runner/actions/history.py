"""`nodes/<node>/nightly.json`: the nights of one node. Simulated nights live in a folder of their own and never mix with real ones."""

from pathlib import Path

from pydantic import Field, ValidationError

from runner.errors import UserError
from runner.records.files import read_json, write_json
from runner.records.night import Night, Observed
from runner.records.paths import RootPaths, safe_name
from runner.spec.base import Strict

EXPERIMENT = "experiment"
"""Identity key of the experiment: nights of two experiments are never compared."""


class History(Strict):
    """All nights of a node in the order in which they were held (not by their dates: a clock may have been set back), and how it felt in each (study -> Observed)."""

    schema_version: int = Field(default=1, alias="schema")
    node: str
    simulated: bool
    nights: tuple[Night, ...] = ()
    observed: dict[str, Observed] = Field(default_factory=dict)

    def night(self, study: str) -> Night | None:
        return next((night for night in self.nights if night.study == study), None)

    def before(self, night: Night) -> list[Night]:
        """Nights of the same experiment before this one; all of them when this one is new."""
        mine = night.identity.get(EXPERIMENT)
        place = next((index for index, other in enumerate(self.nights) if other.study == night.study), len(self.nights))
        return [other for other in self.nights[:place] if other.identity.get(EXPERIMENT) == mine]

    def with_night(self, night: Night, observed: Observed) -> "History":
        """A study counts once: judged again, it takes the place of its former self and stays accepted if it was."""
        former = self.night(night.study)
        if former is not None and former.accepted:
            night = night.model_copy(update={"accepted": True})
        known = former is not None
        nights = tuple(night if other.study == night.study else other for other in self.nights) + (() if known else (night,))
        return self.model_copy(update={"nights": nights, "observed": {**self.observed, night.study: observed}})

    def accepted(self, study: str) -> "History":
        """The history whose baseline begins with this night."""
        nights = tuple(night.model_copy(update={"accepted": True}) if night.study == study else night for night in self.nights)
        return self.model_copy(update={"nights": nights})


def history_path(root: RootPaths, node: str, simulated: bool) -> Path:
    return root.nodes / safe_name(("SIMULATED-" if simulated else "") + node) / "nightly.json"


def load_history(root: RootPaths, node: str, simulated: bool) -> History:
    """The node's history, empty when there is none. Raises UserError when the file is damaged."""
    path = history_path(root, node, simulated)
    if not path.is_file():
        return History(node=node, simulated=simulated)
    try:
        history = History.model_validate(read_json(path))
    except (ValidationError, ValueError) as error:
        raise UserError(
            f"{path} is no history of nights ({str(error).splitlines()[0]}); restore it, or move it away to begin anew"
        ) from None
    if history.simulated != simulated:
        raise UserError(f"{path} holds {'SIMULATED' if history.simulated else 'real'} nights and lies in the wrong folder")
    return history


def save_history(root: RootPaths, history: History) -> None:
    write_json(history_path(root, history.node, history.simulated), history.model_dump(mode="json", by_alias=True))
