"""Descriptors: the process takes all that it may have."""

from __future__ import annotations

import resource

from epp.process.descriptors import raise_limit


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
