"""The report of haulway.bulk()."""

from __future__ import annotations

from .._describing import public
from .verbs import VERBS


class BulkReport:
    """The report of a run; true if the exit code is 0. Made by bulk().

    verb: the verb.
    inputs: number of inputs.
    done: number of inputs that this run finished.
    skipped: number of inputs that an earlier run finished, according to the
        journal.
    failed: number of inputs with an error.
    bytes: sum of the sizes of all inputs.
    seconds: duration of the run.
    exit: the worst exit code of an input; 3 if there were no inputs.
    outcomes: a dict from each verdict to (number of inputs, their bytes).

    For one thread at a time. Methods raise OSError if the results cannot be
    read from the journal.
    """

    def __init__(self, verb, log):
        self._order = VERBS[verb].order
        self._log = log
        self.verb = verb
        self.inputs = self.done = self.skipped = self.failed = 0
        self.bytes, self.seconds = 0, 0.0
        self.outcomes = {}
        self._worst = -1

    def __bool__(self):
        return self.exit == 0

    def __repr__(self):
        fields = ", ".join(f"{k}={v!r}" for k, v in self.summary().items())
        return f"<haulway.BulkReport {fields}, exit={self.exit}>"

    @property
    def exit(self):
        """The worst exit code of an input; 3 if there were no inputs."""
        return 3 if self._worst < 0 else self._order[self._worst]

    def summary(self):
        """Returns the counts as a dict, as `haulway bulk --json` prints them."""
        return {
            name: getattr(self, name) for name in
            ("inputs", "done", "skipped", "failed", "bytes", "seconds")
        }

    def results(self):
        """Yields the result of each input."""
        return map(result_of, self._log.records())

    def _count(self, record, size, skipped):
        """Adds an input to the counts; called by bulk().

        record: the input's record in the journal.
        size: bytes of the input.
        skipped: whether an earlier run finished the input.
        """
        if skipped:
            self.skipped += 1
        elif record["error"] is not None:
            self.failed += 1
        else:
            self.done += 1
        self.bytes += size
        self._worst = max(self._worst, self._order.index(record["exit"]))
        outcome = outcome_of(self.verb, record)
        files, total = self.outcomes.get(outcome, (0, 0))
        self.outcomes[outcome] = files + 1, total + size


def result_of(record):
    """Returns the result of an input: its record without the journal's
    fields."""
    return {
        "input": record["input"], **(record["result"] or {}),
        "error": record["error"],
    }


_OF_VERIFY = {True: "OK", False: "FAILED", None: "not a checkpoint"}


def outcome_of(verb, record):
    """Returns the verdict on an input in a word or two."""
    if record["error"] is not None:
        return "error"
    if verb == "verify":
        return _OF_VERIFY[record["result"]["ok"]]
    return record["result"]["verdict"] if verb == "scan" else "OK"


public("haulway", BulkReport)
