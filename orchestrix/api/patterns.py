"""Patterns: which texts are taken, as the OpenAPI document says it; errors describe them in words."""

from __future__ import annotations

from typing import Final

_CONTROL: Final = r"\u0000-\u001f\u007f-\u009f"
VISIBLE: Final = f"^[^{_CONTROL}]*$"
NAME: Final = rf"^[^\s{_CONTROL}]([^{_CONTROL}]*[^\s{_CONTROL}])?$"
REASON: Final = rf"^[^{_CONTROL}]*[^\s{_CONTROL}][^{_CONTROL}]*$"
SPAN: Final = (
    r"^([1-9][0-9]{0,10}ms|[1-9][0-9]{0,7}(\.[0-9]{1,6})?s?|0\.[1-9][0-9]{0,5}s?|[1-9][0-9]{0,5}m|[1-9][0-9]{0,3}h"
    r"|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|36[0-4][0-9]|3650)d)$"
)
"""From 1 ms to 3650 days."""
INTERVAL: Final = (
    r"^([1-9][0-9]{3,10}ms|[1-9][0-9]{0,7}(\.[0-9]{1,3})?s?|[1-9][0-9]{0,5}m|[1-9][0-9]{0,3}h"
    r"|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|36[0-4][0-9]|3650)d)$"
)
"""From 1 s on, in whole milliseconds."""
JITTER: Final = r"^([1-9][0-9]{0,6}ms|[1-9][0-9]{0,3}s?|[1-9][0-9]{0,2}m|([1-9]|1[0-9]|2[0-4])h|1d)$"
"""From 1 ms to 1 day."""
ADDRESS: Final = (
    r"^[hH][tT][tT][pP][sS]?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)"
    r":([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
)
"""Scheme, host and port; which hosts there are is more than a pattern can say."""
DURATION: Final = r"^((60|[1-5]?[0-9])s?|[1-5]?[0-9]{1,4}ms)$"
"""At most 60 s."""
ASCII: Final = r"^[!-~]+$"
UNTOLD: Final = frozenset({VISIBLE, NAME, REASON, SPAN, INTERVAL, JITTER, ADDRESS, DURATION})
"""Those that a reader of an error would not understand."""
