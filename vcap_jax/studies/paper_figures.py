"""The paper's own figures for rows of our tables, to stand beside them: per cent, its benchmarks, its model of 8B."""

from __future__ import annotations

from collections.abc import Mapping

from vcap_jax.world.scenes import Modality

HEADINGS: Mapping[tuple[str, Modality], str] = {
    ("main", "image"): "paper, Table 1: CapMAS Coverage, Factuality; DeCap Recall, Precision",
    ("main", "video"): "paper, Table 2: VCapsBench AR, IR (less is better); VDC Avg",
    ("distillation", "image"): "paper, Table 3: CapMAS Coverage, Factuality; DeCap Recall, Precision",
    ("ablations", "image"): "paper, Table 5: CapMAS Coverage, Factuality; DeCap Recall, Precision",
    ("ablations", "video"): "paper, Table 7: VCapsBench AR, IR (less is better); VDC Avg",
}

_BASE = "71.30, 76.25; 55.61, 82.73"
_E1 = "73.95, 81.48; 58.83, 87.80"
_E2 = "74.18, 86.42; 60.92, 86.42"

_ROWS: Mapping[tuple[str, Modality], Mapping[str, str]] = {
    ("main", "image"): {"base": _BASE, "e1": _E1, "e2": _E2},
    ("main", "video"): {
        "base": "63.28, 11.77; 30.78",
        "e1": "71.34, 14.01; 35.21",
        "e2": "72.15, 13.67; 36.01",
    },
    ("distillation", "image"): {
        "base": _BASE,
        "from_self": "71.09, 77.02; 54.95, 80.98",
        "e1": _E1,
        "from_e1": "73.00, 84.37; 58.56, 86.50",
        "e2": _E2,
        "from_e2": "73.71, 86.29; 59.75, 86.22",
    },
    ("ablations", "image"): {
        "base": _BASE,
        "e1": _E1,
        "no_reference": "70.24, 76.27; 53.24, 85.80",
        "no_image": "73.77, 81.37; 56.45, 86.87",
        "no_correctness": "73.34, 76.03; 58.64, 86.96",
        "no_completeness": "72.94, 80.98; 55.26, 87.91",
        "no_text_quality": "74.18, 81.00; 58.60, 87.43",
    },
    ("ablations", "video"): {
        "base": "63.28, 11.77; 33.76",
        "e1": "71.34, 14.01; 35.43",
        "no_reference": "65.75, 12.94; 33.97",
        "no_correctness": "69.14, 13.21; 35.26",
        "no_completeness": "69.41, 12.16; 34.69",
        "no_text_quality": "70.73, 12.53; 35.29",
        "no_local": "70.94, 12.81; 35.18",
    },
}


def paper_row(study: str, modality: Modality, row: str) -> str | None:
    """The paper's figures for a row of ours, in the order that ``HEADINGS`` says; None where it has none."""
    return _ROWS.get((study, modality), {}).get(row)
