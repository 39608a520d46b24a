"""Order of the tests: files with one long test come first, so that no worker waits for the other at the end (make test runs two)."""

import pytest

LONG = ("test_chaos_short", "test_simulated_night", "test_decide_sim", "test_ray.py", "analysis/test_nightly", "test_report.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((place for place, name in enumerate(LONG) if name in item.nodeid), len(LONG)))
