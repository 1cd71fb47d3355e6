"""Collects the tests that need a browser only where there is one, and says so where there is none."""

from __future__ import annotations

import pytest

from tests.support.browser import BROWSER, NAMES

NEEDS_BROWSER = "test_page_in_browser.py"

collect_ignore = [] if BROWSER else [NEEDS_BROWSER]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not BROWSER:
        terminalreporter.section("NOT TESTED: the live page in a browser", red=True, bold=True)
        terminalreporter.line(
            f"tests/integration/{NEEDS_BROWSER} was left out: none of {', '.join(NAMES)} is on the "
            "path; install Chromium, or name one by EPP_BROWSER"
        )
