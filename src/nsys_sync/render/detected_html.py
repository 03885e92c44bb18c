"""The report of `detect` as one self-contained page without scripts, in the style of the page of `html`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from nsys_sync.render import actions, detected
from nsys_sync.render.html import environment
from nsys_sync.render.text import count, plain_name

if TYPE_CHECKING:
    from nsys_sync.model import Detection

ROWS = 500
"""Sites that are listed: a page stays below 2 MB."""
_TEMPLATES = Path(__file__).parent / "templates"


def render_detected_html(detection: Detection) -> str:
    """The whole page."""
    hidden = len(detection.sites) - ROWS
    notes = detected.detected_notes(detection)
    if hidden > 0:
        notes.append(f"{count(hidden, 'site is', 'sites are')} not listed here. The JSON report has them.")
    causes = detected.detected_causes(detection)
    return (
        environment()
        .get_template("detection.html.j2")
        .render(
            detection=detection,
            headline=detected.detected_headline(detection),
            title=plain_name(detection.program, 80),
            notes=notes,
            verdicts=detected.detected_verdicts(detection),
            rows=[
                (rank, site, detected.detected_what(site, causes))
                for rank, site in enumerate(detection.sites[:ROWS], 1)
            ],
            groups=detected.advice_groups(detection, ROWS),
            place=detected.detected_place,
            source=lambda site: actions.source_text(site) or "",
            style=Markup((_TEMPLATES / "report.css").read_text("utf-8")),
        )
    )
