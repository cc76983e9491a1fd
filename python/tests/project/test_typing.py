"""The stubs are correct and complete."""

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
RIGHT = ("user_program.py", "every_name.py")
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
    code, said = mypy(cache, *(str(PROGRAMS / name) for name in RIGHT))
    assert code == 0, said
    path = PROGRAMS / "wrong_program.py"
    code, said = mypy(cache, str(path))
    found = re.findall(r"wrong_program.py:(\d+): error", said)
    assert sorted(set(map(int, found))) == wrong_lines(path), said
    assert len(wrong_lines(path)) >= 40


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

    for name in RIGHT:
        found, said = check(PROGRAMS / name)
        assert not found, said
    wrong = PROGRAMS / "wrong_program.py"
    found, said = check(wrong)
    assert found == wrong_lines(wrong), said


def test_stubs_are_what_the_package_is(cache, tmp_path):
    # Private modules are compared through the modules that export their names.
    allowed = tmp_path / "allowed.txt"
    allowed.write_text(
        "haulway\\.(.*\\.)?_(?!_init__).*\n"
        # Classes and functions of the extension are not of Python's own types.
        "haulway\\.Format(\\.__init__)?\nhaulway\\.formats\n"
    )
    settings = ["[mypy]", "ignore_missing_imports = True"]
    for path in STUBS.rglob("*.py"):
        inside = path.relative_to(STUBS).with_suffix("").parts
        if any(part.startswith("_") for part in inside[:-1]) or (
            inside[-1].startswith("_") and inside[-1] != "__init__"
        ):
            settings += [f"[mypy-{'.'.join(('haulway', *inside))}]",
                         "ignore_errors = True"]
    (tmp_path / "mypy.ini").write_text("\n".join(settings))
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "haulway",
         # Only some versions of Python tell which classes are disjoint bases.
         "--ignore-missing-stub", "--ignore-disjoint-bases",
         "--allowlist", str(allowed),
         "--ignore-unused-allowlist",
         "--mypy-config-file", str(tmp_path / "mypy.ini")],
        cwd=cache, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def declared():
    """Returns names of functions, classes, methods and attributes that programs
    use."""
    for stub in STUBS.rglob("*.pyi"):
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                yield node.name
            if not isinstance(node, ast.ClassDef):
                continue
            hidden = "type_check_only" in map(ast.unparse, node.decorator_list)
            if not hidden:
                yield node.name
                yield from members(node)


def members(node):
    for member in node.body:
        if isinstance(member, ast.FunctionDef):
            yield member.name
        elif isinstance(member, ast.AnnAssign):
            yield ast.unparse(member.target)


def test_the_programs_use_every_public_name():
    used = set()
    for name in RIGHT:
        for node in ast.walk(ast.parse((PROGRAMS / name).read_text())):
            for field in "id", "attr", "arg", "name":
                used.add(getattr(node, field, None))
    missing = {name for name in declared() if not name.startswith("_")} - used
    assert not missing


def test_stubs_declare_every_public_name():
    stub = (STUBS / "__init__.pyi").read_text()
    for name in haulway.__all__:
        assert re.search(rf"^(?:def|class) {name}\b|^{name}: ", stub, re.M), name


def overloads(stub, call, argument):
    """Returns ({words}, names of options) of each overload of a call that names
    a format; {None} if the overload leaves it out."""
    tree = ast.parse(stub)
    classes = {node.name: node for node in tree.body
               if isinstance(node, ast.ClassDef)}
    aliases = {node.target.id: node.value for node in tree.body
               if isinstance(node, ast.AnnAssign)}

    def fields(name):
        node = classes[name]
        return {ast.unparse(one.target) for one in node.body
                if isinstance(one, ast.AnnAssign)}.union(*(
                    fields(ast.unparse(base)) for base in node.bases
                    if ast.unparse(base) in classes))

    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == call:
            (one,) = [a for a in node.args.args if a.arg == argument]
            words = {
                part.value
                for named in ast.walk(one.annotation)
                for part in ast.walk(aliases.get(getattr(named, "id", ""), named))
                if isinstance(part, ast.Constant)
            }
            options = ast.unparse(node.args.kwarg.annotation)
            yield words, fields(re.fullmatch(r"Unpack\[(\w+)\]", options)[1])


@pytest.mark.parametrize(("call", "argument"), [
    ("save", "format"), ("save_async", "format"), ("convert", "to"),
    ("writer", "format"),
])
def test_each_format_takes_the_options_of_its_rows(call, argument):
    rows = _options.writing_of(call)
    found = dict.fromkeys(one.name for one in haulway.formats())
    for words, options in overloads(
        (STUBS / "__init__.pyi").read_text(), call, argument
    ):
        for word in words - {None}:
            found[word] = options & rows.keys()
    for format, options in found.items():
        try:
            haulway._haulway.format_to_write_by_name(format)
        except haulway.Error:
            assert options is None, format
        else:
            assert options == {
                name for name, option in rows.items()
                if option.formats is None or format in option.formats
            }, format


def test_the_words_of_options_are_those_of_the_stub():
    """The stub lists the words that an option accepts."""
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
