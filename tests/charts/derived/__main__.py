"""Write every file that follows from others and is not as it should be; print which."""

from __future__ import annotations

from tests.charts.derived.files import derived

for path, text in derived().items():
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        print(path)
