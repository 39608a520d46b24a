"""Source patches as treatments: the overlay an arm needs, built and proved once on the node, before its first launch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.config import config_folder
from runner.engines.audit.packages import Package
from runner.engines.base import LaunchFailed, LaunchOrder
from runner.engines.overlay.build import Overlay, build_overlay
from runner.engines.overlay.patches import PatchFailed, load_patch_set, patch_folders
from runner.engines.overlay.verify import verify_overlay
from runner.records.schema import Failure


@dataclass
class Overlays:
    """Overlays by set of patches, kept below `folder`. The installed engine is never written to.

    `packages`: for an engine whose files are not on this machine (an image): gives copies of the packages that are named.
    """

    folder: Path
    python: str
    python_path: Sequence[str] = ()
    packages: Callable[[Sequence[str]], Mapping[str, Package]] | None = None
    _built: dict[tuple[str, ...], Overlay] = field(default_factory=dict)

    def of(self, order: LaunchOrder) -> Overlay | None:
        """The overlay of this launch's patches, None without any. Raises LaunchFailed (rejected before the start) when a hunk
        does not fit or the overlay would not be what is imported."""
        if not order.patches:
            return None
        if order.patches not in self._built:
            try:
                self._built[order.patches] = self._build(order.patches)
            except PatchFailed as failed:
                raise LaunchFailed(_refusal(str(failed))) from failed
        return self._built[order.patches]

    def _build(self, names: tuple[str, ...]) -> Overlay:
        folders = patch_folders(config_folder().parent)
        sets = [load_patch_set(name, folders) for name in names]
        target = self.folder / "-".join(f"{item.name}-{item.digest[:12]}" for item in sets)
        packages = None
        if self.packages is not None:
            packages = self.packages(sorted({"sglang", *(hunk.package for item in sets for part in item.parts for hunk in part.hunks)}))
        overlay = build_overlay(self.python, sets, target, packages=packages, python_path=self.python_path, links=self.packages is None)
        proof = verify_overlay(self.python, overlay, python_path=self.python_path)
        if not proof.ok:
            raise PatchFailed(f"the overlay would not be what the engine imports: {'; '.join(proof.problems)}")
        return overlay


def _refusal(sentence: str) -> Failure:
    return Failure(
        kind="patch_does_not_fit",
        confidence=1.0,
        line=sentence,
        cause="a hunk of the patch does not match this engine exactly once",
        remedy="`action=audit` shows where the gates are in the installed source; add a file for this version range to the patch set",
        refused_at="resolve",
        stage="patch",
    )
