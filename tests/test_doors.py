"""The review of what is open to others, as a test: nothing of the product runs text as code, loads code from data, or listens for
anybody but this machine. What must be otherwise stands in EXCEPTIONS with its reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.records.paths import RootPaths, safe_name

REPOSITORY = Path(__file__).resolve().parents[1]
PRODUCT = sorted((REPOSITORY / "runner").rglob("*.py"))

CALLS = {
    "eval": "runs text",
    "exec": "runs text",
    "__import__": "imports by text",
    "os.system": "a shell",
    "os.popen": "a shell",
    "subprocess.getoutput": "a shell",
    "subprocess.getstatusoutput": "a shell",
    "asyncio.create_subprocess_shell": "a shell",
    "yaml.load": "makes objects from a file",
    "yaml.load_all": "makes objects from a file",
    "yaml.full_load": "makes objects from a file",
    "yaml.unsafe_load": "makes objects from a file",
    "torch.load": "unpickles",
    "pandas.read_pickle": "unpickles",
    "pd.read_pickle": "unpickles",
    "tempfile.mktemp": "a name that somebody else can take",
}
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "commands", "pty", "telnetlib"}
KEYWORDS = {"shell": True, "allow_pickle": True, "verify": False, "trust_remote_code": True}
OPEN_HOSTS = {"0.0.0.0", "::", "*"}
EXCEPTIONS = {
    ("engines/ports.py", "0.0.0.0"): "binds for a moment, without listening, to see whether somebody listens for everybody",
}


def findings(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """(what, line, why) of everything that is forbidden in one file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS:
                yield called, node.lineno, CALLS[called]
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg in KEYWORDS and isinstance(value, ast.Constant) and value.value is KEYWORDS[keyword.arg]:
                    yield f"{keyword.arg}={value.value}", node.lineno, "switches a protection off"
            if called.endswith((".bind", "create_server", "HTTPServer", "start_server")) and _first_is_every_host(node):
                yield "''", node.lineno, "listens on every interface"
            if called.startswith("subprocess.") and node.args and isinstance(node.args[0], (ast.JoinedStr, ast.Constant)):
                yield called, node.lineno, "a command as one text"
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in names:
                if name.split(".")[0] in MODULES:
                    yield name, node.lineno, "runs or unpickles what others wrote"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in OPEN_HOSTS - {"*"}:
            yield node.value, node.lineno, "every interface"


def _first_is_every_host(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    host = first.elts[0] if isinstance(first, ast.Tuple) and first.elts else first
    return isinstance(host, ast.Constant) and host.value in {"", *OPEN_HOSTS}


def test_no_file_of_the_product_opens_a_door() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {what}: {why}"
        for path in PRODUCT
        for what, line, why in findings(ast.parse(path.read_text(encoding="utf-8")))
        if (str(path.relative_to(REPOSITORY / "runner")), what) not in EXCEPTIONS
    ]
    assert found == []


def test_every_exception_is_still_needed() -> None:
    seen = {
        (str(path.relative_to(REPOSITORY / "runner")), what)
        for path in PRODUCT
        for what, _, _ in findings(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert set(EXCEPTIONS) <= seen


@pytest.mark.parametrize(
    "text",
    [
        "eval(text)",
        "subprocess.run(f'ls {x}')",
        "subprocess.run(['ls'], shell=True)",
        "import pickle",
        "from pickle import load",
        "yaml.load(file)",
        "requests.get(url, verify=False)",
        "socket.create_server(('', 80))",
        "sock.bind(('0.0.0.0', 80))",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_review_sees_each_kind(text: str) -> None:
    assert list(findings(ast.parse(text)))


def test_the_shell_lines_of_the_makefile_listen_on_loopback_only() -> None:
    lines = [line for line in (REPOSITORY / "Makefile").read_text().splitlines() if "--host" in line]
    assert lines and all("--host 127.0.0.1" in line for line in lines)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "..", ".", "", "a/../../b", "a\0b", "~root", "-rf", "con\n..", "…/x", "." * 300]
)
def test_names_from_user_text_stay_below_the_results_root(name: str, tmp_path: Path) -> None:
    root = RootPaths(tmp_path / "mlruns")
    study = root.study(name)
    launch = study.launch(name)
    files = [study.plan, study.journal, launch.server_log, launch.requests(name), launch.telemetry(name), launch.profile(name)]
    for path in files:
        resolved = path.resolve()
        assert resolved.is_relative_to(root.studies.resolve()), f"{name!r} leads to {resolved}"
        assert resolved != root.studies.resolve()
    assert safe_name(name) and not safe_name(name).startswith((".", "-"))
