"""A prefix cache in blocks of 16 tokens: a chain of hashes instead of a radix tree, least recently used blocks go first."""

from collections.abc import Sequence

BLOCK = 16


class PrefixCache:
    """Counts in tokens. A block with references is locked; only the others can be evicted."""

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._locked: dict[int, int] = {}
        self._idle: dict[int, None] = {}

    @property
    def evictable(self) -> int:
        return len(self._idle) * BLOCK

    @property
    def locked(self) -> int:
        return len(self._locked) * BLOCK

    def match(self, ids: Sequence[int]) -> list[int]:
        """Hashes of the leading blocks that are cached; at least one token of `ids` is always left to compute."""
        found: list[int] = []
        if not self.enabled or not (self._idle or self._locked):
            return found
        chain = 0
        for start in range(0, len(ids) - BLOCK, BLOCK):
            chain = hash((chain, *ids[start : start + BLOCK]))
            if chain not in self._locked and chain not in self._idle:
                break
            found.append(chain)
        return found

    def lock(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._idle.pop(block, None)
            self._locked[block] = self._locked.get(block, 0) + 1

    def unlock(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            left = self._locked.get(block, 0) - 1
            if left > 0:
                self._locked[block] = left
            elif left == 0:
                del self._locked[block]
                self._idle[block] = None

    def insert(self, ids: Sequence[int], held: Sequence[int]) -> list[int]:
        """Locks the whole blocks of `ids`, of which `held` (a beginning) are locked already; gives the further ones."""
        if not self.enabled:
            return []
        chain = held[-1] if held else 0
        further: list[int] = []
        for start in range(len(held) * BLOCK, len(ids) - BLOCK + 1, BLOCK):
            chain = hash((chain, *ids[start : start + BLOCK]))
            further.append(chain)
        self.lock(further)
        return further

    def evict(self, tokens: int) -> int:
        """Frees at least `tokens` tokens if there are so many; gives how many were freed."""
        freed = 0
        while freed < tokens and self._idle:
            del self._idle[next(iter(self._idle))]
            freed += BLOCK
        return freed

    def clear(self) -> None:
        """Forgets everything that no live request holds."""
        self._idle.clear()
