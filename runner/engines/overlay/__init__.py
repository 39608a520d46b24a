"""Source patches as treatments: an overlay goes first on the arm's path, the installed engine is never written to."""

from runner.engines.overlay.build import Overlay, PatchedFile, build_overlay, load_overlay, patched_texts
from runner.engines.overlay.patches import Hunk, PatchFailed, PatchPart, PatchSet, load_patch_set, patch_folders, patches_for
from runner.engines.overlay.verify import OverlayProof, verify_overlay

__all__ = [
    "Hunk",
    "Overlay",
    "OverlayProof",
    "PatchFailed",
    "PatchPart",
    "PatchSet",
    "PatchedFile",
    "build_overlay",
    "load_overlay",
    "load_patch_set",
    "patch_folders",
    "patched_texts",
    "patches_for",
    "verify_overlay",
]
