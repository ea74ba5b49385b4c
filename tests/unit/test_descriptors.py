"""Are all descriptors used that the system allows, and are some kept for what is not HTTP?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestrix import file_descriptors

ASKED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
from orchestrix import file_descriptors
print(file_descriptors.limit(), file_descriptors.raise_limit(), file_descriptors.raise_limit())
"""


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    said = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True, timeout=30).stdout
    assert said == "64 200 200\n"


@pytest.mark.parametrize(
    ("limit", "pool", "wanted", "found"),
    [
        (128, 10, None, 44),
        (128, 10, 1000, 44),
        (128, 10, 20, 20),
        (1024, 10, None, 768),
        (1024, 200, None, 560),
        (65536, 10, None, 10_000),
        (65536, 10, 30_000, 30_000),
        (64, 10, None, 8),
    ],
)
def test_http_leaves_room_for_the_rest(limit: int, pool: int, wanted: int | None, found: int) -> None:
    assert file_descriptors.for_http(limit, pool, wanted) == found
