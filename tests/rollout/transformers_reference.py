"""transformers' own logits processors, in the order its generation loop applies them.

``python tests/rollout/transformers_reference.py`` (with torch installed) writes the golden file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "processed_scores.npz"

CASES: dict[str, dict[str, Any]] = {
    "paper": {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "repetition_penalty": 1.05},
    "all": {"temperature": 0.7, "top_p": 0.8, "top_k": 12, "repetition_penalty": 1.3},
    "top-k": {"temperature": 1.3, "top_p": 1.0, "top_k": 5, "repetition_penalty": 1.0},
    "top-p": {"temperature": 0.9, "top_p": 0.6, "top_k": 0, "repetition_penalty": 1.0},
    "tiny-top-p": {"temperature": 1.0, "top_p": 1e-4, "top_k": 0, "repetition_penalty": 0.8},
    "one": {"temperature": 2.0, "top_p": 0.9, "top_k": 1, "repetition_penalty": 1.1},
    "plain": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0},
    "beyond-vocabulary": {"temperature": 1.0, "top_p": 0.95, "top_k": 500, "repetition_penalty": 1.05},
}
BANNED = (3, 7, 90)


def random_inputs(seed: int = 0, rows: int = 24, vocab: int = 97, history: int = 15) -> dict[str, np.ndarray]:
    """Logits, half of the rows with many ties (rounded, as bfloat16 logits are), and seen tokens."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, vocab))
    logits[rows // 2 :] = np.round(logits[rows // 2 :] * 8) / 8
    logits[rows * 3 // 4 :] = np.round(logits[rows * 3 // 4 :])
    logits[-1] = 1.0
    return {"logits": logits.astype(np.float32), "history": rng.integers(0, vocab, (rows, history))}


def processed(inputs: dict[str, np.ndarray], case: dict[str, Any], banned: tuple[int, ...]) -> np.ndarray:
    """What ``generate`` would hand to its softmax: [rows, vocab], -inf where a token cannot be drawn."""
    import torch
    from transformers.generation import (
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        SuppressTokensLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    chain = LogitsProcessorList()
    if case["repetition_penalty"] != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]))
    if banned:
        chain.append(SuppressTokensLogitsProcessor(list(banned)))
    if case["temperature"] != 1:
        chain.append(TemperatureLogitsWarper(case["temperature"]))
    if case["top_k"]:
        chain.append(TopKLogitsWarper(case["top_k"]))
    if case["top_p"] < 1:
        chain.append(TopPLogitsWarper(case["top_p"]))
    return chain(torch.tensor(inputs["history"]), torch.tensor(inputs["logits"])).numpy()


def write_golden() -> None:
    inputs = random_inputs()
    arrays = dict(inputs)
    for name, case in CASES.items():
        for banned in ((), BANNED):
            arrays[f"{name}/{len(banned)}"] = processed(inputs, case, banned)
    GOLDEN.parent.mkdir(exist_ok=True)
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    write_golden()
