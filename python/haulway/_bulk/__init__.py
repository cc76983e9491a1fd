"""haulway.bulk: one verb for any number of inputs, by many processes."""

# How: inputs are listed while they are worked on (inputs.py), and handed in
# batches to an engine (engines.py, local.py), never more than a window of them
# at a time. A worker (verbs.py) answers with one record for each input. The
# loop (run.py) appends every record to the journal (journal.py), whose index is
# a temporary database on disk, so memory does not grow with the inputs.
# command.py is the other half of cli/bulk.cc, report.py and progress.py are
# what it prints.
#
# concurrent.futures.ProcessPoolExecutor was left out as the default: when one
# of its workers is killed, all its futures fail, and none says by which signal.
