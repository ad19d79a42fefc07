"""The public PyTorch model on the parity cases; ``python -m tests.qwen3_vl.make_goldens`` writes the golden
files.

Needs torch. The golden files hold its answers, so that the default tests need neither.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.qwen3_vl import parity_cases as cases
from vcap_jax.models.qwen3_vl import published
from vcap_jax.models.qwen3_vl.config import Qwen3VLConfig

GOLDEN = Path(__file__).parent / "golden"


def golden_file(model: str) -> Path:
    return GOLDEN / f"{model}.npz"


def torch_model(config: Any, arrays: dict[str, np.ndarray] | None = None) -> Any:
    """The public model with our configuration, of any family, on the meta device unless weights are given."""
    import torch
    import transformers

    values = config.to_dict()
    public = transformers.AutoConfig.for_model(**values)
    public._attn_implementation = "eager"
    architecture = getattr(transformers, values["architectures"][0])
    if arrays is None:
        with torch.device("meta"):
            return architecture(public)
    model = architecture(public).float().eval()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - {"lm_head.weight" if config.tie_word_embeddings else ""}:
        raise AssertionError(f"names differ from the public model's: {missing=} {unexpected=}")
    model.tie_weights()
    return model


def torch_inputs(prompts: list[cases.RawPrompt]) -> dict[str, Any]:
    """Keyword arguments of the public model for prompts padded on the right."""
    import torch

    width = max(len(prompt.tokens) for prompt in prompts)

    def pad(rows: list[np.ndarray]) -> Any:
        return torch.tensor(np.stack([np.pad(row, (0, width - len(row))) for row in rows])).long()

    inputs = {
        "input_ids": pad([prompt.tokens for prompt in prompts]),
        "attention_mask": pad([np.ones(len(prompt.tokens)) for prompt in prompts]),
        "mm_token_type_ids": pad([prompt.types for prompt in prompts]),
    }
    for key, grid, media in (
        ("pixel_values", "image_grid_thw", [medium for prompt in prompts for medium in prompt.images]),
        ("pixel_values_videos", "video_grid_thw", [medium for prompt in prompts for medium in prompt.videos]),
    ):
        if media:
            inputs[key] = torch.from_numpy(
                np.concatenate([cases.normalised(patches) for patches, _ in media])
            )
            inputs[grid] = torch.tensor([size for _, size in media])
    if len(inputs) == 3:  # without media the public model counts positions itself
        del inputs["mm_token_type_ids"]
    return inputs


def reference(name: str) -> dict[str, np.ndarray]:
    """``answers_of`` for one of ``MODELS``."""
    config = cases.MODELS[name]
    return answers_of(torch_model(config, cases.weights(config, seed=1)), config)


def answers_of(model: Any, config: Any) -> dict[str, np.ndarray]:
    """All answers of the public model.

    positions/CASE [3, P], logits/CASE [P, vocabulary], generated/CASE [NEW_TOKENS] for each prompt,
    logits/batch for all of them padded together, loss and gradient/TENSOR for the batch.
    """
    import torch

    raw = {case: cases.raw_prompt(case, config) for case in cases.PROMPTS}
    out: dict[str, np.ndarray] = {}
    for case, prompt in raw.items():
        inputs = torch_inputs([prompt])
        if prompt.order:
            media = {k: v for k, v in inputs.items() if not k.startswith("pixel")}
            positions = model.model.get_rope_index(**media)[0][:, 0].numpy()
        else:
            positions = np.tile(np.arange(len(prompt.tokens)), (3, 1))
        out[f"positions/{case}"] = positions
        model.model.rope_deltas = None
        with torch.no_grad():
            out[f"logits/{case}"] = model(**inputs).logits[0].numpy()
            model.model.rope_deltas = None
            tokens = model.generate(
                **inputs, max_new_tokens=cases.NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        out[f"generated/{case}"] = tokens[0, len(prompt.tokens) :].numpy()
    model.model.rope_deltas = None
    inputs = torch_inputs(list(raw.values()))
    logits = model(**inputs).logits
    out["logits/batch"] = logits.detach().numpy()
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels.reshape(-1))
    loss.backward()
    out["loss"] = loss.detach().numpy()
    for tensor, parameter in model.named_parameters():
        out[f"gradient/{tensor}"] = parameter.grad.numpy()
    return out


def condense(answers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a golden file keeps: gradients as sketches and norms, the batch's logits at one position in
    five.
    """
    kept = {}
    for key, value in answers.items():
        kind, _, tensor = key.partition("/")
        if kind == "gradient":
            kept[f"sketch/{tensor}"] = cases.sketch(tensor, value)
            kept[f"norm/{tensor}"] = np.float32(np.linalg.norm(value))
        elif key == "logits/batch":
            kept[key] = value[:, ::5]
        else:
            kept[key] = value
    return kept


def pack(answers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Join the many small gradient entries, which an npz would store as a file each."""
    names = sorted(key.removeprefix("norm/") for key in answers if key.startswith("norm/"))
    packed = {key: value for key, value in answers.items() if not key.startswith(("norm/", "sketch/"))}
    packed["gradient_names"] = np.array(json.dumps(names))
    packed["gradient_norms"] = np.stack([answers[f"norm/{name}"] for name in names])
    packed["gradient_sketches"] = np.stack([answers[f"sketch/{name}"] for name in names])
    return packed


def load(name: str) -> dict[str, np.ndarray]:
    """A golden file, in the form of ``condense``."""
    return load_file(golden_file(name))


def load_file(path: Path) -> dict[str, np.ndarray]:
    """The golden file at ``path``."""
    with np.load(path) as file:
        answers = dict(file)
    names = json.loads(str(answers.pop("gradient_names")))
    norms, sketches = answers.pop("gradient_norms"), answers.pop("gradient_sketches")
    for tensor, norm, row in zip(names, norms, sketches, strict=True):
        answers[f"norm/{tensor}"], answers[f"sketch/{tensor}"] = norm, row
    return answers


PUBLISHED_FILE = GOLDEN / "published_shapes.json"


def public_shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the public model's checkpoint, allocating nothing."""
    model = torch_model(config)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    return shapes


def by_layers(shapes: dict[str, tuple[int, ...]]) -> dict[str, list[list[int]]]:
    """Join the layers: name with ``*`` for the layer -> [numbers of the layers, shape]."""
    joined: dict[str, list[list[int]]] = {}
    for name, shape in shapes.items():
        pattern, layer = name, re.search(r"\.(\d+)\.", name)
        if layer:
            pattern = name[: layer.start()] + ".*." + name[layer.end() :]
        layers, known = joined.setdefault(pattern, [[], list(shape)])
        if known != list(shape):
            raise ValueError(f"{name}: {shape} where other layers have {known}")
        if layer:
            layers.append(int(layer[1]))
    return {pattern: [_span(sorted(layers)), shape] for pattern, (layers, shape) in sorted(joined.items())}


def _span(layers: list[int]) -> list[int]:
    """[first, last] of consecutive numbers; [] of none."""
    if layers and layers != list(range(layers[0], layers[-1] + 1)):
        raise ValueError(f"layers are not consecutive: {layers}")
    return [layers[0], layers[-1]] if layers else []


def load_published() -> dict[str, dict[str, list[list[int]]]]:
    return json.loads(PUBLISHED_FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    table = {
        size: by_layers(public_shapes(Qwen3VLConfig.from_dict(values)))
        for size, values in published.CONFIGS.items()
    }
    PUBLISHED_FILE.write_text(json.dumps(table) + "\n", encoding="utf-8")
    for model_name in cases.MODELS:
        np.savez_compressed(golden_file(model_name), **pack(condense(reference(model_name))))
        print(golden_file(model_name), golden_file(model_name).stat().st_size, "bytes")
