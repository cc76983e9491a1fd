"""A publisher that is killed leaves whole versions, and the next one goes on.

tools/crashtest_versions.py kills more of them.
"""

from killed_publisher import KilledPublisher


def test_a_killed_publisher_leaves_whole_versions(tmp_path):
    counts = KilledPublisher(tmp_path, 7).kill(20)
    assert counts["kills"] == 20
    assert counts["kills that left a hidden folder"] > 0
