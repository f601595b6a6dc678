"""Why the way to a host was lost, in words to act on."""

from __future__ import annotations

import sys

import pytest

from ipcluster_core.relay import explain


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            {"why": "no word for 10 s", "how": "", "said": "", "was_ready": True},
            "host node2 was lost: no word for 10 s",
        ),
        (
            {"why": "end of file", "how": "exit code 255", "said": "Connection reset", "was_ready": True},
            "host node2 was lost: ssh ended: exit code 255: Connection reset",
        ),
        (
            {"why": "end of file", "how": "exit code 255", "said": "Permission denied", "was_ready": False},
            (
                "host node2 cannot be reached; does 'ssh -F c node2 true' work here, without a question? "
                "(ssh ended: exit code 255: Permission denied)"
            ),
        ),
        (
            {"why": "end of file", "how": "exit code 127", "said": "python: not found", "was_ready": False},
            (
                f"there is no {sys.executable} on host node2: an MPI set needs the same interpreter on each host "
                "(ssh ended: exit code 127: python: not found)"
            ),
        ),
        (
            {
                "why": "end of file",
                "how": "exit code 1",
                "said": "No module named ipcluster_core.outpost",
                "was_ready": False,
            },
            (
                f"{sys.executable} on host node2 lacks ipcluster-core: install it there, in the same place "
                "(ssh ended: exit code 1: No module named ipcluster_core.outpost)"
            ),
        ),
        (
            {"why": "no answer within 30 s", "how": "", "said": "", "was_ready": False},
            (
                "host node2 cannot be reached; does 'ssh -F c node2 true' work here, without a question? "
                "(no answer within 30 s)"
            ),
        ),
    ],
)
def test_each_way_to_lose_a_host_has_its_words(facts: dict[str, str | bool], text: str) -> None:
    """What ssh said last is in them."""
    assert explain("node2", ["ssh", "-F", "c"], **facts) == text  # type: ignore[arg-type]
