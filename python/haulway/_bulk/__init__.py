"""haulway.bulk: one verb for any number of inputs, by many processes."""

# Design: inputs are listed while the run goes on (inputs.py) and passed in batches
# to an engine (engines.py, local.py), at most a window of them at a time. A
# worker (verbs.py) returns one record per input. The loop (run.py) appends
# every record to the journal (journal.py), whose index is a temporary database
# on disk, so memory use does not grow with the number of inputs. command.py is
# the Python half of cli/bulk.cc; report.py and progress.py produce its output.
#
# concurrent.futures.ProcessPoolExecutor was left out as the default: if one of
# its workers is killed, all its futures fail, and none tells the signal.
