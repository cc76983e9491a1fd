"""What type checkers know of the package is true, and enough (F48)."""

import ast
import json
import pathlib
import re
import subprocess
import sys

import pytest

import haulway
from haulway import _options

PROGRAMS = pathlib.Path(__file__).parents[1] / "typed"
STUBS = pathlib.Path(haulway.__file__).parent


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


def mypy(cache, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache),
         "--disable-error-code", "type-arg", *arguments],
        cwd=cache, capture_output=True, text=True,
    )
    return done.returncode, done.stdout + done.stderr


def wrong_lines(path):
    return [
        number
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("# wrong")
    ]


def test_mypy_passes_a_users_program_and_finds_mistakes(cache):
    code, said = mypy(cache, str(PROGRAMS / "user_program.py"))
    assert code == 0, said
    path = PROGRAMS / "wrong_program.py"
    code, said = mypy(cache, str(path))
    found = re.findall(r"wrong_program.py:(\d+): error", said)
    assert sorted(set(map(int, found))) == wrong_lines(path), said


def test_pyright_passes_a_users_program_and_finds_mistakes(tmp_path):
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({
        "typeCheckingMode": "strict",
        "reportMissingTypeArgument": False,
        "reportUnknownParameterType": False,
        "reportUnknownVariableType": False,
        "reportUnknownMemberType": False,
        "reportUnknownArgumentType": False,
        "reportUnusedExpression": False,
        "reportMissingTypeStubs": False,
    }))

    def check(path):
        (tmp_path / path.name).write_text(path.read_text())
        done = subprocess.run(
            [sys.executable, "-m", "basedpyright", "--outputjson",
             "--pythonpath", sys.executable, path.name],
            cwd=tmp_path, capture_output=True, text=True,
        )
        told = json.loads(done.stdout)
        return sorted({
            item["range"]["start"]["line"] + 1
            for item in told["generalDiagnostics"]
            if item["severity"] == "error"
        }), done.stdout

    found, said = check(PROGRAMS / "user_program.py")
    assert not found, said
    wrong = PROGRAMS / "wrong_program.py"
    found, said = check(wrong)
    assert found == wrong_lines(wrong), said


def test_stubs_are_what_the_package_is(cache, tmp_path):
    # Modules of our own are compared through those that bring their names.
    allowed = tmp_path / "allowed.txt"
    allowed.write_text("haulway\\.(.*\\.)?_(?!_init__).*\n")
    settings = ["[mypy]", "ignore_missing_imports = True"]
    for path in STUBS.rglob("_*.py"):
        if path.name != "__init__.py":
            inside = path.relative_to(STUBS).with_suffix("").parts
            settings += [f"[mypy-{'.'.join(('haulway', *inside))}]",
                         "ignore_errors = True"]
    (tmp_path / "mypy.ini").write_text("\n".join(settings))
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "haulway",
         "--ignore-missing-stub", "--allowlist", str(allowed),
         "--ignore-unused-allowlist",
         "--mypy-config-file", str(tmp_path / "mypy.ini")],
        cwd=cache, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_words_of_options_are_those_of_the_stub():
    """An option that takes one of a few words takes those that checkers know."""
    stub = (STUBS / "__init__.pyi").read_text()
    compared = 0
    for options in _options.SECTIONS.values():
        for name, option in options.items():
            said = re.findall(
                rf"^ +{name}: Literal\[([^\]]+)\]", stub, re.M)
            for words in (ast.literal_eval(f"({one},)") for one in said):
                with pytest.raises(haulway.InvalidArgumentError) as refused:
                    option.check(name, "?")
                taken = re.findall(r"'([\w-]+)'(?= or|, found)",
                                   str(refused.value))
                assert set(words) == set(taken), name
                compared += 1
    assert compared >= 5
