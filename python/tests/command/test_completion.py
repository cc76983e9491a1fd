"""haulway completion: verbs, options and their values in shells."""

import os
import re
import resource
import subprocess

import pytest


def completed(command, *words):
    """Returns what bash offers for the last of these words."""
    script = f"""
source <("{command}" completion bash)
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_haulway
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    told = subprocess.run(["bash", "-c", script, "-", *words],
                          capture_output=True, text=True, check=True)
    assert not told.stderr
    return told.stdout.split()


def test_bash_completes_verbs_and_options(command):
    assert completed(command, "haulway", "con") == ["convert"]
    assert completed(command, "haulway", "convert", "--sh") == ["--shard"]
    assert completed(command, "haulway", "plan", "--sl") == ["--slice"]
    assert completed(command, "haulway", "info", "--keyf") == ["--keyfile"]
    assert completed(command, "haulway", "info", "--header") == ["--header"]
    assert completed(command, "haulway", "ls", "mod") == []


def test_bash_knows_every_option_of_the_help(command, run):
    for verb in completed(command, "haulway", ""):
        if verb.startswith("-"):
            continue
        told = run(verb, "--help").stdout
        listed = re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", told, re.MULTILINE)
        assert listed
        offered = completed(command, "haulway", verb, "--")
        assert set(listed) <= set(offered), verb
        assert len(offered) == len(set(offered)), verb


VALUES = [
    (["convert", "--to", "saf"], ["safetensors"]),
    (["convert", "--dtype", "bf"], ["bf16"]),
    (["bulk", "convert", "x", "--to", "gg"], ["gguf"]),
    (["bulk", "ver"], ["verify"]),
    (["delta", "wr"], ["write"]),
    (["delta", "write", "--encoding", ""], ["xor", "overwrite"]),
    (["sign", "--hash", "bl"], ["blake2b", "blake3"]),
    (["plan", "m.pt", "--replicas", "f"], ["first"]),
    (["completion", "f"], ["fish"]),
    (["ls", "m.pt", "--rules", "s"], ["stack-experts", "split-experts"]),
    (["ls", "m.pt", "--rules", "./r"], []),
    (["convert", "m.pt", "saf"], []),
]


@pytest.mark.parametrize("words, expected", VALUES)
def test_bash_completes_values(command, words, expected):
    assert completed(command, "haulway", *words) == expected


def test_every_closed_list_is_offered(command, run):
    """The words of an option that refuses others."""
    for verb in completed(command, "haulway", ""):
        if verb.startswith("-"):
            continue
        told = run(verb, "--help").stdout
        for flag, words in re.findall(
                r"^ +(?:-\w,)?(--[a-z-]+) \S+:\{([^}]+)\}", told, re.MULTILINE):
            assert completed(command, "haulway", verb, flag, "") == words.split(",")
        for flag in re.findall(r"^ +(?:-\w,)?(--[a-z-]+) WORD\b", told, re.MULTILINE):
            assert completed(command, "haulway", verb, flag, ""), (verb, flag)


def test_bash_falls_back_on_names_of_files(command):
    told = subprocess.run(
        ["bash", "-c", f'source <("{command}" completion bash); complete -p'],
        capture_output=True, text=True, check=True)
    assert "-o default" in told.stdout


def test_zsh_and_fish_are_told_the_same(run):
    zsh, bash = run("completion", "zsh").stdout, run("completion", "bash").stdout
    # Every shell gets the same words for each verb.
    offered = re.findall(r"^ +([\w|-]+\)) words='(.*)' ;;$", bash, re.MULTILINE)
    assert len(offered) > 15
    assert offered == re.findall(r"^ +([\w|-]+\)) compadd -- (.*) ;;$", zsh,
                                 re.MULTILINE)
    # The form in which zsh loads a file from its fpath.
    assert zsh.startswith("#compdef haulway\n")
    fish = run("completion", "fish").stdout.splitlines()
    values = re.findall(r"^ +('.*'\)) words='(.*)' ;;$", bash, re.MULTILINE)
    assert len(values) > 20
    assert values == re.findall(r"^ +('.*'\)) compadd -- (.*?)(?:; _files)? ;;$", zsh,
                                re.MULTILINE)
    # A preset of rules, or a file.
    assert "compadd -- stack-experts split-experts gguf-to-hf; _files ;;" in zsh
    assert " -l rules -r -a 'stack-experts split-experts gguf-to-hf'" in "\n".join(fish)
    lists = {words for _, words in values}
    assert lists == set(re.findall(r" -a '(.*?)'", "\n".join(fish)))
    assert all(line.startswith("complete -c haulway -n ") for line in fish)
    assert ("complete -c haulway -n '__fish_seen_subcommand_from convert' "
            "-l shard -r -d ") in "\n".join(fish)
    assert "ksh not in" in run("completion", "ksh", code=4).stderr




@pytest.mark.parametrize("shell,variable,place", [
    ("bash", "XDG_DATA_HOME", "bash-completion/completions/haulway"),
    ("zsh", "XDG_DATA_HOME", "zsh/site-functions/_haulway"),
    ("fish", "XDG_CONFIG_HOME", "fish/completions/haulway.fish"),
])
def test_a_text_is_installed_where_the_shell_looks(
        shell, variable, place, run, tmp_path):
    text = run("completion", shell).stdout
    default = {"XDG_DATA_HOME": ".local/share", "XDG_CONFIG_HOME": ".config"}
    home, named = tmp_path / "home", tmp_path / "named"
    for folder, environment in (
        (home / default[variable], {}), (named, {variable: str(named)}),
    ):
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), **environment}
        for _ in range(2):  # The second time over existing files.
            done = run("completion", shell, "--install", env=environment)
            assert done.stdout == f"{folder / place}\n"
            assert (folder / place).read_text() == text
    assert ("fpath=" in done.stderr) == (shell == "zsh")
    (tmp_path / "file").touch()
    done = run("completion", shell, "--install", code=2,
               env={**environment, variable: str(tmp_path / "file")})
    assert "cannot create the folder" in done.stderr

    def no_bytes():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = run("completion", shell, "--install", code=2, preexec_fn=no_bytes,
               env={**environment, variable: str(tmp_path / "new/folder")})
    assert "File too large (errno 27)" in done.stderr
    assert not (tmp_path / "new").exists()
