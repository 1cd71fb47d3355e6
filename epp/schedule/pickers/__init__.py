"""Pickers: the choice among scored endpoints."""

from typing import Any

from epp.schedule.pickers.best import MaxScorePicker
from epp.schedule.pickers.random import RandomPicker, WeightedRandomPicker

PICKERS: tuple[type[Any], ...] = (MaxScorePicker, RandomPicker, WeightedRandomPicker)
