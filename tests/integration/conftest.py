"""Collects the tests that need a browser only where there is one."""

from __future__ import annotations

from tests.support.browser import BROWSER

collect_ignore = [] if BROWSER else ["test_page_in_browser.py"]
