"""The model that is served. `path` null means: ask the user before a real engine is launched."""

from typing import Any

from pydantic import Field

from runner.spec.base import Strict


class ModelSpec(Strict):
    """Shape of the model (for the communication budget and the simulated engine) and how to serve it.

    `commands` maps a version range of the engine (PEP 440 specifier set) to options that a working baseline needs there.
    """

    name: str
    path: str | None = None
    architecture: str = ""
    hidden_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    dtype_bytes: int = Field(default=2, gt=0, description="bytes of one activation element on the wire")
    all_reduces_per_layer: int = Field(default=2, ge=0)
    active_parameters_b: float = Field(default=1.0, gt=0, description="parameters read a token, 1e9")
    weight_gb: float = Field(default=1.0, ge=0)
    weight_bits: float = Field(default=16, gt=0)
    experts: int = Field(default=0, ge=0)
    shared_experts: int = Field(default=0, ge=0)
    vocab_size: int = Field(default=4096, gt=1)
    special_token_ids: tuple[int, ...] = (0, 1, 2)
    max_context: int = Field(default=32768, gt=0)
    draft_tokens: int = Field(default=1, ge=1, description="rows a request brings into a decode step (speculative decoding)")
    synthetic: str | None = Field(default=None, description="a tiny model of engines/tiny_models_script.py, made on demand")
    load_format: str | None = None
    options: dict[str, Any] = Field(default_factory=dict, description="engine options every arm gets")
    env: dict[str, str] = Field(default_factory=dict)
    commands: dict[str, "VersionedOptions"] = Field(default_factory=dict)


class VersionedOptions(Strict):
    """Options and variables for the engine versions that the key names."""

    options: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    note: str = ""


ModelSpec.model_rebuild()
