"""haulway completion: verbs and options in shells."""

import re
import subprocess


def completed(command, *words):
    """What bash offers for the last of these words."""
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


def test_bash_falls_back_on_names_of_files(command):
    told = subprocess.run(
        ["bash", "-c", f'source <("{command}" completion bash); complete -p'],
        capture_output=True, text=True, check=True)
    assert "-o default" in told.stdout


def test_zsh_and_fish_are_told_the_same(run):
    zsh, bash = run("completion", "zsh").stdout, run("completion", "bash").stdout
    assert zsh == "autoload -Uz bashcompinit && bashcompinit\n" + bash
    fish = run("completion", "fish").stdout.splitlines()
    assert all(line.startswith("complete -c haulway -n ") for line in fish)
    assert ("complete -c haulway -n '__fish_seen_subcommand_from convert' "
            "-l shard -r -d ") in "\n".join(fish)
    assert "ksh not in" in run("completion", "ksh", code=4).stderr


