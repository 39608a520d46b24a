"""The base of everything that crosses a border of the program: frozen, validated, no unknown keys."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen pydantic model that refuses unknown keys (dataclass configs would let a misspelt key through)."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
