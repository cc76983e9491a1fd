"""Every block of code in the pages is run, or checked in another way."""

import os
import pathlib
import pkgutil
import re
import shlex
import shutil

import pytest

from http_server import free_port
from page_code import (
    PAGES,
    ROOT,
    blocks,
    packages,
    program,
    promised,
    run_here,
    run_program,
)

BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN = [page for page in PAGES if program(page)]
# Their programs are run by scripts/test-hosts, which has the packages.
WITH_HOSTS = {"docs/hosts.md"}


@pytest.fixture(scope="module")
def path_with_command(tmp_path_factory, command):
    """Returns a PATH in which the command is found by its name."""
    tools = tmp_path_factory.mktemp("bin")
    (tools / "haulway").symlink_to(pathlib.Path(command).resolve())
    return f"{tools}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def workbench(tmp_path_factory, path_with_command):
    """Returns the folder of docs/workbench.md after the page's program ran
    there."""
    folder = tmp_path_factory.mktemp("workbench")
    run_program("docs/workbench.md", folder, PATH=path_with_command)
    return folder


@pytest.fixture
def place(tmp_path, path_with_command, monkeypatch):
    """Returns an empty folder; the command is found by its name."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setenv("PATH", path_with_command)
    # The variables that torchrun sets for a group of one.
    for name, value in {"RANK": "0", "WORLD_SIZE": "1",
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    return folder


@pytest.mark.parametrize("page", RUN)
def test_pages_run(page, place):
    if page == "README.md":  # The README's commands need a clone.
        shutil.copytree(ROOT / "testdata", place / "testdata")
    said = run_program(page, place).splitlines()
    for block in filter(run_here, blocks(page)):
        for line in promised(block.text):
            assert line in said, (page, line, said)


def lines_of_commands():
    """Returns (page, line) of commands in blocks without output."""
    for block in BLOCKS:
        if block.page != "docs/cli.md" and block.language in ("", "sh", "yaml"):
            for line in re.findall(r"^(?: *- |\$ )?(haulway .*)$", block.text,
                                   re.MULTILINE):
                yield block.page, line


@pytest.mark.parametrize("page, line", [*lines_of_commands()])
def test_commands_are_understood(page, line, run, monkeypatch, place, request):
    """Runs in a copy of the workbench's folder if the line is from that page.
    The pages' servers do not exist; the command's findings are not checked
    here."""
    for name, value in {"AWS_ENDPOINT_URL": "http://127.0.0.1:9",
                        "AWS_ACCESS_KEY_ID": "key",
                        "AWS_SECRET_ACCESS_KEY": "secret",
                        "https_proxy": "http://127.0.0.1:9",
                        "HAULWAY_LOAD_RETRIES": "0"}.items():
        monkeypatch.setenv(name, value)
    if page == "docs/workbench.md":
        folder = request.getfixturevalue("workbench")
        shutil.copytree(folder, place, dirs_exist_ok=True)
    words = shlex.split(re.split(r" [|>]", line)[0])[1:]
    done = run(*words, cwd=place, code=None)
    assert done.returncode not in (4, 130), done.stderr


def checked(block):
    """Returns how a block is checked; None if it is not."""
    if run_here(block):
        return "run by test_pages_run"
    if block.language == "python" and block.page in WITH_HOSTS:
        return packages(block.text) and "run by scripts/test-hosts"
    if block.language in ("cpp", "c"):
        # The README's blocks are built by cmake/consumer_test.
        made = re.match(r"<!-- examples/[\w.]+( \w+)? -->$", block.before)
        return (made or block.page == "README.md") and "by tools/make_docs.py"
    if block.language == "cmake":
        project = (ROOT / "cmake/consumer_test/CMakeLists.txt").read_text()
        return all(line.partition("(")[0] in project
                   for line in block.text.splitlines()) and "by name"
    if block.language == "toml":
        import tomllib  # Python 3.10 has no tomllib.

        (points,) = tomllib.loads(block.text)["project"]["entry-points"].values()
        return all(map(pkgutil.resolve_name, points.values())) and "by name"
    if block.language in ("", "sh", "yaml"):
        return "its commands, by test_commands_are_understood"
    return None


def test_every_block_is_checked():
    assert len(BLOCKS) > 60
    assert [block[:3] for block in BLOCKS if not checked(block)] == []


def test_code_is_not_hidden_from_these_tests():
    """An indented program without a fence would be."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(),
                      flags=re.DOTALL | re.MULTILINE)
        found = re.findall(r"^    (?:import|from \w+ import|with .*:$).*", text,
                           re.MULTILINE)
        assert found == [], page


def test_what_prints_is_compared(tmp_path):
    assert promised("print(1)    # 1\n    print(2)  # two\nx = 3  # no\n") == [
        "1", "two"]
