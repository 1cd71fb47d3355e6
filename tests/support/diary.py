"""A picker that writes down how each request ended, as its observers hear it."""

from __future__ import annotations

from pathlib import Path

import msgspec

PLUGIN = Path(__file__).resolve().parents[1] / "data/plugins/ending_diary.py"
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: ending-diary
  parameters: {file: FILE}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}]
"""


class Ended(msgspec.Struct, frozen=True):
    """How one request ended; "-" is not known."""

    outcome: str
    status: str
    picked: str  #: ``host:port``
    served: str  #: ``host:port``
    model: str


class Diary:
    """Pass ``serve`` to `Stack`, and `read` what its picker wrote."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "endings"
        config = folder / "diary.yaml"
        config.write_text(CONFIG.replace("FILE", str(self._file)))
        self.serve = (f"--config-file={config}", f"--plugin-path={PLUGIN}")

    def read(self) -> list[Ended]:
        """All endings so far."""
        if not self._file.exists():
            return []
        return [Ended(*line.split(" ")) for line in self._file.read_text().splitlines()]
