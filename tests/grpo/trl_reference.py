"""TRL's own loss code, run on chosen log-probabilities.

``_compute_loss`` of ``GRPOTrainer`` (or ``RLOOTrainer``) is called on a stand-in trainer that answers every question
the method asks of ``self``; the log-probabilities come in where the trainer would run its model. Nothing of the loss
is rewritten here. ``python tests/grpo/trl_reference.py`` (with torch and TRL installed) writes the golden file.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "trl_losses.npz"
MAX_LENGTH = 16


def cases() -> dict[str, dict[str, Any]]:
    """Every setting the comparison covers, by name."""
    table = {}
    for aggregation, beta, importance in itertools.product(
        ("grpo", "bnpo", "dr_grpo", "dapo"), (0.0, 0.04), ("token", "sequence")
    ):
        table[f"{aggregation}-beta{beta}-{importance}"] = {
            "aggregation": aggregation,
            "beta": beta,
            "importance": importance,
            "epsilon_low": 0.2,
            "epsilon_high": 0.28,
        }
    base = table["grpo-beta0.04-token"]
    table["on-policy"] = base | {"without_old": True}
    table["rollout-token"] = base | {"rollout": "token"}
    table["rollout-sequence"] = base | {"rollout": "sequence"}
    for beta, importance in itertools.product((0.0, 0.04), ("token", "sequence")):
        # TRL's epsilon_high bounds the weight itself, and it has no lower bound.
        table[f"cispo-beta{beta}-{importance}"] = base | {
            "aggregation": "dapo",
            "beta": beta,
            "importance": importance,
            "surrogate": "cispo",
            "epsilon_low": 1.0,
            "epsilon_high": 0.28,
        }
    table["rloo"] = base | {"trainer": "RLOO", "beta": 0.0, "importance": "product"}
    return table


def random_inputs(seed: int = 0, rows: int = 12, length: int = 9) -> dict[str, np.ndarray]:
    """Log-probabilities far enough apart that both sides of the clip are active, lengths from 1 up."""
    rng = np.random.default_rng(seed)
    new = -rng.exponential(1.0, (rows, length))
    lengths = np.concatenate([[1, length], rng.integers(1, length + 1, rows - 2)])
    return {
        "new": new.astype(np.float32),
        "old": (new + rng.normal(0, 0.4, new.shape)).astype(np.float32),
        "reference": (new + rng.normal(0, 0.5, new.shape)).astype(np.float32),
        "rollout_logprobs": (new + rng.normal(0, 0.6, new.shape)).astype(np.float32),
        "advantages": rng.normal(0, 1, rows).astype(np.float32),
        "lengths": lengths.astype(np.int32),
    }


def trl_loss(inputs: dict[str, np.ndarray], case: dict[str, Any]) -> dict[str, np.ndarray]:
    """TRL's loss, its gradient with respect to ``new`` and its metrics, in float64."""
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.rloo_trainer import RLOOTrainer

    def tensor(name: str) -> Any:
        return torch.tensor(inputs[name], dtype=torch.float64)

    new = tensor("new").requires_grad_()
    lengths = torch.tensor(inputs["lengths"])
    mask = (torch.arange(new.shape[1]) < lengths[:, None]).long()
    batch = {
        "prompt_ids": torch.zeros(len(new), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(new), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": tensor("advantages"),
        "ref_per_token_logps": tensor("reference"),
        "num_items_in_batch": mask.sum(),
    }
    if not case.get("without_old"):
        batch["old_per_token_logps"] = tensor("old")
    batch["old_logps"] = (tensor("old") * mask).sum(1)
    if case.get("rollout"):
        difference = (tensor("old") - tensor("rollout_logprobs")) * mask
        if case["rollout"] == "sequence":
            difference = difference.sum(-1, keepdim=True)
        batch["importance_sampling_ratio"] = torch.clamp(torch.exp(difference), max=1.5)
    cispo = case.get("surrogate") == "cispo"
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (new, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=case["importance"],
        beta=case["beta"],
        loss_type="cispo" if cispo else case["aggregation"],
        epsilon_low=case["epsilon_low"],
        epsilon_high=case["epsilon_high"] + cispo,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        use_vllm=bool(case.get("rollout")),
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_LENGTH,
        accelerator=SimpleNamespace(
            num_processes=1,
            gather=lambda x: x,
            gather_for_metrics=lambda x: x,
            reduce=lambda x, reduction: x,
            sync_gradients=True,
        ),
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    source = RLOOTrainer if case.get("trainer") == "RLOO" else GRPOTrainer
    loss = source._compute_loss(trainer, None, batch)
    loss.backward()
    metrics = trainer._metrics["train"]
    return {
        "loss": loss.detach().numpy(),
        "gradient": new.grad.numpy(),
        "clip_low": np.asarray(0.0 if cispo else metrics["clip_ratio/low_mean"][0]),
        "clip_high": np.asarray(metrics["cispo_clip_ratio" if cispo else "clip_ratio/high_mean"][0]),
        "kl": np.asarray(metrics["kl"][0] if case["beta"] else 0.0),
    }


def write_golden() -> None:
    inputs = random_inputs()
    arrays = {f"inputs/{name}": value for name, value in inputs.items()}
    for name, case in cases().items():
        for key, value in trl_loss(inputs, case).items():
            arrays[f"{name}/{key}"] = value.astype(np.float32)
    GOLDEN.parent.mkdir(exist_ok=True)
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    write_golden()
