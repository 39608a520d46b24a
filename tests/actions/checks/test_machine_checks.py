"""Host, ports, engine, Ray, store, client, lock and leftovers: each good and each bad state."""

import fcntl
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.actions.checks.facts import HostFacts
from runner.actions.checks.host import check_host, check_ports
from runner.actions.checks.leftovers import check_leftovers, check_lock, is_locked
from runner.actions.checks.software import check_client, check_engine, check_ray, check_store
from runner.errors import UserError
from runner.loadgen.base import ClientBroken
from runner.records.schema import EngineIdentity
from runner.spec.engine import EngineSpec
from runner.spec.study import ExecutionSpec, TrackingSpec
from tests.actions.checks.example import one, states

GB = 10**9
FIT = {
    "cores": 32,
    "load_1m": 0.5,
    "memory_total": 512 * GB,
    "memory_available": 400 * GB,
    "disks": {"results": ("/r", 200 * GB), "compile caches": ("/c", 200 * GB), "shared memory": ("/dev/shm", 64 * GB)},
    "governors": ["performance"],
    "tools": {"gcc": True, "ninja": True},
}


def test_a_fit_host() -> None:
    assert states(check_host(HostFacts(**FIT), real=True)) == {"ok"}


@pytest.mark.parametrize(
    ("changes", "state", "check"),
    [
        ({"cores": 2}, "warn", "cores"),
        ({"load_1m": 30.0}, "warn", "cores"),
        ({"memory_available": 8 * GB}, "warn", "memory"),
        ({"memory_available": GB // 2}, "fail", "memory"),
        ({"disks": {"results": ("/r", GB // 2)}}, "fail", "disk"),
        ({"disks": {"shared memory": ("/dev/shm", GB // 2)}}, "warn", "disk"),
        ({"governors": ["powersave"]}, "warn", "CPU governor"),
        ({"tools": {"gcc": False}}, "warn", "compilers"),
    ],
)
def test_an_unfit_host(changes: dict[str, Any], state: str, check: str) -> None:
    assert one(check_host(HostFacts(**{**FIT, **changes}), real=True), state).check == check


@pytest.mark.parametrize(
    ("ports", "free", "state"),
    [
        ((21000, 21999), True, "ok"),
        ((33000, 34000), True, "fail"),
        ((32000, 33000), True, "warn"),
        ((21000, 21999), False, "fail"),
        ((900, 800), True, "fail"),
    ],
)
def test_ports(ports: tuple[int, int], free: bool, state: str) -> None:
    assert states(check_ports(ports, (32768, 60999), lambda port: free)) == {state}


def identity(version: str) -> Callable[[], EngineIdentity]:
    return lambda: EngineIdentity(kind="sglang", version=version, build="b", python="/p", packages={"torch": "2.11"})


def no_engine() -> EngineIdentity:
    raise UserError("engine.python=/p: this interpreter has no sglang")


def test_engine() -> None:
    spec = EngineSpec()
    assert "torch 2.11" in one(check_engine(spec, "sglang", identity("0.5.15.post1"), ">=0.5.9,<0.5.24"), "ok").text
    assert states(check_engine(spec, "sglang", identity("0.9.0"), ">=0.5.9,<0.5.24")) == {"warn"}
    assert "no sglang" in one(check_engine(spec, "sglang", no_engine, ">=0"), "fail").text
    assert "SIMULATED" in one(check_engine(spec, "simulated", no_engine, ">=0"), "warn").text


def refuses(address: str) -> None:
    raise UserError(f"{address}: nothing answers there")


def test_ray(tmp_path: Path) -> None:
    ray = ExecutionSpec()
    absent = tmp_path / "none"
    assert states(check_ray("2.60.0", ray, {}, refuses, absent)) == {"ok"}
    assert states(check_ray(None, ray, {}, refuses, absent)) == {"fail"}
    assert states(check_ray(None, ExecutionSpec(executor="inline"), {}, refuses, absent)) == {"ok"}
    cluster = ExecutionSpec.model_validate({"ray": {"address": "h:6379"}})
    assert states(check_ray("2.60.0", cluster, {}, refuses, absent)) == {"fail"}
    assert states(check_ray("2.60.0", cluster, {}, lambda address: None, absent)) == {"ok"}
    assert states(check_ray("2.60.0", ray, {"RAY_ADDRESS": "auto"}, refuses, absent)) == {"warn"}
    (tmp_path / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert one(check_ray("2.60.0", ray, {}, refuses, tmp_path / "ray_current_cluster"), "warn").text.startswith("10.0.0.1:6379")


def test_store(tmp_path: Path) -> None:
    database, tracking = tmp_path / "mlflow.db", TrackingSpec()
    assert "will be made" in one(check_store(database, tracking, "3.17", lambda uri: None), "ok").text
    database.write_text("this is no database, and long enough to be taken for a damaged one" * 20)
    assert "action=track" in one(check_store(database, tracking, "3.17", lambda uri: None), "fail").remedy
    database.unlink()
    with sqlite3.connect(database) as store:
        store.execute("create table runs (id)")
        store.execute("insert into runs values (1)")
    store.close()
    assert "with 1 runs" in one(check_store(database, tracking, "3.17", lambda uri: None), "ok").text
    remote = TrackingSpec(uri="http://server:5000")
    assert "ConnectionError" in one(check_store(database, remote, "3.17", lambda uri: "ConnectionError"), "warn").text
    assert states(check_store(database, remote, "3.17", lambda uri: None)) == {"ok"}
    assert states(check_store(database, tracking, None, lambda uri: None)) == {"fail"}
    assert states(check_store(database, TrackingSpec(enabled=False), None, lambda uri: None)) == {"ok"}


def test_client() -> None:
    def breaks() -> tuple[float, bool, str, float]:
        raise ClientBroken("no answer")

    assert "100,000 chunks/s" in one(check_client(lambda: (1e5, True, "", 0.2)), "ok").text
    assert "too late" in one(check_client(lambda: (1e5, False, "too late", 9.0)), "warn").text
    assert states(check_client(breaks)) == {"fail"}


def test_lock_is_seen_without_being_taken(tmp_path: Path) -> None:
    path = tmp_path / "node.lock"
    assert is_locked(path) is False
    with open(path, "w") as file:
        assert is_locked(path) is False
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(path) is True
        fcntl.flock(file, fcntl.LOCK_UN)
        assert is_locked(path) is False
    assert "study s" in one(check_lock(True, "study s", "/f"), "fail").text
    assert states(check_lock(False, "", "/f")) == {"ok"} and states(check_lock(None, "", "/f")) == {"warn"}


def test_leftovers() -> None:
    assert "study a runs" in one(check_leftovers(["a"], {}), "ok").text
    found = one(check_leftovers([], {"dead": ["pid 7 (sglang)"]}), "fail")
    assert "pid 7" in found.text and "action=clean" in found.remedy
