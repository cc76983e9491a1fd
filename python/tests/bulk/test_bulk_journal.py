"""The journal of haulway.bulk: what a continued run skips."""

import errno
import fcntl
import json
import os
import shutil

import pytest
import torch

import haulway
from bulk_files import add_faults, make_files


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "run.jsonl"


def run(inputs, journal, verb="verify", **options):
    seen = []
    report = haulway.bulk(
        verb, inputs, journal=journal, each=lambda one: seen.append(one["input"]),
        **options)
    assert len(seen) == len(set(seen)) == report.inputs
    assert sorted(seen) == sorted(one["input"] for one in report.results())
    return report


def lines(journal):
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_a_second_run_does_nothing_again(tmp_path, journal):
    paths = make_files(tmp_path / "in", 50)
    first = run(tmp_path / "in", journal)
    assert (first.done, first.skipped) == (50, 0)
    second = run(tmp_path / "in", journal)
    assert (second.done, second.skipped, second.bytes) == (0, 50, first.bytes)
    assert len(lines(journal)) == 51  # Includes the head line.
    assert sorted(map(str, first.results())) == sorted(map(str, second.results()))
    # New inputs are added.
    assert run([*paths, *make_files(tmp_path / "more", 2)], journal).done == 2


def test_changed_files_are_done_again(tmp_path, journal):
    paths = make_files(tmp_path / "in", 4)
    run(paths, journal)
    os.utime(paths[0], ns=(1, 1))
    with open(paths[1], "ab") as file:
        file.write(b"x")
    os.remove(paths[2])
    report = run(paths, journal)
    assert (report.done, report.skipped, report.failed) == (2, 1, 1)
    assert report.exit == 2


def test_failed_inputs_are_tried_again(tmp_path, journal):
    paths = make_files(tmp_path / "in", 2)
    os.rename(paths[0], paths[0] + ".away")
    assert run(paths, journal).failed == 1
    os.rename(paths[0] + ".away", paths[0])
    report = run(paths, journal)
    assert (report.done, report.skipped, report.failed) == (1, 1, 0) and report


def test_findings_of_an_earlier_run_count(tmp_path, journal):
    paths = make_files(tmp_path / "in", 2)
    with open(paths[0], "r+b") as file:
        file.truncate(300)
    assert run(tmp_path / "in", journal).exit == 1
    report = run(tmp_path / "in", journal)
    assert report.skipped == 2 and report.exit == 1


@pytest.mark.parametrize("torn", [1, 20, 200])
def test_a_torn_last_line_is_done_again(tmp_path, journal, torn):
    make_files(tmp_path / "in", 5)
    run(tmp_path / "in", journal)
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-torn])
    report = run(tmp_path / "in", journal)
    assert report.done + report.skipped == 5 and 1 <= report.done <= 2
    assert len(lines(journal)) == 6


@pytest.mark.parametrize("line", ['{"input":"half' + "\0" * 20,
                                  '{"input":' + "[" * 100_000])
def test_a_torn_line_in_the_middle_hides_no_other(tmp_path, journal, line):
    make_files(tmp_path / "in", 5)
    run(tmp_path / "in", journal)
    text = journal.read_text().splitlines(keepends=True)
    text[2] = f"{line}\n"
    journal.write_text("".join(text))
    report = run(tmp_path / "in", journal)
    assert (report.done, report.skipped) == (1, 4)


def test_every_prefix_of_a_journal_is_one(tmp_path, journal):
    make_files(tmp_path / "in", 3)
    run(tmp_path / "in", journal, engine="local", jobs=1)
    whole = journal.read_bytes()
    head = whole.index(b"\n")
    for size in [*range(head + 2), *range(head + 2, len(whole), 331)]:
        journal.write_bytes(whole[:size])
        report = run(tmp_path / "in", journal, jobs=1)
        assert report.done + report.skipped == 3 and report
        assert report.skipped == max(whole[:size].count(b"\n") - 1, 0)


def test_a_journal_is_of_one_verb_and_its_options(tmp_path, journal):
    make_files(tmp_path / "in", 1)
    run(tmp_path / "in", journal)
    with pytest.raises(haulway.Error, match="a run with another verb"):
        run(tmp_path / "in", journal, "scan")
    with pytest.raises(haulway.Error, match="a run with another options"):
        run(tmp_path / "in", journal, options={"lenient": True})
    run(tmp_path / "in", journal, options={"retries": 1})


def test_a_journal_is_of_the_content_of_adapters_and_rules(tmp_path, journal):
    (tmp_path / "in").mkdir()
    haulway.save({"a.weight": torch.zeros(2, 2)}, tmp_path / "in/m.pt")
    adapter, rules = tmp_path / "adapter", tmp_path / "rules.json"
    adapter.mkdir()
    config = adapter / "adapter_config.json"
    weights = adapter / "adapter_model.safetensors"
    config.write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    rules.write_text(json.dumps({"rules": [{"rename": ["^a", "b"]}]}))

    def write(value):
        haulway.save({f"base_model.model.a.lora_{name}.weight": tensor
                      for name, tensor in (("A", torch.ones(1, 2)),
                                           ("B", torch.full((2, 1), value)))},
                     weights)

    write(1.0)
    options = {"to": "safetensors", "out": tmp_path / "out", "rules": rules}
    for lora in ([(adapter, 0.5)], [(weights, 0.5)]):
        journal.unlink(missing_ok=True)
        options["lora"] = lora
        assert run(tmp_path / "in", journal, "convert", options=options).done == 1
        assert run(tmp_path / "in", journal, "convert", options=options).skipped == 1
        for path, change in ((weights, lambda: write(2.0)),
                             (config, lambda: config.write_text(
                                 config.read_text() + " ")),
                             (rules, lambda: rules.write_text(
                                 rules.read_text() + " "))):
            change()
            with pytest.raises(haulway.InvalidArgumentError,
                               match=f"another stamp of '{path}'"):
                run(tmp_path / "in", journal, "convert", options=options)
            journal.unlink()
            assert run(tmp_path / "in", journal, "convert", options=options).done


def test_a_journal_says_only_whether_there_was_a_key(tmp_path, journal):
    make_files(tmp_path / "in", 1)
    run(tmp_path / "in", journal, options={"key": bytes(32)})
    assert "0000" not in journal.read_text()
    run(tmp_path / "in", journal, options={"key": bytes(31) + b"1"})
    # Without the key, less is checked.
    with pytest.raises(haulway.Error, match="a run with another options"):
        run(tmp_path / "in", journal)


def test_other_files_are_not_taken_for_journals(tmp_path, journal):
    for text in ("{}\n", "[]\n", "name,size\n", '{"haulway_bulk": 2}\n',
                 "one line without an end", '{"haulway_bulk":2,"verb"'):
        journal.write_text(text)
        with pytest.raises(haulway.Error, match="is not a journal"):
            run(tmp_path, journal)
        assert journal.read_text() == text


def test_a_journal_has_one_run_at_a_time(tmp_path, journal):
    make_files(tmp_path / "in", 1)
    with open(journal, "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(haulway.Error, match="in use by another run"):
            run(tmp_path / "in", journal)
    assert run(tmp_path / "in", journal)


def test_a_run_that_is_refused_leaves_the_journal_free(tmp_path, journal):
    make_files(tmp_path / "in", 1)
    run(tmp_path / "in", journal)
    with pytest.raises(haulway.Error) as kept:
        run(tmp_path / "in", journal, "scan")
    assert run(tmp_path / "in", journal).skipped == 1
    assert kept.value.__traceback__ is not None


def test_a_journal_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(haulway.Error, match="is not a regular file"):
        run(tmp_path, "/dev/null")


def test_lines_that_are_no_records_are_ignored(tmp_path, journal):
    make_files(tmp_path / "in", 2)
    run(tmp_path / "in", journal)
    head, *records = journal.read_text().splitlines(keepends=True)
    strange = ["5\n", "[]\n", '{"input":5}\n', head,
               records[0].replace('"result":{', '"result":5,"x":{'),
               '{"input":"x"}\n']
    journal.write_text("".join([head, *strange, *records]))
    assert run(tmp_path / "in", journal).skipped == 2


@pytest.mark.parametrize("error", ["ENOSYS", "ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_will_do(
    tmp_path, journal, monkeypatch, error
):
    def flock(*_):
        raise OSError(getattr(errno, error), "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    make_files(tmp_path / "in", 1)
    assert run(tmp_path / "in", journal).done == 1


def test_outputs_that_were_removed_are_written_again(tmp_path, journal):
    make_files(tmp_path / "in", 2)
    options = {"to": "safetensors", "out": tmp_path / "out"}
    run(tmp_path / "in", journal, "convert", options=options)
    os.remove(tmp_path / "out/model-001.safetensors")
    report = run(tmp_path / "in", journal, "convert", options=options)
    assert (report.done, report.skipped) == (1, 1)
    assert len(os.listdir(tmp_path / "out")) == 2


def test_outputs_of_a_folder_that_was_renamed_are_written_again(
    tmp_path, journal
):
    make_files(tmp_path / "in", 2)
    options = {"to": "safetensors", "out": tmp_path / "out"}
    run(tmp_path / "in", journal, "convert", options=options)
    os.rename(tmp_path / "in", tmp_path / "other")
    make_files(tmp_path / "in", 1)
    report = run(tmp_path / "other", journal, "convert", options=options)
    assert (report.done, report.failed) == (2, 0)
    # The output is not that of this input any more.
    report = run(tmp_path / "in", journal, "convert", options=options)
    assert (report.done, report.skipped) == (1, 0)
    # Two inputs of one run have no common output, whatever was done before.
    report = run([tmp_path / "in", tmp_path / "other"], journal, "convert",
                 options=options)
    assert (report.failed, report.skipped) == (1, 2)


def test_outputs_among_the_inputs_are_no_inputs(tmp_path, journal):
    make_files(tmp_path / "in", 3)
    _, kept, _ = make_files(tmp_path / "in", 3, ".safetensors")
    for other in (0, 2):
        os.remove(tmp_path / f"in/model-00{other}.safetensors")
    before = open(kept, "rb").read()
    options = {"to": "safetensors", "out": tmp_path / "in"}
    for done, skipped in ((2, 0), (0, 2)):
        report = run(tmp_path / "in", journal, "convert", options=options)
        assert (report.done, report.skipped, report.failed) == (
            done, skipped, 2)
        assert {one["input"]: one["error"]["message"] for one in report.results()
                if one["error"]} == dict.fromkeys(
            [kept, kept.replace("safetensors", "pt")],
            f"output {kept!r} is there already, in the folder that is "
            "converted: expected another folder")
    assert open(kept, "rb").read() == before
    # A glob takes only what it matches.
    report = haulway.bulk("convert", f"{tmp_path}/in/*.pt", options=options)
    assert (report.done, report.failed) == (3, 0)


def test_a_folder_of_outputs_in_a_listed_folder_holds_no_inputs(
    tmp_path, monkeypatch
):
    make_files(tmp_path / "in/a", 3)
    monkeypatch.chdir(tmp_path)
    for inputs, out in (("in", "in/new"), (".", "in/new"),
                        (f"{tmp_path}/in", f"file://{tmp_path}/in/new/"),
                        ("**", "in/new")):
        for _ in range(2):
            report = haulway.bulk(
                "convert", inputs, options={"to": "safetensors", "out": out})
            assert (report.inputs, report.failed) == (3, 0), out
    # It can be converted itself.
    report = haulway.bulk(
        "convert", "in/new", options={"to": "npz", "out": "in/new"})
    assert report.done >= 3 and report.failed == 0


def test_names_that_are_no_text_return(tmp_path, journal):
    folder = os.fsencode(tmp_path / "in")
    (path,) = make_files(tmp_path / "in", 1)
    os.rename(path, folder + b"/\xff.pt")
    run(tmp_path / "in", journal)
    assert run(tmp_path / "in", journal).skipped == 1


def test_what_killed_workers_is_tried_again(tmp_path, journal, monkeypatch):
    (path,) = make_files(tmp_path / "in", 1)
    shutil.copy(path, tmp_path / "in/killer.pt")
    with monkeypatch.context() as patch:
        add_faults(tmp_path / "faults", patch)
        assert run(tmp_path / "in", journal).failed == 1
    report = run(tmp_path / "in", journal)
    assert (report.done, report.skipped) == (1, 1) and report
