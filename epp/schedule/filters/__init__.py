"""Filters: which endpoints may serve a request."""

from typing import Any

from epp.schedule.filters.attribute import EndpointAttributeFilter
from epp.schedule.filters.labels import ByLabelFilter, ByLabelSelectorFilter, LabelSelectorFilter
from epp.schedule.filters.prefix_affinity import PrefixCacheAffinityFilter
from epp.schedule.filters.roles import DecodeFilter, EncodeFilter, PrefillFilter
from epp.schedule.filters.session import SessionAffinityFilter
from epp.schedule.filters.testing import HeaderBasedTestingFilter
from epp.schedule.filters.topology import TopologyAffinityFilter
from epp.schedule.filters.utilization import UtilizationFilter

FILTERS: tuple[type[Any], ...] = (
    LabelSelectorFilter,
    ByLabelSelectorFilter,
    ByLabelFilter,
    EncodeFilter,
    PrefillFilter,
    DecodeFilter,
    PrefixCacheAffinityFilter,
    SessionAffinityFilter,
    UtilizationFilter,
    EndpointAttributeFilter,
    TopologyAffinityFilter,
    HeaderBasedTestingFilter,
)
